//go:build linux && (amd64 || arm64)

package main

import (
	"fmt"
	"os/exec"
	"syscall"
	"time"
)

// busyLoops is the number of computing processes during a trial. The processes show faults that
// occur only if a process waits for a processor.
const busyLoops = 3

// besideBusyLoops returns a trial that repeats once for the time of -busy while busy loops run. The
// trial is skipped except for the user in a namespace, whose processes have the fewest rights over
// each other.
func besideBusyLoops(once func(*lab) error) func(*lab) error {
	return func(l *lab) error {
		if !l.apart {
			return skipped("made as the user in a namespace alone")
		}
		end, err := startBusyLoops()
		defer end()
		if err != nil {
			return err
		}
		sets := 0
		for begin := time.Now(); time.Since(begin) < l.busy || sets == 0; sets++ {
			if err := l.run(trial{run: once}); err != nil {
				return fmt.Errorf("after %d that passed: %w", sets, err)
			}
		}
		fmt.Printf("        %d sets beside %d busy loops\n", sets, busyLoops)
		return nil
	}
}

func startBusyLoops() (end func(), err error) {
	var loops []*exec.Cmd
	end = func() {
		for _, c := range loops {
			c.Process.Kill()
			c.Wait()
		}
	}
	for range busyLoops {
		c := exec.Command("sh", "-c", "while :; do :; done")
		c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := c.Start(); err != nil {
			return end, err
		}
		loops = append(loops, c)
	}
	return end, nil
}
