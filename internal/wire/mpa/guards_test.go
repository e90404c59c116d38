package mpa

import (
	"errors"
	"io"
	"testing"
)

// Foresee accepts the same lengths as Next. [I-25]
func TestForesee(t *testing.T) {
	for _, tc := range []struct{ max, field, want int }{{0, 1, 1}, {0, 65535, 65535}, {9, 9, 9}, {9, 10, 0}, {9, 0, 0}, {1, 2, 0}} {
		d := Decoder{Max: tc.max}
		if got := d.Foresee([]byte{byte(tc.field >> 8), byte(tc.field)}); got != tc.want {
			t.Errorf("Max %d, field %d: %d, want %d", tc.max, tc.field, got, tc.want)
		}
	}
	d := Decoder{Max: 4}
	if _, _, err := d.Need([]byte{0, 5}); err == nil {
		t.Fatal("a length above Max is taken")
	}
	if got := d.Foresee([]byte{0, 3}); got != 0 {
		t.Errorf("behind an error: %d, want 0", got)
	}
}

// Verify accepts an FPDU received in pieces exactly if Next accepts the whole FPDU. [MPA-4.4-14]
// [MPA-4.4-15]
func TestVerify(t *testing.T) {
	e := Encoder{CRC: true}
	b := e.Append(nil, []byte("seven b"))
	ulpdu := 7
	trailer := b[LengthLen+ulpdu:]
	d := Decoder{CRC: true}
	if err := d.Verify(CRC(0, b[:LengthLen+ulpdu]), ulpdu, trailer); err != nil {
		t.Errorf("a good FPDU: %v", err)
	}
	err := d.Verify(CRC(0, b[:LengthLen+ulpdu])^1, ulpdu, trailer)
	var e1 *Error
	var ce *CRCError
	if !errors.As(err, &e1) || e1.Code != CodeCRC || !errors.As(err, &ce) || ce.Field == ce.Computed {
		t.Errorf("a bad FPDU: %v", err)
	}
	if _, _, err := d.Next(b); err == nil {
		t.Error("the decoder goes on behind a bad FPDU")
	}
	off := Decoder{}
	if err := off.Verify(1, ulpdu, trailer); err != nil {
		t.Errorf("CRCs are off: %v", err)
	}
}

// An error of a marker, a CRC or a length ends the decoder. This holds with and without markers.
// [MPA-6-1] [MPA-6-3] [MPA-4.4-14]
func TestDecoderEnds(t *testing.T) {
	for _, markers := range []bool{false, true} {
		e := Encoder{CRC: true, Markers: markers}
		good := e.Append(nil, make([]byte, 700))
		for name, at := range map[string]int{"crc": len(good) - 1, "payload": 100} {
			bad := append([]byte(nil), good...)
			bad[at] ^= 0x40
			d := Decoder{CRC: true, Markers: markers}
			_, n, err := d.Next(bad)
			var ce *CRCError
			if n != 0 || !errors.As(err, &ce) {
				t.Fatalf("%s: %d, %v", name, n, err)
			}
			if (ce.ULPDU == nil) != markers {
				t.Errorf("%s, markers %t: ULPDU shown: %t", name, markers, ce.ULPDU != nil)
			}
			if _, _, again := d.Next(good); again != err {
				t.Errorf("%s: a good FPDU behind it: %v", name, again)
			}
		}
	}
	e := Encoder{Markers: true}
	good := e.Append(nil, make([]byte, 700))
	bad := append([]byte(nil), good...)
	bad[3] ^= 0x40 // changes the first marker
	d := Decoder{Markers: true}
	_, _, err := d.Next(bad)
	var me *Error
	if !errors.As(err, &me) || me.Code != CodeMarker {
		t.Fatalf("marker: %v", err)
	}
	if _, _, again := d.Next(good); again != err {
		t.Errorf("a good FPDU behind a bad marker: %v", again)
	}
	short := Decoder{Max: 10}
	if _, n, err := short.Next(append([]byte{0, 11}, make([]byte, 100)...)); n != 0 || err == nil {
		t.Errorf("length above Max: %d, %v", n, err)
	}
}

// A depth may have any value up to MaxDepth in every field. [MPA2-12-1]
func TestMPA2_12_Depths(t *testing.T) {
	for _, tc := range []struct {
		ird, ord, most uint16
		ok             bool
	}{
		{MaxDepth, MaxDepth, MaxDepth, true},
		{MaxDepth + 1, 1, 1, false},
		{1, MaxDepth + 1, 1, false},
		{1, 1, MaxDepth + 1, false},
	} {
		if _, err := NewInitiator(InitiatorConfig{IRD: tc.ird, ORD: tc.ord, MaxIRD: tc.most}); (err == nil) != tc.ok {
			t.Errorf("Initiator of %+v: %v", tc, err)
		}
		if _, err := NewResponder(ResponderConfig{IRD: tc.ird, ORD: tc.ord, MaxIRD: tc.most}); (err == nil) != tc.ok {
			t.Errorf("Responder of %+v: %v", tc, err)
		}
	}
}

// A Request instead of a Reply is detected before the Request is complete, and the stream is
// closed. None of the bytes count as used. [I-11] [MPA-7.1.2-20] [MPA-7.1.1-20]
func TestInitiatorRefusal(t *testing.T) {
	request := Frame{Kind: Request, Rev: 2, Enhanced: true}.Append(nil)
	for _, tc := range []struct {
		name string
		b    []byte
	}{
		{"the beginning of a Request", request[:12]},
		{"a Request without its private data", request[:FrameLen]},
		{"a Request", request},
		{"another key", []byte("HTTP/1.1 400 Bad Request")},
		{"another revision", Frame{Kind: Reply, Rev: 1}.Append(nil)},
	} {
		in := newInitiator(t, InitiatorConfig{})
		in.Start()
		n, act := in.Receive(tc.b)
		var e *Error
		if n != 0 || act != Close || !errors.As(in.Err(), &e) {
			t.Errorf("%s: %d, %v, %v", tc.name, n, act, in.Err())
		}
		if n, _ := in.Receive(tc.b); n != 0 {
			t.Errorf("%s: %d bytes used after the end", tc.name, n)
		}
		if in.MayRetryPlain() {
			t.Errorf("%s: another attempt would be made", tc.name)
		}
	}
}

// A retry in revision 1 is allowed only if the peer closed without sending a byte. [MPA2-10-8]
// [I-02]
func TestRetryPlain(t *testing.T) {
	reply := Frame{Kind: Reply, Rev: 2, Enhanced: true}.Append(nil)
	for _, tc := range []struct {
		name  string
		plain bool
		come  [][]byte
		end   func(*Initiator)
		want  bool
	}{
		{"closed", false, nil, func(in *Initiator) { in.Lost(io.EOF) }, true},
		{"closed after nothing was read", false, [][]byte{{}}, func(in *Initiator) { in.Lost(io.EOF) }, true},
		{"closed after a byte", false, [][]byte{reply[:1]}, func(in *Initiator) { in.Lost(io.EOF) }, false},
		{"closed after a byte and an empty read", false, [][]byte{reply[:1], {}}, func(in *Initiator) { in.Lost(io.EOF) }, false},
		{"no answer", false, nil, func(in *Initiator) { in.Timeout() }, false},
		{"revision 1 already", true, nil, func(in *Initiator) { in.Lost(io.EOF) }, false},
	} {
		in := newInitiator(t, InitiatorConfig{Plain: tc.plain})
		in.Start()
		for _, b := range tc.come {
			in.Receive(b)
		}
		tc.end(in)
		if got := in.MayRetryPlain(); got != tc.want {
			t.Errorf("%s: %t, want %t", tc.name, got, tc.want)
		}
	}
}

// A rejection with a higher revision than the Request is not a valid Reply. [I-04]
func TestRejectOfNewerRevision(t *testing.T) {
	in := newInitiator(t, InitiatorConfig{Plain: true})
	in.Start()
	if n, act := in.Receive(Frame{Kind: Reply, Rev: 2, Reject: true}.Append(nil)); n != 0 ||
		act != Close || errors.Is(in.Err(), ErrRejected) {
		t.Errorf("%d, %v, %v", n, act, in.Err())
	}
}

// DepthULP from the peer does not change our depths, on either side of the stream. [MPA2-9.1-16]
// [MPA2-9.1-17] [MPA2-9.1-18]
func TestDepthULP(t *testing.T) {
	for _, tc := range []struct {
		name             string
		cfg              InitiatorConfig
		ird, ord         uint16 // depths in the Reply
		wantIRD, wantORD uint16
		act              Action
	}{
		{"peer leaves IRD open", InitiatorConfig{IRD: 4, ORD: 8}, DepthULP, 2, 4, 8, Operate},
		{"we leave both open", InitiatorConfig{IRD: 4, ORD: 8, ULPDepth: true}, 3, DepthULP, 4, 8, Operate},
		{"peer wants what we have", InitiatorConfig{IRD: 4, ORD: 8, MaxIRD: 4}, 8, 4, 4, 8, Operate},
		{"peer wants the most", InitiatorConfig{IRD: 4, ORD: 8, MaxIRD: 9}, 8, 9, 9, 8, Operate},
		{"peer wants more", InitiatorConfig{IRD: 4, ORD: 8, MaxIRD: 9}, 8, 10, 4, 8, Terminate},
	} {
		in := newInitiator(t, tc.cfg)
		in.Start()
		_, act := in.Receive(Frame{Kind: Reply, Rev: 2, Enhanced: true, Conn: Enhanced{IRD: tc.ird, ORD: tc.ord}}.Append(nil))
		if p := in.Params(); act != tc.act || p.IRD != tc.wantIRD || p.ORD != tc.wantORD {
			t.Errorf("%s: %v, IRD %d, ORD %d; want %v, %d, %d", tc.name, act, p.IRD, p.ORD,
				tc.act, tc.wantIRD, tc.wantORD)
		}
	}
	r := newResponder(t, ResponderConfig{IRD: 3, ORD: 5, MaxIRD: 7})
	r.Receive(Frame{Kind: Request, Rev: 2, Enhanced: true, Conn: Enhanced{IRD: DepthULP, ORD: DepthULP}}.Append(nil))
	if p := r.Params(); p.IRD != 3 || p.ORD != 5 {
		t.Errorf("Responder: IRD %d, ORD %d, want 3, 5", p.IRD, p.ORD)
	}
}

// Any input except exactly one Request closes the stream, and none of the bytes count as used.
// [MPA-7.1.2-3] [MPA-7.1.2-24] [MPA-7.1.1-20] [MPA-7.1.1-2] [MPA2-10-7]
func TestResponderRefusal(t *testing.T) {
	request := Frame{Kind: Request, Rev: 2, Enhanced: true}.Append(nil)
	for _, tc := range []struct {
		name string
		cfg  ResponderConfig
		b    []byte
		act  Action
		is   error
	}{
		{"a Request", ResponderConfig{}, request, Ask, nil},
		{"the beginning of a Request", ResponderConfig{}, request[:19], Wait, nil},
		{"another key", ResponderConfig{}, []byte("GET / HTTP/1.1\r\n\r\n"), Close, ErrKey},
		{"revision 3", ResponderConfig{}, append(append([]byte(nil), request[:17]...), 3, 0, 0), Close, ErrRevision},
		{"a Reply", ResponderConfig{}, Frame{Kind: Reply, Rev: 1}.Append(nil), Close, ErrTwoResponders},
		{"revision 2, only 1 is enabled", ResponderConfig{PlainOnly: true}, request, Close, ErrRevision},
		{"a byte more", ResponderConfig{}, append(append([]byte(nil), request...), 0), Close, ErrTrailing},
	} {
		r := newResponder(t, tc.cfg)
		n, act := r.Receive(tc.b)
		used := 0
		if tc.act == Ask {
			used = len(tc.b)
		}
		if n != used || act != tc.act || !errors.Is(r.Err(), tc.is) {
			t.Errorf("%s: %d, %v, %v", tc.name, n, act, r.Err())
		}
		if n, _ := r.Receive(tc.b); n != 0 {
			t.Errorf("%s: %d bytes used later", tc.name, n)
		}
	}
}

// The private data of a Request is copied, because the input buffer is reused. [MPA-7.1.2-23]
func TestPrivateIsKept(t *testing.T) {
	b := Frame{Kind: Request, Rev: 1, Private: []byte("hello")}.Append(nil)
	r := newResponder(t, ResponderConfig{})
	r.Receive(b)
	clear(b)
	if got := string(r.Params().Private); got != "hello" {
		t.Errorf("Responder: %q", got)
	}
	in := newInitiator(t, InitiatorConfig{Plain: true})
	in.Start()
	b = Frame{Kind: Reply, Rev: 1, Private: []byte("hello")}.Append(nil)
	in.Receive(b)
	clear(b)
	if got := string(in.Params().Private); got != "hello" {
		t.Errorf("Initiator: %q", got)
	}
}

// A Read as RTR needs a depth of 1; other kinds need none. A message counts as RTR only if the kind
// was agreed and the model is peer-to-peer. [MPA2-9.1-6] [MPA2-9.2-14] [I-21]
func TestReadAsRTR(t *testing.T) {
	ask := func(cfg ResponderConfig, c Enhanced) *Responder {
		r := newResponder(t, cfg)
		if _, act := r.Receive(Frame{Kind: Request, Rev: 2, Enhanced: true, Conn: c}.Append(nil)); act != Ask {
			t.Fatalf("%+v: %v", c, act)
		}
		return r
	}
	for _, tc := range []struct {
		rtr  RTR
		want uint16
	}{{RTRRead, 1}, {RTRWrite, 0}, {RTRSend, 0}} {
		r := ask(ResponderConfig{NoReads: true}, Enhanced{PeerToPeer: true, RTR: tc.rtr, ORD: 0})
		if got := r.Params().IRD; got != tc.want {
			t.Errorf("RTR %v: IRD %d, want %d", tc.rtr, got, tc.want)
		}
	}
	if got := ask(ResponderConfig{MaxIRD: 9}, Enhanced{PeerToPeer: true, RTR: RTRRead, ORD: 5}).Params().IRD; got != 5 {
		t.Errorf("a Read as RTR and five more: IRD %d, want 5", got)
	}
	r := ask(ResponderConfig{}, Enhanced{PeerToPeer: true, RTR: RTRWrite})
	r.Accept(Decision{})
	if !r.FirstFPDU(RTRWrite) {
		t.Error("the agreed RTR is not known")
	}
	r = ask(ResponderConfig{}, Enhanced{RTR: RTRWrite}) // in the client-server model the bits have no meaning
	r.Accept(Decision{})
	if r.Params().RTR != 0 || r.FirstFPDU(RTRWrite) {
		t.Error("an RTR without the peer-to-peer model")
	}
}

// A peer with fewer Reads than needed is rejected, but only in revision 2 and only if the peer
// gives a number. The machine ends with an error containing the reason. [I-17] [MPA-7.1.2-7]
func TestMinORD(t *testing.T) {
	for _, tc := range []struct {
		name   string
		req    Frame
		min    uint16
		reject bool
	}{
		{"fewer", Frame{Kind: Request, Rev: 2, Enhanced: true, Conn: Enhanced{IRD: 2}}, 3, true},
		{"as many", Frame{Kind: Request, Rev: 2, Enhanced: true, Conn: Enhanced{IRD: 3}}, 3, false},
		{"the ULP negotiates", Frame{Kind: Request, Rev: 2, Enhanced: true, Conn: Enhanced{IRD: DepthULP}}, DepthULP + 1, false},
		{"revision 1", Frame{Kind: Request, Rev: 1}, 3, false},
	} {
		r := newResponder(t, ResponderConfig{MinORD: tc.min, ORD: 8})
		r.Receive(tc.req.Append(nil))
		b, err := r.Accept(Decision{})
		f, _, perr := ParseFrame(b)
		if perr != nil || f.Reject != tc.reject || (err != nil) != tc.reject {
			t.Errorf("%s: %+v, %v, %v", tc.name, f, err, perr)
		}
		if !tc.reject {
			continue
		}
		var e *Error
		if !errors.As(err, &e) || e.Code != CodeInsufficientIRD || r.Err() != err || r.State() != Ended {
			t.Errorf("%s: %v, the machine has %v in %v", tc.name, err, r.Err(), r.State())
		}
	}
}
