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
	"viaduct/internal/sock"
)

// A process gives access to a memory by the process number. process_vm_readv and process_vm_writev
// copy many ranges at once and without an intermediate copy, but take only the number. In two ways,
// the number may come to mean another memory. If the process executes another program, the exec is
// intercepted, and the number is not used any more. If the process ends, another process may get
// the number. Therefore the bytes of a read are discarded unless the process is still alive. A
// write could not be undone. Therefore only children of this process are written by number: their
// number stays reserved until Reap.
type process struct {
	pid   int
	fd    int  // a pidfd
	child bool // a child of this process; constant, because a process gets another parent only when its own has ended

	gate sync.RWMutex // read-locked by reads and writes during the call
	over bool         // guarded by gate: the number must not be used any more
}

// processOf returns the process of a thread, and the parent of the process. ok is false if the
// thread has ended.
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

// pidOf returns the number of the calling process, or 0 if the process has ended.
func pidOf(c *notify.Call) uint32 {
	pid, _, _ := processOf(c.TID)
	return uint32(pid)
}

// read reads the ranges in remote, in order, and returns the number of filled bytes of to. There
// are fewer if a range is missing, and none if the process is gone.
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

// write writes all of from at addr. It returns false after a failure, for example because the
// memory is read-only or the process is not a child. A part may have been written then.
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

// lives reports whether the process is alive.
func (p *process) lives() bool {
	f := [1]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	n, err := sock.Poll(f[:], 0)
	return n == 0 && err == nil
}

// end waits for reads and writes in progress, and prevents further accesses.
func (p *process) end() {
	p.gate.Lock()
	p.over = true
	p.gate.Unlock()
}

// has reports whether a thread belongs to the process.
func (p *process) has(tid int) bool {
	if tid == p.pid {
		return true
	}
	_, err := os.Lstat(fmt.Sprintf("/proc/%d/task/%d", p.pid, tid))
	return err == nil
}

// processes are the processes whose memory is accessed by their number.
type processes struct {
	mu sync.Mutex
	m  map[*process]bool // guarded by mu
}

// open returns the process of a call, or nil if the memory cannot be accessed by number.
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
	// If the call is no longer valid, the number may have belonged to another process. Otherwise
	// Reap is called when the process ends.
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

// drop removes an unused process, and closes the pidfd.
func (ps *processes) drop(p *process) {
	ps.mu.Lock()
	delete(ps.m, p)
	ps.mu.Unlock()
	unix.Close(p.fd)
}

// of returns the entries for the process of a thread. There are several if the process has several
// devices open.
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

// Reap must be called when a child of this process has ended, before the wait for the child,
// because another process may get the number then.
func (s *Service) Reap(pid int) {
	for _, p := range s.processes.numbered(pid) {
		p.end()
	}
}

// numbered returns the processes with a number.
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

// exec lets a thread execute another program, after the last access by the number of the process.
func (s *Service) exec(c *notify.Call) {
	all := s.processes.of(c.TID)
	if len(all) == 0 {
		c.Continue()
		return
	}
	s.wg.Go(func() { // a read in progress may wait for the program itself
		for _, p := range all {
			p.end()
		}
		c.Continue()
	})
}
