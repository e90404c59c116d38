package vitcp

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"syscall"

	"viaduct/internal/attend"
	"viaduct/internal/counter"
	"viaduct/internal/frameio"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// maxPieces is the maximum number of data segments of a descriptor. [VIA-3.4-5]
const maxPieces = 252

// linkTerms holds the parameters agreed during set-up.
type linkTerms struct {
	mtu        uint32           // maximum length of a message in bytes
	asks       uint32           // maximum number of outstanding RDMA Reads of this side
	serves     uint32           // maximum number of outstanding RDMA Reads of the peer
	peerPosted vitcpwire.Count  // receive descriptors that the peer had posted
	peerFirst  vitcpwire.Number // the number that precedes the peer's first message
	advertised vitcpwire.Count  // this side's receive descriptors, as its connect message counted them
	disconnect bool             // both sides support the Disconnect message [V-17]
}

// A link is an established connection: the data path between a VI's work queues and the VI's own
// TCP connection. [VIT-2.2.2.2.2-1] A frameio.Conn calls the link in two roles that run
// concurrently: the send role (the methods Fill and Sent of the sender) and the receive role
// (Receive, Plan, Landed and Drained of the receiver). The link's own methods are for the engine of
// package vi, and for the end.
type link struct {
	shared
	sender
	receiver

	onEnd func()         // called at the end of the link; may be nil
	work  sync.WaitGroup // counts the goroutine that ends the connection
}

// shared is the state that the parts of a link have in common. Each part that needs the state has a
// pointer to it. No part uses the link. The fields up to log do not change after set-up; both roles
// may use the others at the same time.
type shared struct {
	p       *Provider
	ep      *vi.Endpoint
	c       *frameio.Conn
	dialect vitcpwire.Dialect
	level   reliability
	terms   linkTerms
	log     *slog.Logger

	life    life
	flow    flowControl
	acks    acker
	updates updates
	numbers publishedNumbers
	reads   readQueue[readOut] // Reads of this side: pushed by the send role, popped by the receive role
	served  readQueue[readJob] // Reads of the peer: pushed by the receive role, popped by the send role
	count   linkCounters
}

// linkCounters are the counters of one connection. Each has a single writer.
type linkCounters struct {
	sentMessages, sentSegments, sentBytes, sentNOPs, servedReads       counter.Counter // send role
	receivedMessages, receivedSegments, receivedBytes, droppedMessages counter.Counter // receive role
}

func (c *linkCounters) addTo(s *Stats) {
	s.SentMessages += c.sentMessages.Load()
	s.SentSegments += c.sentSegments.Load()
	s.SentBytes += c.sentBytes.Load()
	s.SentNOPs += c.sentNOPs.Load()
	s.ServedReads += c.servedReads.Load()
	s.ReceivedMessages += c.receivedMessages.Load()
	s.ReceivedSegments += c.receivedSegments.Load()
	s.ReceivedBytes += c.receivedBytes.Load()
	s.DroppedMessages += c.droppedMessages.Load()
}

var (
	_ vi.Link          = (*link)(nil)
	_ frameio.Protocol = (*link)(nil)
	_ frameio.Planner  = (*link)(nil)
)

// newLink creates the data path of a connection set up on nc.
func newLink(c *call, nc net.Conn, t linkTerms) *link {
	p := c.d.p
	l := new(link)
	l.p, l.ep, l.dialect, l.terms, l.log = p, c.ep, p.cfg.Dialect.wire(), t, p.cfg.Logger
	if l.log.Handler() != slog.DiscardHandler {
		l.log = l.log.With("local", addrPort(nc.LocalAddr()).String(), "remote", addrPort(nc.RemoteAddr()).String(),
			"calling", c.local.String(), "called", c.remote.String())
	}
	l.level, _ = p.cfg.habits().level(c.attrs)
	l.life.link, l.updates.link = &l.shared, &l.shared
	l.acks.free = l.level != reception
	l.acks.begin(t.peerFirst)
	l.reads.init(min(t.asks, maxAsked))
	l.served.init(t.serves)
	l.flow.init(c.attrs&vitcpwire.FlowControl != 0, t, uint64(p.cfg.CreditThreshold))
	l.sender.init(&l.shared, nc)
	l.receiver.init(&l.shared)
	l.work.Add(1)
	l.c = frameio.New(nc, l, frameio.Options{})
	p.mu.Lock()
	p.links[l] = struct{}{}
	p.mu.Unlock()
	l.log.Info("connected", "level", l.level.String(), "flow", l.flow.on, "mtu", t.mtu, "reads", t.asks)
	return l
}

// Start implements vi.Link and starts both roles. The engine calls Start when the VI is connected.
// Start does nothing if the link was stopped before.
func (l *link) Start() {
	if from, to := l.life.move(lifeStart); from == to {
		return
	}
	l.c.Start(nil)        // [VIT-2.2.2.1-1] [VIT-2.2.2.1-2]
	if l.flow.overdrawn { // [V-20]
		l.life.violated(framingf("%d receive descriptors before the connection, at most %d", l.terms.peerPosted, maxCredits))
		return
	}
	l.RecvPosted()
	l.c.Kick()
}

// SendPosted implements vi.Link.
func (l *link) SendPosted() { l.c.Kick() }

// RecvPosted implements vi.Link. The next segment carries the new count of receive descriptors. If
// no segment is due, a NOP carries the count after idleNOP. With flow control the NOP is sent at
// once if the peer has few credits left. On a stopped link RecvPosted does nothing.
func (l *link) RecvPosted() {
	if l.life.Load().stopped() {
		return
	}
	l.flow.mine.reach(l.ep.RecvPosted())
	// [VIT-3.1-NOP-2] [VIT-3.1-NOP-3] [V-21]
	switch {
	case l.flow.mine.urgent():
		l.updates.now()
	case l.flow.mine.unadvertised():
		l.updates.soon()
	}
}

// Poll implements vi.Link.
func (l *link) Poll() bool {
	return l.c.Poll()
}

// Unpoll implements vi.Link.
func (l *link) Unpoll() { l.c.Unpoll() }

// Expects reports whether an answer may be on its way; see internal/attend.SourceSleeper.
func (l *link) Expects() bool { return l.c.Expects() }

// Near reports whether the remote VI is on this host.
func (l *link) Near() bool { return l.c.Near() }

// SleepAt makes s wait for the link too; see internal/attend.SourceSleeper.
func (l *link) SleepAt(s *attend.Sleeper) bool { return l.c.SleepAt(s) }

// Stop implements vi.Link. It changes the state and waits until no role uses the endpoint.
func (l *link) Stop(reason vi.StopReason) {
	e := lifeStop
	if reason == vi.StopDisconnect { // fillLast informs the peer [V-17]
		e = lifeLeave
	}
	l.life.move(e)
	l.c.Quiesce() // waits for calls of the endpoint by roles that found the link running
	l.life.move(lifeQuiesced)
	l.updates.stop()
}

// End closes the TCP connection in the background, after Stop, and then calls gone; see package
// vi's ender.
func (l *link) End(gone func()) { l.c.Go(func() { l.wind(gone) }) }

// wind ends the stream as the state requires, removes the link from the provider, and calls gone.
func (l *link) wind(gone func()) {
	switch l.life.Load() {
	case lifeAborting:
		l.c.Reset()
	case lifeDiscarded:
		l.c.Shutdown()
		l.c.Close()
	default:
		// In state Finishing fillLast ends the stream after the queued segments. The link then waits
		// for the peer's FIN, because an earlier close could make the kernel discard completed
		// sends with a reset. [VIT-2.2.2.2.2-2] [V-18] [VIA-6.4-20]
		l.c.Kick()
		l.c.CloseAfter(l.p.cfg.DrainTimeout)
	}
	p := l.p
	p.mu.Lock()
	delete(p.links, l)
	l.count.addTo(&p.ended)
	p.mu.Unlock()
	if l.onEnd != nil {
		l.onEnd()
	}
	l.log.Info("connection ended")
	l.work.Done()
	gone()
}

// Wait implements vi.Link.
func (l *link) Wait() { l.work.Wait() }

// Failed implements frameio.Protocol. It handles the end of the stream, and a violation found by
// frameio. [VIT-2.2.2.2.2-3]
func (l *link) Failed(err error) {
	if _, ok := errors.AsType[*ProtocolError](err); ok { // [V-41]
		l.life.violated(err)
		return
	}
	from, to := l.life.move(lifeFault)
	if from == to {
		return // an earlier error has already ended the connection
	}
	l.c.Quiesce()
	faulted := errors.Is(err, syscall.EFAULT) || errors.Is(err, regmem.ErrFault) // [VIA-4.6-2]
	if err == io.EOF && (l.asm.inside() || l.Open()) {
		err = io.ErrUnexpectedEOF
	}
	orderly := err == io.EOF // [V-17]
	if orderly {
		err = errPeerDisconnected
		if l.terms.disconnect && from == lifeOpen {
			// The peer supports the Disconnect message, but TCP ended without a Disconnect. So the
			// end is not orderly.
			orderly, err = false, io.ErrUnexpectedEOF
		}
	}
	l.life.breaks(from, err, orderly, func() {
		if faulted { // [VIA-4.6-2]
			l.ep.FailFaulted()
		}
		l.tornMessage()
	})
}
