//go:build libvipl

package main

// #include "engine.h"
import "C"

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaduct/vi"
)

// A ptag is a protection tag with its NIC.
type ptag struct {
	h   handle
	nic *nic
	p   *vi.Ptag
}

//export vipl_go_create_ptag
func vipl_go_create_ptag(nh C.uintptr_t, out *C.uintptr_t) C.int {
	headroom()
	n := nics.get(handle(nh))
	if n == nil {
		return C.VIP_INVALID_PARAMETER
	}
	p, err := n.n.CreatePtag()
	if err != nil {
		return code(err)
	}
	t := &ptag{nic: n, p: p}
	if t.h = ptags.add(t); !own(n, &ptags, t.h) {
		n.n.DestroyPtag(p)
		return C.VIP_ERROR_RESOURCE
	}
	n.mu.Lock()
	n.tags[p] = t.h
	n.mu.Unlock()
	*out = C.uintptr_t(t.h)
	return C.VIP_SUCCESS
}

//export vipl_go_destroy_ptag
func vipl_go_destroy_ptag(nh, h C.uintptr_t) C.int {
	headroom()
	n, t := nics.get(handle(nh)), ptags.get(handle(h))
	if n == nil || t == nil || t.nic != n {
		return C.VIP_INVALID_PARAMETER
	}
	if err := n.n.DestroyPtag(t.p); err != nil {
		return code(err)
	}
	n.mu.Lock()
	delete(n.tags, t.p)
	n.mu.Unlock()
	disown(n, &ptags, t.h)
	return C.VIP_SUCCESS
}

// tag returns the protection tag whose handle is at an address, a field of attributes. It returns
// nil for NULL, a valid value, and ErrInvalidPtag for any other handle without a tag.
func (n *nic) tag(at unsafe.Pointer) (*vi.Ptag, error) {
	h := number(at)
	if h == 0 {
		return nil, nil
	}
	t := ptags.get(h)
	if t == nil || t.nic != n {
		return nil, vi.ErrInvalidPtag
	}
	return t.p, nil
}

// number reads the handle at an address. Go must never treat the handle as a pointer, because the
// value could point to freed memory.
func number(at unsafe.Pointer) handle { return *(*handle)(at) }

func setNumber(at unsafe.Pointer, h handle) { *(*handle)(at) = h }

// tagHandle returns the handle of a protection tag, or 0 if p is nil or destroyed.
func (n *nic) tagHandle(p *vi.Ptag) handle {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.tags[p]
}

// memAttributes reads the memory attributes at a. If a is NULL, the result has no protection tag
// and permits no RDMA by the peer. memAttributes sets Guarded, because a program may unmap
// registered memory.
func (n *nic) memAttributes(a *C.VIP_MEM_ATTRIBUTES) (vi.MemAttributes, error) {
	m := vi.MemAttributes{Guarded: true, FaultBreaks: true}
	if a == nil {
		return m, nil
	}
	p, err := n.tag(unsafe.Pointer(&a.Ptag))
	m.Ptag, m.EnableRDMAWrite, m.EnableRDMARead = p, a.EnableRdmaWrite != 0, a.EnableRdmaRead != 0
	return m, err
}

//export vipl_go_register_mem
func vipl_go_register_mem(nh C.uintptr_t, addr C.uintptr_t, length C.VIP_ULONG, attrs *C.VIP_MEM_ATTRIBUTES, out *C.VIP_MEM_HANDLE) C.int {
	headroom()
	n := nics.get(handle(nh))
	if n == nil {
		return C.VIP_INVALID_PARAMETER
	}
	if length == 0 || !mapped(uintptr(addr), uintptr(length)) {
		return C.VIP_INVALID_PARAMETER
	}
	a, err := n.memAttributes(attrs)
	if err != nil {
		return code(err)
	}
	r, err := n.n.RegisterMem(unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), int(length)), a)
	if err != nil {
		return code(err)
	}
	n.mu.Lock()
	n.regions[uint32(r.Handle())] = r
	n.mu.Unlock()
	*out = C.VIP_MEM_HANDLE(r.Handle())
	return C.VIP_SUCCESS
}

// region finds a region by the handle and the address of the first byte. It returns nil if there is
// none.
func region(nh C.uintptr_t, addr C.uintptr_t, mh C.VIP_MEM_HANDLE) (*nic, *vi.Region) {
	n := nics.get(handle(nh))
	if n == nil {
		return nil, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.regions[uint32(mh)]
	if r == nil || r.Address() != uint64(addr) {
		return n, nil
	}
	return n, r
}

//export vipl_go_deregister_mem
func vipl_go_deregister_mem(nh, addr C.uintptr_t, mh C.VIP_MEM_HANDLE) C.int {
	headroom()
	n, r := region(nh, addr, mh)
	if r == nil {
		return C.VIP_INVALID_PARAMETER
	}
	if err := n.n.DeregisterMem(r); err != nil {
		return code(err)
	}
	n.mu.Lock()
	delete(n.regions, uint32(mh))
	n.mu.Unlock()
	return C.VIP_SUCCESS
}

//export vipl_go_set_mem_attributes
func vipl_go_set_mem_attributes(nh, addr C.uintptr_t, mh C.VIP_MEM_HANDLE, attrs *C.VIP_MEM_ATTRIBUTES) C.int {
	headroom()
	n, r := region(nh, addr, mh)
	if r == nil {
		return C.VIP_INVALID_PARAMETER
	}
	a, err := n.memAttributes(attrs)
	if err != nil {
		return code(err)
	}
	return code(n.n.SetMemAttributes(r, a))
}

//export vipl_go_query_mem
func vipl_go_query_mem(nh, addr C.uintptr_t, mh C.VIP_MEM_HANDLE, out *C.VIP_MEM_ATTRIBUTES) C.int {
	headroom()
	n, r := region(nh, addr, mh)
	if r == nil {
		return C.VIP_INVALID_PARAMETER
	}
	a, err := n.n.QueryMem(r)
	if err != nil {
		return code(err)
	}
	setNumber(unsafe.Pointer(&out.Ptag), n.tagHandle(a.Ptag))
	out.EnableRdmaWrite, out.EnableRdmaRead = boolean(a.EnableRDMAWrite), boolean(a.EnableRDMARead)
	return C.VIP_SUCCESS
}

// mapped reports whether all pages of length bytes at addr are mapped.
func mapped(addr, length uintptr) bool {
	page := uintptr(os.Getpagesize())
	end := addr + length
	if end < addr {
		return false
	}
	var there [1024]byte // room for the pages of one call; the content is not used
	for at := addr &^ (page - 1); at < end; {
		n := min((end-at+page-1)/page, uintptr(len(there)))
		if _, _, e := unix.Syscall(unix.SYS_MINCORE, at, n*page, uintptr(unsafe.Pointer(&there[0]))); e != 0 {
			return false
		}
		at += n * page
	}
	return true
}
