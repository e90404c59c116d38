package iwarp

import (
	"fmt"
	"net"
	"time"

	"viaduct/internal/wire/rdmap"
	"viaduct/samehost"
)

// A QueuePair is an RDMAP Stream: a send queue, a receive queue and a TCP connection. [Dial],
// [Client], [Server] and a [Listener] make QueuePairs. The methods are safe for concurrent use.
//
// After Close, or after the stream has ended, the errors of the methods match ErrClosed (and so
// net.ErrClosed). [QueuePair.Err] returns the reason for the end.
type QueuePair struct {
	// The methods of a QueuePair are for the consumer, for start-up, and for the end. Everything
	// else belongs to a part: shared and its fields, and the four parts that move messages.

	shared
	sends sendQueue
	recvs receives
	tx    sender
	rx    receiver
}

// shared is the state that the parts of a stream have in common. Each part that needs the state has
// a pointer to it. No part uses the QueuePair.
type shared struct {
	qp      *QueuePair // named in completions
	set     settings
	ext     rdmap.Extensions
	mem     memory
	windows windows
	link    link
	life    life
	active  activity
	stats   counters
	reads   pendingReads // our Reads and Atomics
	inbound inboundRing  // the Reads and Atomics of the peer
}

// newQueuePair returns a stream without a connection. The stream keeps cfg; nobody else may use
// cfg.
func newQueuePair(cfg *Config) (*QueuePair, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	q := new(QueuePair)
	q.qp, q.set, q.ext, q.mem, q.link.cfg = q, cfg.settings(), cfg.extensions(), newMemory(cfg.PD), cfg
	q.active.born = time.Now()
	q.life.link, q.life.log, q.life.down = &q.link, cfg.logger(), q.tearDown
	q.recvs.shared, q.recvs.cq = &q.shared, cfg.RecvCQ
	q.recvs.supply, q.recvs.srq, q.recvs.rq.depth = cfg.Source, cfg.SRQ, cfg.RecvDepth
	q.sends.shared, q.sends.cq = &q.shared, cfg.SendCQ
	q.sends.work.OnDone, q.sends.work.OnDones = q.sends.done, q.sends.publish
	q.tx.shared, q.tx.queue, q.tx.lends = &q.shared, &q.sends, cfg.Source != nil
	q.rx.shared, q.rx.sends, q.rx.box.recvs = &q.shared, &q.sends, &q.recvs
	q.reads.Init(max(int(cfg.ord()), 1))
	q.reads.limit.Store(int32(cfg.ord()))
	if err := q.mem.dev.add(q); err != nil {
		return nil, err
	}
	if err := q.attach(); err != nil {
		q.mem.dev.remove(q)
		return nil, err
	}
	if cfg.Source != nil {
		cfg.Source.SetStream((*stream)(q))
	}
	return q, nil
}

// attach makes the completion queues the Config leaves out, and reserves room in the queues.
func (q *QueuePair) attach() (err error) {
	if q.sends.cq == nil {
		if q.sends.cq, err = q.mem.dev.NewCQ(q.set.sendDepth); err != nil {
			return err
		}
	}
	if q.recvs.cq == nil {
		if q.recvs.cq, err = q.mem.dev.NewCQ(q.recvs.rq.depth); err != nil {
			return err
		}
	}
	if err := q.sends.cq.attach(q, q.set.sendDepth); err != nil {
		return err
	}
	if err := q.recvs.cq.attach(q, q.recvs.rq.depth); err != nil {
		q.sends.cq.detach(q, q.set.sendDepth)
		return err
	}
	return nil
}

// SendCQ returns the completion queue of the send queue.
func (q *QueuePair) SendCQ() *CompletionQueue { return q.sends.cq }

// RecvCQ returns the completion queue of the receive queue.
func (q *QueuePair) RecvCQ() *CompletionQueue { return q.recvs.cq }

// PD returns the Protection Domain of the stream.
func (q *QueuePair) PD() *ProtectionDomain { return q.mem.pd }

// Register makes mem usable by this stream only. See [ProtectionDomain.Register].
func (q *QueuePair) Register(mem []byte, access Access, opt ...RegionOptions) (*MemoryRegion, error) { // [DDP-8.2-2] [SEC-6.1.1-3] [DDP-8.2-4] [DDP-8.3-3] [RDMAP-8.1.1-2] [SEC-6.4.5-1] [I-60]
	return q.mem.pd.register(mem, access, &q.mem, opt)
}

// IRD returns the number of the peer's Reads served at a time, as start-up agreed.
func (q *QueuePair) IRD() int { return int(q.inbound.limit.Load()) } // [RDMAP-6.1-4]

// ORD returns the largest number of our outstanding Reads and Atomics, as agreed at start-up.
func (q *QueuePair) ORD() int { return int(q.reads.limit.Load()) }

// SetORD changes ORD to a value on which the ULPs agreed by their own means, for example in private
// data. n is 0 up to Config.ORD; otherwise the error wraps ErrInvalid.
func (q *QueuePair) SetORD(n int) error {
	if n < 0 || n > int(q.set.ord) {
		return fmt.Errorf("%w: ORD %d, configured %d", ErrInvalid, n, q.set.ord)
	}
	q.reads.limit.Store(int32(n))
	q.sends.kick()
	return nil
}

// SetIRD changes IRD to a value the ULPs have agreed on by their own means. n is 0 up to the larger
// of Config.IRD and the IRD of start-up; otherwise the error wraps ErrInvalid.
func (q *QueuePair) SetIRD(n int) error {
	if room := q.inbound.maxLimit(q.ext.Atomic); n < 0 || n > room {
		return fmt.Errorf("%w: IRD %d, room for %d", ErrInvalid, n, room)
	}
	q.inbound.limit.Store(int32(n))
	return nil
}

// Params returns the results of start-up.
func (q *QueuePair) Params() Params { return params(q.link.params) } // [MPA-7.1.1-18] [MPA-3-13]

// PeerPrivate returns the private data of the peer's start-up frame. The data is unchecked input
// from the network; to reject the data, a consumer closes the stream.
func (q *QueuePair) PeerPrivate() []byte { return q.link.params.Private } // [MPA-7.1.1-21] [MPA-7.1.2-17]

// LocalAddr returns the local address of the connection, or nil if there is no connection.
func (q *QueuePair) LocalAddr() net.Addr { return q.link.local() }

// RemoteAddr returns the peer's address, or nil if there is no connection.
func (q *QueuePair) RemoteAddr() net.Addr { return q.link.remote() }

// Path reports whether the stream uses shared memory or TCP, and why.
func (q *QueuePair) Path() samehost.Path { return q.link.path() }

// Err returns the reason for the end of the stream, for example a *TerminateError, ErrTimeout,
// ErrClosed after Close, or io.EOF after both directions have ended in order. Err returns nil until
// the stream has ended.
func (q *QueuePair) Err() error { return q.life.cause() }

// Ended returns a channel that is closed when the stream has ended, for whatever reason.
// Completions of flushed requests may follow later.
func (q *QueuePair) Ended() <-chan struct{} { return q.life.ended.C() }

// PeerClosed returns a channel that is closed when the peer's direction is closed. No more messages
// will arrive, and Reads cannot be posted, but Sends and Writes can.
func (q *QueuePair) PeerClosed() <-chan struct{} { return q.life.peerEnd.C() } // [DDP-6.2.1-4] [DDP-3-10] [MPA-3-12] [MPA-7.2-2]

// poll receives from the connection without waiting. It reports whether anything arrived.
func (q *QueuePair) poll() bool {
	if !q.link.ready.Load() {
		return false
	}
	q.sends.ring()
	got := q.link.fc.Poll()
	if !got {
		q.active.noteNew()
	}
	return got
}

func (q *QueuePair) unpoll() {
	if q.link.ready.Load() {
		q.sends.ring()
		q.active.noteNew()
		q.link.fc.Unpoll()
	}
}
