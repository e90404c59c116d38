//go:build linux && (amd64 || arm64)

package main

import (
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// An rxeEnd is a queue pair of a RoCE device and the queue pair's memory, in a program without
// libibverbs.
type rxeEnd struct {
	*rdmaAbuser
	gid              [16]byte
	pd, mr, key      uint32
	cqHandle, handle uint32
	qpn              uint32
	rq, sq, cq       []byte
	keys             []int64 // offsets of the rings
	taken            uint32  // number of completions read
}

// newRXEEnd creates an end whose memory is at addr. It first creates and destroys skip objects of
// each kind.
func newRXEEnd(addr uint64, n, skip int) (e *rxeEnd, err error) {
	h := &rdmaAbuser{}
	e = &rxeEnd{rdmaAbuser: h}
	if e.gid, err = rxeGID(); err != nil {
		return nil, err
	}
	if h.scratch, err = unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return nil, err
	}
	if h.uverbs, err = unix.Open("/dev/infiniband/uverbs0", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return nil, err
	}
	must := func(e error, what string) {
		if e != nil && err == nil {
			err = fmt.Errorf("%s: %w", what, e)
		}
	}
	const all = abi.AccessLocalWrite | abi.AccessRemoteWrite | abi.AccessRemoteRead | abi.AccessRemoteAtomic | abi.AccessMWBind
	answer := h.at(0)
	must(h.command(abi.GetContext, 8, answer), "get_context")
	for i := range skip + 1 {
		must(h.command(abi.AllocPD, 4, answer), "alloc_pd")
		e.pd = h.word(0)
		must(h.command(abi.RegMR, 12, answer, addr, uint64(n), addr, e.pd, uint32(all)), "reg_mr")
		e.mr, e.key = h.word(0), h.word(1)
		must(h.command(abi.CreateCQ, 24, answer, uint64(1), uint32(63), uint32(0), int32(-1), uint32(0)), "create_cq")
		e.cqHandle = h.word(0)
		e.keys, e.cq = nil, e.ring(8, &err)
		must(h.command(abi.CreateQP, 64, answer, uint64(2), e.pd, e.cqHandle, e.cqHandle,
			uint32(0), uint32(15), uint32(15),
			uint32(4), uint32(4), uint32(0), uint32(2<<8), uint32(0)), "create_qp")
		e.handle, e.qpn = h.word(0), h.word(1)
		e.rq, e.sq = e.ring(32, &err), e.ring(48, &err)
		if i < skip {
			must(e.endObjects(), "the end of what is skipped")
		}
	}
	return e, err
}

// ring maps the ring whose description is at offset at of the last response. If *err is not nil,
// ring does nothing.
func (e *rxeEnd) ring(at int, err *error) []byte {
	if *err != nil {
		return nil
	}
	info := abi.Body(e.scratch[at:])
	e.keys = append(e.keys, int64(info.U64(0)))
	b, merr := unix.Mmap(e.uverbs, int64(info.U64(0)), int(info.U32(8)), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED)
	if merr != nil {
		*err = fmt.Errorf("mmap: %w", merr)
	}
	return b
}

// endObjects unmaps the rings and destroys the objects created by newRXEEnd.
func (e *rxeEnd) endObjects() error {
	for _, m := range [][]byte{e.rq, e.sq, e.cq} {
		unix.Munmap(m)
	}
	for _, c := range []func() error{
		func() error { return e.command(abi.DestroyQP, 4, e.at(0), e.handle, uint32(0)) },
		func() error { return e.command(abi.DestroyCQ, 8, e.at(0), e.cqHandle, uint32(0)) },
		func() error { return e.command(abi.DeregMR, 0, e.mr) },
		func() error { return e.command(abi.DeallocPD, 0, e.pd) },
	} {
		if err := c(); err != nil {
			return err
		}
	}
	return nil
}

// connect moves the queue pair from reset to the state RTS, with the queue pair qpn as the peer,
// and discards existing completions.
func (e *rxeEnd) connect(qpn uint32) error {
	for _, s := range []abi.State{abi.Reset, abi.Init, abi.RTR, abi.RTS} {
		if err := e.command(abi.ModifyQP, 0, []byte(rxeChange(e.gid, e.handle, qpn, s))); err != nil {
			return fmt.Errorf("a queue pair can't be made %v: %w", s, err)
		}
	}
	e.taken = atomic.LoadUint32(wordAt(e.cq, rxeProducerAt))
	atomic.StoreUint32(wordAt(e.cq, rxeConsumerAt), e.taken)
	return nil
}

// fill writes the next entry of a ring and advances the producer index.
func (e *rxeEnd) fill(ring []byte, entry func(b abi.Body)) {
	head := abi.Body(ring)
	i := atomic.LoadUint32(wordAt(ring, rxeProducerAt))
	at := rxeEntriesAt + int(i)<<head.U32(0)
	b := abi.Body(ring[at : at+1<<head.U32(0)])
	clear(b)
	entry(b)
	atomic.StoreUint32(wordAt(ring, rxeProducerAt), (i+1)&head.U32(4))
}

// An rxeRequest is an entry of a send queue with one element.
type rxeRequest struct {
	op         uint32 // with the values of ibv_wr_opcode
	n          uint32
	addr       uint64
	key        uint32
	raddr      uint64
	rkey       uint32
	invalidate uint32 // immediate data, or the key to invalidate
}

const (
	rxeWrite       = 0
	rxeSend        = 2
	rxeRead        = 4
	rxeCompareSwap = 5
	rxeFetchAdd    = 6
	rxeInvalidate  = 7
	rxeBind        = 8
	rxeSendInv     = 9
	rxeAtomicWrite = 15
)

// post writes the requests into the send queue and then rings the doorbell once.
func (e *rxeEnd) post(rs ...rxeRequest) error {
	const signaled = 2
	for _, r := range rs {
		e.fill(e.sq, func(b abi.Body) {
			b.Put32(12, r.op)
			b.Put32(16, signaled)
			b.Put32(20, r.invalidate)
			b.Put64(24, r.raddr)
			b.Put32(32, r.rkey)
			switch r.op {
			case rxeCompareSwap, rxeFetchAdd:
				b.Put64(32, 1)
				b.Put64(40, 1)
				b.Put32(48, r.rkey)
			case rxeBind:
				b.Put64(24, r.raddr)
				b.Put64(32, uint64(r.n))
				b.Put32(40, r.key)
				b.Put32(44, r.rkey)
				b.Put32(48, r.rkey+1)
				b.Put32(52, abi.AccessRemoteRead)
			}
			b.Put32(184, r.n)
			b.Put32(196, 1)
			b.Put64(rxeElementsAt, r.addr)
			b.Put32(rxeElementsAt+8, r.n)
			b.Put32(rxeElementsAt+12, r.key)
		})
	}
	return e.command(abi.PostSend, 4, e.at(0), e.handle, [12]byte{})
}

// receive posts a receive with one scatter/gather element.
func (e *rxeEnd) receive(addr uint64, n, key uint32) {
	e.fill(e.rq, func(b abi.Body) {
		b.Put32(28, 1)
		b.Put64(40, addr)
		b.Put32(48, n)
		b.Put32(52, key)
	})
}

// completions waits up to a minute for n completions, and returns their statuses.
func (e *rxeEnd) completions(n int) (got []uint32, err error) {
	for end := time.Now().Add(time.Minute); len(got) < n; {
		if atomic.LoadUint32(wordAt(e.cq, rxeProducerAt)) == e.taken {
			if time.Now().After(end) {
				return got, fmt.Errorf("%d of %d completions", len(got), n)
			}
			time.Sleep(50 * time.Microsecond)
			continue
		}
		head := abi.Body(e.cq)
		got = append(got, abi.Body(e.cq[rxeEntriesAt+int(e.taken)<<head.U32(0):]).U32(8))
		e.taken = (e.taken + 1) & head.U32(4)
		atomic.StoreUint32(wordAt(e.cq, rxeConsumerAt), e.taken)
	}
	return got, nil
}

// state queries the state of the queue pair.
func (e *rxeEnd) state() (abi.State, error) {
	err := e.command(abi.QueryQP, 128, e.at(0), e.handle, uint32(1))
	return abi.State(e.scratch[108]), err
}
