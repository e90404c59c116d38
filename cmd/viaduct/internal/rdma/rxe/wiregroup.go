package rxe

import "net/netip"

// groupAddr returns the address of packets to a multicast group. The GID of an IPv4 group contains
// the group address in the last four bytes.
func (g GID) groupAddr() netip.Addr {
	if g[10] == 0xff && g[11] == 0xff {
		return netip.AddrFrom4([4]byte(g[12:]))
	}
	return netip.AddrFrom16(g)
}

// joinGroups makes the queue pair receive datagrams of other supervisors and hosts to groups. It joins a group at the
// addresses of the queue pair with the group's family. changing is locked.
func (q *QP) joinGroups(groups ...GID) {
	links := q.udLinks.Load()
	if links == nil {
		return
	}
	// The fabric itself delivers datagrams of this supervisor.
	elsewhere := func(from netip.Addr, qpn uint32) bool { return !q.fabric.reaches(from.As16(), qpn) }
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

// leaveGroup ends the membership of the queue pair's links in a group. changing is locked.
func (q *QP) leaveGroup(g GID) {
	if links := q.udLinks.Load(); links != nil {
		for _, l := range *links {
			l.pair.Leave(g.groupAddr())
		}
	}
}

// groupsOf returns the groups the queue pair has joined.
func (f *Fabric) groupsOf(q *QP) (all []GID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for g := range q.groups {
		all = append(all, g)
	}
	return all
}

// groupLink returns the link for datagrams from an address to a group to leave this host, or nil if
// the datagrams stay.
func (q *QP) groupLink(own, group GID) *udLink {
	if own.addr().Is4() != group.groupAddr().Is4() {
		return nil
	}
	return q.udLink(own)
}
