//go:build libvipl

package main

// #include "engine.h"
import "C"

import (
	"context"
	"slices"
	"time"
	"unsafe"

	"viaduct/internal/viplcode"
	"viaduct/vi"
)

// A connection is an incoming connection request, not yet answered by the program.
type connection struct {
	h   handle
	nic *nic
	r   *vi.ConnRequest
}

// forever is the smallest timeout, in milliseconds, taken as no limit. Programs with a header of
// their own pass 32 one bits; programs with our header pass 64.
const forever = 1<<32 - 1

// until returns a context for ms milliseconds, without a deadline if ms is at least forever.
func until(ms C.VIP_ULONG) (context.Context, context.CancelFunc) {
	if ms >= forever {
		return context.Background(), func() {}
	}
	return context.WithTimeout(context.Background(), time.Duration(ms)*time.Millisecond)
}

// address copies a network address, whose bytes follow the two lengths. The caller has checked the
// lengths by fits.
func address(a *C.VIP_NET_ADDRESS) vi.Address {
	host, d := int(a.HostAddressLen), int(a.DiscriminatorLen)
	b := unsafe.Slice((*byte)(unsafe.Pointer(&a.HostAddress)), host+d)
	return vi.Address{Host: slices.Clone(b[:host]), Discriminator: slices.Clone(b[host:])}
}

// fits reports whether the lengths of an address are plausible. The check must come before the
// bytes are read, because programs leave the length of their own host part uninitialised.
func (n *nic) fits(a *C.VIP_NET_ADDRESS) bool {
	return int(a.DiscriminatorLen) <= n.attrs.MaxDiscriminatorLen && a.HostAddressLen <= maxHost
}

// maxHost is the length of the longest host part: IPv6 and port.
const maxHost = 18

// local reads a program's own address. Only the discriminator matters, because the host part is
// often uninitialised; the NIC's own host part replaces it. [VIA 6.4.5]
func (n *nic) local(a *C.VIP_NET_ADDRESS) vi.Address {
	l := address(a)
	l.Host = n.place.Wait
	return l
}

// setAddress writes an address into room for NicAddressLen and MaxDiscriminatorLen bytes. If the
// address is too long, the host part is cut to NicAddressLen bytes.
func (n *nic) setAddress(out *C.VIP_NET_ADDRESS, a vi.Address) {
	room := len(n.attrs.LocalAddress) + n.attrs.MaxDiscriminatorLen
	host, d := a.Host, a.Discriminator
	own, ok := (vi.Address{Host: n.attrs.LocalAddress}).AddrPort()
	if ap, ok2 := a.AddrPort(); ok && ok2 {
		host = withPort(host, ap, own)
	}
	if len(host)+len(d) > room {
		host = host[:min(len(host), len(n.attrs.LocalAddress))]
	}
	b := unsafe.Slice((*byte)(unsafe.Pointer(&out.HostAddress)), len(host)+len(d))
	copy(b[copy(b, host):], d)
	out.HostAddressLen, out.DiscriminatorLen = C.VIP_UINT16(len(host)), C.VIP_UINT16(len(d))
}

//export vipl_go_connect_wait
func vipl_go_connect_wait(nh C.uintptr_t, local *C.VIP_NET_ADDRESS, timeout C.VIP_ULONG, remote *C.VIP_NET_ADDRESS, attrs *C.VIP_VI_ATTRIBUTES, out *C.uintptr_t) C.int {
	headroom()
	n := nics.get(handle(nh))
	if n == nil || !n.fits(local) {
		return C.VIP_INVALID_PARAMETER
	}
	ctx, cancel := until(timeout)
	defer cancel()
	r, err := n.n.ConnectWait(ctx, n.local(local))
	if err != nil {
		return code(err)
	}
	c := &connection{nic: n, r: r}
	if c.h = conns.add(c); !own(n, &conns, c.h) {
		r.Reject()
		return C.VIP_ERROR_RESOURCE
	}
	n.setAddress(remote, r.Remote())
	if attrs != nil {
		n.setAttributes(attrs, r.RemoteAttributes())
	}
	*out = C.uintptr_t(c.h)
	return C.VIP_SUCCESS
}

// vipl_go_connect_accept answers a request. The handle stays valid if the attributes or the state
// of the VI are unsuitable. If the provider found them unsuitable, the request is refused: the next
// accept returns VIP_INVALID_PARAMETER, and a reject ends the handle. [VIA 6.4.5]
//
//export vipl_go_connect_accept
func vipl_go_connect_accept(ch, h C.uintptr_t) C.int {
	headroom()
	c, e := conns.get(handle(ch)), vis.get(handle(h))
	if c == nil || e == nil || c.nic != e.nic {
		return C.VIP_INVALID_PARAMETER
	}
	err := c.r.Accept(context.Background(), e.v)
	switch viplcode.Of(err) {
	case viplcode.InvalidReliabilityLevel, viplcode.InvalidMTU, viplcode.InvalidState,
		viplcode.InvalidQoS, viplcode.InvalidParameter:
	default:
		disown(c.nic, &conns, c.h)
	}
	return code(err)
}

//export vipl_go_connect_reject
func vipl_go_connect_reject(ch C.uintptr_t) C.int {
	headroom()
	c := conns.get(handle(ch))
	if c == nil || !disown(c.nic, &conns, c.h) {
		return C.VIP_INVALID_PARAMETER
	}
	c.r.Reject() // the result is ignored: a requester that has given up needs no answer
	return C.VIP_SUCCESS
}

//export vipl_go_connect_request
func vipl_go_connect_request(h C.uintptr_t, local, remote *C.VIP_NET_ADDRESS, timeout C.VIP_ULONG, attrs *C.VIP_VI_ATTRIBUTES) C.int {
	headroom()
	e := vis.get(handle(h))
	if e == nil || !e.nic.fits(local) || !e.nic.fits(remote) {
		return C.VIP_INVALID_PARAMETER
	}
	ctx, cancel := until(timeout)
	defer cancel()
	a, err := e.v.ConnectRequest(ctx, e.nic.local(local), address(remote))
	if err == nil && attrs != nil {
		e.nic.setAttributes(attrs, a)
	}
	return code(err)
}

//export vipl_go_connect_peer_request
func vipl_go_connect_peer_request(h C.uintptr_t, local, remote *C.VIP_NET_ADDRESS, timeout C.VIP_ULONG) C.int {
	headroom()
	e := vis.get(handle(h))
	if e == nil || !e.nic.fits(local) || !e.nic.fits(remote) {
		return C.VIP_INVALID_PARAMETER
	}
	limit := max(time.Duration(min(timeout, forever))*time.Millisecond, 1)
	if timeout >= forever {
		limit = 0
	}
	return code(e.v.ConnectPeerRequest(e.nic.local(local), address(remote), limit))
}

// vipl_go_connect_peer_result returns the result of a request; wait selects whether to wait for the
// result.
//
//export vipl_go_connect_peer_result
func vipl_go_connect_peer_result(h C.uintptr_t, wait C.int, attrs *C.VIP_VI_ATTRIBUTES) C.int {
	headroom()
	e := vis.get(handle(h))
	if e == nil {
		return C.VIP_INVALID_PARAMETER
	}
	var a vi.Attributes
	var err error
	if wait != 0 {
		a, err = e.v.ConnectPeerWait(context.Background())
	} else {
		a, err = e.v.ConnectPeerDone()
	}
	if err == nil && attrs != nil {
		e.nic.setAttributes(attrs, a)
	}
	return code(err)
}
