//go:build linux && (amd64 || arm64)

package main

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// asRDMAIoctl makes the test binary a program that drives its RDMA device like a library without
// write commands: each object by an ioctl method, or by INVOKE_WRITE if there is no method.
const asRDMAIoctl = "VIADUCT_TEST_RDMA_IOCTL"

// Classes of the objects whose methods are called by ioctl.
const (
	ioctlDevice = 0
	ioctlPD     = 1
	ioctlCQ     = 3
	ioctlQP     = 4
	ioctlSRQ    = 5
	ioctlMR     = 7
	ioctlAsync  = 16
)

func rdmaIoctl() (err error) {
	h := &rdmaAbuser{ioctls: true}
	if h.scratch, err = unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return err
	}
	clear(h.scratch)
	open := func() {
		if err == nil {
			h.uverbs, err = unix.Open("/dev/infiniband/uverbs0", unix.O_RDWR|unix.O_CLOEXEC, 0)
		}
	}
	good := func(what string, got error) {
		if err == nil && got != nil {
			err = fmt.Errorf("%s: %w", what, got)
		}
	}
	bad := func(what string, got error, want unix.Errno) {
		if err == nil && got != want {
			err = fmt.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	has := func(what string, at int, want ...uint32) {
		for i, w := range want {
			if got := le.Uint32(h.scratch[at+4*i:]); err == nil && got != w {
				err = fmt.Errorf("%s: word %d of the answer is %d, want %d", what, i, got, w)
			}
		}
	}
	obj := func(id uint16, n uint32) ioctlAttr { return ioctlAttr{ID: id, Flags: 1, Data: uint64(n)} }
	u32 := func(id uint16, n uint32) ioctlAttr { return ioctlAttr{ID: id, Flags: 1, Len: 4, Data: uint64(n)} }
	u64 := func(id uint16, n uint64) ioctlAttr { return ioctlAttr{ID: id, Flags: 1, Len: 8, Data: n} }
	to := func(id uint16, n uint16, at int) ioctlAttr {
		return ioctlAttr{ID: id, Flags: 1, Len: n, Data: h.at(at)}
	}

	open()
	good("get_context", h.ioctl(ioctlDevice, 3, to(0, 4, 0), to(1, 8, 8), to(0x1001, 8, 16)))
	has("get_context", 0, 1, 0, abi.OptionalAccess, 0)
	bad("get_context, again", h.ioctl(ioctlDevice, 3), unix.EINVAL)
	good("async_event", h.ioctl(ioctlAsync, 0, obj(0, 0)))
	var st unix.Stat_t
	good("its descriptor", unix.Fstat(int(h.number(0)), &st))
	good("query_port", h.ioctl(ioctlDevice, 2, u64(0, 1), to(1, 48, 0)))
	has("query_port, the longest message", 4, ^uint32(0))
	bad("query_port 2", h.ioctl(ioctlDevice, 2, u64(0, 2), to(1, 48, 0)), unix.EINVAL)
	good("query_gid", h.ioctl(ioctlDevice, 6, u64(0, 1), u64(1, 0), u32(2, 0), to(3, 32, 0)))
	has("query_gid", 16, 0, 1)
	bad("query_gid 1", h.ioctl(ioctlDevice, 6, u64(0, 1), u64(1, 1), u32(2, 0), to(3, 32, 0)), unix.EINVAL)
	table := func(size uint64, room uint16) error {
		for i := range h.scratch[:128] {
			h.scratch[i] = 0xaa
		}
		return h.ioctl(ioctlDevice, 5, u64(0, size), u32(1, 0), to(2, room, 8), to(3, 8, 0))
	}
	good("query_gid_table", table(32, 64))
	has("query_gid_table", 0, 1, 0)
	has("query_gid_table, the entry", 24, 0, 1)
	has("query_gid_table, behind the entry", 40, 0xaaaaaaaa)
	good("query_gid_table, long entries", table(40, 40))
	has("query_gid_table, the end of a long entry", 40, 0, 0, 0xaaaaaaaa)
	good("query_gid_table, short entries", table(20, 20))
	has("query_gid_table, behind a short entry", 28, 0xaaaaaaaa)
	bad("query_gid_table, room for none", table(32, 0), unix.EINVAL)
	bad("query_gid_table, entries of no bytes", table(0, 64), unix.EINVAL)
	bad("query_gid_table, half an entry", table(32, 48), unix.EINVAL)
	bad("query_gid_table, flags", h.ioctl(ioctlDevice, 5, u64(0, 32), u32(1, 1), to(2, 32, 8), to(3, 8, 0)), unix.EINVAL)
	bad("query_gid_table without room", h.ioctl(ioctlDevice, 5, u64(0, 32), u32(1, 0), to(3, 8, 0)), unix.EINVAL)
	// Create one object of each kind by write commands, so that the objects below have handles
	// other than 0.
	half := h.at(len(h.scratch) / 2)
	good("alloc_pd", h.command(abi.AllocPD, 4, h.at(0)))
	good("reg_mr", h.command(abi.RegMR, 20, h.at(0), half, uint64(4096), half, uint32(0), uint32(7), uint64(0x33)))
	good("create_cq", h.command(abi.CreateCQ, 24, h.at(0), uint64(1), uint32(64), uint32(0),
		^uint32(0), uint32(0), uint64(0)))
	good("create_srq", h.command(abi.CreateSRQ, 32, h.at(0), uint64(1), uint32(0), uint32(8), uint32(1), uint32(0)))
	good("create_qp", h.command(abi.CreateQP, 64, h.at(0), uint64(2), uint32(0), uint32(0),
		uint32(0), uint32(0), uint32(15), uint32(16), uint32(4),
		uint32(4), uint32(0), uint32(2<<8), uint32(0)))
	has("create_qp", 0, 0, 1, 15, 16)

	good("alloc_pd", h.command(abi.AllocPD, 4, h.at(0)))
	pd := h.word(0)
	good("reg_mr", h.command(abi.RegMR, 20, h.at(0), half, uint64(4096), half, pd, uint32(7), uint64(0x5c)))
	mr := h.word(0)
	has("reg_mr, the key", 4, h.word(3), h.word(3))
	if err == nil && h.word(3)&0xff != 0x5c {
		err = fmt.Errorf("reg_mr: key %#x does not end with what the provider asked for", h.word(3))
	}
	good("create_comp_channel", h.command(abi.CreateCompChannel, 4, h.at(0)))
	channel := h.word(0)
	good("create_cq", h.ioctl(ioctlCQ, 0, obj(0, 0), u32(1, 60), u64(2, 77), obj(3, channel),
		u32(4, 0), to(6, 4, 0), to(0x1001, 24, 8)))
	cq := h.number(0)
	has("create_cq", 0, 60)
	has("create_cq, the provider's", 12, 64)
	good("create_srq", h.ioctl(ioctlSRQ, 0, obj(0, 0), obj(1, pd), u64(4, 78), u32(5, 9),
		u32(6, 2), u32(7, 0), u64(9, 0), to(11, 4, 0), to(12, 4, 4)))
	srq := h.number(0)
	has("create_srq", 0, 9, 2)
	copy(h.scratch[inputAt:], []byte{15, 0, 0, 0, 16, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0})
	qp := []ioctlAttr{obj(0, 0), obj(2, pd), obj(3, srq), obj(4, cq), obj(5, cq), u64(7, 79),
		to(8, 20, inputAt), u64(9, abi.TypeRC),
		u32(10, 1<<12), to(13, 20, 0), to(14, 4, 32), to(0x1001, 32, 40)}
	good("create_qp", h.ioctl(ioctlQP, 0, qp...))
	q := h.number(0)
	has("create_qp", 0, 15, 16, 4, 3, 80)
	has("create_qp, the provider's", 44, 16)
	bad("destroy_cq in use", h.ioctl(ioctlCQ, 1, obj(0, cq), to(1, 8, 0)), unix.EBUSY)
	bad("dealloc_pd in use", h.ioctl(ioctlPD, 0, obj(0, pd)), unix.EBUSY)
	good("destroy_qp", h.ioctl(ioctlQP, 1, obj(0, q), to(1, 4, 0)))
	good("destroy_srq", h.ioctl(ioctlSRQ, 1, obj(0, srq), to(1, 4, 0)))
	good("destroy_cq", h.ioctl(ioctlCQ, 1, obj(0, cq), to(1, 8, 0)))
	good("dereg_mr", h.ioctl(ioctlMR, 1, obj(0, mr)))
	bad("dereg_mr, again", h.ioctl(ioctlMR, 1, obj(0, mr)), unix.ENOENT)
	good("dealloc_pd", h.ioctl(ioctlPD, 0, obj(0, pd)))
	bad("answer nowhere", h.ioctl(ioctlDevice, 2, u64(0, 1), ioctlAttr{ID: 1, Flags: 1, Len: 40, Data: 8}), unix.EFAULT)
	bad("a method that there is not", h.ioctl(2, 5), unix.EPROTONOSUPPORT)
	bad("a command that is too short", h.command(abi.AllocPD, 0), unix.ENOSPC)

	// A library with support for both forms asks which form to use. The error makes the library use
	// write.
	open()
	bad("asked", h.ioctl(0, 0, u64(2, uint64(abi.QueryDevice))), unix.ENOTTY)
	bad("get_context behind it", h.ioctl(ioctlDevice, 3), unix.ENOTTY)
	h.ioctls = false
	good("get_context, written", h.command(abi.GetContext, 16, h.at(0)))
	return err
}

// The ioctl methods have the same effects as the write commands.
func TestRDMAIoctl(t *testing.T) {
	t.Parallel()
	good(t, "run", "--rdma", "--", "env", calm, asRDMAIoctl+"=1", os.Args[0])
}
