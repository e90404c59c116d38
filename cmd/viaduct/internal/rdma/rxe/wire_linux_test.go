package rxe

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"
	"time"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// eachWay runs a test with two queue pairs of the same supervisor, with queue pairs of two
// supervisors, connected by RoCEv2, and with queue pairs of two supervisors that have the same
// address. The results must be the same.
func eachWay(t *testing.T, typ Type, test func(t *testing.T, a, b *end)) {
	t.Helper()
	t.Run("copied", func(t *testing.T) {
		f := NewFabric()
		test(t, newEnd(t, f, typ, nil), newEnd(t, f, typ, nil))
	})
	wired(t, typ, test)
}

// wired runs a test with queue pairs of two supervisors that have different addresses or the same
// address.
func wired(t *testing.T, typ Type, test func(t *testing.T, a, b *end)) {
	t.Helper()
	t.Run("wire", func(t *testing.T) {
		a, b := wireEnds(t, typ)
		test(t, a, b)
		a.qp.Close()
		b.qp.Close()
	})
	t.Run("shared", func(t *testing.T) {
		if os.Geteuid() == 65534 {
			t.Skip("SKIPPED: ports of user 65534 are not shared")
		}
		at := loopback()
		a, b := newEndAt(t, NewFabric(), at, typ, nil), newEndAt(t, NewFabric(), at, typ, nil)
		test(t, a, b)
		a.qp.Close()
		b.qp.Close()
	})
}

// wireEnds creates ends in two supervisors.
func wireEnds(t *testing.T, typ Type) (a, b *end) {
	t.Helper()
	one := func() *end {
		f := NewFabric()
		t.Cleanup(f.Close)
		return newEndAt(t, f, loopback(), typ, nil)
	}
	return one(), one()
}

// loopback returns a random, probably unused loopback address.
func loopback() GID {
	return netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(250)), byte(rand.IntN(256)), byte(1 + rand.IntN(250))}).As16()
}

// until waits until a condition holds, for a minute at most.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("waited for a minute: %s", what)
		}
	}
}

// A message of many packets, with several elements and regions, arrives unchanged over each
// transport.
func TestWireLong(t *testing.T) {
	for _, typ := range []Type{RC, UC} {
		a, b := wireEnds(t, typ)
		connect(a, b, func(c *Change) { c.MTU = 1 })
		const n = 20000
		from := a.memory.add(1, n, 0)
		rand.NewChaCha8([32]byte{1}).Read(from.bytes)
		to := b.memory.add(2, n, abi.AccessLocalWrite)
		b.receive(7, 2, n)
		a.post(OpSend, 1, func(e abi.Body) {
			e.Put32(196, 2)
			putElement(e, sendHeadLen, 1, 7777)
			putElement(e, sendHeadLen+sgeLen, 1, n-7777)
			e.Put64(sendHeadLen+sgeLen, 1<<16+7777)
		})
		a.want(1, Success)
		if typ == RC { // an unreliable connection may lose a packet
			if c := b.want(7, Success); c.length != n || !bytes.Equal(from.get(), to.get()) {
				t.Errorf("%d bytes, equal %v", c.length, bytes.Equal(from.get(), to.get()))
			}
		}
		a.qp.Close()
		b.qp.Close()
		if from.holds != 0 || to.holds != 0 {
			t.Errorf("%d and %d holds are left", from.holds, to.holds)
		}
	}
}

// Requests to a silent peer fail when the retries are exhausted. Later requests are flushed. After
// a reset, the queue pair works again.
func TestWireSilence(t *testing.T) {
	a, b := wireEnds(t, RC)
	b.qp.Close()
	connect := func(peer *end, timeout, retry uint8) { // timeout: 4.096 us * 2^timeout
		for _, s := range []abi.State{abi.Init, abi.RTR, abi.RTS} {
			a.modify(s, peer.qp.num, func(c *Change) { c.Path, c.Timeout, c.Retry = pathTo(peer.gid), timeout, retry })
		}
	}
	connect(b, 8, 2)
	a.memory.add(1, 64, abi.AccessLocalWrite)
	a.receive(9, 1, 8)
	for id := range uint64(3) {
		a.post(OpSend, id, one(1, 8, 0))
	}
	a.want(0, RetryExceeded)
	a.want(1, Flushed)
	a.want(2, Flushed)
	a.want(9, Flushed)
	a.wantState(abi.Err)
	a.modify(abi.Reset, 0, nil)
	c := newEndAt(t, b.f, b.gid, RC, nil)
	c.memory.add(2, 64, abi.AccessRemoteWrite)
	connect(c, 18, 7) // 1 s: this peer answers, but may have to wait for a processor
	for _, s := range []abi.State{abi.Init, abi.RTR} {
		c.modify(s, a.qp.num, func(c *Change) { c.Path = pathTo(a.gid) })
	}
	a.post(OpWrite, 4, one(1, 8, 2))
	a.want(4, Success)
	a.none()
	a.qp.Close()
	c.qp.Close()
}

// A request that needs no peer is executed in order: here after a Send that waits for a receive.
func TestWireLocal(t *testing.T) {
	a, b := wireEnds(t, RC)
	connect(a, b, nil)
	a.memory.add(1, 64, abi.AccessLocalWrite)
	b.memory.add(2, 64, abi.AccessLocalWrite)
	a.post(OpSend, 1, one(1, 8, 0))
	a.post(OpLocalInvalidate, 2, func(e abi.Body) { e.Put32(20, 77) }) // no window has this key
	a.post(OpSend, 3, one(1, 8, 0))
	time.Sleep(20 * time.Millisecond)
	a.none()
	b.receive(7, 2, 8)
	a.want(1, Success)
	a.want(2, LocalQPOperation)
	a.want(3, Flushed)
	b.want(7, Success)
	a.qp.Close()
	b.qp.Close()
}

// Datagrams reach queue pairs of other supervisors. Their completions describe the sender.
func TestWireDatagram(t *testing.T) { wired(t, UD, testWireDatagram) }

func testWireDatagram(t *testing.T, a, b *end) {
	for _, e := range []*end{a, b} {
		for _, s := range []abi.State{abi.Init, abi.RTR, abi.RTS} {
			e.modify(s, 0, nil)
		}
	}
	attr := make(abi.Body, 32)
	copy(attr, b.gid[:])
	attr.Put8(29, 1)
	attr.Put8(30, 1)
	ah, err := a.space.NewAH(a.memory, attr)
	if err != nil {
		t.Fatal(err)
	}
	a.memory.add(1, 64, 0)
	to := b.memory.add(2, 128, abi.AccessLocalWrite)
	b.receive(6, 2, 41) // one byte too short; the next datagram uses it
	send := func(id uint64, n int, qkey uint32) {
		a.post(OpSendImm, id, func(e abi.Body) {
			one(1, n, 0)(e)
			e.Put32(20, 0xabcd)
			e.Put32(24, b.qp.num)
			e.Put32(28, qkey)
			e.Put32(36, ah.Num)
		})
		a.want(id, Success)
	}
	send(1, 8, 7)
	send(2, 1, 8) // the key is wrong
	a.memory.regions[1].set([]byte("x"))
	send(3, 1, 7)
	c := b.want(6, Success)
	if c.length != 41 || c.src != a.qp.num || c.imm != 0xabcd || c.flags != hasGRH|hasImmediate ||
		to.get()[40] != 'x' || to.get()[20] != 0x45 {
		t.Errorf("%+v, %x", c, to.get()[:41])
	}
	b.none()
	b.modify(abi.Err, 0, nil)
}

// A queue pair with a remote peer is drained when all requests posted before are complete.
func TestWireDrain(t *testing.T) {
	a, b := wireEnds(t, RC)
	connect(a, b, nil)
	a.memory.add(1, 64, abi.AccessLocalWrite)
	b.memory.add(2, 64, abi.AccessLocalWrite)
	a.post(OpSend, 1, one(1, 8, 0)) // waits for a receive
	a.begun()
	a.modify(abi.SQD, 0, func(c *Change) { c.Mask |= MaskDrainNotify })
	drained := func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.events) == 1 && a.events[0] == abi.AsyncSQDrained
	}
	time.Sleep(20 * time.Millisecond)
	if drained() || !a.qp.draining() {
		t.Error("drained while a Send is under way")
	}
	b.receive(7, 2, 8)
	a.want(1, Success)
	until(t, "the event", drained)
	a.qp.Close()
	b.qp.Close()
}

// A datagram to a group reaches the members under other supervisors, and each member under the
// sender's supervisor exactly once.
func TestWireGroup(t *testing.T) { wired(t, UD, testWireGroup) }

func testWireGroup(t *testing.T, a, b *end) {
	group := GID{0: 0xff, 1: 0x0e, 10: 0xff, 11: 0xff, 12: 239, 13: 255, 14: byte(rand.IntN(256)),
		15: byte(rand.IntN(256))}
	if err := a.f.Attach(a.qp, group); err != nil { // a joins before it is ready, b after it is ready
		t.Fatal(err)
	}
	for _, e := range []*end{a, b} {
		for _, s := range []abi.State{abi.Init, abi.RTR, abi.RTS} {
			e.modify(s, 0, nil)
		}
	}
	if err := b.f.Attach(b.qp, group); err != nil {
		t.Fatal(err)
	}
	attr := make(abi.Body, 32)
	copy(attr, group[:])
	attr.Put8(29, 1)
	attr.Put8(30, 1)
	ah, err := a.space.NewAH(a.memory, attr)
	if err != nil {
		t.Fatal(err)
	}
	a.memory.add(1, 64, 0)
	send := func(id uint64) {
		a.post(OpSend, id, func(e abi.Body) {
			one(1, 8, 0)(e)
			e.Put32(24, 0xffffff)
			e.Put32(28, 7)
			e.Put32(36, ah.Num)
		})
	}
	to := b.memory.add(2, 128, abi.AccessLocalWrite)
	a.memory.add(3, 128, abi.AccessLocalWrite)
	const rounds = 20 // enough for a copy of the first datagram to arrive
	a.receive(8, 3, 48)
	for id := range uint64(rounds) {
		b.receive(6, 2, 48)
		a.receive(8, 3, 48)
		send(id)
		a.want(8, Success)
		a.want(id, Success)
		if c := b.want(6, Success); c.length != 48 || c.src != a.qp.num || !bytes.Equal(to.get()[36:40], group[12:]) {
			t.Errorf("%+v, %x", c, to.get()[:40])
		}
	}
	a.none()
	if err := b.f.Detach(b.qp, group); err != nil {
		t.Fatal(err)
	}
	b.receive(9, 2, 48)
	send(rounds)
	a.want(8, Success)
	a.want(rounds, Success)
	b.none()
	if err := a.f.Detach(a.qp, group); err != nil {
		t.Fatal(err)
	}
}
