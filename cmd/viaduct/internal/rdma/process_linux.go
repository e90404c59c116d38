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

// A process is a memory by the number of its process: process_vm_readv and process_vm_writev, which move many
// places at once and without a copy in between, know no other name. A number may come to stand for another memory, in two ways. A process
// that executes another program is caught before it does, and its number is not used again. One that
// ends may be followed by another of its number, so what was read is thrown away unless the process lives still. What was written
// could not be taken back: only a child of this process is written to, whose number is no other's before Reap lets it go.
type process struct {
	pid   int
	fd    int  // a pidfd
	child bool // of this process; does not change, since a process gets another parent only when it has lost its own

	gate sync.RWMutex // held by readers and writers during the call
	over bool         // guarded by gate: the number is not used any more
}

// processOf returns the process of a thread and that one's parent.
func processOf(tid int) (pid, parent int, ok bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return 0, 0, false
	}
	for line := range strings.Lines(string(b)) {
		name, v, _ := strings.Cut(line, ":")
		n, err := strconv.Atoi(strings.TrimSpace(v))
		switch {
		case name == "Tgid" && err == nil:
			pid = n
		case name == "PPid" && err == nil:
			return pid, n, pid > 0
		}
	}
	return 0, 0, false
}

// pidOf returns the number of the process that makes a call.
func pidOf(c *notify.Call) uint32 {
	pid, _, _ := processOf(c.TID)
	return uint32(pid)
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
	if err != nil || !p.child && !p.lives() {
		return 0
	}
	return n
}

// write writes all of from. It is false if it could not, since the memory may not be written for instance, or may not try; some
// may have been written then.
func (p *process) write(from []byte, addr uint64) bool {
	p.gate.RLock()
	defer p.gate.RUnlock()
	if p.over || !p.child {
		return false
	}
	local := [1]unix.Iovec{{Base: &from[0]}}
	local[0].SetLen(len(from))
	n, err := unix.ProcessVMWritev(p.pid, local[:], []unix.RemoteIovec{{Base: uintptr(addr), Len: len(from)}}, 0)
	return err == nil && n == len(from)
}

// lives reports whether the process has not ended.
func (p *process) lives() bool {
	f := [1]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(f[:], 0)
	return n == 0 && err == nil
}

// end waits for what is under way. After it there is nothing.
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
	pid, parent, ok := processOf(c.TID)
	if !ok {
		return nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil
	}
	p := &process{pid: pid, fd: fd, child: parent == os.Getpid()}
	ps.add(p)
	// The number may have been another's. If it is not, and the process ends from here on, Reap finds it.
	if !c.Valid() {
		ps.drop(p)
		return nil
	}
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

// Reap is to be called when a child of this process has ended, before it is waited for, which gives its number to others.
func (s *Service) Reap(pid int) {
	for _, p := range s.processes.numbered(pid) {
		p.end()
	}
}

// numbered returns those of a number.
func (ps *processes) numbered(pid int) (all []*process) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for p := range ps.m {
		if p.pid == pid {
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
