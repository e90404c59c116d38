//go:build unix

package bench

import "golang.org/x/sys/unix"

// cpuSeconds returns the processor time used by the process.
func cpuSeconds() float64 {
	var r unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
}
