package rxe

import (
	"testing"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// A window gives the peer access to the bound bytes only. The access ends when the owner or a Send
// of the peer invalidates the window.
func TestWindows(t *testing.T) {
	for _, typ := range []WindowType{Type1, Type2} {
		f := NewFabric()
		a, b := newEnd(t, f, RC, nil), newEnd(t, f, RC, nil)
		connect(a, b, nil)
		a.memory.add(1, 64, abi.AccessLocalWrite)
		region := b.memory.add(2, 64, abi.AccessLocalWrite|abi.AccessMWBind)
		w, err := b.space.NewWindow(b.memory, typ, func(uint32) bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		key := b.space.Key(w)
		bind := func(id uint64, newKey uint32, want Status) {
			t.Helper()
			b.post(OpBindWindow, id, func(e abi.Body) {
				e.Put64(24, 2<<16+16)
				e.Put64(32, 32)
				e.Put32(40, 2)
				e.Put32(44, key)
				e.Put32(48, newKey)
				e.Put32(52, abi.AccessRemoteWrite)
			})
			b.want(id, want)
		}
		next := key&^0xff | (key+1)&0xff
		bind(1, next, Success)
		if region.bound.Load() != 1 {
			t.Error("the region does not know of its window")
		}
		through := func(at uint64, n int) func(abi.Body) {
			return func(e abi.Body) {
				one(1, n, 0)(e)
				e.Put64(24, at)
				e.Put32(32, next)
			}
		}
		a.post(OpWrite, 2, through(2<<16+16, 32))
		a.want(2, Success)
		if typ == Type2 {
			b.receive(3, 2, 8)
			a.post(OpSendInvalidate, 4, func(e abi.Body) {
				one(1, 8, 0)(e)
				e.Put32(20, next)
			})
			if c := b.want(3, Success); c.flags&hasInvalidate == 0 || c.imm != next {
				t.Errorf("%+v", c)
			}
			a.want(4, Success)
			if region.bound.Load() != 0 {
				t.Error("the region still counts the window")
			}
		}
		at, n := uint64(2<<16+16), 33 // one byte beyond the end
		if typ == Type2 {
			n = 32
		}
		a.post(OpWrite, 5, through(at, n))
		a.want(5, RemoteAccess)
		b.space.CloseWindow(w)
		if region.bound.Load() != 0 || region.holds != 0 {
			t.Errorf("%d windows and %d holds are left", region.bound.Load(), region.holds)
		}
	}
}

// Datagrams arrive, with their header, at all members of a group, and only with the right key.
func TestDatagrams(t *testing.T) {
	f := NewFabric()
	group := GID{0: 0xff, 1: 0x0e, 15: 9}
	a, b, c := newEnd(t, f, UD, nil), newEnd(t, f, UD, nil), newEnd(t, f, UD, nil)
	for i, e := range []*end{a, b, c} {
		for _, s := range []abi.State{abi.Init, abi.RTR, abi.RTS} {
			e.modify(s, 0, func(ch *Change) { ch.QKey = []uint32{7, 7, 8}[i] })
		}
		e.memory.add(1, 128, abi.AccessLocalWrite)
		e.receive(1, 1, 128)
		if err := f.Attach(e.qp, group); err != nil {
			t.Fatal(err)
		}
	}
	send := func(id uint64, to GID, qpn uint32) {
		t.Helper()
		ah, err := a.space.NewAH(a.memory, ahBody(to))
		if err != nil {
			t.Fatal(err)
		}
		a.post(OpSend, id, func(e abi.Body) {
			one(1, 12, 0)(e)
			e.Put32(24, qpn)
			e.Put32(28, 7)
			e.Put32(36, ah.Num)
		})
	}
	a.memory.regions[1].set([]byte("some payload"))
	send(2, home, b.qp.num)
	a.want(2, Success)
	if d := b.want(1, Success); d.length != grhLen+12 || d.src != a.qp.num || d.flags&hasGRH == 0 ||
		string(b.memory.regions[1].get()[grhLen:][:12]) != "some payload" {
		t.Errorf("%+v %q", d, b.memory.regions[1].get())
	}
	b.receive(5, 1, 128)
	send(3, group, qpnMask)
	b.want(5, Success)
	c.none() // the key is wrong
	if !b.qp.Busy() {
		t.Error("a member of a group may be closed")
	}
	send(4, home, 12345) // no such queue pair
	if err := f.Detach(b.qp, group); err != nil || b.qp.Busy() {
		t.Error("still a member", err)
	}
	if f.Attach(a.qp, home) == nil || f.Detach(b.qp, group) == nil {
		t.Error("joined what is no group, or left it twice")
	}
	r := newEnd(t, f, RC, nil)
	if f.Attach(r.qp, group) == nil {
		t.Error("a connection joined a group")
	}
}

// A shared receive queue serves several queue pairs, sends a single event when running low, and
// keeps the receives over a resize.
func TestSharedQueue(t *testing.T) {
	f := NewFabric()
	told := 0
	srq, err := NewSRQ(&heap{}, SRQLimits{WR: 7, SGE: 1}, func() { told++ })
	if err != nil {
		t.Fatal(err)
	}
	share := func(c *Config) { c.SRQ = srq }
	a, b := newEnd(t, f, RC, nil), newEnd(t, f, RC, share)
	connect(a, b, nil)
	a.memory.add(1, 8, abi.AccessLocalWrite)
	b.memory.add(1, 8, abi.AccessLocalWrite)
	for id := range uint64(4) {
		b.receive(id, 1, 8)
	}
	if err := srq.Arm(3); err != nil {
		t.Fatal(err)
	}
	a.post(OpSend, 9, one(1, 8, 0))
	b.want(0, Success)
	if told != 0 {
		t.Error("told though three are left")
	}
	if err := srq.Resize(15, func(abi.Body) bool { return true }); err != nil {
		t.Fatal(err)
	}
	for id := range uint64(2) {
		a.post(OpSend, 9, one(1, 8, 0))
		b.want(id+1, Success)
	}
	if told != 1 {
		t.Errorf("told %d times", told)
	}
	if srq.Resize(0, nil) == nil || srq.Resize(MaxWR+1, nil) == nil || srq.Arm(16) == nil {
		t.Error("limits are not kept")
	}
	b.modify(abi.Err, 0, nil)
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.events) != 1 || b.events[0] != abi.AsyncQPLastWQE {
		t.Errorf("events %v", b.events)
	}
}

// A completion queue keeps unread completions over a resize, sends requested events, and reports an
// overrun once.
func TestCompletionQueue(t *testing.T) {
	completed, overrun := 0, 0
	q, err := NewCQ(&heap{}, 7, CQEvents{func() { completed++ }, func() { overrun++ }})
	if err != nil {
		t.Fatal(err)
	}
	e := &end{t: t, cq: q}
	q.Notify(true)
	q.push(&completion{id: 1})
	if completed != 0 {
		t.Error("told of one that is not solicited")
	}
	q.push(&completion{id: 2, solicited: true})
	q.push(&completion{id: 3, solicited: true})
	if completed != 1 {
		t.Errorf("told %d times", completed)
	}
	e.want(1, Success)
	for _, n := range []uint32{31, 3} {
		if err := q.Resize(n, func(uint32, abi.Body) bool { return true }); err != nil {
			t.Fatal(err)
		}
	}
	if q.Resize(1, func(uint32, abi.Body) bool { return true }) == nil {
		t.Error("shorter than what is there")
	}
	if err := q.Resize(63, func(uint32, abi.Body) bool { return false }); err != nil || q.ring.mask != 3 {
		t.Error("resized though the program has not learnt of it", err)
	}
	e.want(2, Success)
	e.want(3, Success)
	q.Notify(false)
	for id := range uint64(9) {
		q.push(&completion{id: id})
	}
	if completed != 2 || overrun != 1 {
		t.Errorf("told %d times, %d overruns", completed, overrun)
	}
	q.Close()
	q.push(&completion{})
}

// An unreliable connection drops messages without a receive, and continues. The sender is not
// informed.
func TestUnreliable(t *testing.T) {
	f := NewFabric()
	a, b := newEnd(t, f, UC, nil), newEnd(t, f, UC, nil)
	connect(a, b, nil)
	a.memory.add(1, 8, abi.AccessLocalWrite)
	b.memory.add(1, 8, abi.AccessLocalWrite)
	a.post(OpSend, 1, one(1, 8, 0)) // no receive is posted
	a.want(1, Success)
	a.post(OpWrite, 2, one(1, 8, 9)) // no such key
	a.want(2, Success)
	b.receive(3, 1, 4)
	a.post(OpSend, 4, one(1, 8, 0)) // longer than the receive
	a.want(4, Success)
	b.none()
	a.post(OpSend, 5, one(1, 4, 0))
	a.want(5, Success)
	b.want(3, Success)
	a.post(OpRead, 6, one(1, 4, 0))
	a.want(6, LocalQPOperation)
}
