package sdpwire

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	"viaduct/internal/testkit"
)

// messageVectors were written by hand from Figures 2, 3 and 7 to 15, in both layouts. Spaces
// separate the fields.
var messageVectors = []struct {
	rows    string
	m       Message
	payload string
	figure  string
	ibta    string
}{
	{"SDP-6.2.3-1 SDP-6.1.1-2", Message{MID: DisConn, Bufs: 0x0102, Len: 16, MSeq: 0x03040506, MSeqAck: 0x0708090a}, "",
		"0102 00 02 00000010 03040506 0708090a", "02 00 0102 00000010 03040506 0708090a"},
	{"SDP-6.2.4-1", Message{MID: AbortConn, Bufs: 3, Len: 16, MSeq: 1, MSeqAck: 2}, "",
		"0003 00 03 00000010 00000001 00000002", "03 00 0003 00000010 00000001 00000002"},
	{"SDP-6.3.5-2", Message{MID: SendSm, Flags: OOBPend, Bufs: 3, Len: 16, MSeq: 1, MSeqAck: 2}, "",
		"0003 02 04 00000010 00000001 00000002", "04 02 0003 00000010 00000001 00000002"},
	{"SDP-6.3.6-1 SDP-6.3.6-2", Message{MID: RdmaWrCompl, Flags: ReqPipe, Bufs: 3, Len: 20, MSeq: 1, MSeqAck: 2, Size: 0x11223344}, "",
		"0003 04 05 00000014 00000001 00000002 11223344", "05 04 0003 00000014 00000001 00000002 11223344"},
	{"SDP-6.3.7-1 SDP-6.3.7-2", Message{MID: RdmaRdCompl, Bufs: 3, Len: 20, MSeq: 1, MSeqAck: 2, Size: 7}, "",
		"0003 00 06 00000014 00000001 00000002 00000007", "06 00 0003 00000014 00000001 00000002 00000007"},
	{"SDP-6.3.8-1 SDP-6.3.8-2 SDP-6.3.8.1-1 SDP-6.3.8.3-1", Message{MID: ModeChange, Bufs: 3, Len: 20, MSeq: 1, MSeqAck: 2, Mode: Combined, S: true}, "",
		"0003 00 07 00000014 00000001 00000002 00000003", "07 00 0003 00000014 00000001 00000002 90000000"},
	{"SDP-6.3.8.2-1", Message{MID: ModeChange, Bufs: 3, Len: 20, MSeq: 1, MSeqAck: 2, Mode: Pipelined}, "",
		"0003 00 07 00000014 00000001 00000002 00000004", "07 00 0003 00000014 00000001 00000002 20000000"},
	{"SDP-6.3.9-1", Message{MID: SrcAvailCancel, Bufs: 3, Len: 16, MSeq: 1, MSeqAck: 2}, "",
		"0003 00 08 00000010 00000001 00000002", "08 00 0003 00000010 00000001 00000002"},
	{"SDP-6.3.10-1", Message{MID: SinkAvailCancel, Bufs: 3, Len: 16, MSeq: 1, MSeqAck: 2}, "",
		"0003 00 09 00000010 00000001 00000002", "09 00 0003 00000010 00000001 00000002"},
	{"SDP-6.3.11-2", Message{MID: SinkCancelAck, Bufs: 3, Len: 16, MSeq: 1, MSeqAck: 2}, "",
		"0003 00 0a 00000010 00000001 00000002", "0a 00 0003 00000010 00000001 00000002"},
	{"SDP-6.4.1-1 SDP-6.4.1-2", Message{MID: ChRcvBuf, Bufs: 3, Len: 20, MSeq: 1, MSeqAck: 2, Size: 65536}, "",
		"0003 00 0b 00000014 00000001 00000002 00010000", "0b 00 0003 00000014 00000001 00000002 00010000"},
	{"SDP-6.4.2-1 SDP-6.4.2-2", Message{MID: ChRcvBufAck, Bufs: 3, Len: 20, MSeq: 1, MSeqAck: 2, Size: 65536}, "",
		"0003 00 0c 00000014 00000001 00000002 00010000", "0c 00 0003 00000014 00000001 00000002 00010000"},
	{"SDP-6.5.1-1 SDP-6.5.1-2 SDP-6.5.1.2-1 SDP-6.5.1.3-1", Message{MID: SuspComm, Bufs: 3, Len: 24, MSeq: 1, MSeqAck: 2, Port: 0xabcd}, "",
		"0003 00 0d 00000018 00000001 00000002 00000000 abcd 0001", "0d 00 0003 00000018 00000001 00000002 00000000 0001 abcd"},
	{"SDP-6.5.2-1", Message{MID: SuspCommAck, Bufs: 3, Len: 16, MSeq: 1, MSeqAck: 2}, "",
		"0003 00 0e 00000010 00000001 00000002", "0e 00 0003 00000010 00000001 00000002"},
	{"SDP-6.3.3-1 SDP-6.3.3-2 SDP-6.3.3-3", Message{MID: SinkAvail, Bufs: 3, Len: 38, MSeq: 1, MSeqAck: 2, Size: 0x8000, STag: 0xa1a2a3a4, VA: 0x0102030405060708, NonDiscards: 9}, "6869",
		"0003 00 fd 00000026 00000001 00000002 00008000 a1a2a3a4 01020304 05060708 00000009 6869", "fd 00 0003 00000026 00000001 00000002 00008000 a1a2a3a4 01020304 05060708 00000009 6869"},
	{"SDP-6.3.2-1 SDP-6.3.2-3", Message{MID: SrcAvail, Bufs: 3, Len: 33, MSeq: 1, MSeqAck: 2, Size: 0x80000000, STag: 0xa1a2a3a4, VA: 0x0102030405060708}, "68",
		"0003 00 fe 00000021 00000001 00000002 80000000 a1a2a3a4 01020304 05060708 68", "fe 00 0003 00000021 00000001 00000002 80000000 a1a2a3a4 01020304 05060708 68"},
	{"SDP-6.3.1-1 SDP-6.3.1-2 SDP-6.1.2-1", Message{MID: Data, Flags: OOBPres | OOBPend, Bufs: 65535, Len: 18, MSeq: 0xffffffff, MSeqAck: 0}, "6869",
		"ffff 03 ff 00000012 ffffffff 00000000 6869", "ff 03 ffff 00000012 ffffffff 00000000 6869"},
	{"SDP-6.3.1-3", Message{MID: Data, Bufs: 64, Len: 16}, "",
		"0040 00 ff 00000010 00000000 00000000", "ff 00 0040 00000010 00000000 00000000"},
}

// [SDP-6-1] [SDP-6-2] [SDP-6-4] [SDP-6.1-1] [SDP-6.1.1-1] [SDP-6.3.8.3-2]
func TestSDP_6_Messages(t *testing.T) {
	for _, v := range messageVectors {
		for _, l := range []Layout{Figure, IBTA} {
			want := testkit.Hex(v.figure)
			if l == IBTA {
				want = testkit.Hex(v.ibta)
			}
			got := append(v.m.Append(nil, l), testkit.Hex(v.payload)...)
			if !bytes.Equal(got, want) {
				t.Errorf("%s %v %v: Append = %x, want %x", v.rows, v.m.MID, l, got, want)
			}
			m, n, err := Parse(want, l)
			if err != nil || m != v.m {
				t.Errorf("%s %v %v: Parse = %+v, %v", v.rows, v.m.MID, l, m, err)
			}
			if n != v.m.MID.HeaderLen() || !bytes.Equal(want[n:], testkit.Hex(v.payload)) ||
				m.PayloadLen() != len(v.payload)/2 {
				t.Errorf("%s %v: payload begins at %d of %d", v.rows, v.m.MID, n, len(want)) // [SDP-6-3]
			}
			for i := range want {
				if _, _, err := Parse(want[:i], l); err == nil {
					t.Errorf("%s %v: prefix of %d bytes accepted", v.rows, v.m.MID, i)
				}
			}
			if _, _, err := Parse(append(bytes.Clone(want), 0), l); !errors.Is(err, ErrLen) {
				t.Errorf("[SDP-6.1.4-1] %v with a byte more: %v", v.m.MID, err)
			}
			if !v.m.MID.MayCarryPayload() { // [SDP-6.3.1-4]
				long := v.m
				long.Len++
				if _, _, err := Parse(append(long.Append(nil, l), 0), l); !errors.Is(err, ErrLen) {
					t.Errorf("[SDP-6.3.1-4] %v with payload: %v", v.m.MID, err)
				}
			}
			if m.String() == "" || m.LogValue().Kind() != slog.KindGroup {
				t.Errorf("%v: no description", v.m.MID)
			}
		}
	}
}

const (
	helloFigure = "0040 00 00 00000020 00000000 00000000 0010 00 11 00004000 00008000 0020 0008"
	helloIBTA   = "00 00 0040 00000020 00000000 00000000 11 00 0010 00004000 00008000 0008 0020"
	ackFigure   = "0040 00 01 0000001c 00000000 00000000 0010 00 11 00008000 0020 0008"
	ackIBTA     = "01 00 0040 0000001c 00000000 00000000 11 00 0010 00008000 0008 0020"
)

// [SDP-6.2.1-4] [SDP-6.2.1.8-2] [SDP-6.2.2-4] [SDP-6.2.2.7-2] [SDP-6.1.4-1]
func TestSDP_6_2_Hello(t *testing.T) {
	h := Hello{Bufs: 64, MajV: 1, MinV: 1, MaxAdverts: 16, DesRemRcvSz: 16384, LocalRcvSz: 32768, LocIRD: 32, LocORD: 8}
	a := HelloAck{Bufs: 64, MajV: 1, MinV: 1, MaxAdverts: 16, ActRcvSz: 32768, LocIRD: 32, LocORD: 8}
	for _, l := range []Layout{Figure, IBTA} {
		hx, ax := testkit.Hex(helloFigure), testkit.Hex(ackFigure)
		if l == IBTA {
			hx, ax = testkit.Hex(helloIBTA), testkit.Hex(ackIBTA)
		}
		// [SDP-6.2.1-1] [SDP-6.2.1-2] [SDP-6.2.1-3] [SDP-6.2.1.8-1]
		if got := h.Append(nil, l); !bytes.Equal(got, hx) || len(got) != HelloLen {
			t.Errorf("%v Hello = %x, want %x", l, got, hx)
		}
		// [SDP-6.2.2-1] [SDP-6.2.2-2] [SDP-6.2.2-3] [SDP-6.2.2.7-1]
		if got := a.Append(nil, l); !bytes.Equal(got, ax) || len(got) != HelloAckLen {
			t.Errorf("%v HelloAck = %x, want %x", l, got, ax)
		}
		if got, n, err := ParseHello(hx, l); got != h || n != HelloLen || err != nil {
			t.Errorf("%v ParseHello = %+v %d %v", l, got, n, err)
		}
		if got, n, err := ParseHelloAck(ax, l); got != a || n != HelloAckLen || err != nil {
			t.Errorf("%v ParseHelloAck = %+v %d %v", l, got, n, err)
		}
		for i := range hx {
			if _, _, err := ParseHello(hx[:i], l); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("Hello prefix of %d: %v", i, err)
			}
		}
		for i := range ax {
			if _, _, err := ParseHelloAck(ax[:i], l); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("HelloAck prefix of %d: %v", i, err)
			}
		}
		if _, _, err := ParseHello(ax, l); !errors.Is(err, ErrMID) {
			t.Errorf("HelloAck as Hello: %v", err)
		}
		if _, _, err := ParseHelloAck(hx, l); !errors.Is(err, ErrMID) {
			t.Errorf("Hello as HelloAck: %v", err)
		}
		hx[7], ax[7] = 33, 29
		if _, _, err := ParseHello(hx, l); !errors.Is(err, ErrLen) {
			t.Errorf("Hello with wrong Len: %v", err)
		}
		if _, _, err := ParseHelloAck(ax, l); !errors.Is(err, ErrLen) {
			t.Errorf("HelloAck with wrong Len: %v", err)
		}
		if h.LogValue().Kind() != slog.KindGroup || a.LogValue().Kind() != slog.KindGroup {
			t.Error("no description")
		}
	}
}

// TestSDP_6_2_HelloIgnored: the numbers and reserved bits of a Hello and of a HelloAck are ignored.
func TestSDP_6_2_HelloIgnored(t *testing.T) {
	for _, l := range []Layout{Figure, IBTA} {
		h := Hello{Bufs: 64, MajV: 1, MinV: 1, MaxAdverts: 16, DesRemRcvSz: 1, LocalRcvSz: 2, LocIRD: 3, LocORD: 4}
		b := h.Append(nil, l)
		for i := 8; i < 16; i++ {
			b[i] = 0xff // [SDP-6.2.1-4]
		}
		if l == Figure {
			b[18] = 0xff // [SDP-6.2.1.8-2]
		} else {
			b[17] = 0xff
		}
		if got, _, err := ParseHello(b, l); got != h || err != nil {
			t.Errorf("%v: %+v %v", l, got, err)
		}
		a := HelloAck{Bufs: 64, MajV: 1, MinV: 1, MaxAdverts: 16, ActRcvSz: 2, LocIRD: 3, LocORD: 4}
		b = a.Append(nil, l)
		for i := 8; i < 16; i++ {
			b[i] = 0xff // [SDP-6.2.2-4]
		}
		if l == Figure {
			b[18] = 0xff // [SDP-6.2.2.7-2]
		} else {
			b[17] = 0xff
		}
		if got, _, err := ParseHelloAck(b, l); got != a || err != nil {
			t.Errorf("%v: %+v %v", l, got, err)
		}
	}
}

func TestD01_DetectLayout(t *testing.T) {
	for bufs := 1; bufs <= 65535; bufs++ {
		h := Hello{Bufs: uint16(bufs), MajV: 1, MinV: 1}
		for _, l := range []Layout{Figure, IBTA} {
			if got, ok := DetectLayout(h.Append(nil, l)); !ok || got != l {
				t.Fatalf("[D-01] Bufs %d in layout %v detected as %v, %t", bufs, l, got, ok)
			}
		}
	}
	for _, b := range [][]byte{nil, {0, 1, 0}, {0, 0, 0, 0}, {0, 1, 1, 0}, []byte("MPA ID Req Frame")} {
		if l, ok := DetectLayout(b); ok {
			t.Errorf("%q taken for a Hello in layout %v", b, l)
		}
	}
}

func TestSDP_6_1_1_MID(t *testing.T) {
	for i := range 256 {
		m := MID(i)
		assigned := m <= 0x0E || m >= 0xFD
		b := (&Message{MID: m, Bufs: 3, Len: 16}).Append(nil, Figure)[:16]
		b[7] = 16
		_, _, err := Parse(b, Figure)
		switch {
		case !assigned && (m.HeaderLen() != 0 || !errors.Is(err, ErrMID)):
			t.Errorf("[SDP-6.1.1-3] %v: header %d, error %v", m, m.HeaderLen(), err)
		case !assigned && m.Reserved() == m.Experimental():
			t.Errorf("[SDP-6.1.1-4] %v is reserved and experimental, or neither", m)
		case assigned && (m.HeaderLen() < 16 || m.Reserved() || m.Experimental()):
			t.Errorf("[SDP-6.1.1-2] %v: header %d", m, m.HeaderLen())
		}
		if assigned == strings.HasPrefix(m.String(), "MID(") {
			t.Errorf("%#x is called %v", i, m)
		}
	}
}

func TestSDP_6_1_2_Flags(t *testing.T) {
	m := Message{MID: Data, Flags: 0xf8, Bufs: 3, Len: 17}
	b := append(m.Append(nil, Figure), 'x')
	if b[2] != 0 { // [SDP-6.1.2-2]
		t.Errorf("[SDP-6.1.2-2] reserved flag bits sent: %#x", b[2])
	}
	b[2] = 0xf8
	if got, _, err := Parse(b, Figure); err != nil || got.Flags != 0 {
		t.Errorf("[SDP-6.1.2-3] reserved flag bits: %v, %v", got.Flags, err)
	}
	for i := range 256 {
		mid := MID(i)
		if mid.HeaderLen() == 0 || mid == HelloMID || mid == HelloAckMID || mid == Data {
			continue
		}
		m := Message{MID: mid, Flags: OOBPres, Bufs: 3, Len: uint32(mid.HeaderLen()), Size: 9, Mode: Combined}
		if _, _, err := Parse(m.Append(nil, Figure), Figure); !errors.Is(err, ErrFlags) {
			t.Errorf("[SDP-6.1.2-5] OOB_PRES on %v: %v", mid, err)
		}
	}
	m = Message{MID: Data, Flags: OOBPres, Bufs: 3, Len: 16}
	if _, _, err := Parse(m.Append(nil, Figure), Figure); !errors.Is(err, ErrFlags) {
		t.Errorf("[D-28] OOB_PRES on an empty Data: %v", err)
	}
	if s := (OOBPres | ReqPipe | 0x10).String(); s != "OOB_PRES|REQ_PIPE|0x10" {
		t.Error(s)
	}
}

func TestSDP_6_3_Ranges(t *testing.T) {
	for _, mid := range []MID{SrcAvail, SinkAvail} {
		for _, size := range []uint32{0, MaxSize + 1, 0xffffffff} { // [SDP-6.3.2.1-2] [SDP-6.3.3.1-2]
			m := Message{MID: mid, Len: uint32(mid.HeaderLen()), Size: size}
			if _, _, err := Parse(m.Append(nil, Figure), Figure); !errors.Is(err, ErrSize) {
				t.Errorf("[SDP-6.3.2.1-2] [SDP-6.3.3.1-2] %v of %d bytes: %v", mid, size, err)
			}
		}
	}
	for mode := Mode(3); mode < 8; mode++ {
		for _, l := range []Layout{Figure, IBTA} {
			m := Message{MID: ModeChange, Len: 20, Mode: mode}
			if _, _, err := Parse(m.Append(nil, l), l); !errors.Is(err, ErrMode) {
				t.Errorf("[SDP-6.3.8.2-1] %v: %v", mode, err)
			}
		}
	}
	b := (&Message{MID: ModeChange, Len: 20, Mode: Pipelined}).Append(nil, Figure)
	b[16], b[17], b[18], b[19] = 0xff, 0xff, 0xff, b[19]|0xf0
	if m, _, err := Parse(b, Figure); err != nil || m.Mode != Pipelined || m.S { // [SDP-6.3.8.3-2]
		t.Errorf("[SDP-6.3.8.3-2] reserved bits of ModeChange: %v %v", m, err)
	}
	for i := 16; i < 24; i++ {
		b := (&Message{MID: SuspComm, Len: 24, Port: 1}).Append(nil, Figure)
		if i == 20 || i == 21 {
			continue
		}
		b[i] ^= 0x80
		if _, _, err := Parse(b, Figure); !errors.Is(err, ErrConst) {
			t.Errorf("[SDP-6.5.1.2-1] [SDP-6.5.1.3-1] byte %d changed: %v", i, err)
		}
	}
	for _, mid := range []MID{HelloMID, HelloAckMID} {
		m := Message{MID: mid, Len: uint32(mid.HeaderLen())}
		b := append(m.Append(nil, Figure), make([]byte, mid.HeaderLen()-16)...)
		if _, _, err := Parse(b, Figure); !errors.Is(err, ErrMID) {
			t.Errorf("[D-75] %v on a running connection: %v", mid, err)
		}
	}
}

func TestSDP_14_2_Solicited(t *testing.T) {
	solicited := map[MID]bool{AbortConn: true, SuspComm: true, SuspCommAck: true, SendSm: true, SrcAvailCancel: true,
		SinkAvailCancel: true, HelloAckMID: true, RdmaWrCompl: true, RdmaRdCompl: true, SinkCancelAck: true}
	for mid := range MID(len(messages) - 1) {
		if got := Solicited(mid, ReqPipe); got != solicited[mid] {
			t.Errorf("[SDP-14.2-1] [SDP-14.2-2] %v: %t", mid, got)
		}
	}
	if !Solicited(Data, OOBPres) || !Solicited(Data, OOBPend) || Solicited(SrcAvail, OOBPend) {
		t.Error("[SDP-14.2-1] urgent flags count on Data alone")
	}
}

func TestParseAllocs(t *testing.T) {
	b := testkit.Hex(messageVectors[14].figure)
	if n := testing.AllocsPerRun(100, func() { _, _, _ = Parse(b, Figure) }); n != 0 {
		t.Errorf("Parse allocates %v times", n)
	}
}

func FuzzParse(f *testing.F) {
	for _, v := range messageVectors {
		f.Add(testkit.Hex(v.figure), false)
		f.Add(testkit.Hex(v.ibta), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, ibta bool) {
		l := Figure
		if ibta {
			l = IBTA
		}
		m, n, err := Parse(b, l)
		if err != nil {
			return
		}
		again := append(m.Append(nil, l), b[n:]...)
		m2, n2, err := Parse(again, l)
		if err != nil || m2 != m || n2 != n {
			t.Fatalf("%+v became %+v, %v", m, m2, err)
		}
	})
}

func FuzzHello(f *testing.F) {
	for _, s := range []string{helloFigure, helloIBTA, ackFigure, ackIBTA} {
		f.Add(testkit.Hex(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		DetectLayout(b)
		for _, l := range []Layout{Figure, IBTA} {
			if h, n, err := ParseHello(b, l); err == nil {
				if h2, n2, err := ParseHello(h.Append(nil, l), l); h2 != h || n2 != n || err != nil {
					t.Fatalf("%+v became %+v, %v", h, h2, err)
				}
			}
			if h, n, err := ParseHelloAck(b, l); err == nil {
				if h2, n2, err := ParseHelloAck(h.Append(nil, l), l); h2 != h || n2 != n || err != nil {
					t.Fatalf("%+v became %+v, %v", h, h2, err)
				}
			}
		}
	})
}
