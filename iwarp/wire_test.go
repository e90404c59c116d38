package iwarp

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// message collects the segments of the next message, and checks what all messages have in common:
// one ULPDU per FPDU, full headers, version fields, reserved bits, L on the last segment only,
// rising offsets, and equal STag, QN, MSN and RsvdULP. Every segment but the last must be as long
// as the MULPDU allows.
func (p *peer) message(mulpdu int) (op rdmap.Opcode, head []byte, body []byte) {
	p.t.Helper()
	for {
		u := p.next()
		if u[0]&0x3c != 0 || u[0]&3 != 1 || u[1]>>6 != 1 || u[1]&0x30 != 0 {
			p.t.Fatalf("control octets %x", u[:2])
		}
		_, o := rdmap.ParseControl(u[1])
		hl := ddp.HeaderLen(u[0])
		if len(u) > mulpdu {
			p.t.Fatalf("ULPDU of %d bytes, MULPDU %d", len(u), mulpdu)
		}
		last := ddp.IsLast(u[0])
		if !last && len(u) != mulpdu {
			p.t.Fatalf("segment of %d bytes that is not the last, MULPDU %d", len(u), mulpdu)
		}
		h := bytes.Clone(u[:hl])
		h[0] |= 0x40
		if head == nil {
			op, head = o, h
		}
		want := bytes.Clone(head)
		if o.Tagged() {
			binary.BigEndian.PutUint64(want[6:], binary.BigEndian.Uint64(head[6:])+uint64(len(body)))
		} else {
			binary.BigEndian.PutUint32(want[14:], uint32(len(body)))
		}
		if !bytes.Equal(h, want) {
			p.t.Fatalf("header %x, want %x", h, want)
		}
		body = append(body, u[hl:]...)
		if last {
			return op, head, body
		}
	}
}

// TestMessagesOnTheWire posts one message of each kind and checks its bytes; peer.message checks
// what all messages have in common. [MPA-3-1] [MPA-3-3] [MPA-4.5-5] [DDP-3-1] [DDP-4.1-3]
// [DDP-4.1-4] [DDP-4.1-5] [DDP-4.1-6] [DDP-4.1-8] [DDP-4.1-10] [DDP-4.2-1] [DDP-4.2-4] [DDP-4.2-6]
// [DDP-4.3-2] [DDP-4.3-5] [DDP-4.3-9] [DDP-4.3-10] [DDP-4.4-1] [DDP-5.2-1] [DDP-5.2-3] [DDP-5.2-5]
// [DDP-5.2-7] [DDP-5.3-2] [MPA-C-1] [RDMAP-3.1-1] [RDMAP-3.1-3] [RDMAP-4.1-8] [RDMAP-6.1-1]
// [RDMAP-5.2.2-8]
func TestMessagesOnTheWire(t *testing.T) {
	for _, size := range []int{128, 530, 1442, 64766} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			p, q := asResponder(t, &Config{Interop: Interop{FPDUSize: size, NoNudge: true}, Immediate: true, Atomic: true})
			if q.mulpdu() != size { // [MPA-3-2]
				t.Errorf("MULPDU %d", q.mulpdu())
			}
			data := pattern(200000, 9)
			sink := make([]byte, 100)
			mr, _ := q.Register(sink, LocalOnly)
			at := RemoteAddr{STag: 0x11223344, TO: 0x5566778899aabbcc}
			for _, c := range []struct {
				wr   SendWR
				op   rdmap.Opcode
				head string
				n    int
			}{
				{SendWR{SG: []SGE{Buf(data[:5000])}}, rdmap.Send, "414300000000" + "00000000" + "00000001" + "00000000", 5000},
				{SendWR{Op: OpSendInvalidate, Invalidate: 0xa1a2a3a4, SG: []SGE{Buf(data[:3000])}}, rdmap.SendInvalidate, "4144a1a2a3a4" + "00000000" + "00000002" + "00000000", 3000},
				{SendWR{Op: OpSendSE}, rdmap.SendSE, "414500000000" + "00000000" + "00000003" + "00000000", 0}, // [DDP-5.2-8] [RDMAP-5.3-10]
				{SendWR{Op: OpSendSEInvalidate, Invalidate: 1, SG: []SGE{Buf(data[:1])}}, rdmap.SendSEInvalidate, "414600000001" + "00000000" + "00000004" + "00000000", 1},
				{SendWR{Op: OpWrite, Remote: at, SG: []SGE{Buf(data[:100]), Buf(data[100:100]), Buf(data[100:])}}, rdmap.Write, "c140112233445566778899aabbcc", 200000}, // [DDP-5.2-6] [RDMAP-5.1-7]
				{SendWR{Op: OpWrite, Remote: at}, rdmap.Write, "c140112233445566778899aabbcc", 0},                                                                       // [RDMAP-5.1-8]
				{SendWR{Op: OpImmediate, Immediate: [8]byte{1, 2, 3, 4, 5, 6, 7, 8}}, rdmap.Immediate, "414800000000" + "00000000" + "00000005" + "00000000", -8},       // [RDMAPX-6.3-1] [RDMAPX-6.3-4] [RDMAPX-6.3-5]
				{SendWR{Op: OpImmediateSE}, rdmap.ImmediateSE, "414900000000" + "00000000" + "00000006" + "00000000", -8},
				{SendWR{Op: OpRead, Remote: at, SG: []SGE{mr.SGE(8, 64)}}, rdmap.ReadRequestOp, "414100000000" + "00000001" + "00000001" + "00000000", -28}, // [RDMAP-5.2.1-1]
				{SendWR{Op: OpFetchAdd, Remote: at}, rdmap.AtomicRequestOp, "414a00000000" + "00000001" + "00000002" + "00000000", -52},                     // [RDMAPX-5.2-1]
				{SendWR{Op: OpCmpSwap, Remote: at}, rdmap.AtomicRequestOp, "414a00000000" + "00000001" + "00000003" + "00000000", -52},
				{SendWR{Inline: true, SG: []SGE{Buf(data[:200]), Buf(data[200:256])}}, rdmap.Send, "414300000000" + "00000000" + "00000007" + "00000000", 256},
			} {
				if err := q.Post(c.wr); err != nil {
					t.Fatal(err)
				}
				op, head, body := p.message(size)
				if op != c.op || hex.EncodeToString(head) != c.head {
					t.Errorf("%v %x, want %v %s", op, head, c.op, c.head)
				}
				if c.n >= 0 && !bytes.Equal(body, data[:c.n]) || c.n < 0 && len(body) != -c.n {
					t.Errorf("%v: body of %d bytes", op, len(body))
				}
				switch op {
				case rdmap.ReadRequestOp: // [RDMAP-4.4-1] [RDMAP-5.2.1-9]
					r, _, _ := rdmap.ParseReadRequest(body)
					if want := (rdmap.ReadRequest{SinkSTag: mr.STag(), SinkTO: 8, Size: 64, SourceSTag: at.STag, SourceTO: at.TO}); r != want {
						t.Errorf("%+v", r)
					}
				case rdmap.AtomicRequestOp:
					r, _, _ := rdmap.ParseAtomicRequest(body)
					want := rdmap.NewFetchAdd(at.STag, at.TO, 0, 0) // [RDMAPX-5.2.1-5]
					want.ID = 1
					if c.wr.Op == OpCmpSwap {
						want = rdmap.NewCmpSwap(at.STag, at.TO, 0, 0, 0, 0)
						want.ID = 2 // [I-68]
					}
					if r != want {
						t.Errorf("%+v", r)
					}
				}
			}
		})
	}
}

// TestFPDUsOnTheWire checks the length, the zero pad and the CRC of FPDUs of every size, and that
// the CRC field is zero if CRCs are off. [MPA-4.1-1] [MPA-4.1-2] [MPA-4.1-3] [MPA-4.1-5]
// [MPA-4.1-6] [MPA-4.4-1] [MPA-4.4-9] [MPA-4.4-10] [I-29]
func TestFPDUsOnTheWire(t *testing.T) {
	for _, crc := range []bool{true, false} {
		cfg := &Config{Interop: Interop{NoNudge: true}, Device: NewDevice(DeviceConfig{NoCRC: !crc})}
		p, q := asResponderWith(t, cfg, mpa.Frame{Kind: mpa.Reply, Rev: 2, Enhanced: true,
			Conn: mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite}})
		p.next()
		for n := range 9 {
			if err := q.Post(SendWR{SG: []SGE{Buf(bytes.Repeat([]byte{0xff}, n))}}); err != nil {
				t.Fatal(err)
			}
			want := mpa.FPDULen(18 + n)
			for len(p.buf) < want {
				if err := p.more(); err != nil {
					t.Fatal(err)
				}
			}
			b := p.buf[:want]
			if got := int(binary.BigEndian.Uint16(b)); got != 18+n {
				t.Errorf("length field %d", got)
			}
			pad := b[2+18+n : want-4]
			if len(bytes.Trim(pad, "\x00")) > 0 || want%4 != 0 {
				t.Errorf("pad %x, FPDU of %d bytes", pad, want)
			}
			field := binary.LittleEndian.Uint32(b[want-4:])
			if crc && field != mpa.CRC(0, b[:want-4]) || !crc && field != 0 {
				t.Errorf("CRC field %08x", field)
			}
			p.buf = p.buf[want:]
		}
	}
}

// TestMarkersOnTheWire checks that a peer that asks for markers gets them from the first byte of
// full operation on, wherever start-up ended, and that the other direction has none. [MPA-4.3-1]
// [MPA-4.3-2] [MPA-4.3-8] [MPA-4.3-9] [MPA-4.3-11] [MPA-7.1.1-5] [MPA-7.1.1-6] [MPA-7.1.1-7]
// [MPA-7.1.2-19] [I-09]
func TestMarkersOnTheWire(t *testing.T) {
	data := pattern(1<<20, 4)
	t.Run("as Responder", func(t *testing.T) {
		p, q := asSilentInitiator(t, &Config{Private: []byte("odd"), Interop: Interop{FPDUSize: 1430}, SendDepth: 200}, mpa.Enhanced{}, true)
		if !q.Params().SendMarkers || q.Params().RecvMarkers {
			t.Errorf("%+v", q.Params())
		}
		p.ulpdu(tag(rdmap.Write, 0, 0, true, nil))
		q.Post(SendWR{Op: OpWrite, SG: []SGE{Buf(data)}})
		for len(p.buf) < 6 {
			if err := p.more(); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(p.buf[:4], []byte{0, 0, 0, 0}) {
			t.Errorf("first octets %x", p.buf[:4])
		}
		if _, _, body := p.message(q.mulpdu()); !bytes.Equal(body, data) { // the Decoder checks every marker
			t.Error("wrong data")
		}
		const short = 150 // several FPDUs between two markers [MPA-5.1-4]
		for range short {
			if err := q.Post(SendWR{Op: OpWrite, Unsignaled: true}); err != nil {
				t.Fatal(err)
			}
		}
		for range short {
			p.message(q.mulpdu())
		}
	})
	t.Run("as Initiator", func(t *testing.T) {
		p, q := asResponderWith(t, &Config{Interop: Interop{NoNudge: true, FPDUSize: 64766}},
			mpa.Frame{Kind: mpa.Reply, Rev: 2, CRC: true, Markers: true, Enhanced: true,
				Conn: mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite}})
		p.next()
		q.Post(SendWR{Op: OpWrite, SG: []SGE{Buf(data)}})
		if _, _, body := p.message(q.mulpdu()); !bytes.Equal(body, data) {
			t.Error("wrong data")
		}
		sink := make([]byte, 1000)
		q.PostRecv(RecvWR{SG: []SGE{Buf(sink)}})
		p.ulpdu(seg(rdmap.Send, 0, 1, 0, true, data[:1000])) // the other direction has no markers
		if c := wantOK(t, q.RecvCQ()); c.Len != 1000 || !bytes.Equal(sink, data[:1000]) {
			t.Errorf("%+v", c)
		}
	})
}

// TestSegmentSizes checks that ULPDUs fit the TCP segments of the connection, and follow a change
// of the segment size. [MPA-4.5-1] [MPA-4.5-2] [MPA-4.5-6] [MPA-4.5-7] [MPA-4.5-3] [MPA-3-4]
// [MPA-3-5] [MPA-5.1-1] [MPA-5.1-3] [DDP-3-1] [DDP-3-2] [I-26] [I-27]
func TestSegmentSizes(t *testing.T) {
	a, b := connect(t, nil, nil)
	mss := segmentSize(a.link.fc.NetConn())
	if a.mulpdu() < mpa.MULPDU(mss, false)/3 || mss < 1000 { // the MSS grows with the first answers
		t.Errorf("MSS %d, MULPDU %d", mss, a.mulpdu())
	}
	for range 3 { // more bytes than mssBytes
		transfer(t, a, b, 2<<20)
	}
	if mss := segmentSize(a.link.fc.NetConn()); runtime.GOOS == "linux" && (mss < 10000 || a.mulpdu() < 10000) {
		t.Errorf("loopback: MSS %d, MULPDU %d", mss, a.mulpdu()) // the socket still reports its MSS
	}
	for _, mss := range []int{88, 536, 1200} {
		c, d := testkit.TCPPair(t)
		if !limitMSS(d, mss) {
			t.Skip("the system has no way to lower the MSS of a connection")
		}
		c.Close()
		d.Close()
		p, q := withMSS(t, mss)
		got := segmentSize(q.link.fc.NetConn())
		if got > max(mss, 128) {
			t.Errorf("MSS %d, segment size %d", mss, got)
		}
		want := mpa.MULPDU(got, false)
		if q.mulpdu() != want {
			t.Errorf("MSS %d: MULPDU %d, want %d", got, q.mulpdu(), want)
		}
		q.Post(SendWR{Op: OpWrite, SG: []SGE{Buf(make([]byte, 5000))}})
		p.message(want)
	}
	x, y := net.Pipe()
	defer x.Close()
	defer y.Close()
	if got := segmentSize(x); got != segmentIPv4 { // [MPA-5.1-2]
		t.Errorf("unknown connection: %d", got)
	}
	if got := usualSegment(fakeAddr{x, &net.TCPAddr{IP: net.IPv6loopback}}); got != segmentIPv6 {
		t.Errorf("unknown IPv6 connection: %d", got)
	}
}

type fakeAddr struct {
	net.Conn
	a net.Addr
}

func (f fakeAddr) RemoteAddr() net.Addr { return f.a }

// TestRefreshMSS checks that a new segment size applies to messages that begin later, not to the
// current one. [MPA-4.5-6] [DDP-3-2]
func TestRefreshMSS(t *testing.T) {
	p, q := asResponder(t, &Config{Interop: Interop{NoNudge: true}})
	data := make([]byte, 32<<20)
	q.Post(SendWR{Op: OpWrite, SG: []SGE{Buf(data)}}) // more than the socket holds
	u := p.next()
	full := len(u) // q.mulpdu may be another a second later
	if full < 1442 {
		t.Fatalf("segment of %d bytes", full)
	}
	q.tx.mss.mulpdu.Store(1442) // as if the path had changed
	n := len(u) - 14
	for n < len(data) {
		u := p.next()
		if len(u) != full && n+len(u)-14 != len(data) {
			t.Fatalf("segment of %d bytes in mid message", len(u))
		}
		n += len(u) - 14
	}
	q.Post(SendWR{Op: OpWrite, SG: []SGE{Buf(data[:100000])}})
	if u := p.next(); len(u) != 1442 && len(u) != q.mulpdu() {
		t.Errorf("next message: %d", len(u))
	}
}

// TestSizeAge checks that the segment size is read again after a second, or after four MiB were
// sent with it, unless it is fixed. [MPA-4.5-6] [MPA-4.5-3] [DDP-3-1] [I-27]
func TestSizeAge(t *testing.T) { inBubble(t, testSizeAge) }

func testSizeAge(t *testing.T) {
	for _, c := range []struct {
		fixed bool
		since int
		age   time.Duration
		asks  bool
	}{
		{false, 0, 0, false},
		{false, mssBytes - 1, mssAge / 2, false},
		{false, mssBytes, 1, true},
		{false, 0, mssAge, true},
		{true, mssBytes, mssAge, false},
	} {
		cfg := &Config{}
		if c.fixed {
			cfg.Interop.FPDUSize = 5000
		}
		_, q := asResponder(t, cfg)
		time.Sleep(time.Minute) // no size was asked for at time 0
		q.link.fc.WithSender(func() {
			x := &q.tx.mss
			size, was := x.mulpdu.Load(), time.Since(q.active.born)-c.age
			x.since, x.asked = c.since, was
			x.mulpdu.Store(999)
			q.tx.refreshMSS()
			got := x.mulpdu.Load()
			if asked := got != 999; asked != c.asks ||
				asked && (got != size || x.since != 0 || x.asked == was) ||
				!asked && (x.since != c.since || x.asked != was) {
				t.Errorf("%+v: size %d, was %d; sent since %d", c, got, size, x.since)
			}
		})
	}
}

// TestCuts checks that FPDUs are handled wherever the stream is cut. [MPA-5.1-5] [MPA-A.4-1]
// [MPA-5.2-1] [DDP-4.2-8] [MPA-6-2] [MPA-6-4] [MPA-6-5] [MPA-4.3-12] [MPA-3-6] [DDP-3-4] [DDP-3-8]
func TestCuts(t *testing.T) {
	for _, markers := range []bool{false, true} {
		for _, piece := range []int{1, 2, 3, 7, 1000} {
			t.Run(fmt.Sprintf("markers=%t/%d", markers, piece), func(t *testing.T) {
				p, q := asInitiator(t, &Config{Interop: Interop{Markers: markers}})
				mr, _ := q.Register(make([]byte, 4000), RemoteWrite)
				want := pattern(4000, 8)
				var wire []byte
				for at, n := 0, 1; at < 1200; at, n = at+n, n+37 { // pieces of odd sizes
					wire = p.enc.Append(wire, tag(rdmap.Write, mr.STag(), uint64(at), true, want[at:at+n]))
				}
				sink := make([]byte, 100)
				q.PostRecv(RecvWR{SG: []SGE{Buf(sink)}})
				wire = p.enc.Append(wire, seg(rdmap.Send, 0, 1, 0, false, want[:60]))
				wire = p.enc.Append(wire, seg(rdmap.Send, 0, 1, 60, true, want[60:100]))
				p.c.(*net.TCPConn).SetNoDelay(true)
				for len(wire) > 1 {
					k := min(piece, len(wire)-1)
					p.raw(wire[:k])
					wire = wire[k:]
				}
				time.Sleep(5 * time.Millisecond)
				if _, ok := q.RecvCQ().Poll(); ok {
					t.Error("delivered before the last octet came")
				}
				p.raw(wire)
				if c := wantOK(t, q.RecvCQ()); c.Len != 100 || !bytes.Equal(sink, want[:100]) { // [RDMAP-5.5-5] [RDMAP-5.5-13]
					t.Errorf("%+v", c)
				}
				if !bytes.Equal(mr.Bytes()[:1200], want[:1200]) {
					t.Error("wrong data")
				}
			})
		}
	}
}

// TestPeerHabits checks that harmless deviations in a peer's segments are accepted: reserved bits,
// pads, garbage in unused fields, a zero-length segment inside a message, and the largest ULPDU.
// [MPA-4.1-4] [DDP-4.1-9] [RDMAP-4.1-8] [RDMAP-4.1-10] [RDMAPX-4.1-3] [DDP-4.3-4] [DDP-5.2-9]
// [DDP-5.2-10] [MPA-A.4-2] [I-30] [I-51]
func TestPeerHabits(t *testing.T) {
	p, q := asInitiator(t, nil)
	mr, _ := q.Register(make([]byte, 65536), RemoteWrite)
	sink := make([]byte, 20)
	q.PostRecv(RecvWR{SG: []SGE{Buf(sink)}})

	u := tag(rdmap.Write, mr.STag(), 3, true, []byte("hi"))
	u[0] |= 0x3c
	u[1] |= 0x30
	b := p.enc.Append(nil, u)
	b[len(b)-5], b[len(b)-6] = 0x33, 0x44 // nonzero pad, as from a peer that does not clear it
	if mpa.PadLen(len(u)) != 2 {
		t.Fatal("vector without pad")
	}
	binary.LittleEndian.PutUint32(b[len(b)-4:], mpa.CRC(0, b[:len(b)-4]))
	p.raw(b)
	// This ULPDU is the longest that an FPDU can hold.
	p.ulpdu(tag(rdmap.Write, mr.STag(), 8, true, make([]byte, 65535-14)))
	s1 := seg(rdmap.Send, 0, 1, 0, false, []byte("abc"))
	s2 := seg(rdmap.Send, 0, 1, 3, false, nil)
	s3 := seg(rdmap.Send, 0, 1, 3, true, []byte("def"))
	for i, s := range [][]byte{s1, s2, s3} {
		binary.BigEndian.PutUint32(s[2:], 0xdead0000+uint32(i))
		s[0] |= 0x3c
		p.ulpdu(s)
		if i < 2 {
			// A Write arrives between the segments. [I-52]
			p.ulpdu(tag(rdmap.Write, mr.STag(), 0, true, []byte{byte(i)}))
		}
	}
	c := wantOK(t, q.RecvCQ())
	if c.Len != 6 || string(sink[:6]) != "abcdef" || c.Invalidated || mr.Bytes()[3] != 'h' || mr.Bytes()[0] != 1 {
		t.Errorf("%+v, %q", c, sink)
	}
	if s := q.Stats(); s.ReceivedTiny != 2 || s.ReceivedEmpty != 1 || s.PlacedBytes != 2+65521+2 { // [SEC-6.4.4-1]
		t.Errorf("%+v", s)
	}
}

// TestMSNWrap checks that MSN 0 follows MSN 2^32-1 in both directions. [DDP-4.3-8]
func TestMSNWrap(t *testing.T) {
	const near = 0xfffffffe
	cfg := func() *Config {
		return &Config{Atomic: true, firstMSN: [4]uint32{near, near, 1, near}}
	}
	a, b := connect(t, cfg(), cfg())
	mr, _ := b.Register(make([]byte, 8), RemoteRead|RemoteAtomic)
	for i := range 6 {
		b.PostRecv(RecvWR{SG: []SGE{Buf(make([]byte, 8))}})
		for _, wr := range []SendWR{
			{SG: []SGE{Buf([]byte{byte(i)})}},
			{Op: OpRead, SG: []SGE{Buf(make([]byte, 8))}, Remote: RemoteAddr{STag: mr.STag()}},
			{Op: OpFetchAdd, Atomic: Atomic{Data: 1}, Remote: RemoteAddr{STag: mr.STag()}},
		} {
			if err := a.Post(wr); err != nil {
				t.Fatal(err)
			}
		}
		wantOK(t, b.RecvCQ())
		wantOK(t, a.SendCQ())
		wantOK(t, a.SendCQ())
		if c := wantOK(t, a.SendCQ()); c.Value != uint64(i) {
			t.Errorf("fetched %d, want %d", c.Value, i)
		}
	}
}

// TestCRCNegotiated tests the four combinations of the C bit. [MPA-7.1.1-8] [MPA-7.1.1-9]
// [MPA-4.4-6] [MPA-4.4-7] [MPA-4.4-8] [MPA-4.1-7]
func TestCRCNegotiated(t *testing.T) {
	for _, c := range [][3]bool{{true, true, true}, {true, false, true}, {false, true, true}, {false, false, false}} {
		a, b := connect(t, &Config{Device: NewDevice(DeviceConfig{NoCRC: !c[0]})},
			&Config{Device: NewDevice(DeviceConfig{NoCRC: !c[1]})})
		if a.Params().CRC != c[2] || b.Params().CRC != c[2] {
			t.Errorf("%v: %t, %t", c, a.Params().CRC, b.Params().CRC)
		}
		transfer(t, a, b, 3000)
	}
	off := func() *Config {
		return &Config{Interop: Interop{NoNudge: true}, Device: NewDevice(DeviceConfig{NoCRC: true})}
	}
	p, q := asResponderWith(t, off(), mpa.Frame{Kind: mpa.Reply, Rev: 2, Enhanced: true,
		Conn: mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite}})
	sink := make([]byte, 8)
	q.PostRecv(RecvWR{SG: []SGE{Buf(sink)}})
	b := p.enc.Append(nil, seg(rdmap.Send, 0, 1, 0, true, []byte("any")))
	copy(b[len(b)-4:], "\xde\xad\xbe\xef")
	p.raw(b)
	if c := wantOK(t, q.RecvCQ()); c.Len != 3 {
		t.Errorf("%+v", c)
	}
	// The peer's Reply enables CRCs although this end asked for none.
	p, q = asResponderWith(t, off(), mpa.Frame{Kind: mpa.Reply, Rev: 2, CRC: true, Enhanced: true,
		Conn: mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite}})
	p.next()
	b = p.enc.Append(nil, seg(rdmap.Send, 0, 1, 0, true, nil))
	b[len(b)-1] ^= 1
	p.raw(b)
	p.terminate([]byte{0x20, 2, 0, 0})
	wantTerminate(t, ended(t, q), false, 2, 0, 2)
}
