//go:build !linux

package sdp

import "time"

const canNap = false

func nap(time.Duration) {}
