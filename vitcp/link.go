package vitcp

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"viaduct/internal/attend"
	"viaduct/internal/counter"
	"viaduct/internal/frameio"
	"viaduct/internal/machine"
	"viaduct/internal/perturb"
	"viaduct/internal/queue"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

const (
	// maxPieces is the maximum number of data segments of a descriptor. [VIA-3.4-5]
	maxPieces = 252

	// maxAsked is the maximum number of outstanding RDMA Reads in one direction, whatever window
	// the peer grants. The peer's number must not decide how much memory the local side uses.
	maxAsked = 256

	// idleNOP is how long a changed count waits for a segment to carry it, before a NOP does. Two
	// counts wait: the receive descriptors posted on an idle connection while the peer has enough
	// credits, and the acknowledgement of messages received by a polling consumer.
	idleNOP = time.Millisecond
)

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
// TCP connection. [VIT-2.2.2.2.2-1] A frameio.Conn calls it in two roles that run concurrently: the
// send role (Fill, Sent; fields of tx) and the receive role (Receive, Plan, Landed, Drained; fields
// of rx). Fields of both roles are atomic. life is the link's state; see lifeState. The send role
// is in send.go, the receive role in receive.go and messages.go.
type link struct {
	p       *Provider
	ep      *vi.Endpoint
	c       *frameio.Conn
	dialect vitcpwire.Dialect
	level   reliability
	terms   linkTerms
	maxSeg  int  // maximum length of a segment in bytes
	single  bool // segments are written one by one [V-40]
	log     *slog.Logger
	onEnd   func() // called at the end of the link; may be nil

	flowControl
	messages
	pace

	life     machine.Life[lifeState]
	quiesced atomic.Bool // Stop has waited for both roles
	fault    atomic.Pointer[fault]

	tx    sender
	rx    receiver
	count linkCounters
}

// A flowControl counts the receive descriptors and the Reads each side grants the other.
type flowControl struct {
	flow      bool        // descriptor flow control is on
	overdrawn bool        // the peer's connect message advertised more than maxCredits descriptors
	credits   sendCredits // the peer's receive descriptors
	mine      recvCredits // this side's receive descriptors
	asked     readWindow
	served    readWindow
	blocked   atomic.Bool // the send role waits for a credit or the read window
}

// messages is the state the two roles exchange. The send role passes on local messages, and the
// receive role passes on the peer's.
type messages struct {
	acks   acker
	reads  queue.Ring[readOut] // Reads of this side: pushed by the send role, popped by the receive role
	jobs   queue.Ring[readJob] // Reads of the peer: pushed by the receive role, popped by the send role
	begun  atomic.Uint32       // Number of the message that this side began last
	whole  atomic.Uint32       // Number of the last message that is completely sent or in a batch
	seqOff atomic.Uint64       // difference between sequence number and message number of a send descriptor
	nop    atomic.Bool         // the send role must send a NOP if a count has changed
}

// A pace holds the work outside the two roles: the goroutines ending the connection, and the timer
// for the NOP of an idle link.
type pace struct {
	work    sync.WaitGroup // counts the goroutines outside the roles
	timerMu perturb.Mutex
	timer   *time.Timer // guarded by timerMu; fires after idleNOP; nil until needed
	armed   atomic.Bool
}

// A readOut is a local RDMA Read without a complete response.
type readOut struct {
	d      *vi.Descriptor
	seq    uint64
	number vitcpwire.Number
}

// A readJob is an unanswered RDMA Read of the peer. A refused Read also waits for its turn, so that
// earlier Reads are answered first.
type readJob struct {
	r       vitcpwire.RDMA
	number  vitcpwire.Number
	refused bool
}

// A fault is the report to a peer at Reliable Reception. It names the message at fault.
// [VIT-3.1-ACK-6] [V-13]
type fault struct {
	number vitcpwire.Number
	code   uint8
}

// report returns the header of a segment with the report of the fault. Without a fault it returns h
// unchanged.
func (f *fault) report(h vitcpwire.Header) vitcpwire.Header {
	if f != nil {
		h.Ack, h.Error = f.number, vitcpwire.MakeRemoteError(f.code, 0)
	}
	return h
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
	l := &link{
		p: p, ep: c.ep, dialect: p.cfg.Dialect.wire(), terms: t,
		maxSeg: vitcpwire.MaxSegment,
		log:    p.cfg.Logger,
	}
	l.flow = c.attrs&vitcpwire.FlowControl != 0
	if l.log.Handler() != slog.DiscardHandler {
		l.log = l.log.With("local", addrPort(nc.LocalAddr()).String(), "remote", addrPort(nc.RemoteAddr()).String(),
			"calling", c.local.String(), "called", c.remote.String())
	}
	l.level, _ = p.cfg.habits().level(c.attrs)
	if p.cfg.Segments == SegmentsMSS {
		l.single = true
		l.maxSeg = defaultMSS
		if mss := maxSegmentSize(nc); mss >= minMSS {
			l.maxSeg = min(mss, vitcpwire.MaxSegment)
		}
	}
	l.rx.Wire = (*wire)(l)
	l.asked.limit = min(t.asks, maxAsked)
	l.served.limit = t.serves
	l.reads.Init(int(l.asked.limit))
	l.jobs.Init(int(l.served.limit))
	l.mine.free = !l.flow
	l.mine.threshold = uint64(p.cfg.CreditThreshold)
	l.tx.last = vitcpwire.Number(p.cfg.FirstMessage)
	l.begun.Store(p.cfg.FirstMessage)
	l.whole.Store(p.cfg.FirstMessage)
	l.tx.whole = vitcpwire.Number(p.cfg.FirstMessage)
	l.rx.acked = vitcpwire.Number(p.cfg.FirstMessage)
	l.acks.free = l.level != reception
	l.acks.begin(t.peerFirst)
	l.setAdvertised(t.advertised)
	// The flag is set before Start, because the receive role updates the count after Start.
	l.overdrawn = l.flow && !l.credits.update(t.peerPosted)
	l.work.Add(1)
	l.c = frameio.New(nc, l, frameio.Options{})
	p.mu.Lock()
	p.links[l] = struct{}{}
	p.mu.Unlock()
	l.log.Info("connected", "level", l.level.String(), "flow", l.flow, "mtu", t.mtu, "reads", t.asks)
	return l
}

// defaultMSS is the segment length in bytes if the MSS is unknown. minMSS is the smallest MSS
// accepted as valid.
const (
	defaultMSS = 1400
	minMSS     = 256
)

// setAdvertised records the number of receive descriptors the connect message advertised.
func (l *link) setAdvertised(n vitcpwire.Count) {
	l.mine.posted.Store(uint64(n))
	l.mine.advertise()
}

// Start implements vi.Link and starts both roles. The engine calls Start when the VI is connected.
// Start does nothing if the link was stopped before.
func (l *link) Start() {
	if from, to := lifeTable.Move(&l.life, lifeStart); from == to {
		return
	}
	l.c.Start(nil)   // [VIT-2.2.2.1-1] [VIT-2.2.2.1-2]
	if l.overdrawn { // [V-20]
		l.violated(framingf("%d receive descriptors before the connection, at most %d", l.terms.peerPosted, maxCredits))
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
	l.mine.reach(l.ep.RecvPosted())
	// [VIT-3.1-NOP-2] [VIT-3.1-NOP-3] [V-21]
	switch {
	case l.flow && l.mine.urgent():
		l.wantNOP()
	case l.mine.unadvertised():
		l.wantNOPSoon()
	}
}

// wantNOPSoon makes the link send a NOP after idleNOP, unless another segment carries the counts
// before.
func (l *link) wantNOPSoon() {
	if l.armed.Load() || !l.armed.CompareAndSwap(false, true) {
		return
	}
	l.timerMu.Lock()
	defer l.timerMu.Unlock()
	switch {
	case l.life.Load().stopped():
	case l.timer == nil:
		l.timer = time.AfterFunc(idleNOP, l.idle)
	default:
		l.timer.Reset(idleNOP)
	}
}

// idle is the timer function of wantNOPSoon. It sends nothing if the counts were sent in the
// meantime.
func (l *link) idle() {
	l.armed.Store(false)
	if l.hasUpdate() || l.mine.unadvertised() {
		l.wantNOP()
	}
}

func (l *link) stopTimer() {
	l.timerMu.Lock()
	defer l.timerMu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
}

// wantNOP makes the link send a segment with the current counts at once: a NOP, unless another
// segment is due.
func (l *link) wantNOP() {
	l.nop.Store(true)
	l.c.Kick()
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
	lifeTable.Move(&l.life, e)
	l.c.Quiesce() // waits for calls of the endpoint by roles that found the link running
	l.quiesced.Store(true)
	l.stopTimer()
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
		// In state Leaving fillLast ends the stream after the queued segments. The link then waits
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

// breaks logs cause, passes it to Config.Broken, and makes the engine break the connection. If the
// engine had already stopped the link in state from, the state before the fault, breaks only logs.
// Only the first cause calls breaks. after, if not nil, runs before the engine breaks the VI, when
// no role accesses the consumer's memory any more; after may call the endpoint.
func (l *link) breaks(from lifeState, cause error, orderly bool, after func()) {
	switch {
	case from.stopped():
		l.log.Debug("stream ended", "err", cause)
		return
	case orderly:
		l.log.Info("peer disconnected")
	default:
		l.log.Info("connection broken", "err", cause)
	}
	if f := l.p.cfg.Broken; f != nil {
		f(l.ep.VI(), cause)
	}
	go func() {
		if after != nil {
			l.c.Quiesce()
			l.c.WithSender(func() {
				if !l.life.Load().stopped() {
					after()
				}
			})
		}
		l.ep.Break(orderly)
	}()
}

// die ends the connection from within a role. No further message is begun or accepted. At Reliable
// Reception f, if not nil, is reported to the peer. For after see breaks. The caller must not
// access the consumer's memory afterwards. On a connection with an earlier fault die does nothing.
func (l *link) die(cause error, f *fault, after func()) {
	if l.life.Load().faulted() {
		return
	}
	if l.level == reception { // [VIT-3.1-ERR-5]
		l.fault.Store(f)
	}
	from, to := lifeTable.Move(&l.life, lifeFault)
	if from == to {
		return
	}
	l.c.Kick() // fillLast ends this direction of the stream
	l.breaks(from, cause, false, after)
}

// violated ends the connection by a reset, because the peer broke the protocol as described by err.
// [V-41]
func (l *link) violated(err error) {
	from, to := lifeTable.Move(&l.life, lifeViolation)
	if from == to {
		return // an earlier error has already ended the connection
	}
	l.p.count.protocolErrors.Add(1)
	l.c.Abort()
	l.breaks(from, err, false, nil)
}

// Failed implements frameio.Protocol. It handles the end of the stream, and a violation found by
// frameio. [VIT-2.2.2.2.2-3]
func (l *link) Failed(err error) {
	if _, ok := errors.AsType[*ProtocolError](err); ok { // [V-41]
		l.violated(err)
		return
	}
	from, to := lifeTable.Move(&l.life, lifeFault)
	if from == to {
		return // an earlier error has already ended the connection
	}
	l.c.Quiesce()
	faulted := errors.Is(err, syscall.EFAULT) || errors.Is(err, regmem.ErrFault) // [VIA-4.6-2]
	if err == io.EOF && (l.rx.asm.inside() || l.rx.Open()) {
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
	l.breaks(from, err, orderly, func() {
		if faulted { // [VIA-4.6-2]
			l.ep.FailFaulted()
		}
		l.tornMessage()
	})
}
