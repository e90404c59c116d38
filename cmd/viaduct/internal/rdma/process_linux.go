//go:build linux && (amd64 || arm64)

package rdma

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"viaduct/internal/notify"
)

// A process is a memory by the number of its process: process_vm_readv, which reads many places at once, knows
// no other name. A number may come to stand for another memory, in two ways. A process
// that executes another program is caught before it does, and its number is not used again. One that
// ends may be followed by another of its number, so what was read is thrown away unless the process lives still.
type process struct {
	pid int
	fd  int // a pidfd

	gate sync.RWMutex // held by readers during the call
	over bool         // guarded by gate: the number is not used any more
}

// processOf returns the process of a thread.
func processOf(tid int) (pid int, ok bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "Tgid:"); ok {
			pid, err := strconv.Atoi(strings.TrimSpace(v))
			return pid, err == nil
		}
	}
	return 0, false
}

// read reads the pieces that remote names, one behind the other, and returns how many bytes of to it has filled:
// fewer if a piece is not there, none if the process is not.
func (p *process) read(to []byte, remote []unix.RemoteIovec) int {
	p.gate.RLock()
	defer p.gate.RUnlock()
	if p.over {
		return 0
	}
	local := [1]unix.Iovec{{Base: &to[0]}}
	local[0].SetLen(len(to))
	n, err := unix.ProcessVMReadv(p.pid, local[:], remote, 0)
	if err != nil || !p.lives() {
		return 0
	}
	return n
}

// lives reports whether the process has not ended.
func (p *process) lives() bool {
	f := [1]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(f[:], 0)
	return n == 0 && err == nil
}

// end waits for reads that are under way. After it there are none.
func (p *process) end() {
	p.gate.Lock()
	p.over = true
	p.gate.Unlock()
}

// has reports whether a thread is one of the process.
func (p *process) has(tid int) bool {
	if tid == p.pid {
		return true
	}
	_, err := os.Lstat(fmt.Sprintf("/proc/%d/task/%d", p.pid, tid))
	return err == nil
}

// processes are those whose memory is read by their number.
type processes struct {
	mu sync.Mutex
	m  map[*process]bool // guarded by mu
}

// open finds the process of a call. It is nil if there is no way to read its memory so.
func (ps *processes) open(c *notify.Call) *process {
	pid, ok := processOf(c.TID)
	if !ok {
		return nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil
	}
	if !c.Valid() { // the number may have been another's
		unix.Close(fd)
		return nil
	}
	p := &process{pid: pid, fd: fd}
	ps.add(p)
	return p
}

func (ps *processes) add(p *process) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.m == nil {
		ps.m = map[*process]bool{}
	}
	ps.m[p] = true
}

// drop closes a process that nothing reads any more.
func (ps *processes) drop(p *process) {
	ps.mu.Lock()
	delete(ps.m, p)
	ps.mu.Unlock()
	unix.Close(p.fd)
}

// of returns those that a thread is one of: several if it has several devices open.
func (ps *processes) of(tid int) (all []*process) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for p := range ps.m {
		if p.has(tid) {
			all = append(all, p)
		}
	}
	return all
}

// exec serves the call by which a thread executes another program.
func (s *Service) exec(c *notify.Call) {
	all := s.processes.of(c.TID)
	if len(all) == 0 {
		c.Continue()
		return
	}
	s.wg.Go(func() { // a read may wait for the program itself
		for _, p := range all {
			p.end()
		}
		c.Continue()
	})
}
