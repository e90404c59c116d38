package fcvi

import (
	"bytes"
	"net/netip"
	"slices"

	"viaduct/internal/fc/fcip"
	"viaduct/vi"
)

// If two NICs with fabrics of their own call each other, the NIC with the lower address connects,
// and the other waits at its fabric. Two VIs of one NIC have the same address, and a port does not
// log in to itself. So the NIC has a second port at its own fabric, and makes one of the two
// requests from there. The discriminators then decide. If the discriminators are equal too, the
// earlier request waits.

// A halves counts the pending requests of a NIC's VIs with the same address and discriminator. home
// counts the waiting requests, away the connecting requests.
type halves struct{ home, away int }

// own returns the address where the NIC's fabric accepts links.
func (d *device) own() netip.AddrPort {
	own, _ := (vi.Address{Host: d.host}).AddrPort()
	if own.Port() == 0 {
		own = netip.AddrPortFrom(own.Addr(), fcip.Port)
	}
	return own
}

// isOwn reports whether ap, with a port, is an address of the NIC's fabric.
func (d *device) isOwn(ap netip.AddrPort) bool {
	own := d.own()
	return ap == own || ap.Port() == own.Port() && slices.Contains(d.ips, ap.Addr())
}

// waitsAtHome reports whether a peer-to-peer request waits at the NIC's own fabric for the peer's
// connection. The caller calls over when the request has ended.
func (d *device) waitsAtHome(local, remote vi.Address) (home bool, over func()) {
	over = func() {}
	ap, ok := remote.AddrPort()
	if d.daemon == nil || !ok {
		return false, over
	}
	if ap.Port() == 0 {
		ap = netip.AddrPortFrom(ap.Addr(), fcip.Port)
	}
	if !d.isOwn(ap) {
		return d.own().Compare(ap) > 0, over
	}
	if c := bytes.Compare(local.Discriminator, remote.Discriminator); c != 0 {
		return c > 0, over
	}
	key := string(local.Discriminator)
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.same[key]
	if h == nil {
		h = new(halves)
		d.same[key] = h
	}
	n := &h.away
	if home = h.home <= h.away; home {
		n = &h.home
	}
	*n++
	return home, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if *n--; *h == (halves{}) && d.same[key] == h {
			delete(d.same, key)
		}
	}
}
