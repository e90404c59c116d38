package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Busy measures for a tenth of a second the part of the machine's processor time used by other
// processes, 0 to 1. ok is false if the system does not report processor times.
func Busy() (part float64, ok bool) {
	busy0, all0, ok := procStat()
	if !ok {
		return 0, false
	}
	time.Sleep(100 * time.Millisecond)
	busy1, all1, ok := procStat()
	if !ok || all1 <= all0 {
		return 0, false
	}
	return (busy1 - busy0) / (all1 - all0), true
}

func procStat() (busy, all float64, ok bool) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, false
	}
	line, _, _ := strings.Cut(string(b), "\n")
	f := strings.Fields(line)
	if len(f) < 6 || f[0] != "cpu" {
		return 0, 0, false
	}
	for i, s := range f[1:] {
		v, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return 0, 0, false
		}
		all += v
		if i != 3 && i != 4 { // neither idle time nor I/O wait
			busy += v
		}
	}
	return busy, all, true
}

// Machine describes the machine in a line.
func Machine() string {
	cpu := "unknown processor"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				cpu = strings.TrimSpace(v)
				break
			}
		}
	}
	kernel := ""
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		kernel = ", Linux " + strings.TrimSpace(string(b))
	}
	congestion := ""
	if b, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control"); err == nil {
		congestion = ", " + strings.TrimSpace(string(b))
	}
	return fmt.Sprintf("%s%s%s", cpu, kernel, congestion)
}
