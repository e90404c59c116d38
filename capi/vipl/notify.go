//go:build libvipl

package main

// #include "engine.h"
import "C"

import (
	"sync"
	"unsafe"

	"viaduct/vi"
)

// A dispatcher calls the handlers of an object in sequence, in a goroutine. The goroutine exists
// only while there are calls. So a waiting handler delays only the calls of its own object.
type dispatcher struct {
	mu      sync.Mutex
	calls   []func() // guarded by mu
	running bool     // guarded by mu
}

func (d *dispatcher) add(n *nic, call func()) {
	n.handlers.Add(1)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, func() { defer n.handlers.Done(); call() })
	if !d.running {
		d.running = true
		go d.run()
	}
}

func (d *dispatcher) run() {
	for {
		d.mu.Lock()
		if len(d.calls) == 0 {
			d.calls, d.running = nil, false
			d.mu.Unlock()
			return
		}
		call := d.calls[0]
		d.calls = d.calls[1:]
		d.mu.Unlock()
		call()
	}
}

// vipl_go_notify registers a handler for the next descriptor of a queue. If taken is not NULL, the
// C half already holds the descriptor, and the handler is called with taken at once.
//
//export vipl_go_notify
func vipl_go_notify(h C.uintptr_t, recv C.int, context unsafe.Pointer, f C.vipl_notify, taken *C.VIP_DESCRIPTOR) C.int {
	headroom()
	e := vis.get(handle(h))
	if e == nil {
		return C.VIP_INVALID_PARAMETER
	}
	call := func(at unsafe.Pointer) {
		e.notify[recv&1].add(e.nic, func() {
			C.vipl_call_notify(f, context, C.uintptr_t(e.nic.h), C.uintptr_t(e.h), at)
		})
	}
	if taken != nil {
		call(unsafe.Pointer(taken))
		return C.VIP_SUCCESS
	}
	handler := func(d *vi.Descriptor) {
		c := d.Context.(*descriptor)
		at := c.at
		e.stockOf(recv != 0).put([]*vi.Descriptor{d})
		call(at)
	}
	if recv != 0 {
		return code(e.v.RecvNotify(handler))
	}
	return code(e.v.SendNotify(handler))
}

// vipl_go_cq_notify is vipl_go_notify for a completion queue; taken is 0 or the VI of an entry the
// C half already holds.
//
//export vipl_go_cq_notify
func vipl_go_cq_notify(h C.uintptr_t, context unsafe.Pointer, f C.vipl_cq_notify, taken C.uintptr_t, recv C.int) C.int {
	headroom()
	q := cqs.get(handle(h))
	if q == nil {
		return C.VIP_INVALID_PARAMETER
	}
	call := func(v C.uintptr_t, recv C.int) {
		q.notify.add(q.nic, func() { C.vipl_call_cq_notify(f, context, C.uintptr_t(q.nic.h), v, recv) })
	}
	if taken != 0 {
		call(taken, recv)
		return C.VIP_SUCCESS
	}
	return code(q.c.Notify(func(e vi.Completion) {
		call(C.uintptr_t(e.VI.UserData().(*endpoint).h), boolean(e.Recv))
	}))
}

// vipl_go_error_callback sets the handler of asynchronous errors. NULL for f restores the default
// handler.
//
//export vipl_go_error_callback
func vipl_go_error_callback(nh C.uintptr_t, context unsafe.Pointer, f C.vipl_error) C.int {
	headroom()
	n := nics.get(handle(nh))
	if n == nil {
		return C.VIP_INVALID_PARAMETER
	}
	if f == nil {
		n.n.ErrorCallback(n.defaultError)
		return C.VIP_SUCCESS
	}
	n.n.ErrorCallback(func(d vi.ErrorDescriptor) {
		v, at := errorObjects(d)
		C.vipl_call_error(f, context, C.uintptr_t(n.h), C.uintptr_t(v), 0, at, C.uint64_t(d.OpCode),
			C.uint32_t(d.Resource), C.uint32_t(d.Code))
	})
	return C.VIP_SUCCESS
}

// errorObjects returns the VI and the descriptor of an error. An error of a completion queue has
// neither.
func errorObjects(d vi.ErrorDescriptor) (v handle, at unsafe.Pointer) {
	if d.VI != nil {
		v = d.VI.UserData().(*endpoint).h
	}
	if d.Descriptor != nil {
		at = d.Descriptor.Context.(*descriptor).at
	}
	return v, at
}

// defaultError is the handler of a program without its own. It writes a line to the standard error.
// [VIA 5.1]
func (n *nic) defaultError(d vi.ErrorDescriptor) {
	v, _ := errorObjects(d)
	complain("%s: %v (resource %d, VI %#x)", n.name, d.Code, d.Resource, uintptr(v))
}
