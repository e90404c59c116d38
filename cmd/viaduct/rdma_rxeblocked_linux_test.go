//go:build linux && (amd64 || arm64)

package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaduct/internal/sock"
)

// asRXEBlocked makes the test binary a program whose registered memory cannot be read at first. The
// value is "1".
const asRXEBlocked = "VIADUCT_TEST_RXE_BLOCKED"

// A program's calls are answered while one of the program's requests waits for memory. Here the
// memory depends on a call: userfaultfd provides the memory only after a command on another device
// file. A single short request, which is executed before its call is answered, never waits.
func TestRXEBlockedMemory(t *testing.T) {
	t.Parallel()
	r := good(t, "run", "--rdma", "--device", "rxe0", "--", "env", calm, asRXEBlocked+"=1", os.Args[0])
	if why, skipped := strings.CutPrefix(strings.TrimSpace(r.stdout), "skipped: "); skipped {
		t.Skipf("SKIPPED: there is no userfaultfd for the kernel's accesses here: %s", why)
	}
	if strings.TrimSpace(r.stdout) != "done" {
		t.Errorf("%q", r.stdout)
	}
}

func rxeBlocked() error {
	const n = 2 * page // the bytes after the first page, which are absent at first
	mem, err := unix.Mmap(-1, 0, page+n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	at := uint64(uintptr(unsafe.Pointer(&mem[0])))
	clear(mem)
	e, err := newRXEEnd(at, len(mem), 0)
	if err != nil {
		return err
	}
	other, err := newRXEEnd(at, len(mem), 0)
	if err != nil {
		return err
	}
	if err := e.connect(e.qpn); err != nil {
		return err
	}
	brief := rxeRequest{n: 8, addr: at, key: e.key, raddr: at + 8, rkey: e.key}
	for range 100 {
		if err := e.post(brief); err != nil {
			return fmt.Errorf("doorbell: %w", err)
		}
		if got, err := e.completions(1); err != nil || got[0] != 0 {
			return fmt.Errorf("a single short request: %v, %w", got, err)
		}
	}
	fd, err := newUserfault(at+page, n)
	if err != nil {
		fmt.Println("skipped:", err)
		return nil
	}
	// The few bytes of a single short request are read through /proc/PID/mem, where the read fails
	// instead of waiting.
	short, long := rxeRequest{n: 8, addr: at + page, key: e.key, raddr: at, rkey: e.key}, brief
	long.n, long.addr, long.raddr = n, at+page, at+page
	for _, rs := range [][]rxeRequest{{short, short}, {long}} {
		if err := unix.Madvise(mem[page:], unix.MADV_DONTNEED); err != nil {
			return err
		}
		if err := rxeBlockedPost(e, other, fd, at+page, n, rs); err != nil {
			return fmt.Errorf("%d requests of %d bytes: %w", len(rs), rs[0].n, err)
		}
	}
	if err := errors.Join(e.endObjects(), other.endObjects()); err != nil {
		return err
	}
	fmt.Println("done")
	return nil
}

// rxeBlockedPost posts requests that read the n absent bytes at addr, and provides the memory after
// a command of another end.
func rxeBlockedPost(e, other *rxeEnd, fd int, addr, n uint64, rs []rxeRequest) error {
	if err := e.post(rs...); err != nil {
		return fmt.Errorf("doorbell: %w", err)
	}
	// The page fault shows that the request waits for the memory.
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := sock.Poll(p, 60_000); n != 1 {
		return fmt.Errorf("nothing reads the memory: %v", err)
	}
	unix.Read(fd, make([]byte, 1024)) // the faults that are reported
	began := time.Now()
	if _, err := other.state(); err != nil {
		return fmt.Errorf("a command meanwhile: %w", err)
	}
	if d := time.Since(began); d > time.Minute {
		return fmt.Errorf("a command took %v", d)
	}
	if err := zeroUserfault(fd, addr, n); err != nil {
		return err
	}
	got, err := e.completions(len(rs))
	if err != nil || slices.Max(got) != 0 {
		return fmt.Errorf("completions: %v, %w", got, err)
	}
	return nil
}

// newUserfault makes this process handle the page faults of a memory range. newUserfault first
// returns the range's pages to the kernel.
func newUserfault(at, n uint64) (fd int, err error) {
	const (
		api        = 0xc018aa3f // UFFDIO_API
		register   = 0xc020aa00 // UFFDIO_REGISTER
		version    = 0xaa
		forMissing = 1
	)
	r, _, e := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if e != 0 {
		return -1, e
	}
	hello := [3]uint64{version}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, r, api, uintptr(unsafe.Pointer(&hello))); e != 0 {
		return -1, e
	}
	of := [4]uint64{at, n, forMissing}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, r, register, uintptr(unsafe.Pointer(&of))); e != 0 {
		return -1, e
	}
	return int(r), nil
}

// zeroUserfault provides the pages, filled with zeros.
func zeroUserfault(fd int, at, n uint64) error {
	const zeropage = 0xc020aa04 // UFFDIO_ZEROPAGE
	of := [4]uint64{at, n}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), zeropage, uintptr(unsafe.Pointer(&of))); e != 0 {
		return fmt.Errorf("UFFDIO_ZEROPAGE: %w", e)
	}
	return nil
}
