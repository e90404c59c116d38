package iwarp

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"viaduct/internal/frameio"
	"viaduct/internal/machine"
	"viaduct/internal/perturb"
	"viaduct/internal/queue"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// A QueuePair is one RDMAP Stream: a send queue, a receive queue and a TCP connection of its own.
// It is created by [Dial], [Client], [Server] or a [Listener]. Any goroutine may call any method at
// any time.
//
// Errors of its methods match ErrClosed (and so net.ErrClosed) after Close or after the stream has
// ended. [QueuePair.Err] returns why it ended.
type QueuePair struct {
	// The consumer posts to it and frameio drives it, hence its many methods. They
	// stand in files by the part that they work on.

	set    settings
	dev    *Device
	pd     *ProtectionDomain
	ext    rdmap.Extensions
	log    *slog.Logger
	sendCQ *CompletionQueue
	recvCQ *CompletionQueue

	sendQueue
	receives
	wire
	reading
	activity

	life  machine.Life[lifeState] // which directions go on
	tx    txState
	rx    rxState
	stats counters

	mu  perturb.Mutex
	err error   // guarded by mu; why the stream ended
	win windows // guarded by mu
	limits
	ends
}

// A sendQueue holds the posted requests, and the conditions that hold them up.
type sendQueue struct {
	sq      queue.Work[*sendWQE]
	sqUsed  atomic.Int64 // posted, and the completion not yet polled
	spare   spareWQEs
	direct  directSend
	told    []Completion // about to be published; guarded by the lock of sq
	blocked atomic.Bool  // the send queue waits for Reads to complete
	waiting atomic.Bool  // requests were posted with More and not announced

	invalidated atomic.Bool // a local invalidation that the send queue waits for is done
}

// receives are the receives of a stream: its own queue, a shared one, or a source of them.
type receives struct {
	rq       recvQueue
	srq      *SharedReceiveQueue
	srqHeld  atomic.Int64
	supply   RecvSource  // in place of posted receives, or nil
	flushed  atomic.Bool // flushSource was done
	flushing sync.Mutex  // held from taking a receive to showing that it was flushed
}

// The wire is what start sets before any role begins.
type wire struct {
	cfg       *Config // during start-up
	fc        *frameio.Conn
	conn      net.Conn
	params    mpa.Params
	responder *mpa.Responder // nil for an Initiator, and after the first FPDU
	initiator bool
	ready     atomic.Bool // fc and what stands above are set

	sendOpen atomic.Bool            // we may send FPDUs [MPA-7.1.2-15]
	nudge    atomic.Bool            // a zero-length Write is to be sent [I-10]
	term     atomic.Pointer[[]byte] // the Terminate to be sent: its RDMAP header
}

// Reading is what both sides have asked of the other's memory, and may.
type reading struct {
	reads   queue.Ring[pendingRead]
	inbound inboundRing
	ord     atomic.Int32 // our Reads outstanding at most
	ird     atomic.Int32 // the peer's
}

// An activity is the time of the last traffic. Reading the clock takes a good part of the time of a
// short message, so a consumer that polls records the activity in the next empty poll.
type activity struct {
	born  time.Time
	moved atomic.Int64  // since born
	noted atomic.Uint64 // FPDUs received as that was noted
}

// The limits of a stream in time, and what runs for it.
type limits struct {
	timers []*time.Timer // guarded by mu; those that have not fired
	limit  *time.Timer   // guarded by mu; one of timers: for the first FPDU
	wg     sync.WaitGroup
}

// The ends of a stream, step by step.
type ends struct {
	closer   atomic.Bool // Close waits, and ends the stream when both directions have ended
	ended    event       // err is set
	drained  event       // our direction was ended
	peerEnd  event       // the peer has ended its direction
	termSent event       // the Terminate is in the socket
	txFailed event       // nothing can be sent any more
	gone     event       // everything is released
}

// newQueuePair returns a stream that is not connected yet. It owns cfg.
func newQueuePair(cfg *Config) (*QueuePair, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	q := &QueuePair{
		set: cfg.settings(), dev: cfg.Device, pd: cfg.PD, ext: cfg.extensions(), log: cfg.logger(), sendCQ: cfg.SendCQ, recvCQ: cfg.RecvCQ,
	}
	q.cfg, q.born = cfg, time.Now()
	q.supply, q.srq, q.rq.depth = cfg.Source, cfg.SRQ, cfg.RecvDepth
	q.sq.OnDone, q.sq.OnDones = q.sendDone, q.sendsDone
	q.reads.Init(max(int(cfg.ord()), 1))
	q.ord.Store(int32(cfg.ord()))
	if err := q.dev.add(q); err != nil {
		return nil, err
	}
	if err := q.attach(); err != nil {
		q.dev.remove(q)
		return nil, err
	}
	return q, nil
}

// attach makes the completion queues that were left out, and reserves room.
func (q *QueuePair) attach() (err error) {
	if q.sendCQ == nil {
		if q.sendCQ, err = q.dev.NewCQ(q.set.sendDepth); err != nil {
			return err
		}
	}
	if q.recvCQ == nil {
		if q.recvCQ, err = q.dev.NewCQ(q.set.recvDepth); err != nil {
			return err
		}
	}
	if err := q.sendCQ.attach(q, q.set.sendDepth); err != nil {
		return err
	}
	if err := q.recvCQ.attach(q, q.set.recvDepth); err != nil {
		q.sendCQ.detach(q, q.set.sendDepth)
		return err
	}
	return nil
}

// SendCQ returns the completion queue of the send queue.
func (q *QueuePair) SendCQ() *CompletionQueue { return q.sendCQ }

// RecvCQ returns the completion queue of the receive queue.
func (q *QueuePair) RecvCQ() *CompletionQueue { return q.recvCQ }

// PD returns the Protection Domain of the stream.
func (q *QueuePair) PD() *ProtectionDomain { return q.pd }

// Register makes mem usable by this stream only. See
// [ProtectionDomain.Register].
func (q *QueuePair) Register(mem []byte, access Access, opt ...RegionOptions) (*MemoryRegion, error) { // [DDP-8.2-2] [SEC-6.1.1-3] [DDP-8.2-4] [DDP-8.3-3] [RDMAP-8.1.1-2] [SEC-6.4.5-1] [I-60]
	return q.pd.register(mem, access, q, opt)
}

// IRD returns how many Reads of the peer are served at a time, and ORD how
// many of ours may be outstanding, as start-up agreed.
func (q *QueuePair) IRD() int { return int(q.ird.Load()) } // [RDMAP-6.1-4]

// ORD returns how many Reads may be outstanding; see IRD.
func (q *QueuePair) ORD() int { return int(q.ord.Load()) }

// SetORD changes ORD to the value that the ULPs agreed on by their own means, up to the ORD of the
// configuration.
func (q *QueuePair) SetORD(n int) error {
	if n < 0 || n > q.set.ord {
		return fmt.Errorf("%w: ORD %d, configured %d", ErrInvalid, n, q.set.ord)
	}
	q.ord.Store(int32(n))
	q.kick()
	return nil
}

// SetIRD changes IRD to the value that the ULPs agreed on by their own means, up to the IRD of the
// configuration or of start-up, whichever is greater.
func (q *QueuePair) SetIRD(n int) error {
	room := q.inbound.Cap() / 2
	if q.ext.Atomic {
		room /= 2
	}
	if n < 0 || n > room {
		return fmt.Errorf("%w: IRD %d, room for %d", ErrInvalid, n, room)
	}
	q.ird.Store(int32(n))
	return nil
}

// Params returns everything that start-up agreed on.
func (q *QueuePair) Params() Params { return params(q.params) } // [MPA-7.1.1-18] [MPA-3-13]

// PeerPrivate returns the private data of the peer's start-up frame. It is unchecked input from the
// network; a consumer that rejects it closes the stream.
func (q *QueuePair) PeerPrivate() []byte { return q.params.Private } // [MPA-7.1.1-21] [MPA-7.1.2-17]

// MULPDU returns the size in bytes of the ULPDUs that are sent.
func (q *QueuePair) MULPDU() int { return int(q.tx.mulpdu.Load()) } // [MPA-3-2] [DDP-3-1]

// LocalAddr returns the local address of the connection.
func (q *QueuePair) LocalAddr() net.Addr {
	if q.conn == nil {
		return nil
	}
	return q.conn.LocalAddr()
}

// RemoteAddr returns the peer's address.
func (q *QueuePair) RemoteAddr() net.Addr {
	if q.conn == nil {
		return nil
	}
	return q.conn.RemoteAddr()
}

// Err returns why the stream ended: a *TerminateError, ErrClosed after Close,
// io.EOF after both sides closed in order; nil as long as it has not ended.
func (q *QueuePair) Err() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err
}

// Ended returns a channel that is closed when the stream has ended, for
// whatever reason. Completions of flushed requests may follow.
func (q *QueuePair) Ended() <-chan struct{} { return q.ended.C() }

// PeerClosed returns a channel that is closed when the peer has closed its
// direction: nothing will be received any more, Reads can't be posted, Sends
// and Writes can.
func (q *QueuePair) PeerClosed() <-chan struct{} { return q.peerEnd.C() } // [DDP-6.2.1-4] [DDP-3-10] [MPA-3-12] [MPA-7.2-2]

func (q *QueuePair) closedErr() error {
	if err := q.Err(); err != nil && !errors.Is(err, ErrClosed) {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return ErrClosed
}

func (q *QueuePair) lastActivity() time.Time {
	if q.unnoted() {
		q.note()
	}
	return q.born.Add(time.Duration(q.moved.Load()))
}

// unnoted reports whether something has come at a time that was not noted.
func (q *QueuePair) unnoted() bool { return q.stats.recvFPDUs.Load() != q.noted.Load() }

// note records the time of received traffic.
func (q *QueuePair) note() {
	q.noted.Store(q.stats.recvFPDUs.Load())
	q.touch()
}

// touch notes the time of what happens at this moment.
func (q *QueuePair) touch() {
	q.moved.Store(int64(time.Since(q.born)))
}

// Undelivered returns how many bytes TCP has taken that the peer's TCP has not acknowledged, or 0
// if the system does not report it. They may be lost if the process ends before.
func (q *QueuePair) Undelivered() int {
	if !q.ready.Load() {
		return 0
	}
	return undelivered(q.fc)
}

// poll looks at the connection without waiting.
func (q *QueuePair) poll() bool {
	if !q.ready.Load() {
		return false
	}
	q.ring()
	got := q.fc.Poll()
	if !got && q.unnoted() {
		q.note()
	}
	return got
}

func (q *QueuePair) unpoll() {
	if q.ready.Load() {
		q.ring()
		if q.unnoted() {
			q.note()
		}
		q.fc.Unpoll()
	}
}

// ring rings the doorbell for requests that were posted with More.
func (q *QueuePair) ring() {
	if q.waiting.Load() && q.waiting.Swap(false) {
		q.kick()
	}
}

// kick starts sending posted requests. [no role]
func (q *QueuePair) kick() {
	if q.ready.Load() {
		q.fc.Kick()
		q.sendCQ.deliver()
	}
}
