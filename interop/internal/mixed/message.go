package mixed

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"viaduct/samehost"
)

// verbs is the interface of the traffic to a queue pair: one region of memory, present from the
// start, and requests with numbers. off and n name bytes of the region.
type verbs interface {
	// region returns the memory's address and handle for the peer.
	region() place
	postSend(id uint64, off, n int) error
	postWrite(id uint64, off, n int, to place) error
	postRead(id uint64, off, n int, from place) error
	postRecv(id uint64, off, n int) error
	// waitSend and waitRecv wait for the next completion of a queue; ok is false if ctx ends first,
	// or if no completion can follow.
	waitSend(ctx context.Context) (c completion, ok bool)
	waitRecv(ctx context.Context) (c completion, ok bool)
	// close ends the connection in order, abort ends the connection at once. Each may be called
	// after the other.
	close() error
	abort()
	// path reports whether the bytes go through shared memory, while the connection is up.
	path() samehost.Path
	// free releases the resources of the connection, after all completions.
	free() error
}

// A place is an address in the peer's memory, with the handle of the region.
type place struct {
	address uint64
	handle  uint32
}

func (p place) at(off int) place { return place{p.address + uint64(off), p.handle} }

type completion struct {
	id  uint64
	n   int // bytes received
	err error
}

// A message begins with a kind (1 byte), three zero bytes, an operation number (8) and a length
// (4).
const headerLen = 16

const (
	kindHello = 1 + iota // address (8) and handle (4) of the sender's memory follow
	kindData             // the payload follows
	kindWrote            // the payload was written to the slot in the high 8 bits of the length
	kindAck              // the operation was verified
	kindFin              // the sum of all payloads follows
)

// exposed is the number of bytes the other end may read.
const exposed = 32 << 10

// flushLimit bounds the time between a local abort and the completion of all requests.
const flushLimit = 20 * time.Second

// A message runs a plan over verbs. The memory is divided into slots for sent data, slots written
// by the peer, slots for data read from the peer, acknowledgements, data readable by the peer, and
// receives.
type message struct {
	p       Plan
	dialled bool
	v       verbs
	mem     []byte

	slot, acks, recvs                               int // slot: bytes of a slot; acks and recvs: numbers of slots
	outAt, inAt, readAt, ackAt, exposedAt, receives int

	post     sync.Mutex // locked while a request is posted and added to inFlight
	sendID   uint64
	inFlight chan request // posted requests that have not completed, in posting order

	recvPosted, recvDone uint64 // used only by the receiving goroutine

	freeSlots, freeAcks chan int
	acked               chan uint64 // operations the peer has verified

	peer    place
	greeted chan struct{}

	last    atomic.Uint64         // number of our kindFin; 0 before it is sent
	failure atomic.Pointer[error] // the first failure of a post or a completion

	stopped chan struct{} // closed when the connection fails, after cause is set
	once    sync.Once
	cause   error

	t     Tally
	count sync.Mutex // guards t
}

// A request is a work request posted to the send queue.
type request struct {
	id   uint64
	done func(error)
}

func newMessage(p Plan, dialled bool) *message {
	m := &message{p: p, dialled: dialled, slot: max(headerLen+p.MaxBytes, 64), acks: 2*p.Window + 4, recvs: 2*p.Window + 6,
		greeted: make(chan struct{}), stopped: make(chan struct{})}
	at := 0
	take := func(n int) int { at += n; return at - n }
	m.outAt, m.inAt, m.readAt = take(p.Window*m.slot), take(p.Window*m.slot), take(p.Window*m.slot)
	m.ackAt, m.exposedAt, m.receives = take(m.acks*headerLen), take(exposed), take(m.recvs*m.slot)
	m.mem = make([]byte, at)
	fill(source(p, dialled, useExposed), m.mem[m.exposedAt:][:exposed])
	m.last.Store(math.MaxUint64)
	m.inFlight = make(chan request, 2*p.Window+m.acks+2)
	m.freeSlots, m.freeAcks = make(chan int, p.Window), make(chan int, m.acks)
	m.acked = make(chan uint64, p.Window)
	for i := range p.Window {
		m.freeSlots <- i
	}
	for i := range m.acks {
		m.freeAcks <- i
	}
	return m
}

// prepare posts the receives, before there is a connection.
func (m *message) prepare(v verbs) error {
	m.v = v
	for range m.recvs {
		if err := m.repost(); err != nil {
			return err
		}
	}
	return nil
}

// repost posts the next receive. Receives are used in order, so the slot
// follows from the number.
func (m *message) repost() error {
	off := m.receives + int(m.recvPosted)%m.recvs*m.slot
	if err := m.v.postRecv(m.recvPosted, off, m.slot); err != nil {
		return err
	}
	m.recvPosted++
	m.add(&m.t.Posted, 1)
	return nil
}

// again posts the next receive during a connection. A failure means that the peer has closed. All
// messages of the peer have arrived then, so no more receives are needed.
func (m *message) again() {
	if err := m.repost(); err != nil {
		m.failure.CompareAndSwap(nil, &err)
	}
}

func (m *message) add(n *uint64, by int) {
	m.count.Lock()
	*n += uint64(by)
	m.count.Unlock()
}

// fail ends the connection at once, and records err as the cause. Later calls have no effect. Run
// returns a broken promise, if there is one, instead of the cause.
func (m *message) fail(err error) {
	m.once.Do(func() {
		m.cause = err
		close(m.stopped)
		m.v.abort()
	})
}

// Run implements Conn.
func (m *message) Run(ctx context.Context) (Tally, error) {
	m.t.SharedMemory = m.v.path().SharedMemory
	quit := context.AfterFunc(ctx, func() { m.fail(context.Cause(ctx)) })
	defer quit()
	flush, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // limits the time in which requests must complete after a failure
		select {
		case <-m.stopped:
			if sleep(flush, flushLimit) == nil {
				cancel()
			}
		case <-flush.Done():
		}
	}()

	var promises [3]error
	var sender, receiver, reaper sync.WaitGroup
	receiver.Go(func() { promises[0] = m.receive(flush) })
	reaper.Go(func() { promises[1] = m.reap(flush) })
	sender.Go(func() {
		if err := m.send(ctx); err != nil {
			m.fail(err)
		}
	})
	sender.Wait()
	receiver.Wait()
	close(m.inFlight)
	reaper.Wait()
	orderly := false
	select {
	case <-m.stopped:
		m.v.abort() // a receive may have been posted after the first abort
	default:
		orderly = true
		if err := m.v.close(); err != nil {
			m.fail(fmt.Errorf("close: %w", err))
			orderly = false
		}
	}
	promises[2] = m.leftover(flush)
	if err := m.v.free(); err != nil && promises[2] == nil {
		promises[2] = broken("freeing after the end: %v", err)
	}
	m.t.Orderly = orderly
	for _, err := range promises {
		if err != nil {
			return m.t, err
		}
	}
	if !orderly {
		return m.t, m.cause
	}
	return m.t, nil
}

// request posts a request to the send queue. The goroutine of reap calls done with the result.
func (m *message) request(post func(id uint64) error, done func(error)) error {
	m.post.Lock()
	defer m.post.Unlock()
	if err := post(m.sendID); err != nil {
		return err
	}
	m.inFlight <- request{m.sendID, done}
	m.sendID++
	m.add(&m.t.Posted, 1)
	return nil
}

// reap takes the completions of the send queue. Each must belong to the oldest request. A failed
// request does not end the connection: the receives report the end, after all messages that arrived
// earlier. The last message of the peer may be among the earlier messages, because the peer closes
// as soon as our last message has arrived.
func (m *message) reap(flush context.Context) (promise error) {
	for r := range m.inFlight {
		if promise != nil {
			continue
		}
		c, ok := m.v.waitSend(flush)
		if !ok {
			promise = broken("request %d of the send queue did not complete", r.id)
		} else if c.id != r.id {
			promise = broken("request %d of the send queue completed in place of %d", c.id, r.id)
		}
		if promise != nil {
			m.fail(promise)
			continue
		}
		m.add(&m.t.Completed, 1)
		if c.err != nil {
			m.add(&m.t.Failed, 1)
			m.failure.CompareAndSwap(nil, &c.err)
		}
		r.done(c.err)
	}
	return promise
}

// leftover takes the completions of the remaining receives at the end of the connection. Any other
// completion breaks a promise.
func (m *message) leftover(flush context.Context) error {
	flush, cancel := context.WithTimeout(flush, flushLimit)
	defer cancel()
	for m.recvDone < m.recvPosted {
		c, ok := m.v.waitRecv(flush)
		if !ok {
			return broken("receive %d of %d did not complete", m.recvDone, m.recvPosted)
		}
		if c.id != m.recvDone {
			return broken("receive %d completed in place of %d", c.id, m.recvDone)
		}
		m.recvDone++
		m.t.Completed++
		if c.err != nil {
			m.t.Failed++
		}
	}
	past, cancel := context.WithCancel(context.Background())
	cancel()
	if c, ok := m.v.waitRecv(past); ok {
		return broken("receive %d completed twice", c.id)
	}
	if c, ok := m.v.waitSend(past); ok {
		return broken("request %d of the send queue completed twice", c.id)
	}
	return nil
}

func header(b []byte, kind byte, op uint64, n int) {
	b[0], b[1], b[2], b[3] = kind, 0, 0, 0
	binary.BigEndian.PutUint64(b[4:], op)
	binary.BigEndian.PutUint32(b[12:], uint32(n))
}

// wait waits for a value of ch. It returns the cause if the connection fails first.
func wait[T any](m *message, ch <-chan T) (v T, err error) {
	select {
	case v = <-ch:
		return v, nil
	case <-m.stopped:
		return v, m.cause
	}
}

// send is the sending half of Run. It sends until the plan is over, then kindFin.
func (m *message) send(ctx context.Context) error {
	lengths := source(m.p, m.dialled, useLengths)
	here := m.v.region()
	out := func(slot int) (int, []byte) {
		off := m.outAt + slot*m.slot
		return off, m.mem[off:][:m.slot]
	}

	// left counts the requests and acknowledgements a slot waits for; byOp has the slot of each
	// operation still to be acknowledged by the peer.
	var mu sync.Mutex
	left := make([]int, m.p.Window)
	byOp := map[uint64]int{}
	finish := func(slot int) func(error) {
		return func(error) {
			mu.Lock()
			left[slot]--
			free := left[slot] == 0
			mu.Unlock()
			if free {
				m.freeSlots <- slot
			}
		}
	}
	acks := make(chan struct{})
	defer func() { <-acks }()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		defer close(acks)
		for {
			select {
			case op := <-m.acked:
				mu.Lock()
				slot, ok := byOp[op]
				delete(byOp, op)
				mu.Unlock()
				if !ok {
					m.fail(broken("operation %d was acknowledged twice, or never sent", op))
					return
				}
				finish(slot)(nil)
			case <-stop:
				return
			case <-m.stopped:
				return
			}
		}
	}()
	begin := func(slot, waits int, op uint64, isOp bool) {
		mu.Lock()
		left[slot] = waits
		if isOp {
			byOp[op] = slot
		}
		mu.Unlock()
	}

	slot, err := wait(m, m.freeSlots)
	if err != nil {
		return err
	}
	off, b := out(slot)
	header(b, kindHello, 0, 12)
	binary.BigEndian.PutUint64(b[headerLen:], here.address)
	binary.BigEndian.PutUint32(b[headerLen+8:], here.handle)
	begin(slot, 1, 0, false)
	if err := m.request(func(id uint64) error { return m.v.postSend(id, off, headerLen+12) }, finish(slot)); err != nil {
		return err
	}
	if _, err := wait(m, m.greeted); err != nil {
		return err
	}

	sum := newDigest()
	start := time.Now()
	speed := pace{rate: m.p.Rate, begin: start}
	idled := m.p.Idle == 0
	var op uint64
	for i := 0; i < m.p.Least || time.Since(start) < m.p.For; i++ {
		if !idled && time.Since(start) > m.p.For/2 {
			idled = true
			if err := m.sleep(ctx, m.p.Idle); err != nil {
				return err
			}
		}
		n := length(lengths, m.p.MaxBytes)
		if err := m.sleep(ctx, speed.delay(time.Now(), n)); err != nil {
			return err
		}
		slot, err := wait(m, m.freeSlots)
		if err != nil {
			return err
		}
		off, b := out(slot)
		switch kind := lengths.IntN(4); kind {
		case 0: // a Read
			if err := m.read(slot, lengths, n, begin, finish(slot)); err != nil {
				return err
			}
			continue
		case 1: // a Write, and a Send that announces it
			fill(source(m.p, m.dialled, usePayload+op), b[headerLen:][:n])
			sum.Write(b[headerLen:][:n])
			header(b, kindWrote, op, n|slot<<24)
			begin(slot, 3, op, true)
			err = m.request(func(id uint64) error {
				return m.v.postWrite(id, off+headerLen, n, m.peer.at(m.inAt+slot*m.slot))
			}, finish(slot))
			if err == nil {
				err = m.request(func(id uint64) error { return m.v.postSend(id, off, headerLen) }, finish(slot))
			}
			m.add(&m.t.Writes, 1)
		default:
			fill(source(m.p, m.dialled, usePayload+op), b[headerLen:][:n])
			sum.Write(b[headerLen:][:n])
			header(b, kindData, op, n)
			begin(slot, 2, op, true)
			err = m.request(func(id uint64) error { return m.v.postSend(id, off, headerLen+n) }, finish(slot))
			m.add(&m.t.Sends, 1)
		}
		if err != nil {
			return err
		}
		m.add(&m.t.SentBytes, n)
		op++
	}
	for range m.p.Window { // waits until the peer has verified every operation
		if slot, err = wait(m, m.freeSlots); err != nil {
			return err
		}
	}
	off, b = out(slot)
	header(b, kindFin, op, sum.Size())
	m.last.Store(op)
	copy(b[headerLen:], sum.Sum(nil))
	begin(slot, 2, op, true)
	if err := m.request(func(id uint64) error { return m.v.postSend(id, off, headerLen+sum.Size()) }, finish(slot)); err != nil {
		return err
	}
	_, err = wait(m, m.freeSlots)
	return err
}

// sleep waits for d, or until the connection fails, as happens when ctx ends.
func (m *message) sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-m.stopped:
		return m.cause
	}
}

// read reads memory exposed by the peer, and verifies the data on arrival.
func (m *message) read(slot int, lengths *rand.Rand, n int, begin func(int, int, uint64, bool), finish func(error)) error {
	n = min(n, exposed)
	from := lengths.IntN(exposed - n + 1)
	off := m.readAt + slot*m.slot
	begin(slot, 1, 0, false)
	return m.request(func(id uint64) error { return m.v.postRead(id, off, n, m.peer.at(m.exposedAt+from)) }, func(err error) {
		if err != nil {
			return
		}
		want := make([]byte, exposed)
		fill(source(m.p, !m.dialled, useExposed), want)
		if !bytes.Equal(m.mem[off:][:n], want[from:][:n]) {
			m.fail(broken("a read of %d bytes at %d returned other bytes", n, from))
			return
		}
		m.add(&m.t.Reads, 1)
		m.add(&m.t.ReceivedBytes, n)
		finish(err)
	})
}

// receive is the receiving half of Run. It returns only broken promises, and passes any other error
// to fail.
func (m *message) receive(flush context.Context) (promise error) {
	in := &inbox{sum: newDigest()}
	for !in.theirs || !in.ours {
		c, ok := m.v.waitRecv(flush)
		if !ok {
			select {
			case <-m.stopped: // leftover checks the remaining receives
				return nil
			default:
			}
			promise = broken("a receive queue with %d receives is empty", m.recvPosted-m.recvDone)
		} else if c.id != m.recvDone {
			promise = broken("receive %d completed in place of %d", c.id, m.recvDone)
		}
		if promise != nil {
			m.fail(promise)
			return promise
		}
		m.recvDone++
		m.add(&m.t.Completed, 1)
		if c.err != nil {
			m.add(&m.t.Failed, 1)
			if e := m.failure.Load(); e != nil {
				c.err = *e // the failure that was recorded first
			}
			m.fail(c.err)
			return nil
		}
		off := m.receives + int(c.id)%m.recvs*m.slot
		if err := m.handle(m.mem[off:][:c.n], in); err != nil {
			m.fail(err)
			if errors.Is(err, ErrBroken) {
				return err
			}
			return nil
		}
	}
	m.t.Digest = digest(in.sum)
	return nil
}

// An inbox is the state of the receiving half.
type inbox struct {
	sum  hash.Hash
	next uint64 // number of the peer's next operation
	// theirs: the peer has sent its kindFin. ours: the peer has acknowledged our kindFin.
	theirs, ours bool
}

// handle verifies and answers a message. The receive is reposted before the answer is sent, because
// the answer lets the peer send more.
func (m *message) handle(b []byte, in *inbox) error {
	if len(b) < headerLen {
		return broken("a message of %d bytes", len(b))
	}
	kind, op, n := b[0], binary.BigEndian.Uint64(b[4:]), int(binary.BigEndian.Uint32(b[12:]))
	payload := b[headerLen:]
	if in.theirs && kind != kindAck || kind != kindAck && kind != kindHello && op != in.next {
		return broken("operation %d (kind %d) in place of %d", op, kind, in.next)
	}
	switch kind {
	case kindHello:
		m.peer = place{binary.BigEndian.Uint64(payload), binary.BigEndian.Uint32(payload[8:])}
		close(m.greeted)
		m.again()
		return nil
	case kindAck:
		if op == m.last.Load() {
			in.ours = true
		}
		m.again()
		select {
		case m.acked <- op:
			return nil
		case <-m.stopped:
			return m.cause
		}
	case kindFin:
		in.theirs = true
		if !bytes.Equal(payload, in.sum.Sum(nil)) {
			return broken("another digest after %d operations", op)
		}
	case kindWrote:
		slot := n >> 24
		n &= 1<<24 - 1
		if slot >= m.p.Window || n > m.p.MaxBytes {
			return broken("%d bytes written to slot %d", n, slot)
		}
		payload = m.mem[m.inAt+slot*m.slot:][:n]
	case kindData:
		if n != len(payload) {
			return broken("operation %d has %d bytes in place of %d", op, len(payload), n)
		}
	default:
		return broken("a message of kind %d", kind)
	}
	if kind != kindFin {
		want := make([]byte, n)
		fill(source(m.p, !m.dialled, usePayload+op), want)
		if !bytes.Equal(payload, want) {
			return broken("operation %d of %d bytes (kind %d) brought other bytes", op, n, kind)
		}
		in.sum.Write(want)
		in.next++
		m.add(&m.t.ReceivedBytes, n)
	}
	m.again()
	slot, err := wait(m, m.freeAcks)
	if err != nil {
		return err
	}
	off := m.ackAt + slot*headerLen
	header(m.mem[off:], kindAck, op, 0)
	return m.request(func(id uint64) error { return m.v.postSend(id, off, headerLen) }, func(error) { m.freeAcks <- slot })
}
