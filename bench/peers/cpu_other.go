//go:build !unix

package main

// cpuSeconds returns 0, because the system does not report processor time.
func cpuSeconds() float64 { return 0 }
