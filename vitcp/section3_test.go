package vitcp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// TestVIT_3_Encapsulation covers section 3: encapsulation.
func TestVIT_3_Encapsulation(t *testing.T) {
	// Every PDU starts with the segment header, and then has the headers of its type. [VIT-3-1]
	// [VIT-3-2] [VIT-3-3] [VIT-3-4] [V-23] [V-24] [V-25]
	s := serveProbe(t, sessionOpts{attrs: reliableAll, posted: 10})
	r, buf := register(t, s.n, 200000, allRights)
	fill(buf, 3)
	to := vi.RemoteSegment{Address: 0x1122334455667788, Handle: 0x99aabbcc}
	want := vitcpwire.RDMA{Address: to.Address, Handle: uint32(to.Handle), Length: 200000}

	// Every segment of an RDMA Write has the RDMA header.
	must(t, s.v.PostSend(vi.NewRDMAWrite(to, segment(r, 0, 100000), segment(r, 100000, 100000))))
	var got []byte
	for len(got) < len(buf) {
		x := s.want(vitcpwire.Write)
		if x.rdma != want || int(x.h.Offset) != len(got) {
			t.Fatalf("%v %v after %d bytes", x.h, x.rdma, len(got))
		}
		got = append(got, x.payload...)
	}
	if !bytes.Equal(got, buf) {
		t.Error("bytes differ")
	}

	// An RDMA Read has one source range and fills its local segments in order. [V-25]
	must(t, s.v.PostSend(vi.NewRDMARead(to, segment(r, 100, 10), segment(r, 0, 20))))
	q := s.want(vitcpwire.ReadRequest)
	want.Length = 30
	if q.rdma != want || len(q.payload) != 0 || q.h.Flags != vitcpwire.EndOfMessage || q.h.Number != 2 {
		t.Errorf("%v %v", q.h, q.rdma)
	}
	// The address and handle in a response are ignored. [V-23]
	answer := []byte("abcdefghijABCDEFGHIJ0123456789")
	s.send(vitcpwire.Header{Type: vitcpwire.ReadResponse, Number: 2, Ack: 2},
		&vitcpwire.RDMA{Address: 7, Handle: 8, Length: 9}, answer[:15])
	s.send(vitcpwire.Header{Type: vitcpwire.ReadResponse, Number: 2, Ack: 2, Offset: 15, Flags: vitcpwire.EndOfMessage},
		&vitcpwire.RDMA{}, answer[15:])
	for range 2 {
		_, err := waitSend(t, s.v)
		must(t, err)
	}
	if string(buf[100:110])+string(buf[:20]) != string(answer) {
		t.Error("scattered otherwise")
	}
}

// Settings of the Dialect serve a peer whose types count from 1, and a peer without the RDMA header
// in responses. [V-02] [V-23]
func TestVIT_3_Dialects(t *testing.T) {
	for _, d := range []vitcpwire.Dialect{{TypeOffset: 1}, {BareReadResponse: true}, {TypeOffset: 7, BareReadResponse: true}} {
		t.Run(fmt.Sprintf("%+v", d), func(t *testing.T) {
			s := serveProbe(t, sessionOpts{cfg: Config{Dialect: Dialect(d)}, dialect: d,
				attrs: reliableAll, posted: 10})
			r, buf := register(t, s.n, 100, allRights)
			fill(buf, 1)
			s.message(vitcpwire.ReadRequest,
				&vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: 100}, nil)
			if x := s.want(vitcpwire.ReadResponse); !bytes.Equal(x.payload, buf) {
				t.Errorf("%v with %d bytes", x.h, len(x.payload))
			}
			p := connectPair(t, Config{Dialect: Dialect(d)}, reliableAll)
			ra, ba := register(t, p.na, 100000, vi.MemAttributes{})
			rb, bb := register(t, p.nb, 100000, allRights)
			fill(bb, 2)
			must(t, p.a.PostSend(vi.NewRDMARead(rb.Remote(0), segment(ra, 0, len(ba)))))
			_, err := waitSend(t, p.a)
			must(t, err)
			if !bytes.Equal(ba, bb) {
				t.Error("bytes differ")
			}
		})
	}
}

// TestVIT_3_1_Numbers covers the message numbers of section 3.1.
func TestVIT_3_1_Numbers(t *testing.T) {
	// The first number may have any value. Numbers wrap in both directions. [VIT-3.1-10]
	// [VIT-3.1-11] [VIT-3.1-15] [V-09] [V-37]
	for _, first := range []uint32{0, 0x7ffffffe, 0xfffffff0, 0xffffffff} {
		t.Run(fmt.Sprintf("%#x", first), func(t *testing.T) {
			const count = 40
			s := serveProbe(t, sessionOpts{cfg: Config{FirstMessage: first}, attrs: reliableAll,
				posted: count, first: vitcpwire.Number(first),
				before: func(s *session) {
					for range count {
						must(t, s.v.PostRecv(vi.NewRecv()))
					}
				}})
			for i := range count {
				n := s.message(vitcpwire.Send, nil, nil, immediate(uint32(i)))
				if n == vitcpwire.Number(first)+count {
					s.wantAck(n)
				}
			}
			for i := range count {
				d, err := waitRecv(t, s.v)
				if err != nil || d.ImmediateData != uint32(i) {
					t.Fatalf("message %d: %v, %v", i, d.ImmediateData, err)
				}
			}
			for i := range count {
				must(t, s.v.PostSend(vi.NewSend().WithImmediate(uint32(i))))
				x := s.want(vitcpwire.Send)
				if want := vitcpwire.Number(first).Add(i + 1); x.h.Number != want {
					t.Fatalf("number %d, want %d", x.h.Number, want)
				}
				s.nop(ack(x.h.Number))
				_, err := waitSend(t, s.v)
				must(t, err)
			}
		})
	}
	t.Run("unannounced", func(t *testing.T) {
		// The connect message need not announce the number of the first message. [V-09]
		s := serveProbe(t, sessionOpts{attrs: reliableAll,
			before: func(s *session) { must(t, s.v.PostRecv(vi.NewRecv())) }})
		s.last = 77
		s.message(vitcpwire.Send, nil, nil)
		_, err := waitRecv(t, s.v)
		must(t, err)
		s.wantAck(78)
	})
}

// Immediate data is any value of 32 bits. It is valid only with its flag. [VIT-3.1-4] [VIT-3.1-9]
// [V-29]
func TestVIT_3_1_Immediate(t *testing.T) {
	s := serveProbe(t, sessionOpts{attrs: reliableAll, before: func(s *session) {
		for range 10 {
			must(t, s.v.PostRecv(vi.NewRecv()))
		}
	}})
	r, buf := register(t, s.n, 100, allRights)
	for _, v := range []uint32{0, 1, 0x80000000, 0xffffffff} {
		s.message(vitcpwire.Send, nil, nil, immediate(v))
		d, err := waitRecv(t, s.v)
		if err != nil || d.ImmediateData != v || d.Status()&vi.StatusImmediate == 0 {
			t.Errorf("%#x: %#x, %v", v, d.ImmediateData, d.Status())
		}
	}
	// Without the flag the field has no meaning.
	s.message(vitcpwire.Send, nil, nil, func(h *vitcpwire.Header) { h.Immediate = 5 })
	d, err := waitRecv(t, s.v)
	if err != nil || d.ImmediateData != 0 || d.Status()&vi.StatusImmediate != 0 {
		t.Errorf("%#x, %v", d.ImmediateData, d.Status())
	}
	// In an RDMA Write of several segments the immediate data of the last segment counts.
	h := vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: 30}
	s.last++
	s.send(vitcpwire.Header{Type: vitcpwire.Write, Number: s.last}, &h, make([]byte, 10))
	s.send(vitcpwire.Header{Type: vitcpwire.Write, Number: s.last, Offset: 10, Flags: vitcpwire.ImmediateValid, Immediate: 1}, &h, make([]byte, 10))
	s.send(vitcpwire.Header{Type: vitcpwire.Write, Number: s.last, Offset: 20, Flags: vitcpwire.ImmediateValid | vitcpwire.EndOfMessage, Immediate: 2}, &h, []byte("0123456789"))
	d, err = waitRecv(t, s.v)
	if err != nil || d.ImmediateData != 2 || d.Length != 30 ||
		d.Status()&vi.StatusOpMask != vi.StatusOpRemoteRDMAWrite || string(buf[20:30]) != "0123456789" {
		t.Errorf("%#x, %v, %d", d.ImmediateData, d.Status(), d.Length)
	}
	// The VI sets the immediate data in all segments of the message, and in no segment of other
	// messages.
	s.post(9)
	big, _ := register(t, s.n, 100000, vi.MemAttributes{})
	with, without := vi.NewRDMAWrite(vi.RemoteSegment{}, segment(big, 0, 100000)).WithImmediate(0x1234),
		vi.NewRDMAWrite(vi.RemoteSegment{}, segment(big, 0, 100000))
	without.ImmediateData = 0x5678
	for _, d := range []*vi.Descriptor{with, without} {
		must(t, s.v.PostSend(d))
		flags, data := vitcpwire.ImmediateValid, uint32(0x1234)
		if d == without {
			flags, data = 0, 0
		}
		for range 2 {
			if x := s.want(vitcpwire.Write); x.h.Flags&vitcpwire.ImmediateValid != flags || x.h.Immediate != data {
				t.Errorf("%v, want %#x", x.h, data)
			}
		}
	}
	// The flag is ignored on messages that cannot carry immediate data.
	s.nop(immediate(9))
	s.message(vitcpwire.ReadRequest, &h, nil, immediate(9))
	s.want(vitcpwire.ReadResponse)
}

// TestVIT_3_1_FlowControl checks descriptor flow control on the wire. [VIT-3.1-16] [VIT-3.1-17]
// [V-20] [V-22]
func TestVIT_3_1_FlowControl(t *testing.T) {
	t.Run("sender", func(t *testing.T) {
		// The probe advertises k descriptors, and exactly k descriptor-consuming messages arrive.
		s := serveProbe(t, sessionOpts{attrs: reliableAll, posted: 3})
		r, _ := register(t, s.n, 10, vi.MemAttributes{})
		for range 8 {
			must(t, s.v.PostSend(vi.NewSend()))
		}
		for range 3 {
			s.want(vitcpwire.Send)
		}
		s.silent()
		s.post(2)
		for range 2 {
			s.want(vitcpwire.Send)
		}
		s.silent()
		s.post(3)
		for range 3 {
			s.want(vitcpwire.Send)
		}
		// An RDMA Write needs a receive descriptor only if it has immediate data.
		must(t, s.v.PostSend(vi.NewRDMAWrite(vi.RemoteSegment{}, segment(r, 0, 1))))
		s.want(vitcpwire.Write)
		must(t, s.v.PostSend(vi.NewRDMAWrite(vi.RemoteSegment{}, segment(r, 0, 1)).WithImmediate(1)))
		s.silent()
		s.post(32000)
		s.want(vitcpwire.Write)
	})
	t.Run("wrap", func(t *testing.T) {
		s := serveProbe(t, sessionOpts{attrs: withLevel(reliableAll, vi.UnreliableDelivery)})
		const rounds, burst = 70, 1000
		ds := make([]*vi.Descriptor, burst)
		for i := range ds {
			ds[i] = vi.NewSend()
		}
		in := bufio.NewReaderSize(s.nc, 1<<16)
		for range rounds {
			s.post(burst)
			s.nc.SetReadDeadline(time.Now().Add(patience))
			_, err := s.v.PostSends(ds)
			must(t, err)
			for range burst {
				if _, err := io.ReadFull(in, make([]byte, vitcpwire.HeaderLen)); err != nil {
					t.Fatal(err)
				}
				_, err := waitSend(t, s.v)
				must(t, err)
			}
		}
	})
	t.Run("receiver", func(t *testing.T) {
		// A message without a credit ends the connection. [V-20]
		for _, typ := range []vitcpwire.Type{vitcpwire.Send, vitcpwire.Write} {
			s := serveProbe(t, sessionOpts{attrs: reliableAll,
				before: func(s *session) { must(t, s.v.PostRecv(vi.NewRecv())) }})
			var r *vitcpwire.RDMA
			if typ == vitcpwire.Write {
				r = &vitcpwire.RDMA{}
			}
			s.message(typ, r, nil, immediate(1))
			s.message(typ, r, nil, immediate(2))
			s.wantEnd(errReset)
			s.n.expectAsync(t, vi.ErrorConnLost)
		}
	})
	t.Run("backwards", func(t *testing.T) {
		s := serveProbe(t, sessionOpts{attrs: reliableAll, posted: 10})
		s.posted = 9
		s.nop()
		s.wantEnd(errReset)
	})
	t.Run("too many at set-up", func(t *testing.T) {
		// The connect message already violates the limit, so the connection ends before the peer
		// sends anything else. [V-20]
		s := serveProbe(t, sessionOpts{attrs: reliableAll, posted: maxCredits + 1})
		s.wantEnd(errReset)
		s = serveProbe(t, sessionOpts{attrs: reliableAll, posted: maxCredits})
		s.silent()
	})
	t.Run("too many", func(t *testing.T) {
		s := serveProbe(t, sessionOpts{attrs: reliableAll, posted: 10})
		s.posted = 32768
		s.nop()
		s.wantEnd(errReset)
	})
}

// TestVIT_3_1_NOP covers the notes on NOP of section 3.1.
func TestVIT_3_1_NOP(t *testing.T) {
	t.Run("VIT-3.1-NOP-1", func(t *testing.T) {
		// A NOP is a header with both counts and nothing else. [VIT-3.1-NOP-1] [VIT-3.1-NOP-2]
		// [V-11] [V-21] [V-22]
		s := serveProbe(t, sessionOpts{attrs: reliableAll, first: 5})
		must(t, s.v.PostRecv(vi.NewRecv()))
		x := s.recv()
		if x.h != (vitcpwire.Header{Type: vitcpwire.NOP, Flags: vitcpwire.EndOfMessage, Length: 24, Ack: 5, Posted: 1}) {
			t.Errorf("%v", x.h)
		}
		s.message(vitcpwire.Send, nil, nil)
		if x := s.recv(); x.h.Type != vitcpwire.NOP || x.h.Ack != 6 || x.h.Posted != 1 || x.h.Length != 24 {
			t.Errorf("%v", x.h)
		}
		// A NOP without a changed count gets no NOP as an answer.
		s.nop()
		s.silent()
	})
	t.Run("VIT-3.1-NOP-2", func(t *testing.T) {
		// On an idle connection counts are sent even if they are not urgent. [VIT-3.1-NOP-2]
		s := serveProbe(t, sessionOpts{attrs: reliableAll, before: func(s *session) {
			for range 10 {
				must(t, s.v.PostRecv(vi.NewRecv()))
			}
		}})
		must(t, s.v.PostRecv(vi.NewRecv()))
		if x := s.recv(); x.h.Type != vitcpwire.NOP || x.h.Posted != 11 {
			t.Errorf("%v", x.h)
		}
		// Without flow control counts are sent too, at every level and without a limit, because the
		// consumed descriptors are not counted.
		c := recvCredits{free: true}
		for n := uint64(20000); n < 200_000; n += 20000 {
			c.reach(n)
			if got := c.advertise(); got != vitcpwire.Count(n) || c.unadvertised() {
				t.Errorf("%d of %d posted are told", got, n)
			}
		}
		for _, level := range []vi.Reliability{vi.UnreliableDelivery, vi.ReliableDelivery, vi.ReliableReception} {
			a := withLevel(reliableAll, level)
			a.FlowControl = false
			s := serveProbe(t, sessionOpts{attrs: a})
			for n := range vitcpwire.Count(3) {
				must(t, s.v.PostRecv(vi.NewRecv()))
				if x := s.recv(); x.h.Type != vitcpwire.NOP || x.h.Posted != n+1 {
					t.Errorf("%v: %v", level, x.h)
				}
			}
			s.silent()
			// The count continues to rise, whatever number of descriptors was consumed.
			s.message(vitcpwire.Send, nil, nil)
			_, err := waitRecv(t, s.v)
			must(t, err)
			must(t, s.v.PostRecv(vi.NewRecv()))
			for x := s.recv(); x.h.Posted != 4; x = s.recv() {
				if x.h.Type != vitcpwire.NOP || x.h.Posted != 3 {
					t.Errorf("%v: %v", level, x.h)
				}
			}
		}
	})
	t.Run("VIT-3.1-NOP-3 at once", func(t *testing.T) {
		// If the peer has few credits left, the post itself sends the update. Otherwise the timer
		// sends it, but the test prevents the timer from firing. [VIT-3.1-NOP-2] [VIT-3.1-NOP-3]
		// [V-21]
		for _, v := range []struct {
			flow    bool
			before  int // number of descriptors that were advertised to the peer
			atOnce  bool
			meaning string
		}{{true, 0, true, "none left"}, {true, 10, false, "plenty"}, {false, 0, false, "no flow control"}} {
			a := reliableAll
			a.FlowControl = v.flow
			s := serveProbe(t, sessionOpts{attrs: a, before: func(s *session) {
				for range v.before {
					must(t, s.v.PostRecv(vi.NewRecv()))
				}
			}})
			l := s.v.Link().(*link)
			for end := time.Now().Add(patience); l.updates.armed.Load(); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the timer does not end")
				}
			}
			l.RecvPosted() // sends nothing, because the count is unchanged
			if l.updates.armed.Load() {
				t.Errorf("%s: no news, and the timer is on", v.meaning)
			}
			l.updates.timerMu.Lock()
			posted := make(chan error, 1)
			go func() { posted <- s.v.PostRecv(vi.NewRecv()) }()
			if v.atOnce {
				if x := s.recv(); x.h.Posted != 1 {
					t.Errorf("%s: %v", v.meaning, x.h)
				}
				must(t, <-posted)
			} else {
				testkit.Eventually(t, "the timer is on", l.updates.armed.Load)
				s.silent()
			}
			if l.updates.armed.Load() == v.atOnce {
				t.Errorf("%s: the timer is on: %v", v.meaning, !v.atOnce)
			}
			l.updates.timerMu.Unlock()
			if !v.atOnce {
				must(t, <-posted)
				if x := s.recv(); int(x.h.Posted) != v.before+1 {
					t.Errorf("%s: %v", v.meaning, x.h)
				}
			}
		}
	})
	t.Run("VIT-3.1-NOP-3", func(t *testing.T) {
		// While messages arrive without a pause, the threshold decides. [VIT-3.1-NOP-3]
		// [VIT-3.1-NOP-4] [V-21]
		s := serveProbe(t, sessionOpts{cfg: Config{CreditThreshold: 3}, attrs: withLevel(reliableAll, vi.UnreliableDelivery), before: func(s *session) {
			for range 10 {
				must(t, s.v.PostRecv(vi.NewRecv()))
			}
		}})
		l := s.v.Link().(*link)
		if l.flow.mine.threshold != 3 {
			t.Errorf("threshold %d", l.flow.mine.threshold)
		}
		for i := range 10 {
			s.message(vitcpwire.Send, nil, nil)
			_, err := waitRecv(t, s.v)
			must(t, err)
			must(t, s.v.PostRecv(vi.NewRecv()))
			if i == 9 {
				for s.recv().h.Posted != 20 {
				}
			}
		}
	})
	t.Run("V-09", func(t *testing.T) {
		// All other fields of a NOP are ignored.
		s := serveProbe(t, sessionOpts{attrs: reliableAll})
		s.raw(s.bytes(vitcpwire.Header{Type: vitcpwire.NOP, Flags: 7, Offset: 9, Immediate: 8, Number: 1234},
			nil, nil, []byte("surplus")))
		s.message(vitcpwire.Write, &vitcpwire.RDMA{}, nil)
		s.wantAck(s.last)
	})
}

// TestVIT_3_1_MessageACK covers Message ACK of section 3.1.
func TestVIT_3_1_MessageACK(t *testing.T) {
	t.Run("VIT-3.1-ACK-1", func(t *testing.T) {
		// Before the first message the acknowledgement is the preceding number. Later it is the
		// number of the last message received without error. A burst is acknowledged once.
		// [VIT-3.1-ACK-1] [V-09] [V-12]
		s := serveProbe(t, sessionOpts{attrs: reliableAll, first: 100, posted: 5})
		must(t, s.v.PostSend(vi.NewSend()))
		if x := s.want(vitcpwire.Send); x.h.Ack != 100 {
			t.Errorf("%v", x.h)
		}
		var burst []byte
		for range 20 {
			s.last++
			burst = append(burst, s.bytes(vitcpwire.Header{Type: vitcpwire.Write, Flags: vitcpwire.EndOfMessage, Number: s.last}, nil, &vitcpwire.RDMA{}, nil)...)
		}
		s.raw(burst)
		n := 1
		for x := s.recv(); x.h.Ack != 120; x = s.recv() {
			n++
		}
		if n > 3 {
			t.Errorf("%d acknowledgements for one burst", n)
		}
	})
	t.Run("VIT-3.1-ACK-2", func(t *testing.T) {
		// The acknowledgement is sent after the bytes are in place and the completion is published.
		// [VIT-3.1-ACK-2] [VIT-2.2.2.2.3-1]
		s := serveProbe(t, sessionOpts{attrs: reliableAll})
		r, buf := register(t, s.n, 100, vi.MemAttributes{})
		must(t, s.v.PostRecv(vi.NewRecv(segment(r, 0, 100))))
		s.recv()
		s.message(vitcpwire.Send, nil, []byte("here"))
		s.wantAck(1)
		d, err := s.v.RecvDone()
		if err != nil || d.Length != 4 || string(buf[:4]) != "here" {
			t.Errorf("%v, %q", err, buf[:4])
		}
		if st := s.n.p.Stats(); st.ReceivedMessages != 1 || st.ReceivedBytes != 4 {
			t.Errorf("stats %+v", st)
		}
	})
	t.Run("VIT-3.1-ACK-2 at once", func(t *testing.T) {
		// If the consumer does not poll, the acknowledgement does not wait for the timer. The test
		// prevents the timer from firing. [V-12]
		s := serveProbe(t, sessionOpts{attrs: reliableAll})
		l := s.v.Link().(*link)
		l.updates.timerMu.Lock()
		defer l.updates.timerMu.Unlock()
		for range 3 {
			s.wantAck(s.message(vitcpwire.Write, &vitcpwire.RDMA{}, nil))
		}
	})
	t.Run("VIT-3.1-ACK-2 polled", func(t *testing.T) {
		// If the consumer polls, the acknowledgement waits for the answer, for an arrival other
		// than a message, or for the timer. The test pretends that the timer is running. [V-12]
		s := serveProbe(t, sessionOpts{attrs: reliableAll})
		l := s.v.Link().(*link)
		l.updates.armed.Store(true)
		polled := func() vitcpwire.Number { // sends a message whose acknowledgement waits
			end := testContext(t)
			for range 500 { // if this goroutine is not scheduled, another one may receive the message
				n := s.message(vitcpwire.Write, &vitcpwire.RDMA{}, nil)
				for l.acks.last.Load() != uint32(n) {
					must(t, end.Err())
					s.v.Poll()
				}
				if l.acks.pending() && !l.updates.wanted.Load() {
					return n
				}
				s.wantAck(n)
			}
			t.Fatal("the acknowledgement does not wait")
			return 0
		}
		for range 3 {
			n := polled()
			s.nop()
			testkit.Eventually(t, "the acknowledgement", func() bool { s.v.Poll(); return !l.acks.pending() })
			s.wantAck(n)
		}
		// The timer alone sends the acknowledgement too.
		l.updates.armed.Store(false)
		polled()
		testkit.Eventually(t, "the acknowledgement by the timer", func() bool { return !l.acks.pending() })
		// If there is nothing to acknowledge, no timer runs.
		s = serveProbe(t, sessionOpts{attrs: withLevel(reliableAll, vi.ReliableDelivery)})
		l = s.v.Link().(*link)
		s.message(vitcpwire.Write, &vitcpwire.RDMA{}, nil)
		testkit.Eventually(t, "the message", func() bool { s.v.Poll(); return l.count.receivedMessages.Load() == 1 })
		if l.updates.armed.Load() {
			t.Error("the timer runs for nothing")
		}
	})
	t.Run("VIT-3.1-ACK-3", func(t *testing.T) {
		// A segment of any type carries the acknowledgement, in both directions. [VIT-3.1-ACK-3]
		s := serveProbe(t, sessionOpts{attrs: reliableAll, posted: 9,
			before: func(s *session) { must(t, s.v.PostRecv(vi.NewRecv())) }})
		r, _ := register(t, s.n, 10, allRights)
		must(t, s.v.PostSend(vi.NewSend()))
		s.want(vitcpwire.Send)
		s.message(vitcpwire.Send, nil, nil, ack(1))
		_, err := waitSend(t, s.v)
		must(t, err)
		s.message(vitcpwire.ReadRequest,
			&vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: 1}, nil)
		if x := s.want(vitcpwire.ReadResponse); x.h.Ack != 2 {
			t.Errorf("%v", x.h)
		}
	})
	t.Run("VIT-3.1-ACK-4", func(t *testing.T) {
		// A Send does not complete without an acknowledgement. An acknowledgement covers all
		// earlier Sends; with an unknown number it covers none. [VIT-3.1-ACK-4] [V-10] [V-11]
		s := serveProbe(t, sessionOpts{attrs: reliableAll, posted: 9})
		for range 3 {
			must(t, s.v.PostSend(vi.NewSend()))
			s.want(vitcpwire.Send)
		}
		pending := func() {
			t.Helper()
			s.nop(ack(0))
			s.taken()
			if _, err := s.v.SendDone(); !errors.Is(err, vi.ErrNotDone) {
				t.Errorf("completed: %v", err)
			}
		}
		pending()
		s.nop(ack(4)) // the message with this number was not sent
		s.nop(ack(0xfffffff0))
		pending()
		s.nop(ack(2))
		for range 2 {
			_, err := waitSend(t, s.v)
			must(t, err)
		}
		pending()
		s.nop(ack(3))
		_, err := waitSend(t, s.v)
		must(t, err)
	})
	t.Run("VIT-3.1-ACK-5", func(t *testing.T) {
		// A Read completes with its response, not with an acknowledgement. Acknowledged messages
		// after the Read complete only after the Read. [VIT-3.1-ACK-5] [V-11]
		s := serveProbe(t, sessionOpts{attrs: reliableAll, posted: 9})
		r, _ := register(t, s.n, 10, vi.MemAttributes{})
		must(t, s.v.PostSend(vi.NewSend()))
		must(t, s.v.PostSend(vi.NewRDMARead(vi.RemoteSegment{}, segment(r, 0, 1))))
		must(t, s.v.PostSend(vi.NewSend()))
		s.want(vitcpwire.Send)
		q := s.want(vitcpwire.ReadRequest)
		s.want(vitcpwire.Send)
		s.nop(ack(3))
		_, err := waitSend(t, s.v)
		must(t, err)
		s.taken()
		if _, err := s.v.SendDone(); !errors.Is(err, vi.ErrNotDone) {
			t.Errorf("the read completed: %v", err)
		}
		s.send(vitcpwire.Header{Type: vitcpwire.ReadResponse, Flags: vitcpwire.EndOfMessage, Number: q.h.Number, Ack: 3}, &q.rdma, []byte{1})
		for range 2 {
			_, err := waitSend(t, s.v)
			must(t, err)
		}
	})
	t.Run("VIT-3.1-ACK-5 apart", func(t *testing.T) {
		// Acknowledgements and responses arrive one at a time. Messages 1 and 4 are Reads. An
		// acknowledgement completes neither a Read whose response has not arrived nor the messages
		// after the Read. [VIT-3.1-ACK-5]
		s := serveProbe(t, sessionOpts{attrs: reliableAll, posted: 9})
		r, _ := register(t, s.n, 10, vi.MemAttributes{})
		read := func() *vi.Descriptor { return vi.NewRDMARead(vi.RemoteSegment{}, segment(r, 0, 1)) }
		for _, d := range []*vi.Descriptor{read(), vi.NewSend(), vi.NewSend(), read(), vi.NewSend()} {
			must(t, s.v.PostSend(d))
		}
		var q [6]seg
		for n := 1; n <= 5; n++ {
			for q[n] = s.recv(); q[n].h.Type == vitcpwire.NOP; q[n] = s.recv() {
			}
		}
		respond := func(n int) func() {
			return func() {
				s.send(vitcpwire.Header{Type: vitcpwire.ReadResponse, Flags: vitcpwire.EndOfMessage, Number: q[n].h.Number}, &q[n].rdma, []byte{1})
			}
		}
		says := func(n vitcpwire.Number) func() { return func() { s.nop(ack(n)) } }
		for i, step := range []struct {
			do   func()
			done int
		}{{says(1), 0}, {says(2), 0}, {respond(1), 2}, {says(1), 0}, {says(3), 1}, {says(5), 0}, {respond(4), 2}} {
			step.do()
			for range step.done {
				_, err := waitSend(t, s.v)
				must(t, err)
			}
			s.taken()
			if d, err := s.v.SendDone(); d != nil || s.v.State() != vi.Connected {
				t.Fatalf("step %d: one more is done, %v; state %v", i, err, s.v.State())
			}
		}
		// A locally failed send completes when the earlier sends are acknowledged. It then ends the
		// connection.
		must(t, s.v.PostSend(vi.NewSend()))
		must(t, s.v.PostSend(vi.NewSend(vi.Segment{Address: r.Address(), Handle: r.Handle() + 1, Length: 1})))
		s.want(vitcpwire.Send)
		s.nop(ack(6))
		_, err := waitSend(t, s.v)
		must(t, err)
		if d, _ := waitSend(t, s.v); d.Status()&vi.StatusProtectionError == 0 {
			t.Errorf("%v", d.Status())
		}
		s.wantEnd(io.EOF)
	})
	t.Run("VIT-3.1-ACK-5 an error behind a read", func(t *testing.T) {
		// A Read completes when the data has arrived. The next, failed send then completes and ends
		// the connection. [VIT-3.1-ACK-5] [VIA-4.5-5]
		s := serveProbe(t, sessionOpts{attrs: reliableAll, posted: 9})
		r, buf := register(t, s.n, 10, vi.MemAttributes{})
		read := vi.NewRDMARead(vi.RemoteSegment{}, segment(r, 0, 1))
		bad := vi.NewSend(vi.Segment{Address: r.Address(), Handle: r.Handle() + 1, Length: 1})
		must(t, s.v.PostSend(read))
		must(t, s.v.PostSend(bad))
		q := s.want(vitcpwire.ReadRequest)
		s.nop(ack(1))
		s.taken()
		if d, _ := s.v.SendDone(); d != nil || s.v.State() != vi.Connected {
			t.Errorf("%v is done before the response; state %v", d, s.v.State())
		}
		s.send(vitcpwire.Header{Type: vitcpwire.ReadResponse, Flags: vitcpwire.EndOfMessage, Number: q.h.Number},
			&q.rdma, []byte{7})
		if d, err := waitSend(t, s.v); d != read || err != nil || buf[0] != 7 {
			t.Errorf("the read: %v, %v; data %d", d.Status(), err, buf[0])
		}
		if d, _ := waitSend(t, s.v); d != bad || d.Status()&vi.StatusProtectionError == 0 {
			t.Errorf("the send: %v", d.Status())
		}
		s.wantEnd(io.EOF)
		waitState(t, s.v, vi.Error)
	})
	t.Run("VIT-3.1-ACK-4 half", func(t *testing.T) {
		// An acknowledgement of an incompletely sent message is ignored. [VIT-3.1-ACK-4] [V-11]
		const size = 32 << 20 // more than the sockets hold
		s := serveProbe(t, sessionOpts{attrs: reliableAll, posted: 9, ce: func(ce *vitcpwire.CE) { ce.MTU = size }})
		r, _ := register(t, s.n, size, vi.MemAttributes{})
		must(t, s.v.PostSend(vi.NewSend(segment(r, 0, size))))
		s.want(vitcpwire.Send)
		s.nop(ack(1))
		s.message(vitcpwire.Write, &vitcpwire.RDMA{}, nil)
		for end := time.Now().Add(patience); s.v.Link().(*link).count.receivedMessages.Load() == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the Write has not come")
			}
		}
		for s.want(vitcpwire.Send).h.Flags&vitcpwire.EndOfMessage == 0 {
		}
		if _, err := s.v.SendDone(); !errors.Is(err, vi.ErrNotDone) {
			t.Errorf("completed: %v", err)
		}
		s.nop(ack(1))
		_, err := waitSend(t, s.v)
		must(t, err)
	})
	t.Run("VIT-3.1-ACK-7", func(t *testing.T) {
		// At the other levels Message ACK and error codes are ignored. Completions do not wait for
		// acknowledgements. [VIT-3.1-ACK-7] [VIT-3.1-ERR-5] [V-10]
		for _, level := range levels[:2] {
			s := serveProbe(t, sessionOpts{attrs: withLevel(reliableAll, level), posted: 9})
			must(t, s.v.PostSend(vi.NewSend()))
			_, err := waitSend(t, s.v)
			must(t, err)
			if x := s.want(vitcpwire.Send); x.h.Error != 0 {
				t.Errorf("%v", x.h)
			}
			s.nop(ack(0xdeadbeef), fails(vitcpwire.ProtectionError))
			s.nop(ack(1), fails(vitcpwire.DescriptorError))
			s.message(vitcpwire.ReadRequest, &vitcpwire.RDMA{}, nil)
			if level == vi.ReliableDelivery {
				s.want(vitcpwire.ReadResponse)
				if s.v.State() != vi.Connected {
					t.Errorf("state %v", s.v.State())
				}
			}
		}
	})
	t.Run("V-10 at unreliable delivery", func(t *testing.T) {
		// Message ACK stays zero, whatever messages have arrived.
		s := serveProbe(t, sessionOpts{attrs: withLevel(reliableAll, vi.UnreliableDelivery), posted: 9})
		for range 2 {
			must(t, s.v.PostRecv(vi.NewRecv()))
			s.message(vitcpwire.Send, nil, nil)
			_, err := waitRecv(t, s.v)
			must(t, err)
		}
		must(t, s.v.PostSend(vi.NewSend()))
		if x := s.want(vitcpwire.Send); x.h.Ack != 0 {
			t.Errorf("%v", x.h)
		}
	})
	t.Run("V-10", func(t *testing.T) {
		// If the single reliable bit means Reliable Delivery, no completion waits for an
		// acknowledgement, and Reliable Reception is not available.
		attrs := withLevel(reliableAll, vi.ReliableDelivery)
		s := serveProbe(t, sessionOpts{cfg: Config{ReliableIsDelivery: true}, attrs: attrs, posted: 9, ce: func(ce *vitcpwire.CE) {
			ce.Attributes &^= vitcpwire.ReliableDelivery
		}})
		must(t, s.v.PostSend(vi.NewSend()))
		_, err := waitSend(t, s.v)
		must(t, err)
		if _, err := s.n.CreateVI(reliableAll, nil, nil); !errors.Is(err, vi.ErrInvalidReliability) {
			t.Errorf("reliable reception: %v", err)
		}
	})
}

// TestVIT_3_1_RemoteErrorCode covers the Remote Error Code of section 3.1.
func TestVIT_3_1_RemoteErrorCode(t *testing.T) {
	t.Run("VIT-3.1-ERR-4", func(t *testing.T) {
		// The code sets the status of the message it names. Messages before it succeed and messages
		// after it are flushed. [VIT-3.1-ERR-1] [VIT-3.1-ERR-3] [VIT-3.1-ERR-4] [VIT-3.1-ACK-1]
		// [V-13]
		for code, want := range map[uint8]vi.Status{
			vitcpwire.ProtectionError: vi.StatusRDMAProtection,
			vitcpwire.DescriptorError: vi.StatusRemoteDescriptor,
		} {
			cause := make(chan error, 1)
			s := serveProbe(t, sessionOpts{cfg: Config{Broken: func(_ *vi.VI, err error) { cause <- err }},
				attrs: reliableAll, posted: 9})
			r, _ := register(t, s.n, 10, vi.MemAttributes{})
			for range 4 {
				must(t, s.v.PostSend(vi.NewRDMAWrite(vi.RemoteSegment{}, segment(r, 0, 1))))
				s.want(vitcpwire.Write)
			}
			s.nop(ack(3), fails(code))
			for i := range 4 {
				d, _ := waitSend(t, s.v)
				st := d.Status() & vi.StatusErrorMask
				switch {
				case i < 2 && st != 0, i == 2 && st != want, i == 3 && st != vi.StatusTransportError &&
					st != vi.StatusFlushed:
					t.Errorf("code %d, message %d: %v", code, i+1, d.Status())
				}
			}
			s.n.expectAsync(t, vi.ErrorConnLost)
			if err, ok := errors.AsType[*RemoteError](<-cause); !ok || err.Number != 3 ||
				vitcpwire.RemoteError(err.Code).VI() != code {
				t.Errorf("cause %v", err)
			}
			if n := s.n.p.Stats().RemoteErrors; n != 1 {
				t.Errorf("%d remote errors", n)
			}
			s.wantEnd(io.EOF)
		}
	})
	t.Run("VIT-3.1-ERR-4 news", func(t *testing.T) {
		// A code for an acknowledged or never sent message is ignored. [VIT-3.1-ERR-4]
		// [VIT-3.1-ACK-5] [V-11]
		s := serveProbe(t, sessionOpts{attrs: reliableAll, posted: 9})
		for range 3 {
			must(t, s.v.PostSend(vi.NewSend()))
			s.want(vitcpwire.Send)
		}
		s.nop(ack(2))
		s.nop(ack(2), fails(vitcpwire.DescriptorError))
		s.nop(ack(1), fails(vitcpwire.DescriptorError))
		s.nop(ack(4), fails(vitcpwire.DescriptorError))
		s.nop(ack(3))
		for range 3 {
			_, err := waitSend(t, s.v)
			must(t, err)
		}
		if st := s.n.p.Stats(); st.RemoteErrors != 0 || s.v.State() != vi.Connected {
			t.Errorf("%d remote errors, state %v", st.RemoteErrors, s.v.State())
		}
	})
	t.Run("VIT-3.1-ERR-2", func(t *testing.T) {
		// A code without a VI error is supplementary: an implementation defines it. [VIT-3.1-ERR-2]
		s := serveProbe(t, sessionOpts{attrs: reliableAll, posted: 9})
		must(t, s.v.PostSend(vi.NewSend()))
		s.want(vitcpwire.Send)
		s.nop(ack(1), func(h *vitcpwire.Header) { h.Error = vitcpwire.MakeRemoteError(0, 0x42) })
		_, err := waitSend(t, s.v)
		must(t, err)
	})
	t.Run("VIT-3.1-ACK-6", func(t *testing.T) {
		// This side reports a descriptor error with the number of the message. [VIT-3.1-ACK-6]
		// [V-13] [V-19]
		attrs := reliableAll
		attrs.FlowControl = false
		for name, post := range map[string]func(*session){
			"no descriptor": func(*session) {},
			"too short": func(s *session) {
				r, _ := register(t, s.n, 10, vi.MemAttributes{})
				must(t, s.v.PostRecv(vi.NewRecv(segment(r, 0, 3))))
			},
		} {
			s := serveProbe(t, sessionOpts{attrs: attrs, before: post})
			s.message(vitcpwire.Write, &vitcpwire.RDMA{}, nil)
			s.message(vitcpwire.Send, nil, []byte("four"))
			s.message(vitcpwire.Write, &vitcpwire.RDMA{}, nil)
			var told *seg
			for _, x := range s.wantEnd(io.EOF) {
				if x.h.Error != 0 {
					told = &x
				}
			}
			if told == nil || told.h.Ack != 2 ||
				told.h.Error != vitcpwire.MakeRemoteError(vitcpwire.DescriptorError, 0) {
				t.Errorf("%s: told %v", name, told)
			}
		}
	})
	t.Run("V-19", func(t *testing.T) {
		// At Unreliable Delivery a message without a descriptor is dropped. [V-19] [V-44]
		attrs := withLevel(reliableAll, vi.UnreliableDelivery)
		attrs.FlowControl = false
		s := serveProbe(t, sessionOpts{attrs: attrs})
		s.last++
		s.send(vitcpwire.Header{Type: vitcpwire.Send, Number: s.last}, nil, []byte("lo"))
		s.send(vitcpwire.Header{Type: vitcpwire.Send, Number: s.last, Offset: 2, Flags: vitcpwire.EndOfMessage},
			nil, []byte("st"))
		s.n.expectAsync(t, vi.ErrorRecvQEmpty)
		must(t, s.v.PostRecv(vi.NewRecv()))
		s.message(vitcpwire.Send, nil, nil, immediate(7))
		d, err := waitRecv(t, s.v)
		if err != nil || d.ImmediateData != 7 {
			t.Errorf("%v, %v", d.ImmediateData, err)
		}
	})
}

// The report of an error is sent before the end of the stream, whatever the send role is doing when
// the error is found. Here the send role repeatedly looks for a descriptor to send, as after every
// doorbell. [VIT-3.1-ACK-6] [V-18]
func TestVIT_3_1_ReportBeforeEnd(t *testing.T) {
	p := connectPair(t, Config{WrapConn: hideDescriptor}, reliableAll)
	r, _ := register(t, p.na, 10, vi.MemAttributes{})
	for range 50 {
		c := p.b.Link().(*link).c
		end := make(chan struct{})
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for {
					select {
					case <-end:
						return
					default:
						c.Kick()
						runtime.Gosched()
					}
				}
			})
		}
		must(t, p.a.PostSend(vi.NewRDMAWrite(vi.RemoteSegment{Address: 1, Handle: 1}, segment(r, 0, 10))))
		d, _ := waitSend(t, p.a)
		close(end)
		wg.Wait()
		if got := d.Status() & vi.StatusErrorMask; got != vi.StatusRDMAProtection {
			t.Fatalf("the write that was refused: %v", d.Status())
		}
		waitState(t, p.a, vi.Error)
		waitState(t, p.b, vi.Error)
		must(t, p.a.Disconnect())
		must(t, p.b.Disconnect())
		p.connect(t)
	}
}

// TestVIT_3_1_TransmitError checks the Transmit Error flag. [VIT-3.1-6] [VIT-2.2.2.2.5-5] [V-29]
// [V-30]
func TestVIT_3_1_TransmitError(t *testing.T) {
	void := func(h *vitcpwire.Header) { h.Flags |= vitcpwire.TransmitError }
	for _, level := range levels {
		t.Run("Send/"+level.String(), func(t *testing.T) {
			attrs := withLevel(reliableAll, level)
			attrs.FlowControl = false
			s := serveProbe(t, sessionOpts{attrs: attrs})
			r, _ := register(t, s.n, 10, vi.MemAttributes{})
			must(t, s.v.PostRecv(vi.NewRecv(segment(r, 0, 10))))
			if x := s.recv(); x.h.Type != vitcpwire.NOP || x.h.Posted != 1 { // [VIT-3.1-NOP-2]
				t.Errorf("%v", x.h)
			}
			s.message(vitcpwire.Send, nil, []byte("half"), void)
			d, _ := waitRecv(t, s.v)
			if d.Status()&vi.StatusErrorMask != vi.StatusPartialError || d.Length != 4 {
				t.Errorf("%v, %d bytes", d.Status(), d.Length)
			}
			voidEnd(t, s, level)
		})
		t.Run("Write/"+level.String(), func(t *testing.T) {
			s := serveProbe(t, sessionOpts{attrs: withLevel(reliableAll, level)})
			r, _ := register(t, s.n, 10, allRights)
			s.message(vitcpwire.Write, &vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: 10},
				[]byte("half"), void)
			if level == vi.UnreliableDelivery {
				s.n.expectAsync(t, vi.ErrorRDMAWAbort)
			} else {
				s.n.expectAsync(t, vi.ErrorRDMAWAbort, vi.ErrorConnLost)
			}
			voidEnd(t, s, level)
		})
	}
	t.Run("Response", func(t *testing.T) {
		s := serveProbe(t, sessionOpts{attrs: reliableAll})
		r, _ := register(t, s.n, 10, vi.MemAttributes{})
		must(t, s.v.PostSend(vi.NewRDMARead(vi.RemoteSegment{}, segment(r, 0, 10))))
		q := s.want(vitcpwire.ReadRequest)
		s.send(vitcpwire.Header{Type: vitcpwire.ReadResponse, Flags: vitcpwire.EndOfMessage | vitcpwire.TransmitError, Number: q.h.Number}, &q.rdma, nil)
		if d, _ := waitSend(t, s.v); d.Status()&vi.StatusErrorMask != vi.StatusRDMAProtection {
			t.Errorf("%v", d.Status())
		}
		s.wantEnd(io.EOF)
	})
	t.Run("sender", func(t *testing.T) {
		// If memory is deregistered in the middle of a message, the message ends as void. [V-30]
		// [VIT-2.2.2.2.5-5]
		s := serveProbe(t, sessionOpts{cfg: drainLong, attrs: reliableAll, posted: 3, ce: func(ce *vitcpwire.CE) { ce.MTU = 1 << 30 }})
		r, _ := register(t, s.n, 64<<20, vi.MemAttributes{})
		must(t, s.v.PostSend(vi.NewSend(segment(r, 0, 64<<20))))
		s.want(vitcpwire.Send)
		must(t, s.n.DeregisterMem(r))
		segs := s.wantEnd(io.EOF)
		last := segs[len(segs)-1]
		if last.h.Type == vitcpwire.NOP {
			last = segs[len(segs)-2]
		}
		if last.h.Flags != vitcpwire.TransmitError|vitcpwire.EndOfMessage || last.h.Type != vitcpwire.Send {
			t.Errorf("ended with %v", last.h)
		}
		if d, _ := waitSend(t, s.v); d.Status()&vi.StatusProtectionError == 0 {
			t.Errorf("%v", d.Status())
		}
	})
}

// voidEnd checks the effect of a void message. At the reliable levels the message ends the
// connection, at Reliable Reception with a report. At Unreliable Delivery nothing happens.
func voidEnd(t *testing.T, s *session, level vi.Reliability) {
	t.Helper()
	if level == vi.UnreliableDelivery {
		s.silent()
		if s.v.State() != vi.Connected {
			t.Errorf("state %v", s.v.State())
		}
		return
	}
	told := false
	for _, x := range s.wantEnd(io.EOF) {
		told = told || x.h.Error.VI() == vitcpwire.DescriptorError && x.h.Ack == s.last
	}
	if told != (level == vi.ReliableReception) {
		t.Errorf("told: %v", told)
	}
}

// The agreed MTU is enforced on both sides. [V-14] [V-42]
func TestVIT_3_2_MTUEnforced(t *testing.T) {
	mtu := func(ce *vitcpwire.CE) { ce.MTU = 100 }
	for _, level := range levels { // messages as long as the MTU, in one segment and in two
		a := withLevel(reliableAll, level)
		a.FlowControl = false
		s := serveProbe(t, sessionOpts{attrs: a, ce: mtu})
		r, buf := register(t, s.n, 200, allRights)
		for _, cut := range []int{100, 60} {
			for _, typ := range []vitcpwire.Type{vitcpwire.Send, vitcpwire.Write} {
				var rdma *vitcpwire.RDMA
				at := 0
				if typ == vitcpwire.Write {
					at = 100
					rdma = &vitcpwire.RDMA{Address: r.Address() + 100, Handle: uint32(r.Handle()), Length: 100}
				} else {
					must(t, s.v.PostRecv(vi.NewRecv(segment(r, 0, 100))))
				}
				clear(buf)
				s.last++
				h := vitcpwire.Header{Type: typ, Number: s.last}
				payload := bytes.Repeat([]byte{9}, 100)
				if cut < 100 {
					s.send(h, rdma, payload[:cut])
					h.Offset, payload = uint32(cut), payload[cut:]
				}
				h.Flags = vitcpwire.EndOfMessage
				s.send(h, rdma, payload)
				s.taken()
				if bytes.Count(buf[at:at+100], []byte{9}) != 100 {
					t.Errorf("%v: %v of 100 bytes, first %d: %v", level, typ, cut, buf)
				}
				if typ == vitcpwire.Send {
					if d, err := waitRecv(t, s.v); err != nil || d.Length != 100 {
						t.Errorf("%v: %v, %d bytes", level, err, d.Length)
					}
				}
			}
		}
		s.n.noAsync(t)
	}
	s := serveProbe(t, sessionOpts{attrs: withLevel(reliableAll, vi.UnreliableDelivery), posted: 9, ce: mtu})
	r, _ := register(t, s.n, 1000, allRights)
	must(t, s.v.PostSend(vi.NewSend(segment(r, 0, 101))))
	if d, _ := waitSend(t, s.v); d.Status()&vi.StatusLengthError == 0 {
		t.Errorf("%v", d.Status())
	}
	must(t, s.v.PostSend(vi.NewSend(segment(r, 0, 100))))
	if x := s.want(vitcpwire.Send); len(x.payload) != 100 {
		t.Errorf("%v", x.h)
	}
	s = serveProbe(t, sessionOpts{attrs: reliableAll, ce: mtu})
	r, _ = register(t, s.n, 1000, allRights)
	must(t, s.v.PostRecv(vi.NewRecv(segment(r, 0, 1000))))
	s.recv()
	s.message(vitcpwire.Send, nil, make([]byte, 101))
	if d, _ := waitRecv(t, s.v); d.Status()&vi.StatusLengthError == 0 {
		t.Errorf("%v", d.Status())
	}
	s.wantEnd(io.EOF)
	for n, ok := range map[uint32]bool{100: true, 101: false} {
		s = serveProbe(t, sessionOpts{attrs: withLevel(reliableAll, vi.ReliableDelivery), ce: mtu})
		r, _ = register(t, s.n, 1000, allRights)
		s.message(vitcpwire.ReadRequest,
			&vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: n}, nil)
		x := s.want(vitcpwire.ReadResponse)
		if refused := x.h.Flags&vitcpwire.TransmitError != 0; refused == ok || ok != (len(x.payload) == int(n)) {
			t.Errorf("a read of %d bytes: %v", n, x.h)
		}
		if !ok {
			s.wantEnd(io.EOF)
		}
	}
	s = serveProbe(t, sessionOpts{attrs: reliableAll, ce: mtu})
	r, buf := register(t, s.n, 1000, allRights)
	s.message(vitcpwire.Write, &vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: 101},
		bytes.Repeat([]byte{1}, 101))
	s.wantEnd(io.EOF)
	if buf[0] != 0 {
		t.Error("memory was touched")
	}
}
