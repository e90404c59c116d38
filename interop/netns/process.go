//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"sync"
	"time"

	"viaduct/interop/internal/link"
)

// A host is a namespace with a worker process.
type host struct {
	*link.Port
	addr netip.Addr
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	errs bytes.Buffer
	mu   sync.Mutex // one job at a time
}

// hostAddr returns the address of the i-th host, from 0.
func hostAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 77, 0, byte(1 + i)}) }

// newHost adds a port to n and starts a worker in the port's namespace.
func newHost(ctx context.Context, n *link.Network, i, mtu int, seed uint64) (*host, error) {
	h := &host{addr: hostAddr(i)}
	var err error
	if h.Port, err = n.Add(h.addr, mtu, seed); err != nil {
		return nil, err
	}
	h.cmd = exec.CommandContext(ctx, "/proc/self/exe", "-worker")
	h.cmd.Stderr = &h.errs
	if h.in, err = h.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	h.out = bufio.NewReader(out)
	return h, h.Do(h.cmd.Start)
}

// job gives the worker a job and waits for the outcome.
func (h *host) job(j job) (o outcome, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b, err := json.Marshal(j)
	if err != nil {
		return o, err
	}
	if _, err := h.in.Write(append(b, '\n')); err != nil {
		return o, err
	}
	line, err := h.out.ReadBytes('\n')
	if err != nil {
		h.cmd.Wait()
		return o, fmt.Errorf("the worker at %s ended: %w\n%s", h.addr, err, tail(h.errs.String(), 4000))
	}
	if err := json.Unmarshal(line, &o); err != nil {
		return o, err
	}
	if o.Err != "" {
		err = errors.New(o.Err)
	}
	return o, err
}

// end asks the worker to end, and kills the worker after ten seconds.
func (h *host) end() {
	h.in.Close()
	t := time.AfterFunc(10*time.Second, func() { h.cmd.Process.Kill() })
	defer t.Stop()
	h.cmd.Wait()
}

// tail returns the last n bytes of s, after "..." if s is longer.
func tail(s string, n int) string {
	if len(s) > n {
		return "..." + s[len(s)-n:]
	}
	return s
}
