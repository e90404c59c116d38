package iwarp

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"viaduct/internal/frameio"
	"viaduct/internal/machine"
	"viaduct/internal/perturb"
	"viaduct/internal/queue"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// A QueuePair is one RDMAP Stream: a send queue, a receive queue and a TCP
// connection of its own. It is made by [Dial], [Client], [Server] or a
// [Listener]. All methods may be called by any goroutine at any time.
//
// Errors of its methods match ErrClosed (and so net.ErrClosed) after Close or
// after the stream has ended; [QueuePair.Err] tells why it did.
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

// A sendQueue has the requests that were posted to it, and what holds them up.
type sendQueue struct {
	sq      queue.Work[*sendWQE]
	sqUsed  atomic.Int64 // posted, and the completion not yet polled
	spare   spareWQEs
	told    []Completion // about to be published; guarded by the lock of sq
	blocked atomic.Bool  // the send queue waits for Reads to complete
	waiting atomic.Bool  // requests were posted with More and not announced

	invalidated atomic.Bool // a local invalidation that the send queue waits for is done
}

// The receives of a stream: its own queue, a shared one, or a source of them.
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
	term     atomic.Pointer[[]byte] // the Terminate to be sent: its RDMAP header
	nudge    atomic.Bool            // a zero-length Write is to be sent [I-10]
}

// Reading is what both sides have asked of the other's memory, and may.
type reading struct {
	reads   queue.Ring[pendingRead]
	inbound inboundRing
	ord     atomic.Int32 // our Reads outstanding at most
	ird     atomic.Int32 // the peer's
}

// An activity is the time at which anything moved last.
type activity struct {
	moved atomic.Int64 // since born
	born  time.Time
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

// A State is where a stream is in its life.
type State uint8

// The states.
const ( // [RDMAP 6.2]
	StateIdle       State = iota // start-up is not complete
	StateRunning                 // both directions are open
	StateClosing                 // our direction is closed, or will be when the queue is empty
	StatePeerClosed              // the peer has closed its direction; ours is open
	StateEnded                   // nothing goes on any more; see Err

	// StatePeerClosed [DDP-6.2.1-4].
)

var stateNames = [...]string{"idle", "running", "closing", "peer closed", "ended"}

// String returns the name of the state.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state 0x%02x", uint8(s))
}

// newQueuePair makes a stream that is not connected yet. cfg is owned by it.
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

// PeerDepths returns the IRD and ORD of the peer's start-up frame, 0 and 0 in
// revision 1, 0x3fff if the ULPs settle them.
func (q *QueuePair) PeerDepths() (ird, ord int) { // [MPA2-9.1-4] [MPA2-9.1-14]
	return int(q.params.PeerIRD), int(q.params.PeerORD)
}

// SetORD changes ORD to what the ULPs settled by their own means, up to the
// ORD of the configuration.
func (q *QueuePair) SetORD(n int) error {
	if n < 0 || n > q.set.ord {
		return fmt.Errorf("%w: ORD %d, configured %d", ErrInvalid, n, q.set.ord)
	}
	q.ord.Store(int32(n))
	q.kick()
	return nil
}

// SetIRD changes IRD to what the ULPs settled by their own means, up to the
// IRD of the configuration or that of start-up, whichever is greater.
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
func (q *QueuePair) Params() mpa.Params { return q.params } // [MPA-7.1.1-18] [MPA-3-13]

// PeerPrivate returns the private data of the peer's start-up frame. Treat it
// as what it is, input from the network; a consumer that dislikes it closes the stream.
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

// State returns where the stream is in its life.
func (q *QueuePair) State() State { return q.life.Load().public() }

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
	return q.born.Add(time.Duration(q.moved.Load()))
}

func (q *QueuePair) touch() { q.moved.Store(int64(time.Since(q.born))) }

// Undelivered returns how many bytes TCP has taken that the peer's TCP has not
// acknowledged, 0 where the system does not tell. A process that ends before
// may take them along.
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
	return q.fc.Poll()
}

func (q *QueuePair) unpoll() {
	if q.ready.Load() {
		q.ring()
		q.fc.Unpoll()
	}
}

// ring announces what was posted with More.
func (q *QueuePair) ring() {
	if q.waiting.Load() && q.waiting.Swap(false) {
		q.kick()
	}
}

// kick has what was posted sent. [no role]
func (q *QueuePair) kick() {
	if q.ready.Load() {
		q.fc.Kick()
		q.sendCQ.deliver()
	}
}

var recvWQEs = sync.Pool{New: func() any { return new(recvWQE) }}

func freeRecvWQE(w *recvWQE) {
	w.reset()
	recvWQEs.Put(w)
}

// Post adds a request to the send queue. It never waits for the peer. The
// errors, all of them found before anything happened:
//
//   - ErrQueueFull: SendDepth requests are posted whose completions were not
//     polled;
//   - ErrInvalid, ErrRegistered: local memory is not what the request says;
//   - ErrTooLong: longer than MaxMessage, or than MaxInline with Inline;
//   - ErrNoReads, ErrNotEnabled: the stream does not have the operation;
//   - ErrPeerClosed: a Read after the peer has closed its direction;
//   - ErrClosed.
func (q *QueuePair) Post(wr SendWR) error {
	wrs := [1]SendWR{wr}
	if _, err := q.post(wrs[:]); err != nil {
		return err
	}
	if wr.More {
		q.waiting.Store(true)
	} else {
		q.kick()
	}
	return nil
}

// PostNow is Post for one request without More whose end the caller would like to
// know at once: where sent is true the request is complete already, and has no
// completion unless it failed. Otherwise its completion comes in time, whatever
// Unsignaled says.
func (q *QueuePair) PostNow(wr SendWR) (sent bool, err error) {
	if !q.life.Load().posts() {
		return false, q.closedErr()
	}
	if q.reserve(1) == 0 {
		return false, ErrQueueFull
	}
	wr.Unsignaled = true
	var ws [1]*sendWQE
	q.spare.get(ws[:])
	if err := q.fillWQE(ws[0], &wr); err != nil {
		q.sqUsed.Add(-1)
		q.spare.put(ws[:])
		return false, err
	}
	seq, _ := q.sq.Post(ws[0]) // has no limit of its own
	if q.life.Load() == lifeFlushed {
		q.flushSends() // the stream ended meanwhile
	}
	q.Flush()
	return !q.sq.Update(seq, func(w **sendWQE) { (*w).signaled = true }), nil
}

// KeepSends gives back the memory that posted requests name without a region, by
// copying what is not with TCP yet: the caller may use it again at once, though the
// requests complete later. That of Reads and Atomics stays lent. It does not wait for
// the peer. To be called after start-up.
func (q *QueuePair) KeepSends() {
	q.fc.WithSender(func() {
		q.sq.Each(func(w **sendWQE) {
			if (*w).op.reads() {
				return
			}
			sg := (*w).sg[:(*w).nsg]
			for i := range sg {
				if sg[i].Region == nil {
					sg[i].Buf = slices.Clone(sg[i].Buf)
				}
			}
		})
	})
}

// PostBatch posts requests with one doorbell. It returns how many were posted,
// and the error of the next one if that was not all.
func (q *QueuePair) PostBatch(wrs []SendWR) (n int, err error) {
	for n < len(wrs) && err == nil {
		var k int
		k, err = q.post(wrs[n:min(n+postRun, len(wrs))])
		n += k
	}
	if n > 0 {
		q.kick()
	}
	return n, err
}

// Flush sends what was posted with More.
func (q *QueuePair) Flush() {
	q.waiting.Store(false)
	q.kick()
}

// postRun is how many requests are posted under one lock.
const postRun = 16

// post posts up to postRun requests without a doorbell. It returns how many
// were posted, and the error of the next one if that was not all.
func (q *QueuePair) post(wrs []SendWR) (n int, err error) {
	if !q.life.Load().posts() { // [DDP-6.2.1-2]
		return 0, q.closedErr()
	}
	room := q.reserve(len(wrs))
	var ws [postRun]*sendWQE
	q.spare.get(ws[:room])
	for n < room && err == nil {
		if err = q.fillWQE(ws[n], &wrs[n]); err == nil {
			n++
		}
	}
	if n > 0 {
		q.sq.PostN(ws[:n]) // has no limit of its own
		if q.life.Load() == lifeFlushed {
			q.flushSends() // the stream ended meanwhile
			q.sendCQ.deliver()
		}
	}
	if n < room {
		q.sqUsed.Add(int64(n - room))
		q.spare.put(ws[n:room])
	} else if n < len(wrs) {
		if err = q.checkPost(&wrs[n]); err == nil {
			err = ErrQueueFull
		}
	}
	return n, err
}

// reserve takes up to n slots of the send queue and returns how many.
func (q *QueuePair) reserve(n int) int {
	over := q.sqUsed.Add(int64(n)) - int64(q.set.sendDepth)
	if over <= 0 {
		return n
	}
	over = min(over, int64(n))
	q.sqUsed.Add(-over)
	return n - int(over)
}

// fillWQE makes the entry of a request.
func (q *QueuePair) fillWQE(w *sendWQE, wr *SendWR) error {
	n, err := q.checkSG(wr.SG)
	if err == nil {
		err = q.checkOp(wr, n)
	}
	if err != nil {
		return err
	}
	w.id, w.op, w.fence, w.signaled = wr.ID, wr.Op, wr.Fence, !wr.Unsignaled
	w.remote, w.stag, w.length = wr.Remote, wr.Invalidate, n
	switch wr.Op {
	case OpImmediate, OpImmediateSE:
		w.imm = wr.Immediate
	case OpFetchAdd, OpCmpSwap:
		w.atomic = wr.Atomic
	}
	if wr.Inline {
		return q.inlineData(w, wr)
	}
	w.nsg = copy(w.sg[:], wr.SG)
	return nil
}

func (q *QueuePair) checkPost(wr *SendWR) error {
	n, err := q.checkSG(wr.SG)
	if err != nil {
		return err
	}
	return q.checkOp(wr, n)
}

// checkSG judges a list of memory and returns its length in bytes.
func (q *QueuePair) checkSG(sg []SGE) (n uint64, err error) {
	if len(sg) > MaxSGE {
		return 0, fmt.Errorf("%w: %d elements, at most %d", ErrInvalid, len(sg), MaxSGE)
	}
	for i := range sg {
		if err := sg[i].check(q); err != nil {
			return 0, err
		}
		n += sg[i].length()
	}
	return n, nil
}

// checkOp judges the rest of a request of n bytes.
func (q *QueuePair) checkOp(wr *SendWR, n uint64) error {
	switch wr.Op {
	case OpSend, OpSendInvalidate, OpSendSE, OpSendSEInvalidate, OpWrite:
		if n > MaxMessage || wr.Inline && n > MaxInline { // [DDP-5.2-2] [DDP-1.2-2]
			return fmt.Errorf("%w: %d bytes", ErrTooLong, n)
		}
		return nil
	case OpImmediate, OpImmediateSE:
		if !q.ext.Immediate { // [RDMAPX-1.1-2]
			return fmt.Errorf("%w: immediate data", ErrNotEnabled)
		}
	case OpFetchAdd, OpCmpSwap:
		if !q.ext.Atomic {
			return fmt.Errorf("%w: atomic operations", ErrNotEnabled)
		}
	case OpRead:
		if n > MaxMessage {
			return fmt.Errorf("%w: %d bytes", ErrTooLong, n)
		}
	case OpLocalInvalidate:
	default:
		return fmt.Errorf("%w: %v can't be posted", ErrInvalid, wr.Op)
	}
	if wr.Inline || n > 0 && wr.Op != OpRead {
		return fmt.Errorf("%w: %v has no payload", ErrInvalid, wr.Op)
	}
	if wr.Op.reads() {
		if q.ord.Load() == 0 {
			return ErrNoReads
		}
		if q.peerEnd.has() {
			return ErrPeerClosed
		}
	}
	return nil
}

// inlineData copies the payload of a request into its entry.
func (q *QueuePair) inlineData(w *sendWQE, wr *SendWR) error {
	for i := range wr.SG {
		s := &wr.SG[i]
		n := s.length()
		ref, out := s.pin(q, 0, n, regmem.LocalRead)
		if out != regmem.OK {
			return fmt.Errorf("%w: %v", ErrInvalid, out)
		}
		err := regmem.Copy(w.inline[w.inlineLen:], ref.B, ref.Guarded())
		ref.Release()
		if err != nil {
			return err
		}
		w.inlineLen += int(n)
	}
	return nil
}

// sendDone tells the end of a request. It runs under the lock of the queue, in
// the order of posting.
func (q *QueuePair) sendDone(w *sendWQE) {
	if !w.signaled && w.status == StatusOK {
		q.sqUsed.Add(-1)
		return
	}
	c := Completion{ID: w.id, QP: q, Op: w.op, Status: w.status, Value: w.value}
	if w.op == OpRead && w.status == StatusOK {
		c.Len = uint32(w.length)
	}
	if len(q.told) == cap(q.told) && len(q.told) >= maxTold {
		q.sendsDone()
	}
	q.told = append(q.told, c) // [RDMAP-5.5-12]
}

// maxTold is how many completions of the send queue are published together.
const maxTold = 32

// sendsDone publishes completions, still under the lock.
func (q *QueuePair) sendsDone() {
	if len(q.told) > 0 {
		q.sendCQ.pushAll(q.told)
		clear(q.told)
		q.told = q.told[:0]
	}
}

// finish marks requests first to end-1 as done and recycles entries.
func (q *QueuePair) finish(first, end uint64) {
	var ws [lookAhead]*sendWQE
	for {
		n := q.sq.Retire(first, end, ws[:])
		q.spare.put(ws[:n])
		if n < len(ws) {
			return
		}
		first, end = 0, 0
	}
}

func (q *QueuePair) flushSends() {
	q.sq.Flush(func(w **sendWQE, _ bool) {
		if (*w).status == StatusOK {
			(*w).status = StatusFlushed
		}
	})
	q.finish(0, 0)
}

// PostRecv adds a buffer to the receive queue. Messages take buffers in the
// order of posting. A message that finds none ends the stream. With a shared
// receive queue, post there instead.
//
// Errors: ErrQueueFull, ErrInvalid, ErrRegistered, ErrPeerClosed, ErrClosed.
func (q *QueuePair) PostRecv(wr RecvWR) error {
	if q.srq != nil {
		return fmt.Errorf("%w: the stream has a shared receive queue", ErrInvalid)
	}
	if q.life.Load().ended() {
		return q.closedErr()
	}
	if q.peerEnd.has() {
		return ErrPeerClosed
	}
	w, err := newRecvWQE(&wr, q)
	if err != nil {
		return err
	}
	if err := q.rq.post(w); err != nil {
		freeRecvWQE(w)
		return err
	}
	if q.peerEnd.has() || q.life.Load() == lifeFlushed {
		q.flushRecvs()
	}
	return nil
}

func newRecvWQE(wr *RecvWR, q *QueuePair) (*recvWQE, error) {
	if len(wr.SG) > MaxSGE {
		return nil, fmt.Errorf("%w: %d elements, at most %d", ErrInvalid, len(wr.SG), MaxSGE)
	}
	n := uint64(0)
	for i := range wr.SG {
		if err := wr.SG[i].check(q); err != nil {
			return nil, err
		}
		n += wr.SG[i].length()
	}
	w := recvWQEs.Get().(*recvWQE)
	w.id, w.length = wr.ID, n
	w.nsg = copy(w.sg[:], wr.SG)
	return w, nil
}

// flushRecvs completes what is left in the receive queue, and tells of it. The end of
// the stream and a PostRecv may call it at the same time, and completions come in the
// order of posting. [no role]
func (q *QueuePair) flushRecvs() {
	q.flushing.Lock()
	q.flushRecvsLocked()
	q.flushing.Unlock()
	q.recvCQ.deliver()
}

func (q *QueuePair) flushRecvsLocked() {
	q.flushSource()
	for {
		w, ok := q.rq.take()
		if !ok {
			return
		}
		c := Completion{ID: w.id, QP: q, Op: OpRecv, Status: StatusFlushed}
		freeRecvWQE(w)
		q.recvCQ.push(&c)
	}
}
