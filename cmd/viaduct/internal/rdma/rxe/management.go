package rxe

import (
	"net/netip"

	"viaduct/internal/rocecore"
	"viaduct/internal/wire/ib"
)

// A Management is the queue pair 1 of an address, for the datagrams of connection management. All
// methods are safe for concurrent use. It is closed with the fabric.
type Management struct {
	udLink // provides the methods of a rocecore.Host that datagrams do not need
	handle func(from netip.Addr, b []byte)
	buf    [grhLen + ib.MADLen]byte // guarded by the lock of pair
}

// Manage opens the queue pair 1 of an address of this host. It calls handle with each received
// datagram. handle must not keep the bytes, and must not block. If other supervisors have the
// address, a datagram goes to the supervisor whose function expects returns true. expects is called
// with locks held.
func (f *Fabric) Manage(own netip.Addr, handle func(from netip.Addr, b []byte), expects func(from netip.Addr, b []byte) bool) (*Management, error) {
	pair, err := f.pair(own, ib.ManagementQPN)
	if err != nil {
		return nil, err
	}
	m := &Management{handle: handle}
	m.pair = pair
	pair.SetExpects(expects)
	pair.Datagrams(m, rocecore.DatagramConfig{MTU: ib.MADLen, QKey: ib.ManagementQKey})
	return m, nil
}

// Send sends a datagram to the queue pair 1 at the address to. b has at most ib.MADLen bytes.
// [ROCE-CM-1]
func (m *Management) Send(to netip.Addr, b []byte) {
	m.pair.Post(&rocecore.Request{Op: rocecore.Send, Buf: inline(b),
		To: rocecore.Destination{Addr: to, QPN: ib.ManagementQPN, QKey: ib.ManagementQKey}})
}

// RequestDone implements rocecore.Host.
func (m *Management) RequestDone(*rocecore.Request, rocecore.Completion) {}

// NextReceive implements rocecore.Host.
func (m *Management) NextReceive() (rocecore.Receive, bool) {
	return rocecore.Receive{Buf: inline(m.buf[:])}, true
}

// Received implements rocecore.Host.
func (m *Management) Received(_ rocecore.Receive, a rocecore.Arrival) {
	grh, n, err := ib.ParseGRH(m.buf[:])
	if a.Status != rocecore.OK || a.Source != ib.ManagementQPN || err != nil || a.Len < n {
		return
	}
	m.handle(grh.Source, m.buf[n:a.Len])
}

var _ rocecore.Host = (*Management)(nil)

// OnWire reports whether packets can have the address g.
func OnWire(g GID) bool { return onWire(g.addr()) }

// Shared reports whether other supervisors have an address of this host.
func (f *Fabric) Shared(own netip.Addr) bool {
	p, err := f.wire.port(own, f.numbers())
	return err == nil && p.Shared()
}

// Local reports whether g is an address of a port of the fabric.
func (f *Fabric) Local(g GID) bool { return f.local(g) }
