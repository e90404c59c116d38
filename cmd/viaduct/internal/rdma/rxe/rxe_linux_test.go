package rxe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// A heap is an arena of mapped memory, like the arena shared with programs. The race detector
// ignores mapped memory, and tests write to rings in use by the engine.
type heap struct{ next int64 }

func (h *heap) Ring(n int) ([]byte, int64, error) {
	h.next += int64(n)
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	return b, h.next, err
}

func (h *heap) Drop(b []byte, _ int64) { unix.Munmap(b) }

// A store is a program's registered memory. The region with a key begins at the address key << 16.
type store struct {
	mu      sync.Mutex
	regions map[uint32]*block
}

type block struct {
	base   uint64
	bytes  []byte
	rights uint32
	mu     sync.Mutex
	holds  int
	bound  atomic.Int32
	err    error // returned by every read and write
	during func()
	absent bool // the memory from absentAt on is missing
	calls  int  // number of calls of ReadAt, WriteAt, ReadAll and WriteAll
}

// absentAt is an offset in a region. From absentAt on, memory may be missing.
const absentAt = 4096

// here returns n bytes at an address. ok is false if a part is missing.
func (b *block) here(n int, addr uint64) (p []byte, ok bool) {
	at := addr - b.base
	return b.bytes[at:][:n], !b.absent || at+uint64(n) <= absentAt
}

var errAbsent = errors.New("no memory is there")

func (s *store) add(key uint32, n int, rights uint32) *block {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.regions == nil {
		s.regions = map[uint32]*block{}
	}
	b := &block{base: uint64(key) << 16, bytes: make([]byte, n), rights: rights}
	s.regions[key] = b
	return b
}

func (s *store) Find(key uint32, addr, n uint64, need uint32) Region {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.regions[key]
	if b == nil || addr < b.base || addr-b.base > uint64(len(b.bytes)) ||
		n > uint64(len(b.bytes))-(addr-b.base) || b.rights&need != need {
		return nil
	}
	b.Hold()
	return b
}

// get returns a copy of the memory. The goroutine of the wire may be changing the memory.
func (b *block) get() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.bytes)
}

// set writes p to the beginning of the memory.
func (b *block) set(p []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	copy(b.bytes, p)
}

// held waits until the region is not held, for a minute at most, and returns the number of holds.
func (b *block) held() (n int) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Microsecond) {
		b.mu.Lock()
		n = b.holds
		b.mu.Unlock()
		if n == 0 {
			break
		}
	}
	return n
}

func (b *block) ReadAt(p []byte, addr uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.during != nil {
		b.during()
	}
	b.calls++
	from, ok := b.here(len(p), addr)
	switch {
	case b.err != nil:
		return b.err
	case !ok:
		return errAbsent
	}
	copy(p, from)
	return nil
}

func (b *block) WriteAt(p []byte, addr uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	to, ok := b.here(len(p), addr)
	switch {
	case b.err != nil:
		return b.err
	case !ok:
		return errAbsent
	}
	copy(to, p)
	return nil
}

func (b *block) Place(addr uint64) (Process, uint64) { return b, addr }

func (b *block) ReadAll(chunks []Chunk) int  { return b.all(chunks, b.ReadAt) }
func (b *block) WriteAll(chunks []Chunk) int { return b.all(chunks, b.WriteAt) }

func (b *block) all(chunks []Chunk, do func([]byte, uint64) error) (n int) {
	before := b.calls
	for _, c := range chunks {
		if do(c.Bytes, c.Addr) != nil {
			break
		}
		n += len(c.Bytes)
	}
	b.calls = before + 1
	return n
}

func (b *block) Hold() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holds++
	return true
}

func (b *block) Release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holds--
}

func (b *block) Bound(n int) { b.bound.Add(int32(n)) }

// An end is a program with a queue pair, and uses the queue pair like the provider.
type end struct {
	t      *testing.T
	f      *Fabric
	port   *Port
	memory *store
	space  *Space
	cq     *CQ
	srq    *SRQ
	qp     *QP
	gid    GID
	mu     sync.Mutex
	events []abi.AsyncType
}

var home = GID{15: 1}

func newEnd(t *testing.T, f *Fabric, typ Type, change func(*Config)) *end {
	t.Helper()
	return newEndAt(t, f, home, typ, change)
}

// newEndAt creates an end whose port has the address at.
func newEndAt(t *testing.T, f *Fabric, at GID, typ Type, change func(*Config)) *end {
	t.Helper()
	t.Cleanup(f.Close)
	e := &end{t: t, f: f, port: f.NewPort(), memory: &store{}, gid: at}
	e.port.SetGIDs([]GID{at})
	e.space = NewSpace(e.port)
	var err error
	if e.cq, err = NewCQ(&heap{}, 63, CQEvents{func() {}, func() {}}); err != nil {
		t.Fatal(err)
	}
	c := Config{Type: typ, Limits: Limits{SendWR: 15, RecvWR: 15, SendSGE: 4, RecvSGE: 4, Inline: 64},
		Port: e.port, Arena: &heap{},
		Memory: e.memory, Space: e.space, SendCQ: e.cq, RecvCQ: e.cq,
		Event: func(t abi.AsyncType) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.events = append(e.events, t)
		}}
	if change != nil {
		change(&c)
	}
	e.srq = c.SRQ
	if e.qp, err = f.NewQP(c); err != nil {
		t.Fatal(err)
	}
	return e
}

// modify changes the state, and sets all attributes the change needs. set may adjust the
// attributes.
func (e *end) modify(to abi.State, dest uint32, set func(*Change)) {
	e.t.Helper()
	c := changeTo(e.qp, to)
	c.DestQP, c.Access = dest, abi.AccessRemoteWrite|abi.AccessRemoteRead|abi.AccessRemoteAtomic
	c.RNRRetry, c.Retry, c.Timeout, c.MinRNR = retryAlways, 7, 14, 1
	if set != nil {
		set(&c)
	}
	slow, err := e.qp.Modify(c)
	if err != nil {
		e.t.Fatalf("%v -> %v: %v", e.qp.Attributes().State, to, err)
	}
	if slow {
		e.qp.Settle()
	}
}

// changeTo returns a change to a state with all required attributes.
func changeTo(q *QP, to abi.State) Change {
	return Change{Mask: MaskState | changes[q.typ][change{q.Attributes().State, to}].must, port: 1,
		Attributes: Attributes{State: to, Path: pathTo(home), MTU: maxMTU, MaxReads: 4, MaxDestReads: 4, QKey: 7}}
}

// pathTo returns a path from the first address of a port.
func pathTo(to GID) Path {
	var path [pathLen]byte
	copy(path[:], to[:])
	path[30], path[31] = 1, 1
	return parsePath(path[:])
}

// connect connects two ends, perhaps the same end twice. Both answer, but an end may have to wait for
// a processor: the timeout is 1 s, with seven retries.
func connect(a, b *end, set func(*Change)) {
	a.t.Helper()
	towards := func(peer *end) func(*Change) {
		return func(c *Change) {
			c.Path, c.Timeout = pathTo(peer.gid), 18
			if set != nil {
				set(c)
			}
		}
	}
	for _, s := range []abi.State{abi.Init, abi.RTR, abi.RTS} {
		a.modify(s, b.qp.num, towards(b))
		if a != b {
			b.modify(s, a.qp.num, towards(a))
		}
	}
}

// post fills a send entry, and rings the doorbell.
func (e *end) post(op Op, id uint64, fill func(b abi.Body)) {
	r := &e.qp.send.ring
	i := r.produced()
	b := abi.Body(r.slot(i))
	clear(b)
	b.Put64(0, id)
	b.Put32(12, uint32(op))
	b.Put32(16, flagSignaled)
	fill(b)
	atomic.StoreUint32(r.index(producerAt), (i+1)&r.mask)
	e.qp.Doorbell()
}

// Brief is true for a single short request that is not begun.
func TestBrief(t *testing.T) {
	f := NewFabric()
	a, b := newEnd(t, f, RC, nil), newEnd(t, f, RC, nil)
	// Modify kicks the queue in goroutines of its own. As if one were working already, they leave the
	// requests to the test.
	a.qp.calls.Add(1)
	connect(a, b, nil)
	check := func(want bool, when string) {
		t.Helper()
		if got := a.qp.Brief(); got != want {
			t.Errorf("%s: %v", when, got)
		}
	}
	r := &a.qp.send.ring
	put := func(op Op, fill func(b abi.Body)) {
		i := r.produced()
		e := abi.Body(r.slot(i))
		clear(e)
		e.Put32(12, uint32(op))
		fill(e)
		atomic.StoreUint32(r.index(producerAt), (i+1)&r.mask)
	}
	take := func() { atomic.StoreUint32(r.index(producerAt), r.consumed()) }
	check(false, "no request")
	put(OpWrite, one(1, briefMost, 2))
	check(true, "the longest brief Write")
	put(OpWrite, one(1, 8, 2))
	check(false, "two Writes")
	take()
	put(OpWrite, one(1, briefMost+1, 2))
	check(false, "a longer Write")
	take()
	put(OpRead, one(1, 8, 2))
	check(true, "a short Read")
	a.qp.send.mu.Lock()
	check(false, "another goroutine works on the queue")
	a.qp.send.mu.Unlock()
	take()
	put(OpSend, one(1, 0, 2))
	a.qp.work(false)
	a.begun()
	check(false, "a Send that waits for a receive")
	a.qp.Close()
	check(false, "after Close")
}

// begun waits until the request at the head of the send queue is in progress. Another goroutine may
// be working on the queue, and begins the requests of the caller, too.
func (e *end) begun() {
	e.t.Helper()
	s := &e.qp.send
	until(e.t, "request in progress", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		l := e.qp.link.Load()
		return s.held || l != nil && len(l.posted) > 0
	})
}

// putElement writes an element for the first n bytes of a region.
func putElement(b abi.Body, at int, key uint32, n int) {
	b.Put64(at, uint64(key)<<16)
	b.Put32(at+8, uint32(n))
	b.Put32(at+12, key)
}

// one returns a function to fill an entry with a single element, and with the place at the peer.
func one(key uint32, n int, remote uint32) func(abi.Body) {
	return func(b abi.Body) {
		b.Put64(24, uint64(remote)<<16)
		b.Put32(32, remote)
		b.Put32(184, uint32(n))
		b.Put32(196, 1)
		putElement(b, sendHeadLen, key, n)
	}
}

// receive posts a receive for the first n bytes of a region.
func (e *end) receive(id uint64, key uint32, n int) { e.receiveAt(id, key, 0, n) }

// receiveAt posts a receive for n bytes at an offset of a region.
func (e *end) receiveAt(id uint64, key uint32, offset uint64, n int) {
	r := &e.qp.recv.ring
	if e.srq != nil {
		r = &e.srq.ring
	}
	i := r.produced()
	b := abi.Body(r.slot(i))
	b.Put64(0, id)
	b.Put32(28, 1)
	putElement(b, recvHeadLen, key, n)
	b.Put64(recvHeadLen, uint64(key)<<16+offset)
	atomic.StoreUint32(r.index(producerAt), (i+1)&r.mask)
}

// poll takes a completion; ok is false if there is none.
func (e *end) poll() (c completion, ok bool) {
	e.cq.mu.Lock()
	defer e.cq.mu.Unlock()
	r := &e.cq.ring
	i := r.consumed()
	if i == r.at {
		return c, false
	}
	b := abi.Body(r.slot(i))
	c = completion{id: b.U64(0), status: Status(b.U32(8)), kind: b.U32(12), length: b.U32(20),
		imm: b.U32(24), qp: b.U32(28), src: b.U32(32), flags: b.U32(36)}
	atomic.StoreUint32(r.index(consumerAt), (i+1)&r.mask)
	return c, true
}

// want waits for a completion and checks the result. It may have to wait, because another goroutine
// may be working on the queue and then executes the entries of the caller, too.
func (e *end) want(id uint64, s Status) completion {
	e.t.Helper()
	c, ok := e.poll()
	for end := time.Now().Add(time.Minute); !ok && time.Now().Before(end); c, ok = e.poll() {
		time.Sleep(10 * time.Microsecond)
	}
	if !ok || c.id != id || c.status != s {
		e.t.Fatalf("completion %v %d %v, want %d %v", ok, c.id, c.status, id, s)
	}
	return c
}

func (e *end) none() {
	e.t.Helper()
	if c, ok := e.poll(); ok {
		e.t.Fatalf("completion %d %v, want none", c.id, c.status)
	}
}

// Requests of every kind move their bytes: between two queue pairs of a supervisor, between two
// supervisors, and on a queue pair connected to itself.
func TestRequests(t *testing.T) {
	t.Run("itself", func(t *testing.T) {
		a := newEnd(t, NewFabric(), RC, nil)
		testRequests(t, a, a)
	})
	eachWay(t, RC, testRequests)
}

func testRequests(t *testing.T, a, b *end) {
	connect(a, b, nil)
	mine := a.memory.add(1, 64, abi.AccessLocalWrite)
	theirs := b.memory.add(2, 64, abi.AccessLocalWrite|abi.AccessRemoteWrite|abi.AccessRemoteRead|abi.AccessRemoteAtomic)
	mine.set([]byte("payload of a request"))
	a.post(OpWrite, 1, one(1, 20, 2))
	a.want(1, Success)
	if !bytes.Equal(theirs.get()[:20], mine.get()[:20]) {
		t.Errorf("Write: %q", theirs.get())
	}
	theirs.set([]byte("what is read"))
	a.post(OpRead, 2, one(1, 12, 2))
	if c := a.want(2, Success); c.length != 12 || string(mine.get()[:12]) != "what is read" {
		t.Errorf("Read: %d bytes, %q", c.length, mine.get())
	}
	b.receive(7, 2, 64)
	a.post(OpSendImm, 3, func(e abi.Body) {
		one(1, 12, 0)(e)
		e.Put32(20, 0xabcd)
	})
	if c := b.want(7, Success); c.length != 12 || c.imm != 0xabcd || c.flags != hasGRH|hasImmediate ||
		c.kind != doneRecv {
		t.Errorf("Send with immediate: %+v", c)
	}
	a.want(3, Success)
	b.receive(8, 2, 8)
	a.post(OpWriteImm, 4, func(e abi.Body) { // inline
		one(1, 12, 2)(e)
		e.Put32(16, flagSignaled|flagInline)
		copy(e[sendHeadLen:], "inline bytes")
	})
	if c := b.want(8, Success); c.kind != doneRecvWriteImm || c.length != 12 ||
		string(theirs.get()[:12]) != "inline bytes" {
		t.Errorf("Write with immediate: %+v %q", c, theirs.get())
	}
	a.want(4, Success)
	theirs.set(binary.LittleEndian.AppendUint64(nil, 40))
	atomicOf := func(x, y uint64) func(abi.Body) {
		return func(e abi.Body) {
			one(1, 8, 2)(e)
			e.Put64(32, x)
			e.Put64(40, y)
			e.Put32(48, 2)
		}
	}
	a.post(OpFetchAdd, 5, atomicOf(2, 0))
	a.want(5, Success)
	a.post(OpCompareSwap, 6, atomicOf(42, 99))
	a.want(6, Success)
	a.post(OpCompareSwap, 6, atomicOf(42, 1))
	a.want(6, Success)
	if v, old := binary.LittleEndian.Uint64(theirs.get()), binary.LittleEndian.Uint64(mine.get()); v != 99 ||
		old != 99 {
		t.Errorf("atomics: %d there, %d here", v, old)
	}
	a.none()
	for _, m := range []*block{mine, theirs} {
		if n := m.held(); n != 0 {
			t.Errorf("%d holds are left", n)
		}
	}
}

// An invalid request is reported to both sides and moves both queue pairs to the error state. Later
// entries are flushed, sends before receives.
func TestFaults(t *testing.T) {
	all := uint32(abi.AccessRemoteWrite | abi.AccessRemoteRead | abi.AccessRemoteAtomic)
	for _, c := range []struct {
		name        string
		op          Op
		fill        func(abi.Body)
		recv        int // bytes of the receive, -1 for none
		set         func(*Change)
		here, there Status // expected at the requester, and in the receive if it completes
		wire        Status // expected at the requester over the wire, if different
		told        bool
		event       abi.AsyncType
		noEvent     bool
	}{
		{name: "local key", op: OpWrite, fill: one(9, 8, 2), recv: -1, here: LocalProtection, noEvent: true},
		{name: "local bounds", op: OpWrite, fill: one(1, 65, 2), recv: -1, here: LocalProtection, noEvent: true},
		{name: "remote key", op: OpWrite, fill: one(1, 8, 9), recv: -1, here: RemoteAccess, event: abi.AsyncQPAccess},
		{name: "remote bounds", op: OpRead, fill: one(1, 33, 2), recv: -1, here: RemoteAccess, event: abi.AsyncQPAccess},
		{name: "queue pair without the right", op: OpWrite, fill: one(1, 8, 2), recv: -1, here: RemoteInvalid, event: abi.AsyncQPRequest,
			set: func(c *Change) { c.Access &^= abi.AccessRemoteWrite }},
		{name: "no reads", op: OpRead, fill: one(1, 8, 2), recv: -1, here: RemoteInvalid, event: abi.AsyncQPRequest,
			set: func(c *Change) { c.MaxDestReads = 0 }},
		{name: "receive is too short", op: OpSend, fill: one(1, 33, 0), recv: 32, here: RemoteInvalid, there: LocalLength, told: true, event: abi.AsyncQPRequest},
		{name: "receive of no region", op: OpSend, fill: one(1, 8, 0), recv: 33, here: RemoteOperation, there: LocalProtection, told: true, event: abi.AsyncQPFatal},
		{name: "no such operation", op: 77, fill: one(1, 8, 0), recv: -1, here: LocalQPOperation, noEvent: true},
		{name: "too many elements", op: OpSend, fill: func(b abi.Body) { b.Put32(196, 1<<31) }, recv: -1, here: LocalQPOperation, noEvent: true},
		{name: "too much inline", op: OpSend, fill: func(b abi.Body) { b.Put32(16, flagInline); b.Put32(184, 1<<31) }, recv: -1, here: LocalQPOperation, noEvent: true},
		{name: "misaligned", op: OpFetchAdd, recv: -1, here: RemoteInvalid, event: abi.AsyncQPRequest, fill: func(b abi.Body) {
			one(1, 8, 2)(b)
			b.Put64(24, 2<<16+4)
			b.Put32(48, 2)
		}},
		{name: "invalidates what is no window", op: OpSendInvalidate, fill: one(1, 8, 0), recv: 8, here: Success, wire: RemoteAccess, there: RemoteInvalid, told: true, event: abi.AsyncQPRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachWay(t, RC, func(t *testing.T, a, b *end) {
				connect(a, b, c.set)
				a.memory.add(1, 64, abi.AccessLocalWrite)
				b.memory.add(2, 32, abi.AccessLocalWrite|all)
				if c.recv >= 0 {
					b.receive(70, 2, c.recv)
				}
				a.post(c.op, 1, c.fill)
				here := c.here
				if c.wire != Success && a.qp.link.Load() != nil {
					here = c.wire
				}
				if here != Success {
					a.want(1, here)
					a.wantState(abi.Err)
					a.qp.Settle()
					a.post(OpSend, 2, one(1, 8, 0))
					a.want(2, Flushed)
				}
				if c.told {
					b.want(70, c.there)
				}
				if c.noEvent {
					b.wantState(abi.RTS)
					return
				}
				b.wantState(abi.Err)
				b.mu.Lock()
				if len(b.events) != 1 || b.events[0] != c.event {
					t.Errorf("events %v, want %v", b.events, c.event)
				}
				b.mu.Unlock()
			})
		})
	}
}

// wantState waits until the queue pair is in a state.
func (e *end) wantState(s abi.State) {
	e.t.Helper()
	until(e.t, "state "+s.String(), func() bool { return e.qp.Attributes().State == s })
}

// A queue pair in the error state flushes the posted entries, sends before receives.
func TestFlushOrder(t *testing.T) {
	f := NewFabric()
	a := newEnd(t, f, RC, nil)
	connect(a, newEnd(t, f, RC, nil), nil) // the peer has no receive
	a.memory.add(1, 64, abi.AccessLocalWrite)
	a.receive(10, 1, 8)
	a.receive(11, 1, 8)
	a.post(OpSend, 1, one(1, 8, 0))
	a.post(OpSend, 2, one(1, 8, 0))
	a.none()
	a.modify(abi.Err, 0, nil)
	for _, id := range []uint64{1, 2, 10, 11} {
		a.want(id, Flushed)
	}
	a.none()
	a.modify(abi.Reset, 0, nil)
	if n := a.qp.send.ring.waiting(); n != 0 {
		t.Errorf("%d entries behind the reset", n)
	}
}

// While the memory of a program is slow to read, other queue pairs of the same program continue.
func TestLongCopy(t *testing.T) {
	f := NewFabric()
	a, b := newEnd(t, f, RC, nil), newEnd(t, f, RC, nil)
	c, d := newEnd(t, f, RC, nil), newEnd(t, f, RC, nil)
	connect(a, b, nil)
	connect(c, d, nil)
	const long = 1 << 20
	held, begun := make(chan struct{}), make(chan struct{})
	slow := a.memory.add(1, long, abi.AccessLocalWrite)
	var once sync.Once
	slow.during = func() { once.Do(func() { close(begun); <-held }) }
	b.memory.add(2, long, abi.AccessLocalWrite|abi.AccessRemoteWrite)
	c.memory.add(1, 8, abi.AccessLocalWrite)
	d.memory.add(2, 8, abi.AccessLocalWrite|abi.AccessRemoteWrite)
	a.post(OpWrite, 1, one(1, long, 2)) // returns before the copy has ended
	<-begun
	c.post(OpWrite, 2, one(1, 8, 2))
	c.want(2, Success)
	a.none()
	close(held)
	b.qp.Close() // waits for the copy
	a.qp.Close()
	a.want(1, Success)
}

// If the program of the peer has ended, the request fails because the peer does not answer, not
// because of the missing memory.
func TestPeerGone(t *testing.T) {
	f := NewFabric()
	a, b := newEnd(t, f, RC, nil), newEnd(t, f, RC, nil)
	connect(a, b, nil)
	a.memory.add(1, 8, abi.AccessLocalWrite)
	b.memory.add(2, 8, abi.AccessLocalWrite|abi.AccessRemoteWrite).err = ErrGone
	a.post(OpWrite, 1, one(1, 8, 2))
	a.none()
	if s := a.qp.Attributes().State; s != abi.RTS {
		t.Errorf("requester is %v", s)
	}
	a.qp.Close()
}
