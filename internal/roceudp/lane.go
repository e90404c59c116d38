package roceudp

import (
	"encoding/binary"
	"io"
	"net/netip"
	"slices"

	"viaduct/internal/wire/ib"
)

// A lane is a connection with the port of another share at the same address. Ports of one address
// and user are connected in pairs. A lane carries packets in both directions:
//
//   - packets that the kernel gave to a port that does not have the queue pair
//   - packets from a queue pair of one share to a queue pair of the other
//
// A packet that arrives through a lane goes no further, so that packets cannot circulate. A
// datagram of connection management is the exception, see Port.passManagementLocked. [ROCE-NET-9]
type lane struct {
	slot    uint8 // of the other share
	sock    socket
	backlog *backlog // queue pairs with packets for which sock has no room
}

// A trailer follows each packet in a lane.
type trailer struct {
	from netip.AddrPort // sender of the packet

	// For datagrams of connection management:
	start    uint8 // slot of the first port that had the datagram, or finalStop
	fallback uint8 // slot of the last port that manages connections but did not expect the datagram, or 0
}

const (
	trailerLen = 20

	// finalStop is the start of a datagram that goes no further. No share has this slot.
	finalStop = 255
)

func (t trailer) put(b []byte) {
	a := t.from.Addr().As16()
	copy(b, a[:])
	binary.BigEndian.PutUint16(b[16:], t.from.Port())
	b[18], b[19] = t.start, t.fallback
}

func parseTrailer(b []byte) trailer {
	return trailer{netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)).Unmap(), binary.BigEndian.Uint16(b[16:])), b[18], b[19]}
}

// lane returns the lane to a slot, or nil if there is none.
func (p *Port) lane(slot uint8) *lane {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.lanes[slot]
}

// Shared reports whether other processes have ports of the same address.
func (p *Port) Shared() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return len(p.lanes) > 0
}

// laneTo returns the lane for a packet to a queue pair at the address of the port, or nil if the
// packet has to take the network.
func (p *Port) laneTo(to netip.Addr, qpn uint32) *lane {
	if to != p.addr || slotOf(qpn) == p.slot || p.slot == 0 {
		return nil
	}
	return p.lane(slotOf(qpn))
}

// passLocked sends packet i of the batch, of n bytes, through the lane to a slot. It returns false if
// there is no such lane. If the lane is full, the packet is lost. rx is locked.
func (p *Port) passLocked(slot uint8, i, n int, t trailer) bool {
	l := p.lane(slot)
	if l == nil {
		return false
	}
	b := p.batch.buf[i][:n+trailerLen]
	t.put(b[n:])
	if l.sock.sendOne(b) != nil {
		p.unsent.Add(1)
	}
	return true
}

// passManagementLocked passes a datagram to queue pair 1, packet i of the batch with n bytes, to
// another port of the address, and returns false if this port has to handle it. All ports of an address
// have the same queue pair 1, so the datagram visits the ports in the order of their slots, until
// a port expects it. If no port does, the last visited port that manages connections answers. rx is
// locked.
func (p *Port) passManagementLocked(i, n int, t trailer, lane bool) bool {
	if t.start == finalStop || lane && t.start == p.slot {
		return false
	}
	if !lane {
		t.start, t.fallback = p.slot, 0
	}
	if q := p.pair(ib.ManagementQPN); q != nil {
		if q.expects(t.from.Addr(), p.batch.packet.Payload) {
			return false
		}
		t.fallback = p.slot
	}
	next := p.nextSlot(t.start)
	if next == 0 {
		if t.fallback == p.slot || t.fallback == 0 {
			return false
		}
		next, t.start = t.fallback, finalStop
	}
	return p.passLocked(next, i, n, t)
}

// nextSlot returns the first slot with a lane, counted upward from the port's own slot, or 0 if
// there is none before the slot start.
func (p *Port) nextSlot(start uint8) uint8 {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for s := p.slot + 1; s != start; s++ {
		if p.lanes[s] != nil {
			return s
		}
	}
	return 0
}

// SetExpects makes expects decide which datagrams to queue pair 1 belong to this port, if there are
// other ports of its address. expects is called with locks held and must not call the port.
func (q *Pair) SetExpects(expects func(from netip.Addr, payload []byte) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.isExpected = expects
}

func (q *Pair) expects(from netip.Addr, payload []byte) bool {
	q.mu.Lock()
	f := q.isExpected
	q.mu.Unlock()
	return f == nil || f(from, payload)
}

// addLane makes a connection the lane to a slot, instead of an earlier lane. With welcome, it first
// sends the message that the other port waits for. It returns nil if the port or the connection is
// closed.
func (p *Port) addLane(slot uint8, sock socket, welcome []byte) *lane {
	l := &lane{slot: slot, sock: sock, backlog: newBacklog(&p.lateMu)}
	p.mu.Lock()
	if p.closed || welcome != nil && sock.sendOne(welcome) != nil {
		p.mu.Unlock()
		return nil
	}
	if p.lanes == nil {
		p.lanes = map[uint8]*lane{}
	}
	p.lanes[slot] = l
	p.mu.Unlock()
	return l
}

// serveLane receives from a lane until its connection or the port is closed.
func (p *Port) serveLane(l *lane) {
	p.rx.Lock()
	p.reading = append(p.reading, l)
	p.rx.Unlock()
	done := make(chan struct{})
	p.ended.Go(func() { p.sendBacklog(l.backlog, &l.sock, done) })
	p.receive(l)
	close(done)
	p.mu.Lock()
	if p.lanes[l.slot] == l {
		delete(p.lanes, l.slot)
	}
	p.mu.Unlock()
	p.rx.Lock()
	p.reading = slices.DeleteFunc(p.reading, func(x *lane) bool { return x == l })
	p.rx.Unlock()
	l.sock.close()
	l.backlog.moveTo(p.backlog)
}

// keep makes Close close c. It closes c and returns false if the port is closed already.
func (p *Port) keep(c io.Closer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.Close()
		return false
	}
	if p.kept == nil {
		p.kept = map[io.Closer]bool{}
	}
	p.kept[c] = true
	return true
}

func (p *Port) drop(c io.Closer) {
	c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.kept, c)
}
