//go:build unix

package main

import "syscall"

// cpuSeconds returns the processor time of the process in seconds, 0 if the time is not known.
func cpuSeconds() float64 {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		return 0
	}
	return float64(ru.Utime.Nano()+ru.Stime.Nano()) / 1e9
}
