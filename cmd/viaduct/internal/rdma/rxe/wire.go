package rxe

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"

	"viaduct/internal/roceudp"
)

// A wire is UDP port 4791 of this supervisor's addresses. Queue pairs reach other supervisors,
// kernels and adapters through the wire. Each port is opened when the first queue pair needs the
// port.
type wire struct {
	mu     sync.Mutex
	ports  map[netip.Addr]*roceudp.Port // guarded by mu
	tap    roceudp.Tap                  // guarded by mu; may be nil
	closed bool                         // guarded by mu
}

// errNoWire reports an address packets cannot have.
var errNoWire = errors.New("rxe: the address is not one that packets can have")

// pair returns a new queue pair with number num at a local address.
func (f *Fabric) pair(own netip.Addr, num uint32) (*roceudp.Pair, error) {
	p, err := f.wire.port(own, f.numbers())
	if err != nil {
		return nil, err
	}
	return p.NewPairNumbered(num)
}

func (w *wire) port(own netip.Addr, numbers *roceudp.Share) (*roceudp.Port, error) {
	if !onWire(own) {
		return nil, errNoWire
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, errNoWire
	}
	if p := w.ports[own]; p != nil {
		return p, nil
	}
	p, err := numbers.Open(own)
	if errors.Is(err, syscall.EADDRINUSE) {
		who := PortUser(own)
		if who == "" {
			who = "another process"
		}
		err = fmt.Errorf("%w: %s has it, so that programs here reach only each other; give this device an address of its own, as in --device rxe0=127.0.0.2", err, who)
	}
	if err != nil {
		return nil, err
	}
	if w.ports == nil {
		w.ports = map[netip.Addr]*roceudp.Port{}
	}
	if w.tap != nil {
		p.SetTap(w.tap)
	}
	w.ports[own] = p
	return p, nil
}

func (w *wire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, p := range w.ports {
		p.Close()
	}
	w.ports = nil
}

// addr returns the IP address of the GID.
func (g GID) addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// onWire reports whether packets can have the address. Link-local IPv6 addresses are excluded,
// because the first GID of a device is an invented address.
func onWire(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && !(a.Is6() && a.IsLinkLocalUnicast())
}
