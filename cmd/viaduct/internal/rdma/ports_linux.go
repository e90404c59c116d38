//go:build linux && (amd64 || arm64)

package rdma

import (
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// A portTable holds the ports bound by identifiers. The kernel's rdma_cm has a table for each
// network namespace. A portTable is for all programs of a viaduct run. Conflicts with another run,
// or with sockets, are found by bind or listen of the TCP socket.
type portTable struct {
	mu     sync.Mutex
	owners map[portKey][]*binding // guarded by mu
}

type portKey struct {
	space uint16
	port  uint16
}

// A binding reserves a port for an identifier, from bind_addr or resolve_addr to the identifier's
// end.
type binding struct {
	space     uint16
	at        netip.AddrPort
	ownFamily bool // only connections of the address's own family are accepted
	reuse     bool // guarded by portTable.mu; the port may be shared with other such bindings
}

// add adds a binding, unless forbidden by another binding. The errors are the errors of the
// kernel's rdma_cm: EADDRINUSE if the port is in use at the same address, EADDRNOTAVAIL if either
// binding has every address.
func (t *portTable) add(b *binding) unix.Errno {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := portKey{b.space, b.at.Port()}
	if e := b.conflict(t.owners[k]); e != 0 {
		return e
	}
	if t.owners == nil {
		t.owners = map[portKey][]*binding{}
	}
	t.owners[k] = append(t.owners[k], b)
	return 0
}

// exclude makes a binding the only binding of the addresses, as required by listeners. If the port
// is already shared, exclude changes nothing and returns the same errors as add.
func (t *portTable) exclude(b *binding) unix.Errno {
	t.mu.Lock()
	defer t.mu.Unlock()
	reuse := b.reuse
	b.reuse = false
	e := b.conflict(t.owners[portKey{b.space, b.at.Port()}])
	if e != 0 {
		b.reuse = reuse
	}
	return e
}

// share lets a binding share the port from now on.
func (t *portTable) share(b *binding) {
	t.mu.Lock()
	b.reuse = true
	t.mu.Unlock()
}

// remove removes a binding, unless the binding is nil.
func (t *portTable) remove(b *binding) {
	if b == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	k := portKey{b.space, b.at.Port()}
	if t.owners[k] = slices.DeleteFunc(t.owners[k], func(o *binding) bool { return o == b }); len(t.owners[k]) == 0 {
		delete(t.owners, k)
	}
}

// conflict returns the error of a conflict of a binding with others of the same port. The caller
// holds the table's mu.
func (b *binding) conflict(others []*binding) unix.Errno {
	for _, o := range others {
		switch {
		case o == b, b.reuse && o.reuse:
		case b.ownFamily && o.ownFamily && b.at.Addr().Is4() != o.at.Addr().Is4():
		case b.at.Addr().IsUnspecified(), o.at.Addr().IsUnspecified():
			return unix.EADDRNOTAVAIL
		case b.at.Addr() == o.at.Addr():
			return unix.EADDRINUSE
		}
	}
	return 0
}
