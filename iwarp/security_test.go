package iwarp

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/bits"
	"net"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/rdmap"
)

// TestSTags checks that STags are unpredictable, spread over all 32 bits, and not reused soon.
// [RDMAP-8.1.1-8] [RDMAP-8.1.1-9] [SEC-6.1.1-4] [SEC-6.1.1-5] [I-56]
func TestSTags(t *testing.T) {
	pd := NewDevice(DeviceConfig{}).NewPD()
	seen := make(map[uint32]int)
	var ones [32]int
	last, close := uint32(0), 0
	mem := make([]byte, 8)
	const n = 10000
	for i := range n {
		mr, err := pd.Register(mem, RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		s := mr.STag()
		if at, ok := seen[s]; ok && i-at < 4096 {
			t.Fatalf("STag %08x again after %d", s, i-at)
		}
		seen[s] = i
		for b := range ones {
			ones[b] += int(s >> b & 1)
		}
		if d := int32(s - last); bits.Len32(uint32(max(d, -d))) < 16 {
			close++
		}
		last = s
		mr.Close()
	}
	for b, k := range ones {
		if k < n*45/100 || k > n*55/100 {
			t.Errorf("bit %d is set in %d of %d", b, k, n)
		}
	}
	if close > 10 {
		t.Errorf("%d of %d STags close to the one before", close, n)
	}
}

// TestRevoke closes a region or window, or lets the peer invalidate it, while Writes arrive.
// Afterwards its bytes must not change, whatever Writes are on their way. [DDP-8.3.1-1]
// [RDMAP-8.1.1-6] [RDMAP-8.1.1-4] [SEC-6.2.2-1] [SEC-6.2.2-2] [DDP-8.3-1] [DDP-8.3-2] [RDMAP-3.2-8]
// [SEC-A-1]
func TestRevoke(t *testing.T) {
	for _, how := range []string{"region", "window", "rights"} {
		t.Run(how, func(t *testing.T) {
			p, q := asInitiator(t, nil)
			mem := make([]byte, 64<<10)
			mr, _ := q.Register(mem, LocalOnly)
			stag := mr.STag()
			var revoke func()
			switch how {
			case "region":
				mr.SetAccess(RemoteWrite)
				revoke = func() { mr.Close() }
			case "rights":
				mr.SetAccess(RemoteWrite)
				revoke = func() { mr.SetAccess(RemoteRead); <-q.Ended(); q.link.fc.Quiesce() }
			case "window":
				w, err := q.Bind(mr, 0, len(mem), RemoteWrite)
				if err != nil {
					t.Fatal(err)
				}
				if err := mr.Close(); !errors.Is(err, ErrWindows) {
					t.Errorf("region closed under its window: %v", err)
				}
				stag = w.STag()
				revoke = func() { w.Close() }
			}
			var stop atomic.Bool
			done := make(chan struct{})
			go func() {
				defer close(done)
				p.c.SetWriteDeadline(time.Now().Add(patience))
				for i := byte(1); !stop.Load(); i++ {
					if _, err := p.c.Write(p.enc.Append(nil, tag(rdmap.Write, stag, 0, true, bytes.Repeat([]byte{i}, 60000)))); err != nil {
						return
					}
				}
			}()
			for q.Stats().PlacedBytes < 1<<20 {
				time.Sleep(100 * time.Microsecond)
			}
			revoke()
			before := bytes.Clone(mem)
			for range 20 {
				time.Sleep(time.Millisecond)
				if !bytes.Equal(before, mem) {
					t.Fatal("memory changed after it was revoked")
				}
			}
			// The stream ends at the next Write, which a busy machine may delay.
			wantTerminate(t, ended(t, q), false, 1, 1, 0)
			stop.Store(true)
			p.c.Close()
			<-done
			<-q.life.gone.C()
		})
	}
}

// TestScope checks that a region belongs to one stream, or to all streams of a domain, as it was
// registered, and that streams share a domain only if the caller asks for it. [DDP-8.2-3]
// [DDP-8.2-4] [DDP-8.3-3] [RDMAP-8.1.1-1] [RDMAP-8.1.1-2] [RDMAP-8.1.2-2] [SEC-2.2.4-1]
// [SEC-2.2.4-2] [SEC-3-2] [SEC-6.1.1-1] [SEC-6.1.1-2] [SEC-6.1.1-3] [SEC-6.1.1-6] [DDP-8.3.2-2]
// [DDP-4.2-5] [DDP-8.3-4] [I-60]
func TestScope(t *testing.T) {
	_, q1 := asInitiator(t, nil)
	_, q2 := asInitiator(t, nil)
	if q1.PD() == q2.PD() || q1.mem.dev == q2.mem.dev || q1.SendCQ() == q2.SendCQ() || q1.RecvCQ() == q2.RecvCQ() {
		t.Error("streams share something by default")
	}
	pd := NewDevice(DeviceConfig{}).NewPD()
	cfg := &Config{PD: pd}
	for _, c := range []struct {
		name string
		reg  func(own *QueuePair) (*MemoryRegion, error)
		ok   bool
	}{
		{"of the domain", func(*QueuePair) (*MemoryRegion, error) { return pd.Register(make([]byte, 8), RemoteWrite) }, true},
		{"of another stream", func(own *QueuePair) (*MemoryRegion, error) { return own.Register(make([]byte, 8), RemoteWrite) }, false},
		{"of another domain", func(*QueuePair) (*MemoryRegion, error) {
			return pd.Device().NewPD().Register(make([]byte, 8), RemoteWrite)
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, q := asInitiator(t, cfg)
			_, own := asInitiator(t, cfg)
			mr, err := c.reg(own)
			if err != nil {
				t.Fatal(err)
			}
			q.PostRecv(RecvWR{})
			p.ulpdu(tag(rdmap.Write, mr.STag(), 0, true, []byte("12345678")), seg(rdmap.Send, 0, 1, 0, true, nil))
			if c.ok {
				wantOK(t, q.RecvCQ())
				if string(mr.Bytes()) != "12345678" {
					t.Errorf("%q", mr.Bytes())
				}
				return
			}
			wantTerminate(t, ended(t, q), false, 1, 1, 2)
		})
	}
}

// TestInvalidate closes a window by a Send of the peer. The completion must name the STag, and the
// STag must be invalid afterwards. A closed window may be invalidated again, unless the stream is
// strict. [RDMAP-5.3-12] [RDMAP-5.3-13] [RDMAP-5.3-14] [DDP-4.3-3] [DDP-5.4-4] [RDMAP-4.1-3]
// [RDMAP-3.2-2] [I-55]
func TestInvalidate(t *testing.T) {
	for _, op := range []rdmap.Opcode{rdmap.SendInvalidate, rdmap.SendSEInvalidate} {
		for _, strict := range []bool{false, true} {
			p, q := asInitiator(t, &Config{Interop: Interop{StrictInvalidate: strict}})
			mem := make([]byte, 32)
			mr, _ := q.Register(mem, LocalOnly)
			w, err := q.Bind(mr, 8, 8, RemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			if w.r.Len() != 8 || w.TO() != 0 || !w.Valid() || w.STag() == mr.STag() {
				t.Errorf("%+v", w)
			}
			for range 4 {
				q.PostRecv(RecvWR{})
			}
			inv := func(msn uint32) []byte {
				u := op.UntaggedHeader(1, 0, true, w.STag()).Append(nil)
				u[13] = byte(msn)
				return u
			}
			p.ulpdu(seg(rdmap.Send, 0, 1, 0, true, nil))
			if c := wantOK(t, q.RecvCQ()); c.Invalidated || !w.Valid() {
				t.Errorf("a Send: %+v", c)
			}
			p.ulpdu(tag(rdmap.Write, w.STag(), 0, true, []byte("exactly8")), inv(2))
			c := wantOK(t, q.RecvCQ())
			if !c.Invalidated || c.STag != w.STag() || c.Solicited != (op == rdmap.SendSEInvalidate) || w.Valid() {
				t.Errorf("%+v, valid %t", c, w.Valid())
			}
			if string(mem[8:16]) != "exactly8" || mem[7] != 0 || mem[16] != 0 {
				t.Errorf("%q", mem)
			}
			if err := mr.Close(); err != nil { // no pin may be left
				t.Error(err)
			}
			p.ulpdu(inv(3))
			if strict {
				wantTerminate(t, ended(t, q), false, 0, 1, 9)
				continue
			}
			if c := wantOK(t, q.RecvCQ()); !c.Invalidated {
				t.Errorf("%+v", c)
			}
			p.ulpdu(tag(rdmap.Write, w.STag(), 0, true, []byte("x")))
			wantTerminate(t, ended(t, q), false, 1, 1, 0)
		}
	}
}

// TestInvalidateBehindWrite sends Writes through a window together with the Send that closes this
// window. The Writes must be placed. [RDMAP-5.3-14] [RDMAP-5.1-6]
func TestInvalidateBehindWrite(t *testing.T) {
	p, q := asInitiator(t, nil)
	mr, _ := q.Register(make([]byte, 100), LocalOnly)
	for msn := range ddp.MSN(50) {
		w, err := q.Bind(mr, 0, 100, RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		q.PostRecv(RecvWR{})
		data := pattern(100, byte(msn))
		p.ulpdu(tag(rdmap.Write, w.STag(), 0, false, data[:50]), tag(rdmap.Write, w.STag(), 50, true, data[50:]),
			rdmap.SendInvalidate.UntaggedHeader(1+msn, 0, true, w.STag()).Append(nil))
		if c := wantOK(t, q.RecvCQ()); !c.Invalidated || w.Valid() || !bytes.Equal(mr.Bytes(), data) {
			t.Fatalf("%+v", c)
		}
	}
}

// TestInvalidateFirstCounts changes the STag inside a message. The first segment's STag must be
// invalidated. [DDP-4.3-4] [I-47]
func TestInvalidateFirstCounts(t *testing.T) {
	p, q := asInitiator(t, nil)
	mr, _ := q.Register(make([]byte, 8), LocalOnly)
	w, _ := q.Bind(mr, 0, 8, RemoteWrite)
	q.PostRecv(RecvWR{})
	p.ulpdu(rdmap.SendInvalidate.UntaggedHeader(1, 0, false, w.STag()).Append(nil),
		rdmap.SendInvalidate.UntaggedHeader(1, 0, true, w.STag()+1).Append(nil))
	if c := wantOK(t, q.RecvCQ()); !c.Invalidated || c.STag != w.STag() || w.Valid() {
		t.Errorf("%+v, valid %t", c, w.Valid())
	}
}

// TestWindows checks that a window has an exact range and rights of its own, that a local
// invalidation waits for the Reads before it, and that no window outlasts its stream. [I-53]
// [RDMAP-5.5-9]
func TestWindows(t *testing.T) { inBubble(t, testWindows) }

func testWindows(t *testing.T) {
	p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}})
	mr, _ := q.Register(make([]byte, 32), RemoteRead)
	_, q2 := asResponder(t, &Config{Interop: Interop{NoNudge: true}})
	foreign, _ := q2.Register(make([]byte, 32), LocalOnly)
	for _, c := range []struct {
		m      *MemoryRegion
		off, n int
	}{{mr, 0, 0}, {mr, 30, 3}, {mr, -1, 2}, {mr, 0, -1}, {mr, 33, 1}, {foreign, 0, 1}} {
		if _, err := q.Bind(c.m, c.off, c.n, RemoteRead); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	w, _ := q.Bind(mr, 4, 4, RemoteWrite)
	q.Post(readInto(1, make([]byte, 4)))
	q.Post(SendWR{ID: 2, Op: OpLocalInvalidate, Invalidate: w.STag()})
	q.Post(SendWR{ID: 3, Op: OpWrite})
	u := p.next()
	p.silence()
	if !w.Valid() {
		t.Error("invalidated before the Read was complete")
	}
	p.respond(u, []byte("data"))
	if u := p.next(); hex.EncodeToString(u[:2]) != "c140" {
		t.Errorf("%x", u)
	}
	for i := uint64(1); i <= 3; i++ {
		if c := wantOK(t, q.SendCQ()); c.ID != i {
			t.Errorf("%+v", c)
		}
	}
	if w.Valid() {
		t.Error("still valid")
	}
	// A second invalidation succeeds too.
	q.Post(SendWR{ID: 4, Op: OpLocalInvalidate, Invalidate: w.STag()})
	wantOK(t, q.SendCQ())
	virtual, _ := q.Register(make([]byte, 8), LocalOnly, RegionOptions{Virtual: true})
	v, _ := q.Bind(virtual, 2, 6, RemoteRead, RegionOptions{Virtual: true})
	if v.TO() != virtual.TO()+2 || virtual.TO() != uint64(uintptr(unsafe.Pointer(&virtual.Bytes()[0]))) { // [I-57]
		t.Errorf("%x", v.TO())
	}
	q.Abort()
	q.Close()
	if v.Valid() {
		t.Error("window outlives its stream")
	}
	if err := mr.Close(); err != nil {
		t.Error(err)
	}
}

// TestRegions tests registration, rights, addressing and limits. [RDMAP-3.2-7] [RDMAP-8.1.1-5]
// [SEC-6.3.4-1] [SEC-6.3.5-1] [SEC-6.4.1-1] [DDP-8.3.2-4] [RDMAP-8.1.2-5] [I-57] [I-70]
func TestRegions(t *testing.T) {
	dev := NewDevice(DeviceConfig{Limits: Limits{Regions: 2, Bytes: 100, RegionBytes: 60,
		QueueDepth: 8, CQEntries: 8, Streams: 1}})
	pd := dev.NewPD()
	mem := make([]byte, 200)
	a, err := pd.Register(mem[3:53], RemoteRead|RemoteWrite|RemoteAtomic, RegionOptions{Key: 0x42, KeySet: true})
	if err != nil || a.STag()&0xff != 0x42 || a.TO() != 0 || a.Len() != 50 {
		t.Errorf("%+v, %v", a, err)
	}
	for _, n := range []int{0, 51, 61} { // 0 bytes, more than Bytes in all, more than RegionBytes
		if _, err := pd.Register(mem[:n], 0); err == nil {
			t.Errorf("%d bytes registered", n)
		}
	}
	b, err := pd.Register(mem[60:70], RemoteRead, RegionOptions{Virtual: true})
	if err != nil || b.TO() != uint64(uintptr(unsafe.Pointer(&mem[60]))) {
		t.Error(err)
	}
	if _, err := pd.Register(mem[:1], 0); !errors.Is(err, ErrLimit) || dev.Regions() != 2 {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := b.Close(); !errors.Is(err, ErrRegistered) {
		t.Error(err)
	}
	if got := (RemoteRead | RemoteWrite | RemoteAtomic).String(); got != "remote-read|remote-write|remote-atomic" {
		t.Error(got)
	}
	if _, err := dev.NewCQ(9); !errors.Is(err, ErrLimit) {
		t.Error(err)
	}
	if _, err := pd.NewSRQ(9); !errors.Is(err, ErrLimit) {
		t.Error(err)
	}
	cfg := &Config{PD: pd, SendDepth: 4, RecvDepth: 4}
	_, q := asResponder(t, cfg)
	if s := dev.Streams(); len(s) != 1 || s[0] != q {
		t.Errorf("%v", s)
	}
	x, y := net.Pipe()
	defer y.Close()
	if _, err := Client(ctxt(t), x, cfg); !errors.Is(err, ErrLimit) {
		t.Error(err)
	}
	if q.mem.dev.Streams()[0].Abort(); true { // an administrator ends a stream [SEC-6.4.2-1] [SEC-6.4.4-1]
		ended(t, q)
	}
}

// TestSharedCQ checks that a completion queue without room refuses streams, so that it cannot
// overflow, and that a flood on one stream does not affect the others. [DDP-7.1-5] [I-50]
// [SEC-6.4.3.2-1] [SEC-6.4.3.2-2] [SEC-6.4.3.2-3] [SEC-6.4.6-1] [SEC-7.1-1] [RDMAP-8.1.1-10]
// [RDMAP-8.1.1-11] [RDMAP-8.1.2-4]
func TestSharedCQ(t *testing.T) {
	dev := NewDevice(DeviceConfig{})
	cq, err := dev.NewCQ(20)
	if err != nil || cq.capacity != 20 {
		t.Fatal(err)
	}
	cfg := &Config{Device: dev, SendCQ: cq, RecvCQ: cq, SendDepth: 4, RecvDepth: 4}
	p1, q1 := asInitiator(t, cfg)
	p2, q2 := asInitiator(t, cfg)
	x, y := testkit.TCPPair(t)
	if _, err := Client(ctxt(t), x, cfg); !errors.Is(err, ErrLimit) {
		t.Errorf("third stream: %v", err)
	}
	y.Close()
	for range 4 {
		q1.PostRecv(RecvWR{})
	}
	q2.PostRecv(RecvWR{ID: 2})
	var flood [][]byte
	for i := range 100 {
		u := seg(rdmap.Send, 0, 1, 0, true, []byte{})
		u[13] = byte(i + 1)
		flood = append(flood, u)
	}
	p1.ulpdu(flood...) // four are received; the fifth finds no buffer
	p1.terminate(append([]byte{0x12, 2, 0xc0, 0, 0, 18}, flood[4]...))
	if cq.Len() > 20 {
		t.Errorf("%d completions in a queue of 20", cq.Len())
	}
	p2.ulpdu(seg(rdmap.Send, 0, 1, 0, true, nil))
	for {
		if c := wantOK(t, cq); c.QP == q2 {
			break
		}
	}
	if s := q1.Stats(); s.NoReceive != 1 { // [DDP-7.1-3]
		t.Errorf("%+v", s)
	}
	<-q1.life.gone.C()
	if _, err := func() (*QueuePair, error) { // the stream's share of the queue is free again
		_, q := asInitiator(t, cfg)
		return q, nil
	}(); err != nil {
		t.Error(err)
	}
}

// TestRefusedTakesNothing checks that a Send with a wrong number takes no receive from a shared
// queue. [DDP-7.1-8] [I-50]
func TestRefusedTakesNothing(t *testing.T) {
	pd := NewDevice(DeviceConfig{}).NewPD()
	srq, err := pd.NewSRQ(4)
	if err != nil {
		t.Fatal(err)
	}
	if err := srq.Post(RecvWR{ID: 7, SG: []SGE{Buf(make([]byte, 8))}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		msn  ddp.MSN
		code uint8
	}{{0, 3}, {2, 3}} {
		p, q := asInitiator(t, &Config{SRQ: srq})
		p.ulpdu(seg(rdmap.Send, 0, c.msn, 0, true, []byte("x")))
		wantTerminate(t, ended(t, q), false, 1, 2, c.code)
		p.c.Close()
		<-q.life.gone.C()
		if n := q.RecvCQ().Len(); n != 0 || q.Stats().SRQTaken != 0 {
			t.Errorf("MSN %d: %d completions, %d receives taken", c.msn, n, q.Stats().SRQTaken)
		}
	}
	p, q := asInitiator(t, &Config{SRQ: srq})
	p.ulpdu(seg(rdmap.Send, 0, 1, 0, true, []byte("x")))
	if c := wantOK(t, q.RecvCQ()); c.ID != 7 {
		t.Errorf("%+v", c)
	}
}

// TestSRQ checks that streams share receives, that the receives of each stream are counted and can
// be limited, and that Low signals when few are left. [SEC-6.4.3.1-1] [SEC-6.4.3.1-2] [DDP-8.3.2-5]
// [RDMAP-8.1.2-7]
func TestSRQ(t *testing.T) {
	pd := NewDevice(DeviceConfig{}).NewPD()
	srq, err := pd.NewSRQ(10)
	if err != nil {
		t.Fatal(err)
	}
	bufs := make([][]byte, 10)
	for i := range bufs {
		bufs[i] = make([]byte, 8)
		if err := srq.Post(RecvWR{ID: uint64(i), SG: []SGE{Buf(bufs[i])}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := srq.Post(RecvWR{}); !errors.Is(err, ErrQueueFull) {
		t.Error(err)
	}
	foreign, _ := NewDevice(DeviceConfig{}).NewPD().Register(make([]byte, 4), LocalOnly)
	if err := srq.Post(RecvWR{SG: []SGE{foreign.SGE(0, 4)}}); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	srq.ArmLow(8)
	cfg := &Config{SRQ: srq, SRQShare: 3}
	p1, q1 := asInitiator(t, cfg)
	p2, q2 := asInitiator(t, cfg)
	if err := q1.PostRecv(RecvWR{}); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	p1.ulpdu(seg(rdmap.Send, 0, 1, 0, true, []byte("one")))
	c1 := wantOK(t, q1.RecvCQ())
	p2.ulpdu(seg(rdmap.Send, 0, 1, 0, true, []byte("two")))
	c2 := wantOK(t, q2.RecvCQ())
	if string(bufs[c1.ID][:c1.Len]) != "one" || string(bufs[c2.ID][:c2.Len]) != "two" || srq.Len() != 8 {
		t.Errorf("%+v, %+v, %d left", c1, c2, srq.Len())
	}
	select {
	case <-srq.Low():
		t.Error("low too early")
	default:
	}
	p1.ulpdu(seg(rdmap.Send, 0, 2, 0, false, []byte("part"))) // an unfinished message holds a receive
	<-srq.Low()
	p1.ulpdu(seg(rdmap.Send, 0, 2, 4, true, nil), seg(rdmap.Send, 0, 3, 0, true, nil),
		seg(rdmap.Send, 0, 4, 0, true, nil))
	for q1.RecvCQ().Len() < 3 {
		q1.poll()
		time.Sleep(time.Millisecond)
	}
	if s := q1.Stats(); s.SRQTaken != 4 || s.SRQHeld != 3 {
		t.Errorf("%+v", s)
	}
	p1.ulpdu(seg(rdmap.Send, 0, 5, 0, true, nil)) // one message more than the stream's share
	wantTerminate(t, ended(t, q1), false, 1, 2, 2)
	p2.ulpdu(seg(rdmap.Send, 0, 2, 0, true, []byte("on"))) // the other stream continues
	wantOK(t, q2.RecvCQ())
	p3, q3 := asInitiator(t, &Config{SRQ: srq}) // this stream has no share of its own
	p3.ulpdu(seg(rdmap.Send, 0, 1, 0, true, []byte("three")))
	if c := wantOK(t, q3.RecvCQ()); string(bufs[c.ID][:c.Len]) != "three" {
		t.Errorf("%+v", c)
	}
	p1.c.Close()
	<-q1.life.gone.C()
	for range 3 {
		wantOK(t, q1.RecvCQ())
	}
	if s := q1.Stats(); s.SRQHeld != 0 {
		t.Errorf("%+v", s)
	}
}

// TestIsolation checks that a stream at its limits does not affect another one. [RDMAP-8.1.2-6]
// [SEC-6.4.3.3-1] [SEC-6.4.3.3-2] [RDMAP-8.1.1-12] [SEC-7.2-1] [SEC-7.2-2] [SEC-A-3]
func TestIsolation(t *testing.T) {
	pd := NewDevice(DeviceConfig{}).NewPD()
	big, _ := pd.Register(make([]byte, 16<<20), RemoteRead)
	p1, q1 := asInitiator(t, &Config{PD: pd, IRD: 1, MaxIRD: 1})
	p2, q2 := asInitiator(t, &Config{PD: pd, IRD: 1, MaxIRD: 1})
	p1.ulpdu(readReq(1, rdmap.ReadRequest{Size: 16 << 20, SourceSTag: big.STag()}))
	p2.ulpdu(readReq(1, rdmap.ReadRequest{Size: 5, SourceSTag: big.STag()}))
	if u := p2.next(); len(u) != 14+5 {
		t.Errorf("%x", u)
	}
	p1.ulpdu(readReq(2, rdmap.ReadRequest{}))
	wantTerminate(t, ended(t, q1), false, 1, 2, 2)
	if q2.Err() != nil {
		t.Error(q2.Err())
	}
}

// TestMaxRead checks that Config.MaxRead limits the size of a Read. [I-62] [RDMAP-5.2.1-10]
// [SEC-6.3.5-2]
func TestMaxRead(t *testing.T) {
	p, q := asInitiator(t, &Config{MaxRead: 100})
	mr, _ := q.Register(pattern(200, 1), RemoteRead)
	p.ulpdu(readReq(1, rdmap.ReadRequest{Size: 100, SourceSTag: mr.STag()}))
	if _, _, body := p.message(q.mulpdu()); !bytes.Equal(body, mr.Bytes()[:100]) {
		t.Errorf("%d bytes came, want 100", len(body))
	}
	p.ulpdu(readReq(2, rdmap.ReadRequest{Size: 101, SourceSTag: mr.STag()}))
	wantTerminate(t, ended(t, q), false, 0, 2, 0xff)
}

// TestEmptyRead checks that a Read of zero bytes succeeds on a region without the right to read.
// [SEC-6.3.5-2] [RDMAP-5.2.1-12] [RDMAP-5.2.1-14] [RDMAP-5.2.1-15] [I-45] [I-46]
func TestEmptyRead(t *testing.T) {
	a, b := connect(t, nil, nil)
	mr, _ := b.Register(make([]byte, 8), RemoteWrite)
	a.Post(SendWR{Op: OpRead, Remote: RemoteAddr{STag: mr.STag(), TO: 1 << 60}})
	if c := wantOK(t, a.SendCQ()); c.Len != 0 {
		t.Errorf("%+v", c)
	}
}
