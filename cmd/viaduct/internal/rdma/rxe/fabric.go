package rxe

import (
	"math/rand/v2"
	"net/netip"
	"sync"

	"viaduct/internal/roceudp"
)

// A GID is an address of a port: an IPv6 address, or an IPv4 address mapped to IPv6.
type GID [16]byte

// multicast reports whether the address names a multicast group.
func (g GID) multicast() bool { return g[0] == 0xff }

// A Port holds the GID table of a device.
type Port struct {
	mu   sync.RWMutex
	gids []GID // guarded by mu
}

// SetGIDs replaces the table. The caller must not change gids afterwards.
func (p *Port) SetGIDs(gids []GID) {
	p.mu.Lock()
	p.gids = gids
	p.mu.Unlock()
}

// GID returns the table's entry at index, or zeros if there is none.
func (p *Port) GID(index uint8) (g GID) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if int(index) < len(p.gids) {
		g = p.gids[index]
	}
	return g
}

// Has reports whether the table has an entry at index.
func (p *Port) Has(index uint8) bool { return p.GID(index) != GID{} }

// all returns the table. The caller must not change the table.
func (p *Port) all() []GID {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.gids
}

// owns reports whether g is in the table.
func (p *Port) owns(g GID) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, x := range p.gids {
		if x == g {
			return true
		}
	}
	return false
}

// A Fabric connects queue pairs. The queue pairs of a supervisor reach each other directly,
// whatever their devices, and all others by RoCEv2. Other supervisors of the user on this host may
// have the same addresses; the numbers of their queue pairs are in other shares.
type Fabric struct {
	atomics sync.Mutex // locked around each atomic operation, so that these exclude each other
	wire    wire

	mu     sync.Mutex
	ports  []*Port              // guarded by mu
	qps    map[uint32]*QP       // guarded by mu; by number
	share  *roceudp.Share       // guarded by mu; nil before the first queue pair
	next   uint32               // guarded by mu
	groups map[GID]map[*QP]bool // guarded by mu; members of multicast groups
}

// NewFabric creates a fabric without queue pairs.
func NewFabric() *Fabric {
	return &Fabric{qps: map[uint32]*QP{}, groups: map[GID]map[*QP]bool{}}
}

// Close closes the sockets of the fabric. All queue pairs must be closed before.
func (f *Fabric) Close() {
	f.wire.close()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.share != nil {
		f.share.Close()
	}
}

// SetTap makes tap receive all packets on the network. It must be called before the first queue
// pair is created.
func (f *Fabric) SetTap(tap roceudp.Tap) {
	f.wire.mu.Lock()
	defer f.wire.mu.Unlock()
	f.wire.tap = tap
}

// NewPort creates a port of the fabric with an empty GID table.
func (f *Fabric) NewPort() *Port {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := new(Port)
	f.ports = append(f.ports, p)
	return p
}

// local reports whether g is an address of a port of the fabric.
func (f *Fabric) local(g GID) bool {
	f.mu.Lock()
	ports := f.ports
	f.mu.Unlock()
	for _, p := range ports {
		if p.owns(g) {
			return true
		}
	}
	return false
}

// reaches reports whether a queue pair number at an address belongs to this supervisor, so that no
// packets are needed.
func (f *Fabric) reaches(g GID, qpn uint32) bool { return f.local(g) && f.numbers().Has(qpn) }

// numbers returns the share of the fabric.
func (f *Fabric) numbers() *roceudp.Share {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.numbersLocked()
}

func (f *Fabric) numbersLocked() *roceudp.Share {
	if f.share == nil {
		f.share = roceudp.NewShare()
		// A random start makes it unlikely that a peer still sends to a queue pair of a supervisor
		// that had the same share before.
		first, last := f.share.Numbers()
		f.next = first + rand.Uint32N(last-first+1)
	}
	return f.share
}

// add assigns an unused number to a queue pair. It returns false if there is none.
func (f *Fabric) add(q *QP) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	first, last := f.numbersLocked().Numbers()
	if len(f.qps) > int(last-first) {
		return false
	}
	for q.num == 0 {
		if f.qps[f.next] == nil {
			q.num = f.next
			f.qps[q.num] = q
		}
		if f.next++; f.next > last {
			f.next = first
		}
	}
	return true
}

func (f *Fabric) remove(q *QP) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.qps, q.num)
	for g := range q.groups {
		f.leave(q, g)
	}
}

// QP returns the queue pair with the given number, or nil.
func (f *Fabric) QP(num uint32) *QP {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.qps[num]
}

// The goroutine that serves all programs delivers a datagram to all members of a group. Therefore
// the numbers of members, of groups, and of groups per queue pair are limited.
const (
	maxMembers   = 56 // reported by query_device
	maxGroups    = 8 << 10
	maxOwnGroups = 1024
)

// Attach makes a queue pair a member of a multicast group. The error is ErrInvalid for a queue pair
// other than UD or an address other than multicast, and ErrMemory for an exceeded limit.
func (f *Fabric) Attach(q *QP, g GID) error {
	if q.typ != UD || !g.multicast() {
		return ErrInvalid
	}
	q.changing.Lock()
	defer q.changing.Unlock()
	if err := f.attach(q, g); err != nil {
		return err
	}
	q.joinGroups(g)
	return nil
}

func (f *Fabric) attach(q *QP, g GID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case q.groups[g]:
		return nil
	case len(q.groups) >= maxOwnGroups, len(f.groups[g]) >= maxMembers, f.groups[g] == nil &&
		len(f.groups) >= maxGroups:
		return ErrMemory
	}
	if f.groups[g] == nil {
		f.groups[g] = map[*QP]bool{}
	}
	f.groups[g][q] = true
	if q.groups == nil {
		q.groups = map[GID]bool{}
	}
	q.groups[g] = true
	return nil
}

// Detach ends the membership of a queue pair in a group. The error is ErrInvalid if there is none.
func (f *Fabric) Detach(q *QP, g GID) error {
	q.changing.Lock()
	defer q.changing.Unlock()
	q.leaveGroup(g)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.groups[g][q] {
		return ErrInvalid
	}
	f.leave(q, g)
	return nil
}

// leave removes a member from a group. mu is locked.
func (f *Fabric) leave(q *QP, g GID) {
	delete(f.groups[g], q)
	if len(f.groups[g]) == 0 {
		delete(f.groups, g)
	}
	delete(q.groups, g)
}

// attached reports whether a queue pair is a member of any group.
func (f *Fabric) attached(q *QP) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(q.groups) > 0
}

// members returns the queue pairs that receive a datagram to an address and queue pair number.
func (f *Fabric) members(to GID, qpn uint32) []*QP {
	f.mu.Lock()
	defer f.mu.Unlock()
	if to.multicast() {
		var all []*QP
		for q := range f.groups[to] {
			all = append(all, q)
		}
		return all
	}
	if q := f.qps[qpn]; q != nil && q.port.owns(to) {
		return []*QP{q}
	}
	return nil
}

// String formats the address as in programs' output: a mapped IPv4 address in the form of IPv4.
func (g GID) String() string { return netip.AddrFrom16(g).Unmap().String() }
