//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/testkit"
)

// asRDMARights makes the test binary a program that registers unmapped and read-only memory.
const asRDMARights = "VIADUCT_TEST_RDMA_RIGHTS"

// Registered memory has the rights of its mappings. A Write of the peer changes no memory the
// program itself may not write: neither its constants, nor memory mapped later where registered
// memory was.
func TestRDMARights(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{nil, {"--tcp"}} {
		t.Run(fmt.Sprint(flags), func(t *testing.T) {
			good(t, slices.Concat([]string{"run", "--rdma"}, flags, []string{"--", "env", calm, asRDMARights + "=1", os.Args[0]})...)
		})
	}
}

// constant is in a part of the program's file mapped read-only.
const constant = "a constant that no peer may change"

const (
	rightsAt  = 0x2100000000
	writtenAt = 0x2200000000
	page      = 4096
)

func rdmaRights() error {
	if err := rightsOfRegistering(); err != nil {
		return err
	}
	return rightsOfWriting()
}

// rightsOfRegistering registers memory whose mappings have various rights. Registrations for more
// rights must fail.
func rightsOfRegistering() error {
	b, err := mapAt(rightsAt, 6*page)
	if err != nil {
		return err
	}
	for i, prot := range map[int]int{2: unix.PROT_READ, 4: unix.PROT_NONE} {
		if err := unix.Mprotect(b[i*page:(i+1)*page], prot); err != nil {
			return err
		}
	}
	hole := uint64(rightsAt + 6*page)
	e, err := newRDMAEnd(0, rightsAt, page, 0)
	if err != nil {
		return err
	}
	defer e.close()
	text := uint64(uintptr(unsafe.Pointer(unsafe.StringData(constant))))
	const local, remoteWrite, remoteRead, atomics, bind = 1, 2, 4, 8, 16
	for _, c := range []struct {
		what         string
		addr, length uint64
		access       uint32
		want         error
	}{
		{"writable", rightsAt, 2 * page, local | remoteWrite | remoteRead, nil},
		{"not aligned", rightsAt + 1, 2*page - 1, local | remoteWrite, nil},
		{"read-only, to read", rightsAt, 3 * page, remoteRead, nil},
		{"read-only, for nothing", rightsAt + 2*page, page, 0, nil},
		{"read-only, to write", rightsAt, 3 * page, local, unix.EFAULT},
		{"read-only, to bind", rightsAt + 2*page, page, bind, unix.EFAULT},
		{"read-only at the end", rightsAt + page, page + 1, local | remoteWrite, unix.EFAULT},
		{"no rights in the middle", rightsAt + 3*page, 3 * page, remoteRead, unix.EFAULT},
		{"no rights in the middle, to write", rightsAt + 3*page, 3 * page, local, unix.EFAULT},
		{"a hole behind", rightsAt + 5*page, 2 * page, local, unix.EFAULT},
		{"a hole", hole, page, 0, unix.EFAULT},
		{"constants, to read", text, 8, remoteRead, nil},
		{"constants, to write", text, 8, local | remoteWrite, unix.EFAULT},
		{"constants, for atomic operations", text, 8, local | atomics, unix.EFAULT},
	} {
		err := e.command(abi.RegMR, 20, e.at(0), c.addr, c.length, c.addr, e.pd, c.access, uint64(1))
		if err != c.want && (err != nil || c.want != nil) {
			return fmt.Errorf("register %s: %v, want %v", c.what, err, c.want)
		}
	}
	return nil
}

// rightsOfWriting lets a peer write to the address of registered memory, after a mapping of the
// program's constants has replaced the memory.
func rightsOfWriting() error {
	b, err := mapAt(writtenAt, 4*page)
	if err != nil {
		return err
	}
	from, err := newRDMAEnd(0, writtenAt+2*page, 2*page, 0)
	if err != nil {
		return err
	}
	defer from.close()
	to, err := newRDMAEnd(0, writtenAt, 2*page, 0)
	if err != nil {
		return err
	}
	defer to.close()
	if err := from.connect([2]uint32{from.qp, to.qp}); err != nil {
		return err
	}
	copy(b[2*page:], "payload")
	if err := from.writes(1, 7, from.stag, writtenAt+2*page, to.stag, writtenAt); err != nil {
		return err
	}
	if got, err := from.completions(1); err != nil || got[0] != abi.WCSuccess {
		return fmt.Errorf("a Write to memory that is there: %v, %v", got, err)
	}
	for end := time.Now().Add(testkit.Patience); !bytes.HasPrefix(b, []byte("payload")); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("the Write has not come")
		}
	}
	file, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer file.Close()
	want := make([]byte, page)
	if _, err := file.ReadAt(want, 0); err != nil {
		return err
	}
	if _, _, e := unix.Syscall6(unix.SYS_MMAP, writtenAt, page, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_FIXED, file.Fd(), 0); e != 0 {
		return e
	}
	time.Sleep(50 * time.Millisecond) // the supervisor notices the changed mapping after a moment
	for _, size := range []int{7, page / 2} {
		if err := from.writes(1, size, from.stag, writtenAt+2*page, to.stag, writtenAt+64); err != nil {
			return err
		}
		from.completions(1) // over TCP, a Write completes when it was sent
		time.Sleep(50 * time.Millisecond)
		if !bytes.Equal(b[:page], want) {
			return fmt.Errorf("a Write of %d bytes has changed what the program may not write", size)
		}
	}
	return nil
}
