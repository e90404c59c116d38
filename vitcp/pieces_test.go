package vitcp

import (
	"errors"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// A simple model checks the credits of two ends. The sender's credits are the descriptors advertised
// by the last count received, less the messages already sent, whatever counts and messages are in
// flight. [VIT-2.2.1-2] [VIT-3.1-16] [VIT-3.1-17] [V-20]
func TestVIT_3_1_Credits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var snd sendCredits
		var rcv recvCredits
		// The counters start near their wrap.
		base := uint64(rapid.IntRange(65000, 66000).Draw(t, "base"))
		rcv.posted.Store(base)
		rcv.consumed.Set(base)
		rcv.advertised.Set(base)
		snd.posted.Store(uint32(uint16(base)))
		snd.used.Set(uint64(uint16(base)))

		var toSender []vitcpwire.Count // counts in flight
		inFlight := 0                  // messages in flight that consume a descriptor
		posted, consumed, told, sent, heard := 0, 0, 0, 0, 0
		var heardQ []int
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "op") {
			case 0:
				n := rapid.SampledFrom([]int{1, 2, 7, 1000, 30000, 40000}).Draw(t, "post")
				rcv.post(n)
				posted += n
			case 1: // a segment leaves the receiver
				toSender = append(toSender, rcv.advertise())
				told = max(told, min(posted, consumed+maxCredits))
				heardQ = append(heardQ, told)
			case 2: // the oldest count in flight arrives
				if len(toSender) > 0 {
					if !snd.update(toSender[0]) {
						t.Fatalf("an honest count was refused")
					}
					heard = heardQ[0]
					toSender, heardQ = toSender[1:], heardQ[1:]
				}
			case 3: // the sender sends a burst
				for range rapid.IntRange(1, 50).Draw(t, "burst") {
					if snd.available() != heard-sent {
						t.Fatalf("available %d, model %d", snd.available(), heard-sent)
					}
					if snd.available() > 0 {
						snd.take()
						sent++
						inFlight++
					}
				}
			case 4:
				for range min(inFlight, 20) {
					if !rcv.consume() {
						t.Fatal("an honest message was refused")
					}
					consumed++
					inFlight--
				}
			}
			if rcv.unadvertised() != (min(posted, consumed+maxCredits) != told) {
				t.Fatalf("news %v, posted %d, consumed %d, told %d", rcv.unadvertised(), posted, consumed, told)
			}
			if rcv.urgent() && !rcv.unadvertised() {
				t.Fatal("urgent without news")
			}
			if rcv.unadvertised() && told == consumed && !rcv.urgent() {
				t.Fatal("the peer has no credit left, and that is not urgent")
			}
		}
	})
}

// A peer violates the credits if it lowers its count, advertises more than it may, or consumes
// descriptors without credit. Each violation is detected. [V-20]
func TestVIT_3_1_CreditViolations(t *testing.T) {
	var s sendCredits
	if !s.update(100) || s.update(99) || s.available() != 100 {
		t.Errorf("going back: available %d", s.available())
	}
	if s.update(0x8000) {
		t.Error("32768 outstanding accepted")
	}
	if !s.update(0x7fff) || s.available() != maxCredits {
		t.Error("32767 outstanding refused")
	}
	s.take()
	if !s.update(0x8000) {
		t.Error("one used, one more refused")
	}

	var r recvCredits
	if r.consume() {
		t.Error("consumed out of nothing")
	}
	r.post(1)
	if r.consume() {
		t.Error("consumed what was not told")
	}
	r.advertise()
	if !r.consume() || r.consume() {
		t.Error("one told, not one consumed")
	}
	r.post(40000)
	if c := r.advertise(); c != maxCredits+1 {
		t.Errorf("told %d", c)
	}
}

// The count of the connect message is recorded before any count of the stream. Otherwise a newer
// count, recorded while the connection starts, would make the first look like a decrease.
// [VIT-2.2.1-2] [V-20]
func TestVIT_3_1_FirstCount(t *testing.T) {
	n := openProvider(t, Config{})
	for _, c := range []struct {
		posted    vitcpwire.Count
		available int
		overdrawn bool
	}{{0, 0, false}, {5, 5, false}, {maxCredits, maxCredits, false}, {maxCredits + 1, 0, true}} {
		p := listenProbe(t)
		nc, err := net.Dial("tcp", p.l.Addr().String())
		must(t, err)
		l := newLink(&call{d: &device{p: n}, attrs: vitcpwire.FlowControl}, nc, linkTerms{peerPosted: c.posted})
		if l.flow.credits.available() != c.available || l.flow.overdrawn != c.overdrawn {
			t.Errorf("%d descriptors: %d credits, overdrawn %v", c.posted, l.flow.credits.available(), l.flow.overdrawn)
		}
		l.c.Abort()
		nc.Close()
		n.mu.Lock()
		delete(n.links, l)
		n.mu.Unlock()
	}
}

// TestVIT_3_1_NOP_Threshold: a NOP advertises credits when the peer has fewer than the threshold.
// [VIT-3.1-NOP-3] [VIT-3.1-NOP-4] [V-21]
func TestVIT_3_1_NOP_Threshold(t *testing.T) {
	for _, v := range []struct {
		name      string
		threshold uint64
		told      int // number of credits advertised to the peer at first
		consumed  int
		posted    int // number of descriptors posted afterwards
		want      bool
	}{
		{"nothing new", 0, 10, 10, 0, false},
		{"none left", 0, 10, 10, 1, true},
		{"above half", 0, 10, 4, 4, false},
		{"half", 0, 10, 5, 5, false},
		{"below half", 0, 10, 6, 6, true},
		{"one and only", 0, 1, 1, 1, true},
		{"one of two left", 0, 2, 1, 1, false},
		{"one of three left", 0, 3, 2, 2, false},
		{"above the set threshold", 3, 10, 7, 7, false},
		{"below the set threshold", 3, 10, 8, 8, true},
	} {
		c := recvCredits{threshold: v.threshold}
		c.post(v.told)
		c.advertise()
		for range v.consumed {
			c.consume()
		}
		c.post(v.posted)
		if got := c.urgent(); got != v.want {
			t.Errorf("%s: urgent = %v", v.name, got)
		}
	}
}

// Acknowledgements are compared with a simple model. They are cumulative, urgent after 32 messages
// or 1 MiB, and never ahead of the received messages. [V-09] [V-11] [V-12] [VIT-3.1-ACK-1]
func TestVIT_3_1_ACK(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var a acker
		n := vitcpwire.Number(rapid.SampledFrom([]uint32{0, 1, 0xffffffe0, 0xffffffff}).Draw(t, "first"))
		a.begin(n)
		msgs, bytes := 0, 0
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if rapid.IntRange(0, 9).Draw(t, "op") > 0 {
				size := rapid.SampledFrom([]int{0, 1, 4096, 100000, ackBytes}).Draw(t, "size")
				n = n.Add(1)
				a.received(n, size)
				msgs++
				bytes += size
			} else {
				if got := a.acknowledge(); got != n {
					t.Fatalf("told %d, last is %d", got, n)
				}
				msgs, bytes = 0, 0
			}
			if a.pending() != (msgs > 0) {
				t.Fatalf("pending %v with %d messages", a.pending(), msgs)
			}
			if want := msgs >= 32 || bytes >= 1<<20; a.urgent() != want {
				t.Fatalf("urgent %v with %d messages, %d bytes", a.urgent(), msgs, bytes)
			}
		}
	})
}

// A stream of messages in random segments with interleaved responses is accepted. The same stream
// with one fault is refused. [VIT-2.2.2.2.3-3] [VIT-2.2.2.2.3-5] [VIT-2.2.2.2.3-6] [VIT-3.1-8]
// [VIT-3.1-10] [VIT-3.1-11] [VIT-3.1-12] [VIT-3.1-13] [VIT-3.1-15] [V-28] [V-37] [V-38]
func TestVIT_3_1_Assembly(t *testing.T) {
	type seg struct {
		h       vitcpwire.Header
		payload int
		awaited vitcpwire.Number
		open    bool
	}
	read := func(s seg) *readOut {
		if !s.open {
			return nil
		}
		return &readOut{number: s.awaited}
	}
	cut := func(t *rapid.T, typ vitcpwire.Type, n vitcpwire.Number) (segs []seg) {
		k := 1
		if typ != vitcpwire.ReadRequest {
			k = rapid.IntRange(1, 4).Draw(t, "segments")
		}
		off := 0
		for i := range k {
			size := rapid.IntRange(0, 3000).Draw(t, "size")
			h := vitcpwire.Header{Type: typ, Number: n, Offset: uint32(off)}
			if i == k-1 {
				h.Flags = vitcpwire.EndOfMessage
			}
			segs = append(segs, seg{h: h, payload: size})
			off += size
		}
		return segs
	}
	check := func(segs []seg) error {
		var a assembly
		for _, s := range segs {
			if _, err := a.segment(&s.h, s.payload, read(s)); err != nil {
				return err
			}
		}
		return nil
	}
	rapid.Check(t, func(t *rapid.T) {
		n := vitcpwire.Number(rapid.SampledFrom([]uint32{0, 1, 0xfffffffe}).Draw(t, "first"))
		var data, resp []seg
		for range rapid.IntRange(1, 8).Draw(t, "messages") {
			typ := rapid.SampledFrom([]vitcpwire.Type{vitcpwire.Send, vitcpwire.Write, vitcpwire.ReadRequest}).Draw(t,
				"type")
			data = append(data, cut(t, typ, n)...)
			n = n.Add(1)
		}
		for i := range rapid.IntRange(0, 4).Draw(t, "responses") {
			awaited := vitcpwire.Number(1000 + 3*i)
			for _, s := range cut(t, vitcpwire.ReadResponse, awaited) {
				s.awaited, s.open = awaited, true
				resp = append(resp, s)
			}
		}
		var all []seg
		d, r := data, resp
		for len(d)+len(r) > 0 {
			if len(r) == 0 || len(d) > 0 && rapid.Bool().Draw(t, "weave") {
				all, d = append(all, d[0]), d[1:]
			} else {
				all, r = append(all, r[0]), r[1:]
			}
		}
		if err := check(all); err != nil {
			t.Fatal(err)
		}

		// The stream gets one fault here.
		bad := slices.Clone(all)
		i := rapid.IntRange(0, len(bad)-1).Draw(t, "which")
		s := &bad[i]
		switch rapid.IntRange(0, 3).Draw(t, "fault") {
		case 0:
			s.h.Offset += uint32(rapid.IntRange(1, 1<<20).Draw(t, "jump"))
		case 1:
			if !s.open && i == slices.IndexFunc(bad, func(s seg) bool { return !s.open }) &&
				s.h.Flags&vitcpwire.EndOfMessage != 0 && len(data) == 1 {
				return // the first number may be anything
			}
			first := -1
			for j := range bad {
				if !bad[j].open {
					first = j
					break
				}
			}
			if i == first {
				return // the number is not checked here; the fault shows at the next segment, if there is one
			}
			s.h.Number += vitcpwire.Number(rapid.IntRange(1, 1<<20).Draw(t, "gap"))
		case 2:
			if s.open {
				s.open = false
			} else {
				s.h.Type, s.open = vitcpwire.ReadResponse, false
			}
		case 3: // one segment comes twice
			if s.payload == 0 && s.h.Flags&vitcpwire.EndOfMessage == 0 {
				return // an empty segment that is not the last one: nothing shows the fault
			}
			if s.open && s.h.Flags&vitcpwire.EndOfMessage != 0 && s.h.Offset == 0 {
				return // a complete response comes twice: the caller detects it by the awaited number
			}
			bad = slices.Insert(bad, i, *s)
		}
		err := check(bad)
		if _, ok := errors.AsType[*ProtocolError](err); !ok {
			t.Fatalf("the fault passed: %v", err)
		}
	})
}

// A message never grows beyond 2^32-1 bytes. [V-08]
func TestVIT_3_1_AssemblyLength(t *testing.T) {
	var a assembly
	a.data = progress{active: true, typ: vitcpwire.Send, number: 5, offset: 1<<32 - 11}
	a.started, a.last = true, 5
	h := vitcpwire.Header{Type: vitcpwire.Send, Number: 5, Offset: 1<<32 - 11}
	if _, err := a.segment(&h, 11, nil); err == nil {
		t.Error("2^32 bytes accepted")
	}
	if _, err := a.segment(&h, 10, nil); err != nil {
		t.Error(err)
	}
}

// A queue of Reads never allows more requests than its limit. [VIT-2.2.2.2.6-2] [V-26]
func TestVIT_2_2_2_2_6_Window(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Uint32Range(0, 5).Draw(t, "limit")
		var q readQueue[int]
		q.init(limit)
		var model []int
		for i := range 50 {
			if q.full() != (len(model) >= int(limit)) {
				t.Fatalf("full is %v with %d of %d", q.full(), len(model), limit)
			}
			switch push := rapid.Bool().Draw(t, "push"); {
			case push && !q.full():
				q.Push(i)
				model = append(model, i)
			case !push && len(model) > 0:
				if got := *q.Front(); got != model[0] {
					t.Fatalf("Read %d is the oldest, want %d", got, model[0])
				}
				q.Pop()
				model = model[1:]
			}
		}
	})
}

// A level that is converted to attribute bits and back stays the same. [V-10]
func TestVIT_3_2_Levels(t *testing.T) {
	const r, d = vitcpwire.Reliable, vitcpwire.ReliableDelivery
	for _, v := range []struct {
		h    habits
		a    vitcpwire.Attributes
		want reliability
		ok   bool
	}{
		{habits{}, 0, unreliable, true}, {habits{}, r, reception, true}, {habits{}, r | d, delivery, true}, {habits{}, d, 0, false},
		{habits{reliableIsDelivery: true}, r, delivery, true}, {habits{reliableIsDelivery: true}, r | d, delivery, true},
	} {
		if got, ok := v.h.level(v.a); got != v.want || ok != v.ok {
			t.Errorf("%+v level(%v) = %v, %v", v.h, v.a, got, ok)
		}
	}
	for _, h := range []habits{{}, {reliableIsDelivery: true}} {
		for _, l := range []reliability{unreliable, delivery, reception} {
			a, ok := h.attributes(l)
			if !ok {
				if l != reception || !h.reliableIsDelivery {
					t.Errorf("%v cannot be said", l)
				}
				continue
			}
			if got, ok := h.level(a); !ok || got != l {
				t.Errorf("%v became %v", l, got)
			}
			want := map[reliability]vitcpwire.Attributes{delivery: r | d, reception: r}[l]
			if h.reliableIsDelivery { // Reliable Delivery is then the draft's bit alone
				want = map[reliability]vitcpwire.Attributes{delivery: r}[l]
			}
			if a != want {
				t.Errorf("%+v: %v is said by %v, want %v", h, l, a, want)
			}
		}
	}
}

// TestVIT_2_2_1_Match checks which attributes must be equal and which may differ. [VIT-2.2.1-4]
// [V-05] [V-15]
func TestVIT_2_2_1_Match(t *testing.T) {
	const (
		rel  = vitcpwire.Reliable
		wr   = vitcpwire.RDMAWrite
		rd   = vitcpwire.RDMARead
		fc   = vitcpwire.FlowControl
		p2p  = vitcpwire.PeerToPeer
		del  = vitcpwire.ReliableDelivery
		what = 0x4000
	)
	for _, v := range []struct {
		h            habits
		ours, theirs vitcpwire.Attributes
		want         mismatch
	}{
		{habits{}, 0, 0, matching},
		{habits{}, rel | wr | fc, rel | rd | fc, matching},
		{habits{strict: true}, rel | wr | fc, rel | rd | fc, mismatchRDMA},
		{habits{}, rel, 0, mismatchReliability},
		{habits{}, rel, rel | del, mismatchReliability},
		{habits{reliableIsDelivery: true}, rel, rel | del, matching},
		{habits{}, 0, del, mismatchReliability},
		{habits{}, del, 0, mismatchReliability},
		{habits{}, del, del, mismatchReliability},
		{habits{}, rel | fc, rel, mismatchFlowControl},
		{habits{}, rel, rel | p2p, mismatchModel},
		{habits{}, rel, rel | what, mismatchUnknown},
		{habits{tolerant: true}, rel, rel | what, matching},
	} {
		if got := v.h.match(v.ours, v.theirs); got != v.want {
			t.Errorf("%+v: %v with %v: %v, want %v", v.h, v.ours, v.theirs, got, v.want)
		}
	}
}

// The agreed MTU is the smaller of both. A proposal of zero is refused. [VIT-3.2-4] [VIT-3.2-5]
// [V-14]
func TestVIT_3_2_MTU(t *testing.T) {
	for _, v := range []struct {
		ours, proposed, want uint32
		ok                   bool
	}{{100, 200, 100, true}, {200, 100, 100, true}, {100, 0, 0, false}, {^uint32(0), ^uint32(0), ^uint32(0), true}} {
		if got, ok := agreeMTU(v.ours, v.proposed); got != v.want || ok != v.ok {
			t.Errorf("agreeMTU(%d, %d) = %d, %v", v.ours, v.proposed, got, ok)
		}
	}
	for _, v := range []struct {
		proposed, agreed uint32
		want             bool
	}{{100, 100, true}, {100, 99, true}, {100, 101, false}, {100, 0, false}} {
		if got := checkMTU(v.proposed, v.agreed); got != v.want {
			t.Errorf("checkMTU(%d, %d) = %v", v.proposed, v.agreed, got)
		}
	}
}

// Received messages wake the send role for three urgent reasons: an acknowledgement at Reliable
// Reception, a peer with few descriptors left under flow control, and an answer. When no more input
// is available, all updates are sent. [V-12] [V-21]
func TestVIT_3_1_Nudge(t *testing.T) {
	p := openProvider(t, Config{})
	for _, v := range []struct {
		level                 reliability
		flow                  bool
		acks, credits, answer bool // the updates that are urgent
		want                  bool
	}{
		{reception, true, false, false, false, false},
		{reception, false, true, false, false, true},
		{reception, true, false, true, false, true},
		{delivery, false, true, false, false, false},
		{delivery, false, false, true, false, false},
		{delivery, true, true, false, false, false},
		{unreliable, true, false, true, false, true},
		{unreliable, false, false, false, true, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			defer there.Close()
			l := newLink(&call{d: &device{p: p}}, here, linkTerms{})
			l.life.Set(lifeFinishing) // so that ended shows whether the send role has run
			l.level, l.acks.free, l.flow.on, l.flow.mine.free = v.level, v.level != reception, v.flow, !v.flow
			if v.acks {
				for n := range vitcpwire.Number(ackMessages) {
					l.acks.received(n+1, 0)
				}
			}
			if v.credits {
				l.flow.mine.post(1)
			}
			news := l.updates.due()
			if news != (v.level == reception && v.acks || v.flow && v.credits) {
				t.Errorf("%+v: news %v", v, news)
			}
			l.kick = v.answer
			l.nudge()
			synctest.Wait()
			if got := l.updates.wanted.Load(); got != (v.want && !v.answer) || l.kick {
				t.Errorf("%+v: a NOP is wanted: %v; kick %v", v, got, l.kick)
			}
			if l.ended != v.want {
				t.Errorf("%+v: the send role has looked: %v", v, l.ended)
			}
			if !news { // without an update, Drained must not ask for a NOP
				l.life.Set(lifeOpen)
				l.fresh = true
				if l.Drained(); l.fresh || l.updates.wanted.Load() {
					t.Errorf("%+v: fresh still", v)
				}
				l.life.Set(lifeFinishing)
			}
			l.c.Abort()
			time.Sleep(time.Second) // a goroutine of the send role may still run for a moment
			p.mu.Lock()
			delete(p.links, l)
			p.mu.Unlock()
		})
	}
}

// Set-up advertises no more descriptors than may be outstanding. [V-09] [V-20]
func TestVIT_3_1_MostAtSetUp(t *testing.T) {
	n := openNIC(t, openProvider(t, Config{}))
	v := newVI(t, n, reliableAll)
	ds := make([]*vi.Descriptor, maxCredits+2)
	for i := range ds {
		ds[i] = vi.NewRecv()
	}
	for _, d := range ds {
		must(t, v.PostRecv(d))
	}
	c := listenProbe(t)
	done := callVI(t, n, v, c.addr("x"), patience)
	p, req := c.accept()
	if req.h.Posted != maxCredits {
		t.Errorf("%d descriptors told", req.h.Posted)
	}
	p.greet(vitcpwire.ConnectAccept, vitcpwire.Header{}, ceOf(reliableAll, "x", "caller"), nil)
	must(t, <-done)
	p.silent()
	p.message(vitcpwire.Send, nil, nil)
	for x := p.recv(); x.h.Posted != maxCredits+1; x = p.recv() {
		if x.h.Posted != maxCredits {
			t.Errorf("%v", x.h)
		}
	}
}
