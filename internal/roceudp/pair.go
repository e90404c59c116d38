package roceudp

import (
	"net/netip"
	"time"

	"viaduct/internal/perturb"
	"viaduct/internal/rocecore"
	"viaduct/internal/wire/ib"
)

// A Pair is a queue pair of a port. All methods are safe for concurrent use.
type Pair struct {
	port *Port
	qpn  uint32

	mu     perturb.Mutex
	conn   *rocecore.Connection // guarded by mu; nil before Receive
	dgram  *rocecore.Datagram   // guarded by mu; nil unless Datagrams was called
	peer   netip.Addr           // guarded by mu: the peer of conn
	out    rocecore.Output      // guarded by mu
	taken  int                  // guarded by mu: number of packets of out that the socket has accepted
	closed bool                 // guarded by mu

	full *backlog // guarded by mu: the backlog of the socket without room, if transmitLocked returned needsRoom

	isExpected func(netip.Addr, []byte) bool // guarded by mu; see SetExpects

	late bool // guarded by Port.lateMu: the pair is in a backlog

	timer *time.Timer   // guarded by mu; nil before it is needed
	armed rocecore.Time // guarded by mu: when timer fires, 0 if it is not set
}

// QPN returns the number of the queue pair.
func (q *Pair) QPN() uint32 { return q.qpn }

// Receive connects the queue pair with a peer address and makes it ready to receive. It does
// nothing after Close.
func (q *Pair) Receive(host rocecore.Host, peer netip.Addr, cfg rocecore.Config) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.peer = peer.Unmap()
	q.conn = rocecore.New(host, cfg)
}

// Send makes the queue pair ready to send. It does nothing before Receive.
func (q *Pair) Send(cfg rocecore.SendConfig) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.conn != nil {
		q.conn.StartSending(cfg)
	}
}

// SetAccess changes the rights of the peer, and the timer code of RNR NAKs. It does nothing unless
// the queue pair is connected.
func (q *Pair) SetAccess(a rocecore.Access, rnrTimer uint8) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.conn != nil {
		q.conn.SetAccess(a, rnrTimer)
	}
}

// SetQKey changes the key that received datagrams must carry. It does nothing unless the queue pair
// is for datagrams.
func (q *Pair) SetQKey(k uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dgram != nil {
		q.dgram.SetQKey(k)
	}
}

// Datagrams makes the queue pair ready to send and receive datagrams. cfg.QPN is ignored. It does
// nothing after Close.
func (q *Pair) Datagrams(host rocecore.Host, cfg rocecore.DatagramConfig) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	cfg.QPN = q.qpn
	q.dgram = rocecore.NewDatagram(host, cfg)
}

// postTurns is the greatest number of turns that Post sends. The window of a reliable connection
// fits into two turns; a message of an unreliable connection may need thousands.
const postTurns = 4

// Post posts requests and sends packets in up to postTurns turns. It never blocks: a background
// goroutine sends the packets that remain, or for which the socket has no room. Post returns false,
// and does nothing, if the queue pair is closed, or is neither connected nor for datagrams.
func (q *Pair) Post(rs ...*rocecore.Request) bool {
	q.mu.Lock()
	switch {
	case q.closed || q.conn == nil && q.dgram == nil:
		q.mu.Unlock()
		return false
	case q.dgram != nil:
		for _, r := range rs {
			q.dgram.Post(r)
		}
	default:
		for _, r := range rs {
			q.conn.Post(r)
		}
	}
	left := q.transmitLocked()
	for n := 1; left == canGo && n < postTurns; n++ {
		q.mu.Unlock() // lets the receiver have the lock
		q.mu.Lock()
		left = q.transmitLocked()
	}
	q.mu.Unlock()
	if left == canGo {
		q.port.backlog.add(q)
	}
	return true
}

// Full reports whether packets wait for room in the socket. Later packets of this queue pair wait
// as well.
func (q *Pair) Full() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.taken < q.out.Len()
}

// Fail puts the queue pair into the error state, which flushes all posted requests.
func (q *Pair) Fail() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.failLocked()
}

func (q *Pair) failLocked() {
	if q.conn != nil {
		q.conn.Fail()
	}
	if q.dgram != nil {
		q.dgram.Fail()
	}
}

// Close removes the queue pair from its port and flushes all posted requests. It sends the queued
// responses if the socket has room, because the host may know of a message before the peer has the
// acknowledgement, and may call Close for that reason. Close sends at most postTurns turns. No method
// of the host is called after Close has returned. A second call does nothing.
func (q *Pair) Close() {
	q.port.remove(q)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.failLocked()
	for n := 0; n < postTurns && q.transmitLocked() == canGo; n++ {
	}
	q.closed = true
	if q.timer != nil {
		q.timer.Stop()
	}
}

// Counters returns the current counters. They are zero before Receive or Datagrams.
func (q *Pair) Counters() rocecore.Counters {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.conn != nil:
		return q.conn.Counters()
	case q.dgram != nil:
		return q.dgram.Counters()
	}
	return rocecore.Counters{}
}

// take handles the packet p, whose bytes with the CRC are raw. It drops the packet, counts it and
// returns false if the queue pair does not receive, if from is not its peer, or if the CRC is wrong.
// [ROCE-NET-4] [ROCE-NET-5]
func (q *Pair) take(p *ib.Packet, raw []byte, from netip.AddrPort) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed || q.conn == nil && q.dgram == nil:
		q.port.noPair.Add(1)
		return false
	case q.conn != nil && from.Addr() != q.peer:
		q.port.stranger.Add(1)
		return false
	}
	flow := ib.Flow{Source: from, Destination: netip.AddrPortFrom(q.port.addr, ib.Port)}
	if flow.Check(raw) != nil {
		q.port.wrongCRC.Add(1)
		return false
	}
	if q.dgram != nil {
		q.receiveDatagramLocked(p, raw, from.Addr(), q.port.addr)
		return true
	}
	q.conn.Receive(q.port.now(), p)
	return true
}

// receiveDatagramLocked handles a datagram to the address to: the address of the port or of a
// group.
func (q *Pair) receiveDatagramLocked(p *ib.Packet, raw []byte, from, to netip.Addr) {
	const hops = 64 // the hop limit of a packet is not known from its socket
	grh := ib.GRH{Source: from, Destination: to, HopLimit: hops, Length: uint16(8 + len(raw))}
	if from.Is4() {
		grh.Length += 20
	}
	q.dgram.Receive(p, &grh)
}

// takeTurn sends a turn of packets, and reports whether more packets can be sent at once.
func (q *Pair) takeTurn() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.transmitLocked() == canGo
}

// acknowledges reports whether the queue pair has a positive acknowledgement to send, and nothing
// else.
func (q *Pair) acknowledges() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.conn != nil && q.taken == q.out.Len() && q.conn.Acknowledges()
}

// A remainder says whether a queue pair has more to send after a turn.
type remainder uint8

const (
	nothing   remainder = iota
	canGo               // more packets, and room in the socket
	needsRoom           // packets without room in the socket
)

// transmitLocked sends a turn of packets, sets the timer, and returns whether packets remain. It
// makes no new packets while the socket is full; the queue pair is in the backlog of that socket
// then.
func (q *Pair) transmitLocked() remainder {
	if q.closed {
		return nothing
	}
	now := q.port.now()
	defer q.armLocked(now)
	if !q.flushLocked() {
		return needsRoom
	}
	q.out.Reset()
	q.taken = 0
	more := false
	if q.dgram != nil {
		more = q.dgram.Transmit(&q.out, turn)
	} else if q.conn != nil {
		more = q.conn.Transmit(now, &q.out, turn)
	}
	q.sealLocked()
	switch {
	case !q.flushLocked():
		return needsRoom
	case more:
		return canGo
	}
	return nothing
}

// sealLocked computes the invariant CRCs of the packets in out.
func (q *Pair) sealLocked() {
	own := netip.AddrPortFrom(q.port.addr, ib.Port)
	for i := range q.out.Len() {
		b, to := q.out.Packet(i)
		if !to.IsValid() {
			to = q.peer
		}
		flow := ib.Flow{Source: own, Destination: netip.AddrPortFrom(to, ib.Port)}
		flow.Seal(b[:len(b)-ib.ICRCLen])
		q.port.observe(true, own, flow.Destination, b)
	}
}

// flushLocked passes the packets of out to the socket of the port or to lanes, and reports whether
// these accepted all.
func (q *Pair) flushLocked() bool {
	for q.taken < q.out.Len() {
		s, full, end := &q.port.sock, q.port.backlog, q.out.Len()
		l := q.laneLocked(q.taken)
		if l != nil {
			s, full = &l.sock, l.backlog
		}
		if q.dgram != nil { // each datagram has its own destination
			for end = q.taken + 1; end < q.out.Len() && q.laneLocked(end) == l; end++ {
			}
		}
		n, refused := s.send(&q.out, q.taken, end, q.peer)
		q.taken += n
		q.port.unsent.Add(uint64(refused))
		if q.taken < end {
			q.full = full
			full.add(q)
			return false
		}
	}
	return true
}

// laneLocked returns the lane of packet i of out, or nil if the packet takes the network.
func (q *Pair) laneLocked(i int) *lane {
	b, to := q.out.Packet(i)
	if !to.IsValid() {
		to = q.peer
	}
	return q.port.laneTo(to, ib.DestQPN(b))
}

// armLocked sets the timer for the next deadline. It leaves a timer that fires earlier, because
// most deadlines are moved before they are reached.
func (q *Pair) armLocked(now rocecore.Time) {
	if q.conn == nil {
		return
	}
	at, ok := q.conn.Deadline()
	if !ok || q.armed != 0 && q.armed <= at {
		return
	}
	q.armed = max(at, 1)
	if q.timer == nil {
		q.timer = time.AfterFunc(at-now, q.tick)
		return
	}
	q.timer.Reset(at - now)
}

func (q *Pair) tick() {
	q.mu.Lock()
	q.armed = 0
	left := nothing
	if !q.closed && q.conn != nil {
		now := q.port.now()
		if at, ok := q.conn.Deadline(); ok && at <= now {
			q.conn.Tick(now)
		}
		left = q.transmitLocked()
	}
	q.mu.Unlock()
	if left == canGo {
		q.port.backlog.add(q)
	}
}
