//go:build libvipl

package main

// #include <string.h>
// #include "engine.h"
import "C"

import (
	"context"
	"net/netip"
	"slices"
	"unsafe"

	"viaduct/internal/sock"
	"viaduct/vi"
)

//export vipl_go_ns_init
func vipl_go_ns_init(nh C.uintptr_t) C.int {
	headroom()
	n := nics.get(handle(nh))
	if n == nil {
		return C.VIP_INVALID_PARAMETER
	}
	return code(n.n.NSInit())
}

//export vipl_go_ns_shutdown
func vipl_go_ns_shutdown(nh C.uintptr_t) C.int {
	headroom()
	n := nics.get(handle(nh))
	if n == nil {
		return C.VIP_INVALID_PARAMETER
	}
	return code(n.n.NSShutdown())
}

// text returns a copy of a C string. It does not use C.GoString, because GoString reads past the
// end of the string in a search for the end, and memory checkers then complain.
func text(s *C.char) string { return C.GoStringN(s, C.int(C.strlen(s))) }

//export vipl_go_ns_by_name
func vipl_go_ns_by_name(nh C.uintptr_t, name *C.char, out *C.VIP_NET_ADDRESS, index C.VIP_ULONG) C.int {
	headroom()
	n := nics.get(handle(nh))
	if n == nil {
		return C.VIP_INVALID_PARAMETER
	}
	host, err := n.byName(text(name), int(min(index, 1<<31-1)))
	if err != nil {
		return code(err)
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&out.HostAddress)), len(host)), host)
	out.HostAddressLen = C.VIP_UINT16(len(host))
	return C.VIP_SUCCESS
}

// byName returns the index-th address of a name. It skips addresses without the form of the NIC's
// own, because a program has room for NicAddressLen bytes. It replaces an address of the host
// itself by the NIC's, because programs on the host wait there, while resolvers return 127.0.1.1 or
// the address of another interface for the host's own name.
func (n *nic) byName(name string, index int) ([]byte, error) {
	var seen [][]byte
	for i := 0; ; i++ {
		host, err := n.n.NSGetHostByName(context.Background(), name, i)
		if err != nil {
			return nil, err
		}
		if host = n.form(host); host == nil ||
			slices.ContainsFunc(seen, func(b []byte) bool { return string(b) == string(host) }) {
			continue
		}
		if len(seen) == index {
			return host, nil
		}
		seen = append(seen, host)
	}
}

// form converts a host part to the length of the NIC's own host part. It returns nil if no
// conversion is possible.
func (n *nic) form(host []byte) []byte {
	own, ok := (vi.Address{Host: n.attrs.LocalAddress}).AddrPort()
	ap, ok2 := (vi.Address{Host: host}).AddrPort()
	if !ok || !ok2 {
		return nil
	}
	if ap.Port() == 0 && sock.IsOwn(ap.Addr()) {
		return n.attrs.LocalAddress
	}
	if host = withPort(host, ap, own); len(host) == len(n.attrs.LocalAddress) {
		return host
	}
	return nil
}

// withPort adds the NIC's port to a host part of the same family without port. Without a port in
// the NIC's own host part, nothing is added. Programs assume that every host part has NicAddressLen
// bytes.
func withPort(host []byte, ap, own netip.AddrPort) []byte {
	if ap.Port() == 0 && ap.Addr().Is4() == own.Addr().Is4() && own.Port() != 0 {
		return vi.IPAddress(netip.AddrPortFrom(ap.Addr(), own.Port()), "").Host
	}
	return host
}

// vipl_go_ns_by_addr writes the name of a host and the length, including the final 0. If there is
// too little room, the length is the required length.
//
//export vipl_go_ns_by_addr
func vipl_go_ns_by_addr(nh C.uintptr_t, addr *C.VIP_NET_ADDRESS, out *C.char, room *C.VIP_ULONG) C.int {
	headroom()
	n := nics.get(handle(nh))
	if n == nil || addr.HostAddressLen > maxHost {
		return C.VIP_INVALID_PARAMETER
	}
	host := unsafe.Slice((*byte)(unsafe.Pointer(&addr.HostAddress)), addr.HostAddressLen)
	name, err := n.n.NSGetHostByAddr(context.Background(), slices.Clone(host))
	if err != nil {
		return code(err)
	}
	had := *room
	*room = C.VIP_ULONG(len(name) + 1)
	if had < *room {
		return C.VIP_ERROR_RESOURCE
	}
	b := unsafe.Slice((*byte)(unsafe.Pointer(out)), len(name)+1)
	b[copy(b, name)] = 0
	return C.VIP_SUCCESS
}

// vipl_go_autodiscovery writes the hosts of the hosts file to addresses as far as there is room,
// and returns the number of all hosts.
//
//export vipl_go_autodiscovery
func vipl_go_autodiscovery(nh C.uintptr_t, out **C.VIP_NET_ADDRESS, n *C.VIP_ULONG) C.int {
	headroom()
	c := nics.get(handle(nh))
	if c == nil {
		return C.VIP_INVALID_PARAMETER
	}
	hosts := c.n.KnownHosts()
	for i := range min(len(hosts), int(min(*n, 1<<31-1))) {
		if out == nil {
			break
		}
		if a := unsafe.Slice(out, i+1)[i]; a != nil {
			c.setAddress(a, vi.Address{Host: hosts[i]})
		}
	}
	*n = C.VIP_ULONG(len(hosts))
	return C.VIP_SUCCESS
}
