package main

import (
	"maps"
	"slices"
	"time"

	"viaduct/interop/internal/proc"
)

func (c *campaign) start(args ...string) (*proc.Process, error) {
	return proc.Start(c.ctx, c.bin, args...)
}

// serve starts the command with args that make it listen, and returns the address.
func (c *campaign) serve(args ...string) (*proc.Process, string, error) {
	p, err := c.start(args...)
	if err != nil {
		return nil, "", err
	}
	url, err := p.Listening()
	if err != nil {
		p.Kill()
		return nil, "", err
	}
	return p, url, nil
}

// again is serve for args with the address of a process that has just ended. again retries, because
// the system may not have closed the sockets of the ended process yet.
func (c *campaign) again(args ...string) (p *proc.Process, url string, err error) {
	for end := time.Now().Add(proc.Patience); ; time.Sleep(100 * time.Millisecond) {
		if p, url, err = c.serve(args...); err == nil || time.Now().After(end) || c.ctx.Err() != nil {
			return p, url, err
		}
	}
}

// do runs the command with args to the end.
func (c *campaign) do(args ...string) error {
	p, err := c.start(args...)
	if err != nil {
		return err
	}
	return p.Wait(proc.Patience)
}

func sorted(m map[string]int) []string { return slices.Sorted(maps.Keys(m)) }
