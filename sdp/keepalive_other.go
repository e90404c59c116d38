//go:build !linux

package sdp

import "time"

func setKeepAlive(uintptr, bool) error                { return ErrUnsupported }
func setKeepAlivePeriod(uintptr, time.Duration) error { return ErrUnsupported }

func acknowledge(uintptr) {}
