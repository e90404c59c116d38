//go:build libvipl

package main

// #include "engine.h"
import "C"

import (
	"unsafe"

	"viaduct/vi"
)

// An endpoint is a VI of a program.
type endpoint struct {
	h      handle
	nic    *nic
	v      *vi.VI
	notify [2]dispatcher // these call the Notify handlers of the send queue and of the receive queue
	stocks [2]stock      // unused descriptors of the send queue and of the receive queue
}

const (
	levels      = vi.UnreliableDelivery | vi.ReliableDelivery | vi.ReliableReception
	flowControl = 1 << 15 // VIP_SERVICE_DFC
)

// viAttributes reads attributes of a VI. It ignores bits of the level for unsupported extensions.
// [VIA 6.5]
func (n *nic) viAttributes(a *C.VIP_VI_ATTRIBUTES) (vi.Attributes, error) {
	if uint64(a.MaxTransferSize) > uint64(n.attrs.MaxTransferSize) {
		return vi.Attributes{}, vi.ErrInvalidMTU
	}
	level := vi.Reliability(a.ReliabilityLevel)
	r := vi.Attributes{
		Reliability:     level & levels,
		MaxTransferSize: uint32(a.MaxTransferSize),
		QoS:             uintptr(number(unsafe.Pointer(&a.QoS))),
		EnableRDMAWrite: a.EnableRdmaWrite != 0,
		EnableRDMARead:  a.EnableRdmaRead != 0,
		FlowControl:     level&flowControl != 0,
	}
	var err error
	r.Ptag, err = n.tag(unsafe.Pointer(&a.Ptag))
	return r, err
}

func (n *nic) setAttributes(out *C.VIP_VI_ATTRIBUTES, a vi.Attributes) {
	level := a.Reliability
	if a.FlowControl {
		level |= flowControl
	}
	out.ReliabilityLevel = C.VIP_RELIABILITY_LEVEL(level)
	out.MaxTransferSize = C.VIP_ULONG(a.MaxTransferSize)
	setNumber(unsafe.Pointer(&out.QoS), handle(a.QoS))
	setNumber(unsafe.Pointer(&out.Ptag), n.tagHandle(a.Ptag))
	out.EnableRdmaWrite, out.EnableRdmaRead = boolean(a.EnableRDMAWrite), boolean(a.EnableRDMARead)
}

//export vipl_go_create_vi
func vipl_go_create_vi(nh C.uintptr_t, attrs *C.VIP_VI_ATTRIBUTES, send, recv C.uintptr_t, out *C.uintptr_t) C.int {
	headroom()
	n := nics.get(handle(nh))
	if n == nil {
		return C.VIP_INVALID_PARAMETER
	}
	var queues [2]*vi.CompletionQueue
	for i, h := range [2]handle{handle(send), handle(recv)} {
		if h != 0 {
			q := cqs.get(h)
			if q == nil || q.nic != n {
				return C.VIP_INVALID_PARAMETER
			}
			queues[i] = q.c
		}
	}
	a, err := n.viAttributes(attrs)
	if err != nil {
		return code(err)
	}
	v, err := n.n.CreateVI(a, queues[0], queues[1])
	if err != nil {
		return code(err)
	}
	e := &endpoint{nic: n, v: v}
	v.SetUserData(e)
	if e.h = vis.add(e); !own(n, &vis, e.h) {
		v.Destroy()
		return C.VIP_ERROR_RESOURCE
	}
	*out = C.uintptr_t(e.h)
	return C.VIP_SUCCESS
}

// vipl_go_destroy_vi destroys a VI. If taken is not 0, the C half holds descriptors the program has
// not reaped yet, so the queues of the VI are not empty.
//
//export vipl_go_destroy_vi
func vipl_go_destroy_vi(h C.uintptr_t, taken C.int) C.int {
	headroom()
	e := vis.get(handle(h))
	if e == nil {
		return C.VIP_INVALID_PARAMETER
	}
	if taken != 0 && e.v.State() == vi.Idle {
		return C.VIP_ERROR_RESOURCE
	}
	if err := e.v.Destroy(); err != nil {
		return code(err)
	}
	disown(e.nic, &vis, e.h)
	return C.VIP_SUCCESS
}

//export vipl_go_set_vi_attributes
func vipl_go_set_vi_attributes(h C.uintptr_t, attrs *C.VIP_VI_ATTRIBUTES) C.int {
	headroom()
	e := vis.get(handle(h))
	if e == nil {
		return C.VIP_INVALID_PARAMETER
	}
	a, err := e.nic.viAttributes(attrs)
	if err != nil {
		return code(err)
	}
	return code(e.v.SetAttributes(a))
}

//export vipl_go_query_vi
func vipl_go_query_vi(h C.uintptr_t, state *C.VIP_VI_STATE, attrs *C.VIP_VI_ATTRIBUTES, sendEmpty, recvEmpty *C.VIP_BOOLEAN) C.int {
	headroom()
	e := vis.get(handle(h))
	if e == nil {
		return C.VIP_INVALID_PARAMETER
	}
	s, a, noSends, noRecvs := e.v.Query()
	if state != nil {
		*state = C.VIP_VI_STATE(s)
	}
	if attrs != nil {
		e.nic.setAttributes(attrs, a)
	}
	if sendEmpty != nil {
		*sendEmpty = boolean(noSends)
	}
	if recvEmpty != nil {
		*recvEmpty = boolean(noRecvs)
	}
	return C.VIP_SUCCESS
}

//export vipl_go_disconnect
func vipl_go_disconnect(h C.uintptr_t) C.int {
	headroom()
	e := vis.get(handle(h))
	if e == nil {
		return C.VIP_INVALID_PARAMETER
	}
	return code(e.v.Disconnect())
}
