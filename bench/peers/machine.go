package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// machine returns a description of the machine without identifying data.
func machine() string {
	cpu := "unknown processor"
	virtual := ""
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		defer f.Close()
		s := bufio.NewScanner(f)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			k, v, _ := strings.Cut(s.Text(), ":")
			switch strings.TrimSpace(k) {
			case "model name":
				cpu = strings.TrimSpace(strings.NewReplacer("(R)", "", "(TM)", "", " Processor", "", " CPU", "").Replace(v)) // captions are short
			case "flags":
				if strings.Contains(v, " hypervisor") {
					virtual = ", virtual machine"
				}
			}
		}
	}
	kernel := ""
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		release, _, _ := strings.Cut(strings.TrimSpace(string(b)), "-")
		kernel = ", Linux " + release
	}
	return fmt.Sprintf("%s, %d processors%s%s, %s", cpu, runtime.NumCPU(), virtual, kernel, runtime.Version())
}

// busy returns the used fraction of the machine's processor time during d; 0 if the fraction is not
// known.
func busy(d time.Duration) float64 {
	idle0, total0 := cpuTimes()
	time.Sleep(d)
	idle1, total1 := cpuTimes()
	if total1 == total0 {
		return 0
	}
	return 1 - float64(idle1-idle0)/float64(total1-total0)
}

func cpuTimes() (idle, total uint64) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	for i, f := range strings.Fields(line)[1:] {
		var n uint64
		fmt.Sscan(f, &n)
		if i >= 8 {
			break // guest time is already in user time
		}
		total += n
		if i == 3 || i == 4 {
			idle += n
		}
	}
	return idle, total
}

// A calm waits before each round until the machine is quiet.
type calm struct {
	patience time.Duration // time that may still be waited in total
	loads    []float64     // the load that was found before each round
}

// quiet is the greatest fraction of used processor time on a quiet machine.
const quiet = 0.08

func (c *calm) wait() {
	for {
		b := busy(100 * time.Millisecond)
		if b <= quiet || c.patience <= 0 {
			c.loads = append(c.loads, b)
			return
		}
		c.patience -= 100 * time.Millisecond
	}
}

// verdict describes the load found before the rounds. ok is false if the figures cannot be trusted.
func (c *calm) verdict() (text string, ok bool) {
	noisy := 0
	worst := 0.0
	for _, l := range c.loads {
		if l > quiet {
			noisy++
		}
		worst = max(worst, l)
	}
	if noisy == 0 {
		return "The machine was quiet before every round.", true
	}
	return fmt.Sprintf("THE MACHINE WAS NOT QUIET: other programs used up to %.0f %% of the processors, more than %.0f %% before %d of %d rounds. Take ratios with care.",
		100*worst, 100*quiet, noisy, len(c.loads)), false
}
