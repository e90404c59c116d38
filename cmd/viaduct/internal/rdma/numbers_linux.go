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

// numbers are the descriptor numbers for stand-ins. A seccomp filter sees only the numbers, and
// cannot be changed while the program runs. Therefore calls on all numbers of the ranges are
// notified, even for other files of a program with many descriptors.
//
// The ranges are tried in order. The first range is high, because few programs use high numbers,
// and below 1024, so that select works. The second range is higher, for programs with a larger
// limit. The third is lower, for programs with a limit of 512.
type numbers []*numberRange

type numberRange struct {
	low, high int
	next      atomic.Uint32 // the next number to try, relative to low
}

const (
	firstLow, firstHigh = 960, 1019
	aboveMost           = 8 << 10 // size of the range above the first
	aboveHigh           = 12<<10 - 1
	belowLimit          = 512
	belowMost           = 60
	spare               = 4 // numbers left free below a limit
)

// newNumbers returns the numbers for programs with up to limit descriptors.
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
	// This range always exists, because a program may lower the limit.
	below := min(belowLimit, top+1+spare)
	add(max(below/2, below-spare-belowMost), below-1-spare)
	return ns
}

// descriptorLimit returns the soft and the hard limit of descriptors for programs this process
// starts. If get fails, descriptorLimit assumes that the limits end with the first range.
func descriptorLimit(get func(int, *unix.Rlimit) error) (l unix.Rlimit) {
	if get(unix.RLIMIT_NOFILE, &l) != nil {
		l.Cur, l.Max = firstHigh+1, firstHigh+1
	}
	return l
}

// has reports whether fd is among the numbers.
func (ns numbers) has(fd int) bool {
	for _, r := range ns {
		if fd >= r.low && fd <= r.high {
			return true
		}
	}
	return false
}

// count returns how many of the numbers a program with a limit can use.
func (ns numbers) count(limit uint64) (n int) {
	for _, r := range ns {
		n += max(0, min(r.high+1, int(min(limit, 1<<20)))-r.low)
	}
	return n
}

// conds returns the conditions of a filter to match an argument against the numbers, a condition
// for each range.
func (ns numbers) conds(arg int) (cs []notify.Cond) {
	for _, r := range ns {
		cs = append(cs, notify.Cond{Arg: arg, Low: uint32(r.low), High: uint32(r.high)})
	}
	return cs
}

// free returns a number below limit, unused in the process of a thread, or -1.
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

// place answers a call with a copy of fd at a free number of the ranges, or with EMFILE if there is
// none. Of flags, only O_CLOEXEC counts.
func (s *Service) place(c *notify.Call, fd, flags int) {
	var l unix.Rlimit
	if err := unix.Prlimit(c.TID, unix.RLIMIT_NOFILE, nil, &l); err != nil { // for example, the thread is another user's
		l.Cur, l.Max = firstHigh+1, firstHigh+1
	}
	n := s.numbers.free(c.TID, l.Max)
	if n < 0 {
		s.noNumber(c.TID, l)
		c.Return(0, unix.EMFILE)
		return
	}
	// The number may exceed the soft limit but not the hard limit.
	if raised := (unix.Rlimit{Cur: uint64(n) + 1, Max: l.Max}); raised.Cur > l.Cur {
		if unix.Prlimit(c.TID, unix.RLIMIT_NOFILE, &raised, nil) == nil {
			defer unix.Prlimit(c.TID, unix.RLIMIT_NOFILE, &l, nil)
		}
	}
	// An interrupted thread repeats the call, and the number stays free.
	if err := c.AnswerAt(fd, n, flags&unix.O_CLOEXEC); err != nil {
		c.Return(0, errnoOf(err))
	}
}

// noNumber prints for the user why a program gets no descriptor, because the program's libraries
// only report ENOENT or ENOMEM.
func (s *Service) noNumber(tid int, l unix.Rlimit) {
	s.tellOnce("numbers", "%s has no descriptor free for RDMA: of %d that it may have, %d are for devices and event channels (EMFILE); raise the limit (ulimit -Hn), or close some",
		programName(tid), l.Max, s.numbers.count(l.Max))
}

// programName returns the name of a thread's program, for a message.
func programName(tid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", tid))
	pid, _, _ := processOf(tid)
	return fmt.Sprintf("%s (process %d)", strings.TrimSpace(string(b)), pid)
}
