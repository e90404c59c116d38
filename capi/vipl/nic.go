//go:build libvipl

package main

// #include <stdlib.h>
// #include "engine.h"
import "C"

import (
	"os"
	"sync"
	"unsafe"

	"viaduct/internal/viplcode"
	"viaduct/internal/viplconf"
	"viaduct/vi"
)

// maxNICs is the number of NICs a process may have open. There must be a limit, because test
// programs open NICs until an open fails. [VIA 8.2]
const maxNICs = 1024

// A nic is an open NIC.
type nic struct {
	h     handle
	n     *vi.NIC
	name  string
	attrs vi.NICAttributes
	place viplconf.Place
	addr  unsafe.Pointer // C memory: the bytes of attrs.LocalAddress

	handlers sync.WaitGroup // running and waiting calls of Notify handlers

	mu       sync.Mutex
	closed   bool                  // guarded by mu
	regions  map[uint32]*vi.Region // guarded by mu; by memory handle
	tags     map[*vi.Ptag]handle   // guarded by mu
	children map[handle]func()     // guarded by mu; by handle: the function that removes the object from its table
}

// opened holds the number of open NICs and their Opener.
var opened struct {
	mu     sync.Mutex
	n      int              // guarded by mu
	opener *viplconf.Opener // guarded by mu; created for the first NIC
}

// opener returns the Opener and counts another open NIC. The first call reads the configuration.
// Beyond maxNICs the error is ErrResource.
func opener() (*viplconf.Opener, error) {
	opened.mu.Lock()
	defer opened.mu.Unlock()
	if opened.opener == nil {
		cfg, err := viplconf.Load(os.Getenv("VIPL_CONFIG"))
		if err != nil {
			return nil, err
		}
		opened.opener = viplconf.New(cfg)
	}
	if opened.n >= maxNICs {
		return nil, vi.ErrResource
	}
	opened.n++
	return opened.opener, nil
}

func closedOne() {
	opened.mu.Lock()
	opened.n--
	opened.mu.Unlock()
}

//export vipl_go_open_nic
func vipl_go_open_nic(name *C.char, out *C.uintptr_t) C.int {
	headroom()
	o, err := opener()
	if err != nil {
		complain("%v", err)
		return code(vi.ErrResource)
	}
	n := &nic{name: text(name), regions: make(map[uint32]*vi.Region), tags: make(map[*vi.Ptag]handle),
		children: make(map[handle]func())}
	if n.n, n.place, err = o.Open(n.name); err == nil {
		n.attrs = n.n.Query()
		n.addr = C.CBytes(n.attrs.LocalAddress)
		n.n.ErrorCallback(n.defaultError)
		if n.h = nics.add(n); n.h == 0 {
			n.n.Close()
			err = vi.ErrResource
		}
	}
	if err != nil {
		closedOne()
		return code(err)
	}
	*out = C.uintptr_t(n.h)
	return C.VIP_SUCCESS
}

// vipl_go_close_nic closes a NIC and all remaining objects. It waits until all Notify handlers have
// returned. In a call from a Notify handler (inNotify is not 0) there is no wait, because the
// handler would wait for itself.
//
//export vipl_go_close_nic
func vipl_go_close_nic(h C.uintptr_t, inNotify C.int) C.int {
	headroom()
	n := nics.get(handle(h))
	if n == nil || !nics.remove(handle(h)) {
		return C.VIP_INVALID_PARAMETER
	}
	n.mu.Lock()
	n.closed = true
	for _, leave := range n.children {
		leave()
	}
	n.children = nil
	n.mu.Unlock()
	n.n.Close()
	if inNotify == 0 {
		n.handlers.Wait()
	}
	C.free(n.addr)
	closedOne()
	return C.VIP_SUCCESS
}

// own registers h, the handle of a new object, so that closing the NIC also removes h. If the NIC
// is already closed, own removes h and returns false. It also returns false if h is 0.
func own[T any](n *nic, t *table[T], h handle) bool {
	if h == 0 {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		t.remove(h)
		return false
	}
	n.children[h] = func() { t.remove(h) }
	return true
}

// disown removes a handle before the NIC is closed. It returns false if the handle was not valid.
func disown[T any](n *nic, t *table[T], h handle) bool {
	if !t.remove(h) {
		return false
	}
	n.mu.Lock()
	delete(n.children, h)
	n.mu.Unlock()
	return true
}

//export vipl_go_query_nic
func vipl_go_query_nic(h C.uintptr_t, out *C.VIP_NIC_ATTRIBUTES) C.int {
	headroom()
	n := nics.get(handle(h))
	if n == nil {
		return C.VIP_INVALID_PARAMETER
	}
	a := &n.attrs
	*out = C.VIP_NIC_ATTRIBUTES{
		HardwareVersion:         C.VIP_ULONG(a.HardwareVersion),
		ProviderVersion:         C.VIP_ULONG(a.ProviderVersion),
		NicAddressLen:           C.VIP_UINT16(len(a.LocalAddress)),
		LocalNicAddress:         (*C.VIP_UINT8)(n.addr),
		ThreadSafe:              boolean(a.ThreadSafe),
		MaxDiscriminatorLen:     C.VIP_UINT16(a.MaxDiscriminatorLen),
		MaxRegisterBytes:        C.VIP_ULONG(a.MaxRegisterBytes),
		MaxRegisterRegions:      C.VIP_ULONG(a.MaxRegisterRegions),
		MaxRegisterBlockBytes:   C.VIP_ULONG(a.MaxRegisterBlockBytes),
		MaxVI:                   C.VIP_ULONG(a.MaxVI),
		MaxDescriptorsPerQueue:  C.VIP_ULONG(a.MaxDescriptorsPerQueue),
		MaxSegmentsPerDesc:      C.VIP_ULONG(a.MaxSegmentsPerDesc),
		MaxCQ:                   C.VIP_ULONG(a.MaxCQ),
		MaxCQEntries:            C.VIP_ULONG(a.MaxCQEntries),
		MaxTransferSize:         C.VIP_ULONG(a.MaxTransferSize),
		NativeMTU:               C.VIP_ULONG(a.NativeMTU),
		MaxPtags:                C.VIP_ULONG(a.MaxPtags),
		ReliabilityLevelSupport: C.VIP_RELIABILITY_LEVEL(a.ReliabilityLevels),
		RDMAReadSupport:         C.VIP_RELIABILITY_LEVEL(a.RDMAReadSupport),
	}
	for i := 0; i < len(n.name) && i < len(out.Name)-1; i++ {
		out.Name[i] = C.VIP_CHAR(n.name[i])
	}
	return C.VIP_SUCCESS
}

// vipl_go_gathers reports whether the NIC gathers sends from successive posts.
//
//export vipl_go_gathers
func vipl_go_gathers(h C.uintptr_t) C.int {
	n := nics.get(handle(h))
	return C.int(boolean(n != nil && n.place.Gather))
}

func boolean(b bool) C.VIP_BOOLEAN {
	if b {
		return C.VIP_TRUE
	}
	return C.VIP_FALSE
}

// code returns the return code of an error. [VIA 6.3]
func code(err error) C.int { return C.int(viplcode.Of(err)) }
