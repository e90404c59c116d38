package mpa

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"viaduct/internal/testkit"
)

func newInitiator(t *testing.T, cfg InitiatorConfig) *Initiator {
	t.Helper()
	in, err := NewInitiator(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func newResponder(t *testing.T, cfg ResponderConfig) *Responder {
	t.Helper()
	r, err := NewResponder(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// meet lets both sides start up. accept is the decision of the Responder. It returns the last
// action of the Initiator and the bytes of the Reply.
func meet(t *testing.T, in *Initiator, r *Responder, accept Decision) (Action, []byte) {
	t.Helper()
	req := in.Start()
	for i := range req { // in pieces
		if n, act := r.Receive(req[:i]); n != 0 || act != Wait {
			t.Fatalf("%d bytes of the Request: %d, %v", i, n, act)
		}
	}
	if n, act := r.Receive(req); n != len(req) || act != Ask {
		t.Fatalf("Request: %d, %v, %v", n, act, r.Err())
	}
	rep, err := r.Accept(accept)
	if err != nil {
		t.Fatal(err)
	}
	for i := range rep {
		if n, act := in.Receive(rep[:i]); n != 0 || act != Wait {
			t.Fatalf("%d bytes of the Reply: %d, %v", i, n, act)
		}
	}
	n, act := in.Receive(rep)
	if n != len(rep) {
		t.Fatalf("Reply: %d of %d, %v", n, len(rep), act)
	}
	return act, rep
}

// TestStartup walks both machines through the good case of each revision and
// model. [MPA-7.1.2-1] [MPA-7.1.2-14] [MPA-7.1-2] [MPA-7.1.2-10]
func TestStartup(t *testing.T) {
	for _, plain := range []bool{false, true} {
		for _, p2p := range []bool{false, true} {
			t.Run(fmt.Sprintf("plain=%t,p2p=%t", plain, p2p), func(t *testing.T) {
				in := newInitiator(t, InitiatorConfig{Plain: plain, CRC: true, PeerToPeer: p2p, RTR: RTRWrite | RTRRead,
					IRD: 3, ORD: 5, MaxIRD: 9, Private: []byte("from I")}) // [MPA-7.1.2-2]
				r := newResponder(t, ResponderConfig{CRC: true, IRD: 7, ORD: 2})
				act, _ := meet(t, in, r, Decision{Private: []byte("from R")}) // [MPA-7.1.2-9]
				if act != Operate || in.State() != Full || r.State() != AwaitFPDU {
					t.Fatalf("%v, %v, %v", act, in.State(), r.State())
				}
				a, b := in.Params(), r.Params()
				if string(a.Private) != "from R" || string(b.Private) != "from I" { // [MPA-7.1.1-21]
					t.Errorf("private data %q, %q", a.Private, b.Private)
				}
				wantRev := uint8(2)
				if plain {
					wantRev = 1
				}
				if a.Rev != wantRev || b.Rev != wantRev || !a.CRC || !b.CRC || a.PeerToPeer != (p2p && !plain) || b.PeerToPeer != a.PeerToPeer { // [MPA-7.1.1-18] [MPA-3-13]
					t.Errorf("%+v\n%+v", a, b)
				}
				if plain { // [I-19]
					if a.IRD != 3 || a.ORD != 1 || b.IRD != 7 || b.ORD != 1 || a.PeerIRD != 0 {
						t.Errorf("depths %+v\n%+v", a, b)
					}
				} else if a.IRD != 3 || a.ORD != 5 || b.IRD != 5 || b.ORD != 2 || a.PeerIRD != 5 || a.PeerORD != 2 || b.PeerIRD != 3 || b.PeerORD != 5 {
					t.Errorf("depths %+v\n%+v", a, b)
				}
				kind := RTR(0)
				if a.PeerToPeer {
					kind = RTRWrite
					if a.Ready != RTRWrite { // [MPA2-9.2-10] [I-06]
						t.Errorf("ready message %v", a.Ready)
					}
				}
				if r.FirstFPDU(kind) != a.PeerToPeer || r.State() != Full {
					t.Errorf("after the first FPDU: %v", r.State())
				}
			})
		}
	}
}

// TestInitiatorMatrix and TestResponderMatrix check every event in every state. An event without an
// arrow does not change the state, and the answer depends only on the state. [MPA-7.1.2-25]
// [MPA2-9.3-2]
func TestInitiatorMatrix(t *testing.T) {
	reply := Frame{Kind: Reply, Rev: 2, Enhanced: true}
	reject := reply
	reject.Reject = true
	lacking := reply
	lacking.Conn.ORD = 500
	events := []struct {
		name string
		do   func(*Initiator) Action
	}{
		{"reply", func(in *Initiator) Action { _, a := in.Receive(reply.Append(nil)); return a }},
		{"part of a reply", func(in *Initiator) Action { _, a := in.Receive(reply.Append(nil)[:7]); return a }},
		{"reject", func(in *Initiator) Action { _, a := in.Receive(reject.Append(nil)); return a }},
		{"malformed", func(in *Initiator) Action { _, a := in.Receive([]byte("HTTP/1.1 400")); return a }},
		{"request", func(in *Initiator) Action { _, a := in.Receive(Frame{Kind: Request, Rev: 2}.Append(nil)); return a }},
		{"ORD too high", func(in *Initiator) Action { _, a := in.Receive(lacking.Append(nil)); return a }},
		{"timeout", (*Initiator).Timeout},
		{"lost", func(in *Initiator) Action { return in.Lost(io.EOF) }},
		{"failure", func(in *Initiator) Action { return in.Fail(io.ErrShortBuffer) }},
	}
	states := []struct {
		name string
		make func() *Initiator
		want map[string]string // the event to "action -> state"; an event that is missing has the default
		def  string
	}{
		{"idle", func() *Initiator { return newInitiator(t, InitiatorConfig{}) }, nil, "wait -> idle"},
		{"await reply", func() *Initiator { in := newInitiator(t, InitiatorConfig{}); in.Start(); return in },
			map[string]string{
				"reply":           "operate -> full",
				"part of a reply": "wait -> await reply",
				"reject":          "leave -> ended",
				"malformed":       "close -> ended",
				"request":         "close -> ended",
				"ORD too high":    "terminate -> ended",
				"timeout":         "close -> ended",
				"lost":            "close -> ended",
				"failure":         "wait -> await reply",
			}, ""},
		{"full", func() *Initiator {
			in := newInitiator(t, InitiatorConfig{})
			in.Start()
			in.Receive(reply.Append(nil))
			return in
		}, map[string]string{"failure": "terminate -> ended"}, "operate -> full"},
		{"ended", func() *Initiator {
			in := newInitiator(t, InitiatorConfig{})
			in.Start()
			in.Timeout()
			return in
		}, nil, "close -> ended"},
	}
	for _, s := range states {
		for _, e := range events {
			in := s.make()
			if in.State().String() != s.name {
				t.Fatalf("state %v, want %s", in.State(), s.name)
			}
			act := e.do(in)
			got := fmt.Sprintf("%v -> %v", act, in.State())
			want, ok := s.want[e.name]
			if !ok {
				want = s.def
			}
			if got != want {
				t.Errorf("%s, %s: %s, want %s", s.name, e.name, got, want)
			}
			if (in.State() == Ended) != (in.Err() != nil) {
				t.Errorf("%s, %s: error %v", s.name, e.name, in.Err())
			}
		}
	}
}

func TestResponderMatrix(t *testing.T) {
	request := Frame{Kind: Request, Rev: 2, Enhanced: true}.Append(nil)
	events := []struct {
		name string
		do   func(*Responder) Action
	}{
		{"request", func(r *Responder) Action { _, a := r.Receive(request); return a }},
		{"part of a request", func(r *Responder) Action { _, a := r.Receive(request[:19]); return a }},
		{"malformed", func(r *Responder) Action { _, a := r.Receive([]byte("GET /")); return a }},
		{"reply", func(r *Responder) Action { _, a := r.Receive(Frame{Kind: Reply, Rev: 2}.Append(nil)); return a }},
		{"request and more", func(r *Responder) Action { _, a := r.Receive(append(bytes.Clone(request), 0)); return a }},
		{"timeout", (*Responder).Timeout},
		{"lost", func(r *Responder) Action { return r.Lost(io.EOF) }},
	}
	ask := func() *Responder { r := newResponder(t, ResponderConfig{}); r.Receive(request); return r }
	accept := func() *Responder { r := ask(); _, _ = r.Accept(Decision{}); return r }
	states := []struct {
		name string
		make func() *Responder
		want map[string]string
		def  string
	}{
		{"await request", func() *Responder { return newResponder(t, ResponderConfig{}) }, map[string]string{
			"request":           "ask -> await ULP",
			"part of a request": "wait -> await request",
			"malformed":         "close -> ended",
			"reply":             "close -> ended",
			"request and more":  "close -> ended", // [MPA-7.1.2-24] [I-11]
			"timeout":           "close -> ended", // [MPA-7.1.2-21] [MPA-7.1.2-25]
			"lost":              "close -> ended",
		}, ""},
		{"await ULP", ask, map[string]string{"lost": "close -> ended"}, "wait -> await ULP"},
		{"await FPDU", accept, map[string]string{"lost": "close -> ended", "timeout": "close -> ended"}, "wait -> await FPDU"},
		{"full", func() *Responder { r := accept(); r.FirstFPDU(0); return r }, nil, "operate -> full"},
		{"ended", func() *Responder { r := ask(); r.Lost(io.EOF); return r }, nil, "close -> ended"},
	}
	for _, s := range states {
		for _, e := range events {
			r := s.make()
			if r.State().String() != s.name {
				t.Fatalf("state %v, want %s", r.State(), s.name)
			}
			act := e.do(r)
			got := fmt.Sprintf("%v -> %v", act, r.State())
			want, ok := s.want[e.name]
			if !ok {
				want = s.def
			}
			if got != want {
				t.Errorf("%s, %s: %s, want %s", s.name, e.name, got, want)
			}
		}
	}
}

func TestMisuse(t *testing.T) {
	for name, f := range map[string]func(){
		"start twice":    func() { in := newInitiator(t, InitiatorConfig{}); in.Start(); in.Start() },
		"accept early":   func() { _, _ = newResponder(t, ResponderConfig{}).Accept(Decision{}) },
		"reject early":   func() { _, _ = newResponder(t, ResponderConfig{}).Reject(nil) },
		"FPDU too early": func() { newResponder(t, ResponderConfig{}).FirstFPDU(0) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
	if _, err := NewInitiator(InitiatorConfig{PeerToPeer: true}); err == nil {
		t.Error("peer-to-peer without a kind")
	}
	if _, err := NewInitiator(InitiatorConfig{ORD: DepthULP}); err == nil {
		t.Error("ORD 0x3fff as a number")
	}
	if _, err := NewResponder(ResponderConfig{IRD: 20000}); err == nil {
		t.Error("IRD 20000")
	}
}

// TestFlags: M applies to one direction and C to both. [MPA-7.1.1-5] [MPA-7.1.1-6] [MPA-7.1.1-7]
// [MPA-7.1.1-8] [MPA-7.1.1-9] [MPA-4.4-7]
func TestFlags(t *testing.T) {
	for i := range 16 {
		bit := func(k int) bool { return i>>k&1 == 1 }
		in := newInitiator(t, InitiatorConfig{Markers: bit(0), CRC: bit(1)})
		r := newResponder(t, ResponderConfig{Markers: bit(2), CRC: bit(3)})
		meet(t, in, r, Decision{})
		a, b := in.Params(), r.Params()
		if a.SendMarkers != bit(2) || a.RecvMarkers != bit(0) || b.SendMarkers != bit(0) || b.RecvMarkers != bit(2) {
			t.Errorf("case %d: markers %+v %+v", i, a, b)
		}
		if crc := bit(1) || bit(3); a.CRC != crc || b.CRC != crc {
			t.Errorf("case %d: CRC %t %t", i, a.CRC, b.CRC)
		}
	}
}

func TestMPA2_9_1(t *testing.T) {
	answer := func(ird, ord uint16, cfg ResponderConfig) (Frame, Params) {
		r := newResponder(t, cfg)
		r.Receive(Frame{Kind: Request, Rev: 2, Enhanced: true, Conn: Enhanced{IRD: ird, ORD: ord}}.Append(nil))
		b, err := r.Accept(Decision{})
		if err != nil {
			t.Fatal(err)
		}
		f, _, _ := ParseFrame(b)
		return f, r.Params()
	}
	t.Run("MPA2-9.1-5", func(t *testing.T) { // [MPA2-9.1-7] [MPA2-9.1-3]
		for _, c := range []struct{ ird, want uint16 }{{0, 0}, {1, 1}, {3, 3}, {16382, 16}} {
			f, p := answer(c.ird, 1, ResponderConfig{ORD: 16})
			if f.Conn.ORD != c.want || p.ORD != c.want {
				t.Errorf("IRD %d: ORD %d on the wire, %d in use", c.ird, f.Conn.ORD, p.ORD)
			}
		}
	})
	t.Run("MPA2-9.1-2", func(t *testing.T) {
		for _, c := range []struct{ ord, want uint16 }{{0, 0}, {1, 1}, {40, 40}, {16382, 128}} {
			f, p := answer(1, c.ord, ResponderConfig{IRD: 16})
			if f.Conn.IRD != c.want || p.IRD != c.want {
				t.Errorf("ORD %d: IRD %d on the wire, %d in use", c.ord, f.Conn.IRD, p.IRD)
			}
		}
	})
	t.Run("MPA2-9.1-15", func(t *testing.T) { // [MPA2-9.1-17]
		f, p := answer(DepthULP, DepthULP, ResponderConfig{IRD: 5, ORD: 6})
		if f.Conn.IRD != DepthULP || f.Conn.ORD != DepthULP || p.IRD != 5 || p.ORD != 6 {
			t.Errorf("%+v, %+v", f.Conn, p)
		}
	})
	t.Run("MPA2-9.1-6", func(t *testing.T) { // a Read RTR needs an IRD
		r := newResponder(t, ResponderConfig{})
		r.Receive(Frame{Kind: Request, Rev: 2, Enhanced: true, Conn: Enhanced{PeerToPeer: true, RTR: RTRRead}}.Append(nil))
		b, _ := r.Accept(Decision{})
		if f, _, _ := ParseFrame(b); f.Conn.IRD != 1 || f.Conn.RTR != RTRRead {
			t.Errorf("%+v", f.Conn)
		}
	})
	t.Run("MPA2-9.1-8", func(t *testing.T) {
		r := newResponder(t, ResponderConfig{ORD: 4, MinORD: 4})
		r.Receive(Frame{Kind: Request, Rev: 2, Enhanced: true, Conn: Enhanced{IRD: 3}}.Append(nil))
		b, err := r.Accept(Decision{})
		f, _, _ := ParseFrame(b)
		if e, ok := errors.AsType[*Error](err); !ok || e.Code != CodeInsufficientIRD || !f.Reject ||
			f.Conn.ORD != 4 || r.State() != Ended {
			t.Errorf("%+v, %v", f, err)
		}
	})
	t.Run("lower", func(t *testing.T) {
		r := newResponder(t, ResponderConfig{ORD: 9})
		r.Receive(Frame{Kind: Request, Rev: 2, Enhanced: true, Conn: Enhanced{IRD: 9, ORD: 9}}.Append(nil))
		_, _ = r.Accept(Decision{LowerIRD: 2, LowerORD: 3})
		if p := r.Params(); p.IRD != 2 || p.ORD != 3 {
			t.Errorf("%+v", p)
		}
	})

	reply := func(c Enhanced, cfg InitiatorConfig) (*Initiator, Action) {
		in := newInitiator(t, cfg)
		in.Start()
		_, act := in.Receive(Frame{Kind: Reply, Rev: 2, Enhanced: true, Conn: c}.Append(nil))
		return in, act
	}
	cfg := InitiatorConfig{IRD: 4, ORD: 6, MaxIRD: 20}
	for _, c := range []struct {
		id       string
		ird, ord uint16 // IRD and ORD of the Reply
		wantIRD  uint16
		wantORD  uint16
		act      Action
	}{
		{"MPA2-9.1-11", 2, 0, 4, 2, Operate},
		{"MPA2-9.1-10", 6, 15, 15, 6, Operate},
		{"MPA2-9.1-12", 6, 21, 0, 0, Terminate}, // [MPA2-9.1-13] [MPA2-9.1-9]
		{"MPA2-9.1-16", DepthULP, 0, 4, 6, Operate},
		{"MPA2-9.1-18", 6, DepthULP, 4, 6, Operate},
		{"MPA2-9.1-1", 6, 4, 4, 6, Operate},
	} {
		t.Run(c.id, func(t *testing.T) {
			in, act := reply(Enhanced{IRD: c.ird, ORD: c.ord}, cfg)
			if act != c.act {
				t.Fatalf("%v, %v", act, in.Err())
			}
			p := in.Params()
			if p.PeerIRD != c.ird || p.PeerORD != c.ord { // [MPA2-9.1-4] [MPA2-9.1-14]
				t.Errorf("peer's depths %d, %d", p.PeerIRD, p.PeerORD)
			}
			if act == Terminate {
				if e, ok := errors.AsType[*Error](in.Err()); !ok || e.Code != CodeInsufficientIRD {
					t.Errorf("%v", in.Err())
				}
				return
			}
			if p.IRD != c.wantIRD || p.ORD != c.wantORD {
				t.Errorf("IRD %d, ORD %d", p.IRD, p.ORD)
			}
		})
	}
	t.Run("ULP settles", func(t *testing.T) {
		in := newInitiator(t, InitiatorConfig{IRD: 4, ORD: 6, ULPDepth: true})
		if c := in.Frame().Conn; c.IRD != DepthULP || c.ORD != DepthULP {
			t.Errorf("%+v", c)
		}
	})
}

func TestMPA2_9_2(t *testing.T) {
	all := []RTR{0, RTRSend, RTRWrite, RTRRead, RTRSend | RTRWrite, RTRSend | RTRRead,
		RTRWrite | RTRRead, RTRSend | RTRWrite | RTRRead}
	t.Run("MPA2-9.2-5", func(t *testing.T) { // [MPA2-9.2-3] [MPA2-9.2-4] [MPA2-9.2-6] [MPA2-9.2-7] [MPA2-9.2-8] [MPA2-9.2-9] [I-07]
		want := []RTR{RTRWrite | RTRRead, RTRSend, RTRWrite, RTRRead, RTRWrite, RTRRead,
			RTRWrite | RTRRead, RTRWrite | RTRRead}
		for i, offer := range all {
			r := newResponder(t, ResponderConfig{})
			r.Receive(Frame{Kind: Request, Rev: 2, Enhanced: true, Conn: Enhanced{PeerToPeer: true, RTR: offer, ORD: 1}}.Append(nil))
			b, _ := r.Accept(Decision{})
			f, _, _ := ParseFrame(b)
			if !f.Conn.PeerToPeer || f.Conn.RTR != want[i] {
				t.Errorf("offer %v: %+v, want %v", offer, f.Conn, want[i])
			}
			if !r.FirstFPDU(want[i]) {
				t.Errorf("offer %v: ready message not recognised", offer)
			}
		}
	})
	t.Run("forced", func(t *testing.T) {
		r := newResponder(t, ResponderConfig{ForceRTR: RTRRead})
		r.Receive(Frame{Kind: Request, Rev: 2, Enhanced: true, Conn: Enhanced{PeerToPeer: true, RTR: RTRWrite}}.Append(nil))
		if p := r.Params(); p.RTR != RTRRead || p.IRD != 1 {
			t.Errorf("%+v", p)
		}
	})
	t.Run("one kind understood", func(t *testing.T) {
		r := newResponder(t, ResponderConfig{RTR: RTRSend})
		r.Receive(Frame{Kind: Request, Rev: 2, Enhanced: true, Conn: Enhanced{PeerToPeer: true, RTR: RTRWrite}}.Append(nil))
		if p := r.Params(); p.RTR != RTRSend {
			t.Errorf("%+v", p)
		}
	})
	t.Run("MPA2-9.2-14", func(t *testing.T) { // if A is 0, the other bits have no meaning [MPA2-9.2-15] [MPA2-9.2-16]
		r := newResponder(t, ResponderConfig{})
		r.Receive(Frame{Kind: Request, Rev: 2, Enhanced: true, Conn: Enhanced{RTR: RTRWrite | RTRSend}}.Append(nil))
		b, _ := r.Accept(Decision{})
		if f, _, _ := ParseFrame(b); f.Conn.PeerToPeer || f.Conn.RTR != 0 {
			t.Errorf("%+v", f.Conn)
		}
		in := newInitiator(t, InitiatorConfig{RTR: RTRWrite}) // [MPA2-9.2-13]
		if c := in.Frame().Conn; c.PeerToPeer || c.RTR != 0 {
			t.Errorf("%+v", c)
		}
		in.Start()
		_, act := in.Receive(Frame{Kind: Reply, Rev: 2, Enhanced: true, Conn: Enhanced{PeerToPeer: true, RTR: RTRSend}}.Append(nil))
		if p := in.Params(); act != Operate || p.PeerToPeer || p.Ready != 0 {
			t.Errorf("%v, %+v", act, p)
		}
	})
	t.Run("MPA2-9.2-2", func(t *testing.T) { // [MPA2-9.2-1]
		for _, offer := range all[1:] {
			in := newInitiator(t, InitiatorConfig{PeerToPeer: true, RTR: offer})
			if c := in.Frame().Conn; !c.PeerToPeer || c.RTR != offer {
				t.Errorf("%+v", c)
			}
		}
	})
	t.Run("MPA2-9.2-10", func(t *testing.T) { // [MPA2-9.2-11] [MPA2-9.2-12] [MPA2-1.1-1] [MPA2-9.3-1]
		const wr = RTRWrite | RTRRead
		for _, c := range []struct {
			offer, answer RTR
			a             bool
			ird           uint16
			ready         RTR
		}{
			{wr, RTRWrite, true, 1, RTRWrite},
			{wr, RTRRead, true, 1, RTRRead},
			{wr, wr, true, 1, RTRWrite},
			{wr, RTRRead | RTRSend, true, 1, RTRRead},
			{wr, RTRRead, true, 0, 0}, // there is no depth for a Read
			{wr, RTRSend, true, 1, 0}, // not offered
			{wr, 0, true, 1, 0},
			{wr, RTRWrite, false, 1, 0}, // A=0 disables the other bits
			{wr | RTRSend, RTRSend, true, 1, RTRSend},
			{RTRRead, wr, true, 1, RTRRead},
		} {
			in := newInitiator(t, InitiatorConfig{PeerToPeer: true, RTR: c.offer, ORD: 4})
			in.Start()
			_, act := in.Receive(Frame{Kind: Reply, Rev: 2, Enhanced: true,
				Conn: Enhanced{PeerToPeer: c.a, RTR: c.answer, IRD: c.ird}}.Append(nil))
			if c.ready != 0 {
				if act != Operate || in.Params().Ready != c.ready {
					t.Errorf("%+v: %v, %v", c, act, in.Params().Ready)
				}
				continue
			}
			if e, ok := errors.AsType[*Error](in.Err()); act != Terminate || !ok || e.Code != CodeNoRTR {
				t.Errorf("%+v: %v, %v", c, act, in.Err())
			}
		}
	})
	t.Run("I-21", func(t *testing.T) { // any valid first FPDU permits sending, but only the agreed kind is hidden from the ULP
		for _, is := range all[:4] {
			r := newResponder(t, ResponderConfig{})
			r.Receive(Frame{Kind: Request, Rev: 2, Enhanced: true, Conn: Enhanced{PeerToPeer: true, RTR: RTRWrite}}.Append(nil))
			_, _ = r.Accept(Decision{})
			if got := r.FirstFPDU(is); got != (is == RTRWrite) || r.State() != Full {
				t.Errorf("%v: %t", is, got)
			}
		}
	})
}

func TestMPA2_10(t *testing.T) {
	for _, c := range []struct {
		id    string
		rev   uint8
		s     bool
		flags byte
	}{
		{"MPA2-10-1", 2, true, 0x10}, // [MPA2-10-5]
		{"MPA2-10-2", 1, false, 0},   // [MPA2-10-4] [MPA2-6-7]
		{"MPA2-10-6", 2, false, 0},
	} {
		t.Run(c.id, func(t *testing.T) {
			for _, reject := range []bool{false, true} { // [I-16]
				r := newResponder(t, ResponderConfig{})
				req := Frame{Kind: Request, Rev: c.rev, Enhanced: c.s, Reject: true}.Append(nil)
				req[16] |= 0x0f // the Reply repeats neither R nor reserved bits [MPA-7.1.1-11] [MPA-7.1.1-13]
				if c.rev == 1 {
					req[16] |= 0x10 // [I-03]
				}
				if _, act := r.Receive(req); act != Ask {
					t.Fatal(act, r.Err())
				}
				var out []byte
				var err error
				if reject {
					out, err = r.Reject([]byte("no")) // [MPA-7.1.2-5] [MPA-7.1.2-6] [MPA-7.1.2-18]
				} else {
					out, err = r.Accept(Decision{}) // [MPA-7.1.2-8]
				}
				if err != nil {
					t.Fatal(err)
				}
				want := c.flags
				if reject {
					want |= 0x20 // [MPA-7.1.1-12]
				}
				if out[16] != want || out[17] != c.rev { // [I-04]
					t.Errorf("reject %t: flags %02x, rev %d", reject, out[16], out[17])
				}
			}
		})
	}
	t.Run("MPA2-10-3", func(t *testing.T) { // [MPA2-6-6] [MPA-7.1.1-15]
		in := newInitiator(t, InitiatorConfig{Plain: true, PeerToPeer: true, RTR: RTRWrite, IRD: 1, ORD: 1})
		if b := in.Start(); len(b) != 20 || b[16] != 0 || b[17] != 1 {
			t.Errorf("%x", b)
		}
	})
	t.Run("MPA2-10-7", func(t *testing.T) {
		r := newResponder(t, ResponderConfig{PlainOnly: true})
		if _, act := r.Receive(Frame{Kind: Request, Rev: 2, Enhanced: true}.Append(nil)); act != Close ||
			!errors.Is(r.Err(), ErrRevision) {
			t.Errorf("%v, %v", act, r.Err())
		}
	})
	t.Run("MPA2-10-8", func(t *testing.T) { // [I-02]
		in := newInitiator(t, InitiatorConfig{})
		in.Start()
		in.Lost(io.EOF)
		if !in.MayRetryPlain() {
			t.Error("closed in silence: no second attempt")
		}
		in = newInitiator(t, InitiatorConfig{})
		in.Start()
		in.Receive([]byte("M"))
		in.Lost(io.EOF)
		if in.MayRetryPlain() {
			t.Error("second attempt although the peer spoke")
		}
		in = newInitiator(t, InitiatorConfig{Plain: true})
		in.Start()
		in.Lost(io.EOF)
		if in.MayRetryPlain() {
			t.Error("second attempt in revision 1")
		}
		in = newInitiator(t, InitiatorConfig{})
		in.Start()
		in.Timeout()
		if in.MayRetryPlain() {
			t.Error("second attempt after a timeout")
		}
	})
}

func TestMPA_7_1_2(t *testing.T) {
	t.Run("MPA-7.1.2-13", func(t *testing.T) { // this also applies to the form of an older peer [I-04]
		for _, f := range []Frame{
			{Kind: Reply, Rev: 2, Enhanced: true, Reject: true, Conn: Enhanced{IRD: 1, ORD: 9}, Private: []byte("why")},
			{Kind: Reply, Rev: 2, Reject: true, Private: []byte("why")},
			{Kind: Reply, Rev: 1, Reject: true, Private: []byte("why")},
		} {
			in := newInitiator(t, InitiatorConfig{})
			in.Start()
			b := f.Append(nil)
			n, act := in.Receive(append(b, "plain text"...))
			if act != Leave || n != len(b) || !errors.Is(in.Err(), ErrRejected) ||
				string(in.Params().Private) != "why" {
				t.Errorf("%+v: %d, %v, %v", f, n, act, in.Err())
			}
		}
	})
	t.Run("MPA-7.1.2-12", func(t *testing.T) { // [I-04]
		for _, f := range []Frame{
			{Kind: Reply, Rev: 1},
			{Kind: Reply, Rev: 2},
			{Kind: Request, Rev: 2, Enhanced: true},
		} {
			in := newInitiator(t, InitiatorConfig{})
			in.Start()
			if _, act := in.Receive(f.Append(nil)); act != Close {
				t.Errorf("%+v: %v", f, act)
			} else if e, ok := errors.AsType[*Error](in.Err()); !ok || e.Code != CodeFrame {
				t.Errorf("%+v: %v", f, in.Err())
			}
		}
		in := newInitiator(t, InitiatorConfig{Plain: true})
		in.Start()
		if _, act := in.Receive(Frame{Kind: Reply, Rev: 2}.Append(nil)); act != Close {
			t.Errorf("%v", act)
		}
	})
	t.Run("MPA-7.1.2-20", func(t *testing.T) {
		req := Frame{Kind: Request, Rev: 2, Enhanced: true}.Append(nil)
		for i := 9; i <= len(req); i++ { // the error is detected from the ninth byte on
			in := newInitiator(t, InitiatorConfig{})
			in.Start()
			if _, act := in.Receive(req[:i]); act != Wait && !errors.Is(in.Err(), ErrTwoInitiators) ||
				act == Wait && i > 10 {
				t.Errorf("%d bytes: %v, %v", i, act, in.Err())
			}
		}
		r := newResponder(t, ResponderConfig{})
		r.Receive(Frame{Kind: Reply, Rev: 2}.Append(nil))
		if !errors.Is(r.Err(), ErrTwoResponders) {
			t.Error(r.Err())
		}
	})
	t.Run("MPA-7.1.2-24", func(t *testing.T) {
		r := newResponder(t, ResponderConfig{})
		r.Receive(append(Frame{Kind: Request, Rev: 1}.Append(nil), 1))
		if !errors.Is(r.Err(), ErrTrailing) {
			t.Error(r.Err())
		}
		in := newInitiator(t, InitiatorConfig{}) // after an accepting Reply these bytes are FPDUs [I-11]
		in.Start()
		if n, act := in.Receive(append(Frame{Kind: Reply, Rev: 2, Enhanced: true}.Append(nil), 1, 2, 3)); n != 24 ||
			act != Operate {
			t.Errorf("%d, %v", n, act)
		}
	})
	t.Run("MPA-7.1.2-15", func(t *testing.T) {
		r := newResponder(t, ResponderConfig{SendEarly: true}) // this is the exception that the ULP may request [I-77]
		r.Receive(Frame{Kind: Request, Rev: 1}.Append(nil))
		_, _ = r.Accept(Decision{})
		if r.State() != Full {
			t.Error(r.State())
		}
		r.FirstFPDU(0)
	})
	t.Run("I-12", func(t *testing.T) {
		for _, c := range []struct {
			n, limit int
			plain    bool
			ok       bool
		}{{252, 0, false, true}, {253, 0, false, false}, {256, 0, true, true}, {257, 0, true, false},
			{508, 512, false, true}, {509, 512, false, false}, {512, 9999, true, true}, {513, 9999, true, false}} {
			_, err := NewInitiator(InitiatorConfig{Plain: c.plain, Private: make([]byte, c.n), MaxPrivate: c.limit})
			if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrPrivateTooLong) {
				t.Errorf("%+v: %v", c, err)
			}
		}
		r := newResponder(t, ResponderConfig{})
		r.Receive(Frame{Kind: Request, Rev: 2, Enhanced: true}.Append(nil))
		if _, err := r.Accept(Decision{Private: make([]byte, 253)}); !errors.Is(err, ErrPrivateTooLong) ||
			r.State() != AwaitULP {
			t.Error(err, r.State())
		}
		if _, err := r.Reject(make([]byte, 253)); !errors.Is(err, ErrPrivateTooLong) || r.State() != AwaitULP {
			t.Error(err, r.State())
		}
	})
	t.Run("MPA2-9.3-2", func(t *testing.T) {
		in := newInitiator(t, InitiatorConfig{})
		in.Start()
		in.Receive(Frame{Kind: Reply, Rev: 2, Enhanced: true}.Append(nil))
		if act := in.Fail(io.ErrShortBuffer); act != Terminate {
			t.Error(act)
		}
		if e, ok := errors.AsType[*Error](in.Err()); !ok || e.Code != CodeCatastrophic {
			t.Error(in.Err())
		}
	})
}

// FuzzStartup passes arbitrary bytes to both machines. No machine may panic, and every accepted
// frame must lead to bounded depths. [MPA2-12-1]
func FuzzStartup(f *testing.F) {
	for _, v := range frameVectors {
		f.Add(testkit.Hex(v.hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in, _ := NewInitiator(InitiatorConfig{CRC: true, PeerToPeer: true, RTR: RTRWrite | RTRRead,
			IRD: 16, ORD: 16, MaxIRD: 128})
		in.Start()
		if _, act := in.Receive(b); act == Operate {
			if p := in.Params(); p.IRD > 128 || p.ORD > 16 || p.ORD > p.PeerIRD || p.Ready&p.RTR == 0 {
				t.Fatalf("%+v", p)
			}
		}
		r, _ := NewResponder(ResponderConfig{CRC: true, IRD: 16, ORD: 16})
		if _, act := r.Receive(b); act == Ask {
			out, err := r.Accept(Decision{})
			if err != nil {
				t.Fatal(err)
			}
			if p := r.Params(); p.IRD > 128 || p.ORD > 16 {
				t.Fatalf("%+v", p)
			}
			if _, _, err := ParseFrame(out); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestReplyCRC checks that C of a Reply is set whenever CRCs are in use, even if only the Initiator
// requested them. An Initiator demanding CRCs would take 0 as a refusal. If neither side requests
// CRCs, C is 0. [I-05] [MPA-7.1.1-9]
func TestReplyCRC(t *testing.T) {
	for _, c := range []struct{ request, ours, want bool }{
		{true, false, true}, {true, true, true}, {false, true, true}, {false, false, false},
	} {
		for _, rev := range []uint8{1, 2} {
			r := newResponder(t, ResponderConfig{CRC: c.ours})
			r.Receive(Frame{Kind: Request, Rev: rev, CRC: c.request, Enhanced: rev == 2}.Append(nil))
			b, err := r.Accept(Decision{})
			if err != nil {
				t.Fatal(err)
			}
			if f, _, err := ParseFrame(b); err != nil || f.CRC != c.want || r.Params().CRC != c.want {
				t.Errorf("%+v, revision %d: C=%t in the Reply, CRCs %t, %v", c, rev, f.CRC, r.Params().CRC, err)
			}
		}
	}
}
