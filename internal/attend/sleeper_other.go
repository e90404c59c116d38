//go:build !linux

package attend

import "time"

type files struct{}

func (*files) open() bool        { return false }
func (*files) clear()            {}
func (*files) set(time.Duration) {}

func (*files) wait() (Outcome, bool) { return Paused, false }

// Add adds socket fd to the sockets that wake the Sleeper. It returns false if there is no room.
func (*files) Add(int) bool { return false }
