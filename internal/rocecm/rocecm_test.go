package rocecm

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"viaduct/internal/wire/ib"
)

var (
	addrA = netip.MustParseAddr("192.0.2.1")
	addrB = netip.MustParseAddr("192.0.2.2")
)

// A side is a Manager that records its events.
type side struct {
	*Manager
	told     []string
	conn     *Conn // connection of the last event
	noPlace  bool  // the requested service does not exist
	accepted bool  // accept requests and confirm replies at once
	now      *Time
}

func newSide(now *Time) *side {
	s := &side{now: now}
	s.Manager = New(s)
	return s
}

func (s *side) note(c *Conn, format string, args ...any) {
	s.conn = c
	s.told = append(s.told, fmt.Sprintf(format, args...))
}

func (s *side) Requested(c *Conn, from netip.Addr, m *ib.CM) bool {
	s.note(c, "%v %d %.3s", m.Kind, m.Req.QPN, m.Private)
	if s.accepted {
		s.accept(c)
	}
	return !s.noPlace
}

func (s *side) Serves(netip.Addr, *ib.CM) bool { return !s.noPlace }

// accept answers a request as a program does.
func (s *side) accept(c *Conn) bool {
	if c.kind == ib.CMSIDRReq {
		return s.Accept(*s.now, c, ib.CM{Kind: ib.CMSIDRRep, SIDR: ib.CMService{QPN: 22}})
	}
	return s.Accept(*s.now, c, ib.CM{Kind: ib.CMRep, Rep: ib.CMReply{QPN: 22}, Private: []byte("yes")})
}

func (s *side) Replied(c *Conn, m *ib.CM) {
	s.note(c, "%v %d %.3s", m.Kind, m.Rep.QPN+m.SIDR.QPN, m.Private)
	if s.accepted {
		s.Confirm(c)
	}
}
func (s *side) Established(c *Conn) { s.note(c, "established") }
func (s *side) Ended(c *Conn, why End, m *ib.CM) {
	if m != nil {
		s.note(c, "ended %d, reason %d %.3s", why, m.Reason, m.Private)
		return
	}
	s.note(c, "ended %d", why)
}

func (s *side) want(t *testing.T, told ...string) {
	t.Helper()
	if !slices.Equal(s.told, told) {
		t.Errorf("told %q, want %q", s.told, told)
	}
	s.told = nil
}

// carry delivers the messages of both sides to the other side, encoded and decoded, until neither
// sends more. It returns the kinds of the messages. It drops the messages for which lose returns
// true.
func carry(t *testing.T, now Time, a, b *side, lose func(*ib.CM) bool) string {
	t.Helper()
	var kinds []string
	for {
		ma, mb := a.Take(), b.Take()
		if len(ma)+len(mb) == 0 {
			return strings.Join(kinds, " ")
		}
		deliver := func(ms []Message, from netip.Addr, to *side) {
			for _, m := range ms {
				kinds = append(kinds, m.CM.Kind.String())
				if lose != nil && lose(&m.CM) {
					continue
				}
				got, err := ib.ParseCM(m.CM.Append(nil))
				if err != nil {
					t.Fatal(err)
				}
				to.Receive(now, m.To, from, &got)
			}
		}
		deliver(ma, addrA, b)
		deliver(mb, addrB, a)
	}
}

func connectReq() ib.CM {
	return ib.CM{Kind: ib.CMReq, Req: ib.CMRequest{QPN: 11, ServiceID: ib.IPServiceID(0x106, 7)},
		Private: []byte("req")}
}

func TestROCE_CM(t *testing.T) {
	var now Time
	begin := func() (a, b *side) { now = 0; return newSide(&now), newSide(&now) }
	tick := func(d time.Duration, s *side) { now += d; s.Tick(now) }
	wire := func(t *testing.T, a, b *side, want string, lose func(*ib.CM) bool) {
		t.Helper()
		if got := carry(t, now, a, b, lose); got != want {
			t.Errorf("on the wire %q, want %q", got, want)
		}
	}
	t.Run("ROCE-CM-2", func(t *testing.T) { // a connection from REQ to DREP
		a, b := begin()
		c := a.Connect(now, addrA, addrB, connectReq(), nil)
		wire(t, a, b, "REQ MRA", nil)
		b.want(t, "REQ 11 req")
		if !b.accept(b.conn) || b.accept(b.conn) {
			t.Error("accept")
		}
		wire(t, a, b, "REP", nil)
		a.want(t, "REP 22 yes")
		if !a.Confirm(c) || a.Confirm(c) {
			t.Error("confirm")
		}
		wire(t, a, b, "RTU", nil)
		b.want(t, "established")
		if _, ok := a.Deadline(); ok {
			t.Error("something goes again on an established connection")
		}
		b.Disconnect(now, b.conn)
		wire(t, a, b, "DREQ DREP", nil)
		a.want(t, "ended 2")
		b.want(t)
		if a.Len()+b.Len() != 0 {
			t.Errorf("%d and %d connections are left", a.Len(), b.Len())
		}
	})
	t.Run("ROCE-CM-6", func(t *testing.T) {
		a, b := begin()
		b.noPlace = true
		a.Connect(now, addrA, addrB, connectReq(), nil)
		wire(t, a, b, "REQ REJ", nil)
		a.want(t, "ended 0, reason 8 \x00\x00\x00")
		b.noPlace, b.told = false, nil
		a.Connect(now, addrA, addrB, connectReq(), nil)
		wire(t, a, b, "REQ MRA", nil)
		b.Reject(b.conn, ib.RejectConsumer, []byte("no."))
		wire(t, a, b, "REJ", nil)
		a.want(t, "ended 0, reason 28 no.")
		if a.Len()+b.Len() != 0 {
			t.Errorf("%d and %d connections are left", a.Len(), b.Len())
		}
	})
	t.Run("ROCE-CM-7", func(t *testing.T) { // the peer does not answer
		a, b := begin()
		a.Connect(now, addrA, addrB, connectReq(), nil)
		n := 0
		for at, ok := a.Deadline(); ok; at, ok = a.Deadline() {
			now = at
			n += strings.Count(carry(t, now, a, b, func(*ib.CM) bool { return true }), "REQ")
			a.Tick(now)
		}
		a.want(t, "ended 1")
		if n != 1+most || now < 40*time.Second || now > 70*time.Second {
			t.Errorf("%d messages in %v", n, now)
		}
	})
	t.Run("ROCE-CM-8", func(t *testing.T) { // each answer is lost once
		a, b := begin()
		a.accepted, b.accepted = true, true
		lost := map[ib.CMKind]int{}
		once := func(m *ib.CM) bool { lost[m.Kind]++; return lost[m.Kind] == 1 }
		a.Connect(now, addrA, addrB, connectReq(), nil)
		wire(t, a, b, "REQ", once)
		tick(firstGap, a)
		wire(t, a, b, "REQ REP", once)
		tick(2*firstGap, a)
		wire(t, a, b, "REQ REP RTU", once) // the REQ is repeated
		tick(firstGap, b)
		wire(t, a, b, "REP RTU", once) // the REP is repeated
		a.want(t, "REP 22 yes")
		b.want(t, "REQ 11 req", "established")
	})
	t.Run("ROCE-CM-9", func(t *testing.T) {
		a, b := begin()
		a.accepted, b.accepted = true, true
		c := a.Connect(now, addrA, addrB, connectReq(), nil)
		wire(t, a, b, "REQ REP RTU", nil)
		a.Disconnect(now, c)
		wire(t, a, b, "DREQ DREP", func(m *ib.CM) bool { return m.Kind == ib.CMDRep })
		tick(firstGap, a)
		wire(t, a, b, "DREQ DREP", nil) // for a connection that b no longer has
		b.want(t, "REQ 11 req", "established", "ended 2")
		if a.Len()+b.Len() != 0 {
			t.Errorf("%d and %d connections are left", a.Len(), b.Len())
		}
	})
	t.Run("ROCE-CM-10", func(t *testing.T) { // the program answers after half a minute
		a, b := begin()
		c := a.Connect(now, addrA, addrB, connectReq(), nil)
		wire(t, a, b, "REQ MRA", nil)
		tick(30*time.Second, a)
		wire(t, a, b, "", nil)
		b.accept(b.conn)
		wire(t, a, b, "REP", nil)
		a.Disconnect(now, c) // no RTU was received
		wire(t, a, b, "REJ", nil)
		b.want(t, "REQ 11 req", "ended 0, reason 28 \x00\x00\x00")
	})
	t.Run("ROCE-CM-11", func(t *testing.T) { // a datagram service
		a, b := begin()
		b.accepted = true
		req := ib.CM{Kind: ib.CMSIDRReq, SIDR: ib.CMService{ServiceID: 5, PKey: ib.DefaultPKey}}
		a.Connect(now, addrA, addrB, req, nil)
		wire(t, a, b, "SIDR_REQ SIDR_REP", func(m *ib.CM) bool { return m.Kind == ib.CMSIDRRep })
		tick(firstGap, a)
		wire(t, a, b, "SIDR_REQ SIDR_REP", nil)
		a.want(t, "SIDR_REP 22 \x00\x00\x00")
		b.want(t, "SIDR_REQ 0 \x00\x00\x00")
		b.noPlace, b.accepted = true, false
		a.Connect(now, addrA, addrB, req, nil)
		wire(t, a, b, "SIDR_REQ SIDR_REP", nil)
		a.want(t, "ended 0, reason 0 \x00\x00\x00")
		tick(time.Hour, b)
		if a.Len()+b.Len() != 0 {
			t.Errorf("%d and %d connections are left", a.Len(), b.Len())
		}
	})
	t.Run("gives up before the answer", func(t *testing.T) {
		a, b := begin()
		c := a.Connect(now, addrA, addrB, connectReq(), nil)
		wire(t, a, b, "REQ MRA", func(m *ib.CM) bool { return m.Kind == ib.CMMRA })
		a.Disconnect(now, c)
		wire(t, a, b, "REJ", nil)
		b.want(t, "REQ 11 req", "ended 0, reason 4 \x00\x00\x00")
	})
}

// If two sides connect and disconnect although 40 % of the messages are lost, the side that
// disconnects forgets the connection in the end.
func TestLoss(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		var now Time
		a, b := newSide(&now), newSide(&now)
		a.accepted, b.accepted = true, true
		lose := func(*ib.CM) bool { return r.IntN(100) < 40 }
		c := a.Connect(now, addrA, addrB, connectReq(), nil)
		run := func() {
			for {
				carry(t, now, a, b, lose)
				ta, oka := a.Deadline()
				tb, okb := b.Deadline()
				if !oka && !okb {
					return
				}
				if now = ta; !oka || okb && tb < ta {
					now = tb
				}
				a.Tick(now)
				b.Tick(now)
			}
		}
		run()
		if c.state != established || b.conn.state != established {
			continue // all 16 transmissions were lost
		}
		b.Disconnect(now, b.conn)
		run()
		if b.Len() != 0 {
			t.Errorf("seed %d: %d connections are left where it was ended", seed, b.Len())
		}
	}
}

// FuzzReceive gives a manager the messages of a stranger. The memory used must be bounded, and the
// answers must be well formed.
func FuzzReceive(f *testing.F) {
	f.Add(func() []byte { m := connectReq(); return m.Append(nil) }())
	f.Add((&ib.CM{Kind: ib.CMDReq, Local: 1, Remote: 2}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var now Time
		s := newSide(&now)
		s.Connect(now, addrB, addrA, connectReq(), nil)
		s.Take()
		for len(b) >= ib.MADLen {
			if m, err := ib.ParseCM(b); err == nil {
				s.Receive(now, addrB, addrA, &m)
			}
			b = b[ib.MADLen:]
			now += time.Second
			s.Tick(now)
			if out := s.Take(); len(out) > 4 {
				t.Fatalf("%d messages for one", len(out))
			}
		}
		if s.Len() > maxAsked+1 {
			t.Fatalf("%d connections", s.Len())
		}
	})
}

// A manager expects the messages of its connections, and requests for its services.
func TestExpects(t *testing.T) {
	var now Time
	for _, req := range []ib.CM{connectReq(), {Kind: ib.CMSIDRReq, Private: []byte("req")}} {
		a, b, other := newSide(&now), newSide(&now), newSide(&now)
		other.noPlace = true
		a.accepted, b.accepted = true, true
		a.Connect(now, addrA, addrB, req, nil)
		for n := 0; ; n++ {
			out, to, from := a.Take(), b, addrA
			if len(out) == 0 {
				out, to, from = b.Take(), a, addrB
			}
			if len(out) == 0 {
				if n < 2 {
					t.Errorf("%v: %d messages", req.Kind, n)
				}
				break
			}
			for i := range out {
				msg, err := ib.ParseCM(out[i].CM.Append(nil))
				if err != nil {
					t.Fatal(err)
				}
				if !to.Expects(from, &msg) || other.Expects(from, &msg) {
					t.Errorf("%v: expected %v, by the other %v", msg.Kind, to.Expects(from, &msg), other.Expects(from, &msg))
				}
				to.Receive(now, out[i].To, from, &msg)
			}
		}
		b.noPlace = true
		repeated := req
		repeated.Local = 77 // another request
		if b.Expects(addrA, &repeated) {
			t.Errorf("%v: a request for no service is expected", req.Kind)
		}
		for _, c := range []*Conn{a.conn, b.conn} {
			if c == nil {
				t.Fatal("no connection")
			}
		}
		for k, c := range b.asked { // a request that comes again
			if repeated.Local = k.remote; !b.Expects(c.peer, &repeated) {
				t.Errorf("%v: a repetition is not expected", req.Kind)
			}
		}
		reject := ib.CM{Kind: ib.CMRej, Local: repeated.Local} // without the number of the other side
		if got := b.Expects(addrA, &reject); got != (req.Kind == ib.CMReq) || other.Expects(addrA, &reject) {
			t.Errorf("%v: a REJ without number: %v", req.Kind, got)
		}
	}
}
