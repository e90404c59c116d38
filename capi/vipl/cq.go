//go:build libvipl

package main

// #include "engine.h"
import "C"

import (
	"unsafe"

	"viaduct/vi"
)

// completions is a completion queue of a program.
type completions struct {
	h      handle
	nic    *nic
	c      *vi.CompletionQueue
	notify dispatcher
}

//export vipl_go_create_cq
func vipl_go_create_cq(nh C.uintptr_t, entries C.VIP_ULONG, out *C.uintptr_t) C.int {
	headroom()
	n := nics.get(handle(nh))
	if n == nil || !n.entries(entries) {
		return C.VIP_INVALID_PARAMETER
	}
	c, err := n.n.CreateCQ(int(entries))
	if err != nil {
		return code(err)
	}
	q := &completions{nic: n, c: c}
	if q.h = cqs.add(q); !own(n, &cqs, q.h) {
		c.Destroy()
		return C.VIP_ERROR_RESOURCE
	}
	*out = C.uintptr_t(q.h)
	return C.VIP_SUCCESS
}

func (n *nic) entries(wanted C.VIP_ULONG) bool {
	return uint64(wanted) <= uint64(n.attrs.MaxCQEntries)
}

//export vipl_go_destroy_cq
func vipl_go_destroy_cq(h C.uintptr_t) C.int {
	headroom()
	q := cqs.get(handle(h))
	if q == nil {
		return C.VIP_INVALID_PARAMETER
	}
	if err := q.c.Destroy(); err != nil {
		return code(err)
	}
	disown(q.nic, &cqs, q.h)
	return C.VIP_SUCCESS
}

//export vipl_go_resize_cq
func vipl_go_resize_cq(h C.uintptr_t, entries C.VIP_ULONG) C.int {
	headroom()
	q := cqs.get(handle(h))
	if q == nil || !q.nic.entries(entries) {
		return C.VIP_INVALID_PARAMETER
	}
	return code(q.c.Resize(int(entries)))
}

// vipl_go_cq_done takes up to max entries of a completion queue and polls up to looks times, like
// vipl_go_done. If there is no entry, *n is 0 and the result is the reason.
//
//export vipl_go_cq_done
func vipl_go_cq_done(h C.uintptr_t, looks C.int, out *C.struct_vipl_entry, max C.int, n *C.int) C.int {
	headroom()
	*n = 0
	q := cqs.get(handle(h))
	if q == nil {
		return C.VIP_INVALID_PARAMETER
	}
	var es [32]vi.Completion
	got := 0
	for ; got == 0 && looks > 0; looks-- {
		got = q.c.DoneN(es[:max])
	}
	for i, e := range es[:got] {
		setEntry(&unsafe.Slice(out, got)[i], e)
	}
	*n = C.int(got)
	if got == 0 {
		return C.VIP_NOT_DONE
	}
	return C.VIP_SUCCESS
}

func setEntry(out *C.struct_vipl_entry, e vi.Completion) {
	out.vi, out.recv = C.uintptr_t(e.VI.UserData().(*endpoint).h), boolean(e.Recv)
}

//export vipl_go_cq_wait
func vipl_go_cq_wait(h C.uintptr_t, timeout C.VIP_ULONG, out *C.struct_vipl_entry) C.int {
	headroom()
	q := cqs.get(handle(h))
	if q == nil {
		return C.VIP_INVALID_PARAMETER
	}
	ctx, cancel := until(timeout)
	defer cancel()
	e, err := q.c.Wait(ctx)
	if err == nil {
		setEntry(out, e)
	}
	return code(err)
}
