package fc

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"viaduct/internal/testkit"
)

// frameVector is a SEND_RQST of FC-VI from header to CRC. An independent implementation computed
// the CRC, and tshark decodes the frame.
const frameVector = `04 010201 00 010101  58 29000a  05 01 0000  0005 ffff  00000000
	00012001 0107 0000 00000010 cafef00d  68656c6c6f21 0000  916bba23`

// TestFCFS_2_1 checks the offsets of header fields, optional headers, fill bytes, and the CRC,
// whose least significant byte comes first. [FCFS-2.1-1] [FCFS-2.1-4]
func TestFCFS_2_1(t *testing.T) {
	wire := testkit.Hex(frameVector)
	want := Frame{
		Header: Header{RCtl: RCtlUnsolData, DID: 0x010201, SID: 0x010101, Type: TypeFCVI,
			FCtl: FCtlFirstSeq | FCtlEndSeq | FCtlSeqInit | FCtlRelOffset | 2, SeqID: 5,
			DFCtl: DFCtlDev16, OXID: 5, RXID: Unassigned},
		Opt: wire[24:40], Payload: []byte("hello!"),
	}
	got, err := ParseFrame(wire)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if b := got.Append(nil); !bytes.Equal(b, wire) {
		t.Errorf("appended %x, want %x", b, wire)
	}
	for n := range wire {
		if _, err := ParseFrame(wire[:n]); err == nil {
			t.Errorf("the first %d bytes parse", n)
		}
	}
	distinct := testkit.Hex("22 a1a2a3 b0 c1c2c3 58 d1d2d0 e1 00 f1f2 1112 1314 21222324")
	h := Header{RCtl: 0x22, DID: 0xa1a2a3, CSCtl: 0xb0, SID: 0xc1c2c3, Type: 0x58, FCtl: 0xd1d2d0,
		SeqID: 0xe1, SeqCnt: 0xf1f2, OXID: 0x1112, RXID: 0x1314, Param: 0x21222324}
	if b := h.Append(nil); !bytes.Equal(b, distinct) {
		t.Errorf("appended %x, want %x", b, distinct)
	}
	if got, _, err := ParseHeader(distinct); err != nil || got != h {
		t.Errorf("parsed %+v, %v", got, err)
	}
	t.Run("FCFS-2.1-6", func(t *testing.T) {
		for i := range len(wire) * 8 {
			bad := bytes.Clone(wire)
			bad[i/8] ^= 1 << (i % 8)
			if _, err := ParseFrame(bad); !errors.Is(err, ErrCRC) {
				t.Fatalf("bit %d flipped: %v", i, err)
			}
		}
	})
	t.Run("FCFS-2.1-5", func(t *testing.T) {
		for df, n := range map[uint8]int{0: 0, 1: 16, 2: 32, 3: 64, 0x10: 32, 0x20: 16, 0x31: 64} {
			f := Frame{Header: Header{DFCtl: df}, Opt: make([]byte, n), Payload: []byte("data")}
			g, err := ParseFrame(f.Append(nil))
			if err != nil || len(g.Opt) != n || string(g.Payload) != "data" {
				t.Errorf("DF_CTL %02x: %d optional bytes, %q, %v", df, len(g.Opt), g.Payload, err)
			}
		}
		short := Frame{Header: Header{DFCtl: 2}, Payload: make([]byte, 28)}
		if _, err := ParseFrame(short.Append(nil)); !errors.Is(err, ErrFormat) {
			t.Errorf("a Data_Field shorter than its headers: %v", err)
		}
	})
	t.Run("FCVI-5.8-10", func(t *testing.T) { // fill bytes make the length a multiple of a word
		for n, want := range []int{28, 32, 32, 32, 32, 36} {
			f := Frame{Payload: make([]byte, n)}
			if b := f.Append(nil); len(b) != want || int(b[11]&3) != want-28-n {
				t.Errorf("%d bytes: a frame of %d with F_CTL %02x", n, len(b), b[11])
			}
		}
	})
	t.Run("FCFS-2.1-7", func(t *testing.T) {
		torn := make([]byte, 30) // the length is not a multiple of a word, but the CRC is right
		Seal(torn)
		if _, err := ParseFrame(torn); !errors.Is(err, ErrFormat) {
			t.Errorf("%d bytes: %v", len(torn), err)
		}
		f := Frame{Payload: make([]byte, MaxData)}
		if _, err := ParseFrame(f.Append(nil)); err != nil {
			t.Error(err)
		}
		f.Payload = make([]byte, MaxData+4)
		if _, err := ParseFrame(f.Append(nil)); !errors.Is(err, ErrFormat) {
			t.Errorf("2116 bytes of data: %v", err)
		}
	})
}

// TestFCFS_2_2 checks the delimiters for each class and each place in the sequence. [FCFS-2.2-1]
// [FCFS-2.2-2]
func TestFCFS_2_2(t *testing.T) {
	for _, v := range []struct {
		c           Class
		first, last bool
		s           SOF
		e           EOF
	}{
		{Class3, true, true, 0x2E, 0x42}, {Class3, true, false, 0x2E, 0x41}, {Class3, false, false, 0x36, 0x41}, {Class3, false, true, 0x36, 0x42},
		{Class2, true, true, 0x2D, 0x41}, {Class2, false, true, 0x35, 0x41}, {ClassF, true, true, 0x28, 0x42},
	} {
		if s, e := v.c.Delimiters(v.first, v.last); s != v.s || e != v.e {
			t.Errorf("class %d first %v last %v: %v %v", v.c, v.first, v.last, s, e)
		}
	}
	for _, e := range []EOF{EOFn, EOFt, EOFni, EOFa, EOFdt, EOFdti, EOFrt, EOFrti} {
		if !e.Valid() || strings.HasPrefix(e.String(), "EOF(") {
			t.Errorf("%v", e)
		}
	}
	if SOF(0x77).Valid() || EOF(0).Valid() || SOF(0x77).String() != "SOF(0x77)" || RCtl(0x99).String() != "R_CTL(0x99)" { // [FCFS-2.1-2]
		t.Error("unknown codes")
	}
}

// TestFCFS_2_6 checks names and addresses. [FCFS-2.6-1]
func TestFCFS_2_6(t *testing.T) {
	const mac = 0x02AABBCCDDEE
	if n := NodeName(mac); n != 0x200002AABBCCDDEE || n>>60 != 2 {
		t.Errorf("node name %v", n)
	}
	if p := PortName(mac, 1); p != 0x210002AABBCCDDEE || p>>60 != 2 {
		t.Errorf("port name %v", p)
	}
	if PortName(mac, 17) == PortName(mac, 1) {
		t.Error("two ports with one name")
	}
	for _, s := range []string{"20:00:02:aa:bb:cc:dd:ee", "200002AABBCCDDEE", "0x200002aabbccddee"} {
		if w, err := ParseWWN(s); err != nil || w != NodeName(mac) {
			t.Errorf("%s: %v, %v", s, w, err)
		}
	}
	for _, s := range []string{"", "20", "20:00:02:aa:bb:cc:dd:eg", "1.2.3.4"} {
		if _, err := ParseWWN(s); err == nil {
			t.Errorf("%q parses", s)
		}
	}
	if !AddrFPort.WellKnown() || Addr(0x010200).WellKnown() || DomainAddr(1, 2, 3) != 0x010203 {
		t.Error("addresses")
	}
}

// TestFCFS_2_7 checks the payloads of link services. [FCFS-2.7-1] [FCFS-2.7-5]
func TestFCFS_2_7(t *testing.T) {
	l := Login{Cmd: ELSPLOGI, VersionHigh: 0x20, VersionLow: 0x20, BBCredit: 16, Features: 0x8002,
		RxSize: 2112, Word3: 0x00FF00FF, EDTOV: 2000,
		PortName: 0x2100020000000001, NodeName: 0x2000020000000001}
	l.Class[2] = ClassParams{Options: ClassValid, RxSize: 2112, Concurrent: 255, OpenSeqs: 1}
	b := l.Append(nil)
	head := testkit.Hex("03000000 2020 0010 8002 0840 00ff00ff 000007d0 2100020000000001 2000020000000001")
	if len(b) != LoginLen || !bytes.Equal(b[:36], head) || b[68] != 0x80 {
		t.Errorf("PLOGI %x", b)
	}
	got, n, err := ParseLogin(b)
	if err != nil || n != LoginLen || got != l {
		t.Errorf("parsed %+v, %v", got, err)
	}
	for name, v := range map[string]struct {
		wire  string
		again func([]byte) ([]byte, error)
	}{
		"LOGO": {"05000000 00010203 2100020000000001", func(b []byte) ([]byte, error) { x, _, err := ParseLOGO(b); return x.Append(nil), err }},
		"ADISC": {"52000000 00000001 2100020000000001 2000020000000001 00010203", func(b []byte) ([]byte, error) {
			x, _, err := ParseADISC(b)
			return x.Append(nil), err
		}},
		"LS_RJT": {"01000000 00091e00", func(b []byte) ([]byte, error) { x, _, err := ParseLSRjt(b); return x.Append(nil), err }},
		"RTV":    {"02000000 00002710 000007d0 00000000", func(b []byte) ([]byte, error) { x, _, err := ParseRTVAcc(b); return x.Append(nil), err }},
		"RRQ":    {"12000000 00010203 0005 8001", func(b []byte) ([]byte, error) { x, _, err := ParseExchID(b); return x.Append(nil), err }},
		"SCR":    {"62000000 00000003", func(b []byte) ([]byte, error) { x, _, err := ParseSCR(b); return x.Append(nil), err }},
		"FAN":    {"60000000 00010200 2100020000000001 2000020000000001", func(b []byte) ([]byte, error) { x, _, err := ParseFAN(b); return x.Append(nil), err }},
		"BA_ACC": {"80050000 0005 8001 0000 ffff", func(b []byte) ([]byte, error) { x, _, err := ParseBAAcc(b); return x.Append(nil), err }}, // [FCFS-2.8-2]
		"BA_RJT": {"00030300", func(b []byte) ([]byte, error) { x, _, err := ParseBARjt(b); return x.Append(nil), err }},
		"CT":     {"01000000 fc020000 0121 0000 00000000", func(b []byte) ([]byte, error) { x, _, err := ParseCT(b); return x.Append(nil), err }}, // [FCFS-2.11-1]
		"RSCN": {"61040008 00010200", func(b []byte) ([]byte, error) {
			var p []RSCNPage
			err := ParseRSCN(b, func(x RSCNPage) { p = append(p, x) })
			return AppendRSCN(nil, p...), err
		}},
	} {
		wire := testkit.Hex(v.wire)
		again, err := v.again(wire)
		if err != nil || !bytes.Equal(again, wire) {
			t.Errorf("%s: %x, %v; want %x", name, again, err, wire)
		}
		for n := range wire {
			if _, err := v.again(wire[:n]); err == nil {
				t.Errorf("%s: the first %d bytes parse", name, n)
			}
		}
	}
}

// TestFCVI_7_5 checks the FARP payload: the code byte comes first. [FCVI-7.5-1] [FCVI-7.5-2]
func TestFCVI_7_5(t *testing.T) {
	wire := testkit.Hex(`54000000 04 010101 03 000000  2100020000000001 2000020000000001 0000000000000000 0000000000000000
		000000000000000000000000c0000201  000000000000000000000000c0000202`)
	want := FARP{Cmd: ELSFARPReq, Match: FARPMatchIP, Flags: 3, ReqID: 0x010101,
		ReqPortName: 0x2100020000000001, ReqNode: 0x2000020000000001,
		ReqIP: FARPIP(netip.MustParseAddr("192.0.2.1")), RespIP: FARPIP(netip.MustParseAddr("192.0.2.2"))}
	got, n, err := ParseFARP(wire)
	if err != nil || n != FARPLen || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if b := got.Append(nil); !bytes.Equal(b, wire) {
		t.Errorf("appended %x", b)
	}
	if FARPIP(netip.MustParseAddr("::ffff:192.0.2.2")) != want.RespIP { // [FCVI-7.2-3]
		t.Error("a mapped address differs")
	}
	// The loop tries all eight match address code points. [FCVI-7.5-3] [FCVI-7.5-5]
	const pn, nn = 0x21, 0x20
	ip := want.RespIP
	for m := range uint8(16) {
		for miss := range uint8(8) {
			q := FARP{Match: m, RespPortName: pn, RespNode: nn, RespIP: ip}
			if miss&1 != 0 {
				q.RespPortName++
			}
			if miss&2 != 0 {
				q.RespNode++
			}
			if miss&4 != 0 {
				q.RespIP[15]++
			}
			_, ok := q.matches(pn, nn, [][16]byte{{1}, ip})
			if want := m != 0 && m < 8 && m&miss == 0; ok != want {
				t.Errorf("code point %d with %03b different: %v", m, miss, ok)
			}
		}
	}
}

// TestFCVI_7_6 checks the map of FC-4 types. [FCVI-7.6-1]
func TestFCVI_7_6(t *testing.T) {
	var m FC4Map
	m.Set(TypeFCVI)
	if m[8] != 1 || !m.Has(TypeFCVI) || m.Has(TypeFCP) {
		t.Errorf("map %x", m)
	}
	m = FC4Map{}
	m.Set(TypeFCP)
	if m[2] != 1 {
		t.Errorf("FCP in %x", m)
	}
	var ids []Addr
	if err := ParseIDList(testkit.Hex("00010100 80010200"), func(a Addr) { ids = append(ids, a) }); err != nil ||
		len(ids) != 2 || ids[1] != 0x010200 {
		t.Errorf("%v, %v", ids, err)
	}
	if err := ParseIDList(testkit.Hex("00010100"), func(Addr) {}); err != io.ErrUnexpectedEOF {
		t.Errorf("a list without an end: %v", err)
	}
}

func FuzzFrame(f *testing.F) {
	f.Add(testkit.Hex(frameVector))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := ParseFrame(b)
		if err != nil {
			// The fuzz target also corrects the CRC, so that the later checks are reached.
			if len(b) < HeaderLen {
				return
			}
			h, _, _ := ParseHeader(b)
			h.DFCtl &^= DFCtlESP
			data := b[HeaderLen:min(len(b), HeaderLen+MaxData)]
			o := min(OptionalLen(h.DFCtl), len(data))
			g = Frame{Header: h, Opt: data[:o], Payload: data[o:]}
			if o < OptionalLen(h.DFCtl) {
				return
			}
		}
		wire := g.Append(nil)
		again, err := ParseFrame(wire)
		if err != nil || !bytes.Equal(again.Payload, g.Payload) || !bytes.Equal(again.Opt, g.Opt) {
			t.Fatalf("%v: %v", g.String(), err)
		}
	})
}

func FuzzELS(f *testing.F) {
	f.Add((&Login{Cmd: ELSFLOGI}).Append(nil))
	f.Add((&FARP{Cmd: ELSFARPReq}).Append(nil))
	f.Add(AppendRSCN(nil, RSCNPage{0, 1}))
	f.Add(LOGO{}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if l, _, err := ParseLogin(b); err == nil {
			if again, _, _ := ParseLogin(l.Append(nil)); again != l {
				t.Fatal("login")
			}
		}
		if x, _, err := ParseFARP(b); err == nil {
			if again, _, _ := ParseFARP(x.Append(nil)); again != x && x.Cmd == ELSCmd(b[0]) {
				t.Fatal("FARP")
			}
		}
		ParseRSCN(b, func(RSCNPage) {})
		// A port must not panic on any request or reply.
		p := NewNPort(PortConfig{PortName: 1, NodeName: 2}, discard{})
		p.LinkUp(0, LinkInfo{Loop: true, ALPA: 1})
		for _, rctl := range []RCtl{RCtlELSReq, RCtlELSReply, RCtlABTS, RCtlBAAcc, RCtlACK1} {
			for _, did := range []Addr{1, AddrBroadcast, AddrFPort} {
				p.Receive(1, &Frame{SOF: SOFi3, EOF: EOFt, Payload: b,
					Header: Header{RCtl: rctl, DID: did, SID: 2, Type: TypeELS,
						FCtl: FCtlFirstSeq | FCtlEndSeq | FCtlSeqInit, OXID: ServiceOXID}})
			}
		}
		p.Tick(DefaultRATOV * 3)
	})
}

func FuzzCT(f *testing.F) {
	f.Add(AppendNS(nil, NSGIDPN, NSBody{}.Name(7)))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n, err := ParseCT(b)
		if err != nil {
			return
		}
		if again, _, _ := ParseCT(h.Append(nil)); again != h || n != CTLen {
			t.Fatal("CT header")
		}
		ParseIDList(b[n:], func(Addr) {})
	})
}

// TestPortDrops checks which frames a port drops, and the F_CTL bits. [FCFS-2.2-3] [FCFS-2.1-3]
func TestPortDrops(t *testing.T) {
	p := NewNPort(PortConfig{PortName: 1, NodeName: 2}, discard{})
	p.LinkUp(0, LinkInfo{Loop: true, ALPA: 1})
	for _, e := range []EOF{EOFni, EOFa, EOFdti, EOFrti} {
		p.Receive(1, &Frame{SOF: SOFi3, EOF: e, Payload: AppendCmd(nil, ELSECHO),
			Header: Header{RCtl: RCtlELSReq, DID: 1, SID: 2, Type: TypeELS, FCtl: FCtlEndSeq}})
	}
	if s := p.Stats(); s.BadEOF != 4 || s.SentFrames != 0 {
		t.Errorf("%+v", s)
	}
	all := FCtl(0)
	for i, b := range []FCtl{FCtlExchResponder, FCtlSeqRecipient, FCtlFirstSeq, FCtlLastSeq, FCtlEndSeq} {
		if b != 1<<(23-i) {
			t.Errorf("bit %d is %06x", 23-i, uint32(b))
		}
		all |= b
	}
	for b, want := range map[FCtl]FCtl{FCtlPriority: 1 << 17, FCtlSeqInit: 1 << 16, FCtlACK1: 1 << 12, FCtlRetransmitted: 1 << 9, FCtlContinue: 3 << 6,
		FCtlAbort: 3 << 4, FCtlRelOffset: 1 << 3, FCtlFill: 3} {
		if b != want || all&b != 0 {
			t.Errorf("%06x, want %06x", uint32(b), uint32(want))
		}
		all |= b
	}
}

type discard struct{}

func (discard) Send(*Frame) {}

// TestTimers: timers expire in the order of their times. Timers of equal times expire in the order
// they were set.
func TestTimers(t *testing.T) {
	var ts Timers
	var got []int
	at := []Time{5, 3, 9, 3, 7, 1, 5}
	var all []*Timer
	for i, a := range at {
		all = append(all, ts.After(a, func(Time) { got = append(got, i) }))
	}
	all[4].Stop()
	all[2].Set(2)
	if ts.Deadline() != 1 {
		t.Errorf("deadline %v", ts.Deadline())
	}
	ts.Run(4)
	ts.Run(100)
	if d := cmp.Diff([]int{5, 2, 1, 3, 0, 6}, got); d != "" {
		t.Error(d)
	}
	if ts.Deadline() != Never {
		t.Error("something is left")
	}
}

// TestDelimiters: the first frame of a sequence has SOFi, the others SOFn. EOFt ends the sequence;
// in class 2 the ACK carries EOFt. Class F has only one SOF. [FCFS-2.2-2] [FCVI-5.7-7]
func TestDelimiters(t *testing.T) {
	for _, c := range []struct {
		class       Class
		first, last bool
		sof         SOF
		eof         EOF
	}{
		{Class2, true, true, SOFi2, EOFn}, {Class2, true, false, SOFi2, EOFn}, {Class2, false, true, SOFn2, EOFn}, {Class2, false, false, SOFn2, EOFn},
		{Class3, true, true, SOFi3, EOFt}, {Class3, true, false, SOFi3, EOFn}, {Class3, false, true, SOFn3, EOFt}, {Class3, false, false, SOFn3, EOFn},
		{ClassF, true, true, SOFf, EOFt}, {ClassF, true, false, SOFf, EOFn}, {ClassF, false, true, SOFf, EOFt}, {ClassF, false, false, SOFf, EOFn},
	} {
		if sof, eof := c.class.Delimiters(c.first, c.last); sof != c.sof || eof != c.eof {
			t.Errorf("%+v: %v, %v", c, sof, eof)
		}
	}
}
