package decode

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
	"viaduct/internal/wire/sdpwire"
	"viaduct/internal/wire/vitcpwire"
)

// halfOpen holds functions that send the packets of one connection. Each connection has data that
// never completes. TestHostile opens many of the connections.
var halfOpen = map[string]func(x *strand){
	"VI/TCP segments": func(x *strand) {
		x.say(0, vitcpOpening(0))
		x.say(0, dialect.AppendHeader(nil, vitcpwire.Header{Type: vitcpwire.Send, Number: 2, Length: 65535}))
		x.say(0, make([]byte, 20_000))
	},
	"VI/TCP requests": func(x *strand) {
		x.say(0, vitcpOpening(0))
		for i := range 300 {
			h := vitcpwire.Header{Type: vitcpwire.ReadRequest, Number: vitcpwire.Number(2 + i),
				Length: vitcpwire.HeaderLen + vitcpwire.RDMALen}
			x.say(0, vitcpwire.RDMA{}.Append(dialect.AppendHeader(nil, h)))
		}
	},
	"FPDUs": func(x *strand) {
		x.say(0, mpa.Frame{Kind: mpa.Request, Rev: 1}.Append(nil))
		x.say(0, []byte{0xff, 0xff, 0xc1, 0x40})
		x.say(0, make([]byte, 20_000))
	},
	"Read Requests": func(x *strand) {
		e := mpa.Encoder{}
		x.say(0, mpa.Frame{Kind: mpa.Request, Rev: 1}.Append(nil))
		for i := range 300 {
			x.say(0, e.Append(nil, rdmap.ReadRequestOp.UntaggedHeader(ddp.MSN(1+i), 0, true, 0).Append(nil),
				rdmap.ReadRequest{Size: 1}.Append(nil)))
		}
	},
	"SDP advertisements": func(x *strand) {
		e := mpa.Encoder{}
		h := sdpwire.Hello{Bufs: 4, MajV: 1, MinV: 1, MaxAdverts: 2, LocalRcvSz: 200,
			DesRemRcvSz: 200, LocIRD: 1, LocORD: 1}
		x.say(0, mpa.Frame{Kind: mpa.Request, Rev: 1, Private: h.Append(nil, sdpwire.Figure)}.Append(nil))
		for i := range 100 {
			m := sdpwire.Message{MID: sdpwire.SrcAvail, MSeq: uint32(i), Bufs: 4,
				Len: uint32(sdpwire.SrcAvail.HeaderLen()), STag: uint32(i), Size: 9}
			x.say(0, e.Append(nil, rdmap.SendSE.UntaggedHeader(ddp.MSN(1+i), 0, true, 0).Append(nil),
				m.Append(nil, sdpwire.Figure)))
		}
	},
	"openings": func(x *strand) { x.say(0, vitcpOpening(0)) },
	"FC frames": func(x *strand) {
		b := make([]byte, 16) // an encapsulation header of the greatest length
		copy(b, []byte{1, 1, 0xfe, 0xfe, 1, 1, 0xfe, 0xfe})
		binary.BigEndian.PutUint16(b[12:], 543)
		binary.BigEndian.PutUint16(b[14:], ^uint16(543))
		x.say(0, b)
		x.say(0, make([]byte, 2000))
	},
	"holes": func(x *strand) {
		x.say(0, mpa.Frame{Kind: mpa.Request, Rev: 1}.Append(nil))
		for range 40 {
			x.seq[0] += 10
			x.say(0, make([]byte, 1))
		}
		x.seq[0] += 10
		x.say(0, make([]byte, 20_000))
	},
	"holes before the first byte": func(x *strand) {
		x.seq[0] += 10
		x.say(0, make([]byte, 20_000))
	},
	"what may become frames": func(x *strand) { // the start is not in the capture
		x.middle = true
		x.say(0, []byte{0xff, 0xff, 0xc1, 0x40})
		x.say(0, make([]byte, 20_000))
		x.say(1, []byte{0xff, 0xff, 0xc1, 0x40})
		x.say(1, make([]byte, 20_000))
	},
}

// vitcpOpening returns a Connect Request.
func vitcpOpening(flags vitcpwire.Attributes) []byte {
	ce := vitcpwire.CE{Attributes: vitcpwire.Reliable | flags, MTU: 1 << 20}
	h := vitcpwire.Header{Type: vitcpwire.ConnectRequest, Number: 1, Flags: vitcpwire.EndOfMessage,
		Posted: 2, Length: vitcpwire.HeaderLen + vitcpwire.CELen}
	return ce.Append(dialect.AppendHeader(nil, h))
}

// A strand is a connection whose packets are passed to a decoder at once.
type strand struct {
	d      *Decoder
	ends   [2]netip.AddrPort
	seq    [2]uint32
	open   bool
	middle bool
}

func newStrand(d *Decoder, n int) *strand {
	a := netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
	return &strand{d: d, ends: [2]netip.AddrPort{netip.AddrPortFrom(a, 40000),
		netip.MustParseAddrPort("192.0.2.1:7000")}}
}

func (x *strand) say(from int, b []byte) {
	if !x.open {
		x.open = true
		if !x.middle {
			x.packet(0, synFlag, nil, -1)
			x.packet(1, synFlag|ackFlag, nil, -1)
		}
	}
	for len(b) > 0 {
		n := min(len(b), 1460)
		x.packet(from, 0, b[:n], 0)
		x.seq[from] += uint32(n)
		b = b[n:]
	}
}

func (x *strand) packet(from int, flags byte, b []byte, at int) {
	x.d.frame++
	x.d.packet(&packet{src: x.ends[from], dst: x.ends[1-from], proto: protoTCP,
		seq: x.seq[from] + uint32(at), flags: flags, payload: b})
}

// TestHostile: memory is bounded even if very many connections withhold the ends of frames, the
// bytes of holes or the answers to requests. The decoder must report discarded state, and must
// decode a connection after all hostile connections.
func TestHostile(t *testing.T) {
	testkit.Long(t, "10 s")
	for name, say := range halfOpen {
		t.Run(name, func(t *testing.T) {
			connections := 6_000
			switch name {
			case "VI/TCP requests", "SDP advertisements":
				connections = 12_000
			case "openings", "FC frames":
				connections = 55_000 // more than the decoder follows
			}
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			messages, givenUp := 0, 0
			d := New(Options{}, func(m *Message) {
				messages++
				if m.Name == "given up" {
					givenUp++
				}
			})
			most := 0
			for n := range connections {
				say(newStrand(d, n))
				most = max(most, d.kept)
				if d.kept > maxKept {
					t.Fatalf("%d bytes are held after %d connections", d.kept, n)
				}
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			grown := int64(after.HeapAlloc) - int64(before.HeapAlloc)
			// The memory of the connections themselves is not counted in kept.
			if least, bound := int64(d.kept)*3/4, int64(d.kept)*5/4+int64(connections)*700; grown < least ||
				grown > bound {
				t.Errorf("the heap grew by %d KiB, %d KiB are counted and %d connections",
					grown>>10, d.kept>>10, len(d.order))
			}
			if grown > 110<<20 {
				t.Errorf("the heap grew by %d MiB", grown>>20)
			}
			if most < maxKept/2 {
				t.Errorf("%d KiB were held at most: this does not come near the bound", most>>10)
			}
			good := 0
			d.out = func(m *Message) {
				if m.Proto == "vitcp" && len(m.Wrong) == 0 {
					good++
				}
			}
			x := newStrand(d, connections)
			x.say(0, vitcpOpening(0))
			x.say(0, dialect.AppendHeader(nil, vitcpwire.Header{Type: vitcpwire.NOP, Length: vitcpwire.HeaderLen}))
			if good != 2 {
				t.Errorf("%d of 2 messages behind them", good)
			}
			d.out = func(m *Message) {
				if m.Name == "given up" || m.Name == "incomplete frame" {
					givenUp++
				}
			}
			d.end()
			if d.kept != 0 {
				t.Errorf("%d bytes are held at the end", d.kept)
			}
			t.Logf("%d KiB counted at most, the heap grew by %d KiB; %d messages, %d frames were not ended",
				most>>10, grown>>10, messages, givenUp)
			runtime.KeepAlive(d)
		})
	}
}

// TestGivenUp: a connection whose frame was discarded is decoded again from the next frame on, with
// the same protocol.
func TestGivenUp(t *testing.T) {
	var list []string
	d := New(Options{}, func(m *Message) { list = append(list, string(m.AppendLine(nil))) })
	x := newStrand(d, 1)
	e := [2]mpa.Encoder{{CRC: true}, {CRC: true}}
	h := sdpwire.Hello{Bufs: 40, MajV: 1, MinV: 1, MaxAdverts: 2, LocalRcvSz: 2000, DesRemRcvSz: 2000,
		LocIRD: 1, LocORD: 1}
	x.say(0, mpa.Frame{Kind: mpa.Request, Rev: 1, CRC: true, Private: h.Append(nil, sdpwire.Figure)}.Append(nil))
	x.say(1, mpa.Frame{Kind: mpa.Reply, Rev: 1, CRC: true}.Append(nil))
	data := func(n int) []byte {
		m := sdpwire.Message{MID: sdpwire.Data, MSeq: uint32(n), Bufs: 4, Len: uint32(sdpwire.BSDHLen + 600)}
		return e[0].Append(nil, rdmap.SendSE.UntaggedHeader(ddp.MSN(1+n), 0, true, 0).Append(nil),
			append(m.Append(nil, sdpwire.Figure), make([]byte, 600)...))
	}
	first := data(0)
	x.say(0, first[:400])
	for n := 0; d.conns[keyOf(&packet{src: x.ends[0], dst: x.ends[1]})].kept > 0; n++ {
		halfOpen["VI/TCP segments"](newStrand(d, 10+n))
	}
	if !contains(list, "tcp given up bytes=400 (of a frame") {
		t.Errorf("said: %s", list)
	}
	list = nil
	x.say(0, first[400:])
	x.say(0, data(1))
	x.say(0, data(2))
	got := fmt.Sprint(list)
	for _, want := range []string{"tcp decoding resumed skipped=", "sdp Data", "mseq=1", "mseq=2"} {
		if !contains(list, want) {
			t.Errorf("%q is not said: %s", want, got)
		}
	}
	if contains(list, "WRONG") || contains(list, "mseq=0 ") {
		t.Errorf("said: %s", got)
	}
}

func contains(list []string, part string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return strings.Contains(s, part) })
}

// TestSearchCost sends bytes that all look like the beginning of a long FPDU. The decoder must not
// compute the CRC of each candidate, and must find the good frames after the candidates.
func TestSearchCost(t *testing.T) {
	found := 0
	d := New(Options{As: map[uint16]string{7000: "iwarp"}}, func(m *Message) {
		if m.Name == "Send" {
			found++
		}
	})
	x := newStrand(d, 1)
	x.middle = true
	x.say(0, []byte{0xc1})
	p := d.order[0].p.(*mpaParser)
	p.crc = on // without CRCs, two consecutive frames would be accepted
	const size = 2 << 20
	for range size / 40_000 {
		x.say(0, bytes.Repeat([]byte{0xc1, 0x40}, 20_000)) // a Tagged segment of 49472 bytes, RDMA Write
	}
	if got, most := p.side[0].vain, 2<<20+64*size; got < 8<<20 || got > most {
		t.Errorf("CRCs of %d bytes were computed for %d, want %d at most", got, size, most)
	}
	e := mpa.Encoder{CRC: true}
	for n := range 100 { // in all longer than the frames that the bytes above announce
		x.say(0, e.Append(nil, rdmap.Send.UntaggedHeader(ddp.MSN(1+n), 0, true, 0).Append(nil), make([]byte, 1000)))
	}
	d.end()
	if found < 50 {
		t.Errorf("%d Sends behind it", found)
	}
}
