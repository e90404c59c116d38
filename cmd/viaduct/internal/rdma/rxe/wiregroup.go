package rxe

import "net/netip"

// groupAddr returns the address that packets to a multicast group have: of a group of IPv4, whose GID has it in the
// last four bytes, that one.
func (g GID) groupAddr() netip.Addr {
	if g[10] == 0xff && g[11] == 0xff {
		return netip.AddrFrom4([4]byte(g[12:]))
	}
	return netip.AddrFrom16(g)
}

// joinGroups makes the queue pair receive what other hosts send to groups, at its addresses on the wire that are of
// the family of the group. changing is locked.
func (q *QP) joinGroups(groups ...GID) {
	links := q.udLinks.Load()
	if links == nil {
		return
	}
	// Datagrams of this supervisor are delivered without the wire.
	elsewhere := func(from netip.Addr) bool { return !q.fabric.local(from.As16()) }
	for _, g := range groups {
		at := g.groupAddr()
		for own, l := range *links {
			if own.addr().Is4() != at.Is4() {
				continue
			}
			if err := l.pair.Join(at, elsewhere); err != nil {
				q.explain("queue pair %d: no datagrams to %v from other hosts: %v", q.num, at, err)
			}
		}
	}
}

// leaveGroup ends that. changing is locked.
func (q *QP) leaveGroup(g GID) {
	if links := q.udLinks.Load(); links != nil {
		for _, l := range *links {
			l.pair.Leave(g.groupAddr())
		}
	}
}

// groupsOf returns the groups that a queue pair is in.
func (f *Fabric) groupsOf(q *QP) (all []GID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for g := range q.groups {
		all = append(all, g)
	}
	return all
}

// groupLink returns the link by which datagrams from an address to a group leave this host, nil if they do not.
func (q *QP) groupLink(own, group GID) *udLink {
	if own.addr().Is4() != group.groupAddr().Is4() {
		return nil
	}
	return q.udLink(own)
}
