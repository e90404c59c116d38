package roceudp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"viaduct/internal/wire/ib"
)

// ErrNoGroup reports that a port cannot receive packets to a multicast group.
var ErrNoGroup = errors.New("roceudp: no multicast group")

// maxGroups is the greatest number of groups a port receives from. Each needs a socket and a
// goroutine.
const maxGroups = 64

// A group is a multicast address that queue pairs of a port receive from. Its socket is bound to
// the group address. Other processes may bind the same address; each socket gets all packets.
type group struct {
	c       *net.UDPConn
	members map[*Pair]Senders // guarded by Port.mu
}

// A Senders function reports whether datagrams from a queue pair at an address are wanted; nil
// accepts all. It is called with locks held and must not call the port.
type Senders func(from netip.Addr, qpn uint32) bool

// Join makes a queue pair for datagrams receive datagrams to the group at, if from accepts their
// sender. A second Join for the same group replaces from. The group must be an address of the
// family of the port. The error matches ErrNoGroup, or net.ErrClosed after Close. [ROCE-UD-6]
func (q *Pair) Join(at netip.Addr, from Senders) error {
	p, at := q.port, at.Unmap()
	if !at.IsMulticast() || at.Is4() != p.addr.Is4() {
		return fmt.Errorf("%w: %v from %v", ErrNoGroup, at, p.addr)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.groups[at]
	switch {
	case p.closed || p.pairs[q.qpn] != q:
		return net.ErrClosed
	case g != nil:
		g.members[q] = from
		return nil
	case len(p.groups) >= maxGroups:
		return fmt.Errorf("%w: %v is in %d", ErrNoGroup, p.addr, maxGroups)
	}
	c, err := joinGroup(p.addr, netip.AddrPortFrom(at, ib.Port))
	if err != nil {
		return fmt.Errorf("%w: %v from %v: %w", ErrNoGroup, at, p.addr, err)
	}
	g = &group{c: c, members: map[*Pair]Senders{q: from}}
	if p.groups == nil {
		p.groups = map[netip.Addr]*group{}
	}
	p.groups[at] = g
	p.ended.Go(func() { p.receiveGroup(g, at) })
	return nil
}

// Leave ends the membership in the group at. It does nothing if the queue pair is no member.
func (q *Pair) Leave(at netip.Addr) {
	q.port.mu.Lock()
	defer q.port.mu.Unlock()
	q.port.leaveLocked(q, at.Unmap())
}

func (p *Port) leaveLocked(q *Pair, at netip.Addr) {
	g := p.groups[at]
	if g == nil {
		return
	}
	delete(g.members, q)
	if len(g.members) == 0 {
		delete(p.groups, at)
		g.c.Close()
	}
}

// receiveGroup receives packets to a group until the socket of the group is closed.
func (p *Port) receiveGroup(g *group, at netip.Addr) {
	b := make([]byte, maxPacket+1)
	var members []*Pair
	for {
		n, from, err := g.c.ReadFromUDPAddrPort(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		from = netip.AddrPortFrom(from.Addr().Unmap().WithZone(""), from.Port())
		raw := b[:n]
		if n > maxPacket || n < ib.BTHLen+ib.ICRCLen {
			p.malformed.Add(1)
			continue
		}
		pkt, err := ib.Parse(raw[:n-ib.ICRCLen])
		flow := ib.Flow{Source: from, Destination: netip.AddrPortFrom(at, ib.Port)}
		p.observe(false, from, flow.Destination, raw)
		switch {
		case err != nil:
			p.malformed.Add(1)
			continue
		case pkt.QPN != ib.MulticastQPN:
			p.noPair.Add(1)
			continue
		case flow.Check(raw) != nil:
			p.wrongCRC.Add(1)
			continue
		}
		members = p.membersOf(g, from.Addr(), pkt.DETH.SourceQPN, members[:0])
		for _, q := range members {
			q.mu.Lock()
			if !q.closed && q.dgram != nil {
				q.receiveDatagramLocked(&pkt, raw, from.Addr(), at)
			}
			q.mu.Unlock()
		}
	}
}

// membersOf appends the members of g that accept datagrams from a queue pair to all.
func (p *Port) membersOf(g *group, from netip.Addr, qpn uint32, all []*Pair) []*Pair {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for q, senders := range g.members {
		if senders == nil || senders(from, qpn) {
			all = append(all, q)
		}
	}
	return all
}
