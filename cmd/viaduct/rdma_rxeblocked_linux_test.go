//go:build linux && (amd64 || arm64)

package main

import (
	"errors"
	"fmt"
	"os"
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
// file.
func TestRXEBlockedMemory(t *testing.T) {
	t.Parallel()
	r := good(t, "run", "--rdma", "--device", "rxe0", "--", "env", asRXEBlocked+"=1", os.Args[0])
	if why, skipped := strings.CutPrefix(strings.TrimSpace(r.stdout), "skipped: "); skipped {
		t.Skipf("SKIPPED: there is no userfaultfd for the kernel's accesses here: %s", why)
	}
	if strings.TrimSpace(r.stdout) != "done" {
		t.Errorf("%q", r.stdout)
	}
}

func rxeBlocked() error {
	mem, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
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
	fd, err := newUserfault(at+page, page)
	if err != nil {
		fmt.Println("skipped:", err)
		return nil
	}
	if err := unix.Madvise(mem[page:], unix.MADV_DONTNEED); err != nil {
		return err
	}
	// There are two requests, because the few bytes of a single request are read through
	// /proc/PID/mem, where the read fails instead of waiting.
	r := rxeRequest{n: 8, addr: at + page, key: e.key, raddr: at, rkey: e.key}
	if err := e.post(r, r); err != nil {
		return fmt.Errorf("doorbell: %w", err)
	}
	// The page fault shows that the request waits for the memory.
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := sock.Poll(p, 60_000); n != 1 {
		return fmt.Errorf("nothing reads the memory: %v", err)
	}
	began := time.Now()
	if _, err := other.state(); err != nil {
		return fmt.Errorf("a command meanwhile: %w", err)
	}
	if d := time.Since(began); d > time.Minute {
		return fmt.Errorf("a command took %v", d)
	}
	if err := zeroUserfault(fd, at+page, page); err != nil {
		return err
	}
	if got, err := e.completions(2); err != nil || got[0] != 0 || got[1] != 0 {
		return fmt.Errorf("the request: %v, %w", got, err)
	}
	if err := errors.Join(e.endObjects(), other.endObjects()); err != nil {
		return err
	}
	fmt.Println("done")
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
