//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// asRDMADuplicates makes the test binary a program whose device is used through duplicates of the
// descriptor. The value is "first", or "second SOCKET" for the program receiving the duplicates
// from the first.
const asRDMADuplicates = "VIADUCT_TEST_RDMA_DUPLICATES"

// A duplicate of a device's file accepts ioctl commands at any descriptor number, also in another
// program after a transfer over a socket. Commands sent by write need a number of the reserved
// range. At another number, write fails and the command does not reach a ring.
func TestRDMADuplicates(t *testing.T) {
	t.Parallel()
	r := good(t, "run", "--rdma", "--", "env", calm, asRDMADuplicates+"=first", os.Args[0])
	if !strings.Contains(r.stdout, "second: done") {
		t.Errorf("the second program says %q", r.stdout)
	}
}

// duplicateAt is outside the range of descriptor numbers reserved for devices, servedAt inside.
const (
	duplicateAt = 600
	servedAt    = 1000
)

func rdmaDuplicates(arg string) (err error) {
	h := &rdmaAbuser{}
	if h.scratch, err = unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return err
	}
	clear(h.scratch)
	var socket int
	if _, err := fmt.Sscanf(arg, "second %d", &socket); err == nil {
		return h.secondProgram(socket)
	}
	return h.firstProgram()
}

// use sets the descriptor numbers the following commands use.
func (h *rdmaAbuser) use(uverbs, cm int, ioctls bool) { h.uverbs, h.cm, h.ioctls = uverbs, cm, ioctls }

func (h *rdmaAbuser) createID() error {
	_, err := h.create(1)
	return err
}

func (h *rdmaAbuser) queryPort() error {
	return h.command(abi.QueryPort, 40, h.at(0), byte(1), [7]byte{})
}

// outside tries duplicates at numbers outside the reserved range.
func (h *rdmaAbuser) outside(uverbs, cm int) error {
	h.use(uverbs, cm, false)
	if err := h.queryPort(); err != unix.EINVAL {
		return fmt.Errorf("a command written to descriptor %d: %w, want %w", uverbs, err, unix.EINVAL)
	}
	if err := h.createID(); err != unix.EBADF {
		return fmt.Errorf("a command written to rdma_cm's descriptor %d: %w, want %w", cm, err, unix.EBADF)
	}
	h.use(uverbs, cm, true)
	clear(h.scratch[:64])
	if err := h.queryPort(); err != nil || h.word(4) != 1 {
		return fmt.Errorf("an ioctl on descriptor %d: %w, %d words of GIDs", uverbs, err, h.word(4))
	}
	if err := h.ioctl(0, 0, ioctlAttr{ID: 2, Flags: 1, Len: 8, Data: uint64(abi.QueryDevice)}); err != unix.ENOSPC {
		return fmt.Errorf("a library asks descriptor %d for the form of commands: %w", uverbs, err)
	}
	return nil
}

// inside tries duplicates at numbers in the reserved range.
func (h *rdmaAbuser) inside(uverbs, cm int) error {
	for i, fd := range []int{uverbs, cm} {
		if err := unix.Dup3(fd, servedAt+i, unix.O_CLOEXEC); err != nil {
			return err
		}
		defer unix.Close(servedAt + i)
	}
	h.use(servedAt, servedAt+1, false)
	return errors.Join(h.queryPort(), h.createID())
}

// reused puts other files at a descriptor number just used for a command. uverbs is a device file
// with a context.
func (h *rdmaAbuser) reused(uverbs int) error {
	second, err := unix.Open("/dev/infiniband/uverbs0", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(second)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return err
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	defer h.use(h.uverbs, h.cm, h.ioctls)
	h.use(servedAt, h.cm, false)
	// domain creates and destroys a protection domain. The returned handle is not reused.
	domain := func() (uint32, error) {
		err := h.command(abi.AllocPD, 4, h.at(0))
		pd := h.word(0)
		return pd, errors.Join(err, h.command(abi.DeallocPD, 0, pd))
	}
	for i := range uint32(3) {
		put := func(fd int) error { return unix.Dup3(fd, servedAt, unix.O_CLOEXEC) }
		if err := errors.Join(put(uverbs), h.queryPort(), h.queryPort()); err != nil {
			return err
		}
		if err := h.command(abi.GetContext, 16, h.at(0)); err != unix.EINVAL {
			return fmt.Errorf("the first file's context once more: %w", err)
		}
		if err := errors.Join(put(pipe[1]), h.queryPort()); err != nil {
			return err
		}
		var b [64]byte
		if n, err := unix.Read(pipe[0], b[:]); n < 16 {
			return fmt.Errorf("the pipe at the number got %d bytes: %w", n, err)
		}
		for _, fd := range []int{uverbs, second} {
			if err := put(fd); err != nil {
				return err
			}
			if pd, err := domain(); err != nil || pd != i {
				return fmt.Errorf("domain %d of descriptor %d has handle %d: %w", i, fd, pd, err)
			}
		}
		if err := unix.Close(servedAt); err != nil {
			return err
		}
		if err := h.queryPort(); err != unix.EBADF {
			return fmt.Errorf("a command written to a number that was closed: %w", err)
		}
	}
	return nil
}

func (h *rdmaAbuser) firstProgram() error {
	uverbs, err := unix.Open("/dev/infiniband/uverbs0", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	cm, err := unix.Open("/dev/infiniband/rdma_cm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	h.use(uverbs, cm, false)
	if err := h.command(abi.GetContext, 16, h.at(0)); err != nil {
		return fmt.Errorf("get_context: %w", err)
	}
	if err := h.command(abi.CreateCQ, 24, h.at(0), uint64(1), uint32(64), uint32(0), ^uint32(0), uint32(0), uint64(0)); err != nil {
		return fmt.Errorf("create_cq: %w", err)
	}
	ring, err := unix.Mmap(uverbs, int64(le.Uint64(h.scratch[16:])), 64*abi.CQELen,
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	for i, fd := range []int{uverbs, cm} {
		if err := unix.Dup3(fd, duplicateAt+i, unix.O_CLOEXEC); err != nil {
			return err
		}
	}
	if err := h.outside(duplicateAt, duplicateAt+1); err != nil {
		return err
	}
	if i := bytes.IndexFunc(ring, func(r rune) bool { return r != 0 }); i >= 0 {
		return fmt.Errorf("the command is in the ring, from byte %d on", i)
	}
	if err := h.inside(duplicateAt, duplicateAt+1); err != nil {
		return fmt.Errorf("in the reserved range: %w", err)
	}
	if err := h.reused(uverbs); err != nil {
		return fmt.Errorf("at a number of something else before: %w", err)
	}
	// The second program creates objects in the same context, with handles above this handle.
	h.use(duplicateAt, duplicateAt+1, true)
	if err := h.command(abi.AllocPD, 4, h.at(0)); err != nil {
		return err
	}
	pd := h.word(0)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), asRDMADuplicates+"=second 3")
	c.ExtraFiles = []*os.File{os.NewFile(uintptr(pair[1]), "socket")}
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	if err := c.Start(); err != nil {
		return err
	}
	if err := unix.Sendmsg(pair[0], le.AppendUint32(nil, pd), unix.UnixRights(uverbs, cm), nil, 0); err != nil {
		return err
	}
	if err := c.Wait(); err != nil {
		return err
	}
	if err := h.command(abi.DeallocPD, 0, pd); err != unix.EBUSY {
		return fmt.Errorf("the domain in which the second program has memory is given back: %w", err)
	}
	if err := h.command(abi.DeregMR, 0, uint32(0)); err != nil {
		return fmt.Errorf("its memory: %w", err)
	}
	return h.command(abi.DeallocPD, 0, pd)
}

func (h *rdmaAbuser) secondProgram(socket int) error {
	var pd [4]byte
	oob := make([]byte, unix.CmsgSpace(2*4))
	_, n, _, _, err := unix.Recvmsg(socket, pd[:], oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return err
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		return err
	}
	if err := h.outside(fds[0], fds[1]); err != nil {
		return fmt.Errorf("second: %w", err)
	}
	half := h.at(len(h.scratch) / 2)
	if err := h.command(abi.RegMR, 20, h.at(0), half, uint64(4096), half, le.Uint32(pd[:]), uint32(7), uint64(0)); err != nil || h.word(0) != 0 {
		return fmt.Errorf("second: reg_mr: %w, handle %d", err, h.word(0))
	}
	if err := h.inside(fds[0], fds[1]); err != nil {
		return fmt.Errorf("second, in the reserved range: %w", err)
	}
	fmt.Println("second: done")
	return nil
}
