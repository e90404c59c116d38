//go:build linux && (amd64 || arm64)

package rdma

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"viaduct/internal/notify"
)

// numbers are the descriptors at which stand-ins are put. The filter sees numbers alone and cannot
// be changed while the program runs, so calls on all of them are notified, also if they are other
// files of a program that has that many.
//
// They are tried in order. The first are high, so that few programs have anything there, and low
// enough for select, which knows 1024. Then come those above, which are there for programs that may
// have more; and those below, for programs that may have no more than 512.
type numbers []*numberRange

type numberRange struct {
	low, high int
	next      atomic.Uint32 // the next to try, relative to low
}

const (
	firstLow, firstHigh = 960, 1019
	aboveMost           = 8 << 10 // numbers above the first
	aboveHigh           = 12<<10 - 1
	belowLimit          = 512
	belowMost           = 60
	spare               = 4 // left free below a limit
)

// newNumbers returns the numbers for programs that may have as many descriptors as limit.
func newNumbers(limit uint64) (ns numbers) {
	add := func(low, high int) {
		if low <= high {
			ns = append(ns, &numberRange{low: low, high: high})
		}
	}
	top := int(min(limit, 1<<20)) - 1 - spare
	add(firstLow, min(firstHigh, top))
	high := min(aboveHigh, top)
	add(max(firstHigh+1+spare, high-aboveMost+1), high)
	// A program may lower its limit, so these are there always.
	below := min(belowLimit, top+1+spare)
	add(max(below/2, below-spare-belowMost), below-1-spare)
	return ns
}

// descriptorLimit is how many descriptors a program of this process may have, and may raise that to.
func descriptorLimit(get func(int, *unix.Rlimit) error) (l unix.Rlimit) {
	if get(unix.RLIMIT_NOFILE, &l) != nil {
		l.Cur, l.Max = firstHigh+1, firstHigh+1
	}
	return l
}

// has reports whether a number is one of them.
func (ns numbers) has(fd int) bool {
	for _, r := range ns {
		if fd >= r.low && fd <= r.high {
			return true
		}
	}
	return false
}

// count is how many there are for a program with a limit.
func (ns numbers) count(limit uint64) (n int) {
	for _, r := range ns {
		n += max(0, min(r.high+1, int(min(limit, 1<<20)))-r.low)
	}
	return n
}

// conds are the conditions of a filter, one for each range, that an argument is one of the numbers.
func (ns numbers) conds(arg int) (cs []notify.Cond) {
	for _, r := range ns {
		cs = append(cs, notify.Cond{Arg: arg, Low: uint32(r.low), High: uint32(r.high)})
	}
	return cs
}

// free finds a number below limit at which a thread has nothing; it is -1 if there is none.
func (ns numbers) free(tid int, limit uint64) int {
	for _, r := range ns {
		size := r.high - r.low + 1
		for range size {
			n := r.low + int(r.next.Add(1)-1)%size
			if uint64(n) >= limit {
				continue
			}
			if _, err := os.Lstat(procFD(tid, n)); err != nil {
				return n
			}
		}
	}
	return -1
}

// place answers a call with a copy of fd at one of the numbers.
func (s *Service) place(c *notify.Call, fd, flags int) {
	var l unix.Rlimit
	if err := unix.Prlimit(c.TID, unix.RLIMIT_NOFILE, nil, &l); err != nil { // another user's, for instance
		l.Cur, l.Max = firstHigh+1, firstHigh+1
	}
	n := s.numbers.free(c.TID, l.Max)
	if n < 0 {
		s.noNumber(c.TID, l)
		c.Return(0, unix.EMFILE)
		return
	}
	// What a program may have by itself is less than it may raise that to.
	if raised := (unix.Rlimit{Cur: uint64(n) + 1, Max: l.Max}); raised.Cur > l.Cur {
		if unix.Prlimit(c.TID, unix.RLIMIT_NOFILE, &raised, nil) == nil {
			defer unix.Prlimit(c.TID, unix.RLIMIT_NOFILE, &l, nil)
		}
	}
	// A thread that is interrupted makes the call again, and has nothing at this number.
	if err := c.AnswerAt(fd, n, flags&unix.O_CLOEXEC); err != nil {
		c.Return(0, errnoOf(err))
	}
}

// noNumber says why a program gets no descriptor, which its libraries do not: they say ENOENT or ENOMEM.
func (s *Service) noNumber(tid int, l unix.Rlimit) {
	s.tellOnce("numbers", "%s has no descriptor free for RDMA: of %d that it may have, %d are for devices and event channels (EMFILE); raise the limit (ulimit -Hn), or close some",
		programName(tid), l.Max, s.numbers.count(l.Max))
}

// programName names the program of a thread for a message.
func programName(tid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", tid))
	pid, _, _ := processOf(tid)
	return fmt.Sprintf("%s (process %d)", strings.TrimSpace(string(b)), pid)
}
