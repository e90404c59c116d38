package decode

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"viaduct/cmd/viaduct/internal/pcapng"
	"viaduct/internal/wire/ib"
)

// roceEnds holds two hosts for each address family.
var roceEnds = map[string][2]netip.AddrPort{
	"IPv4": {netip.MustParseAddrPort("10.0.0.1:49153"), netip.MustParseAddrPort("10.0.0.2:4791")},
	"IPv6": {netip.MustParseAddrPort("[2001:db8::1]:49153"), netip.MustParseAddrPort("[2001:db8::2]:4791")},
}

// A roceTalk generates a capture of RoCEv2.
type roceTalk struct {
	t    testing.TB
	ends [2]netip.AddrPort
	file string
	c    *pcapng.Capture
}

func newRoCETalk(t testing.TB, family string) *roceTalk {
	t.Helper()
	file := filepath.Join(t.TempDir(), "x.pcapng")
	c, err := pcapng.Create(file, "test")
	if err != nil {
		t.Fatal(err)
	}
	return &roceTalk{t, roceEnds[family], file, c}
}

// route returns the addresses of packets an end sends.
func (r *roceTalk) route(from int) (src, dst netip.AddrPort) {
	return r.ends[from], netip.AddrPortFrom(r.ends[1-from].Addr(), ib.Port)
}

// say records a packet an end sends.
func (r *roceTalk) say(from int, p ib.Packet) { r.raw(from, p.Append(nil)) }

// raw records a packet with the bytes b and the invariant CRC.
func (r *roceTalk) raw(from int, b []byte) {
	src, dst := r.route(from)
	flow := ib.Flow{Source: src, Destination: dst}
	r.c.RoCE(from == 0, src, dst, flow.Seal(b))
}

func (r *roceTalk) capture() []byte {
	r.t.Helper()
	if err := r.c.Close(); err != nil {
		r.t.Fatal(err)
	}
	b, err := os.ReadFile(r.file)
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

// roceBTH returns a BTH whose numbers all differ.
func roceBTH(o ib.Opcode, psn ib.PSN) ib.BTH {
	return ib.BTH{Opcode: o, PKey: ib.DefaultPKey, QPN: 0x123456, PSN: psn}
}

// roceSample returns a packet with an opcode, all extended headers of the opcode, and payload if
// the opcode has any.
func roceSample(o ib.Opcode, psn ib.PSN) ib.Packet {
	p := ib.Packet{BTH: roceBTH(o, psn)}
	p.Solicited, p.AckReq, p.Migrated = psn&1 == 0, psn&2 == 0, psn&4 == 0
	p.DETH = ib.DETH{QKey: 0x80123456, SourceQPN: 0xabcdef}
	p.RETH = ib.RETH{VA: 0xfedcba9876543210, RKey: 0xdeadbeef, Length: 1000}
	p.Atomic = ib.AtomicETH{VA: 0xfedcba9876543210, RKey: 0xcafe, SwapAdd: 1 << 63, Compare: 77}
	p.AETH = ib.AETH{Syndrome: ib.ACK, MSN: 0x987654}
	p.AtomicAck = 0x8000000000000001
	p.Imm = ib.ImmDt{0x80, 2, 3, 4}
	p.Inv = 0xdeadbeef
	switch o.Kind() {
	case ib.Send, ib.Write, ib.ReadResponse:
		n := 13
		if !o.Ends() {
			n = 256
		}
		p.Payload = bytes.Repeat([]byte{0x5a}, n)
		if o.Kind() == ib.Write && o.Ends() {
			p.RETH.Length = uint32(n)
		}
	}
	return p
}

// cmSample returns a message of connection management with all fields.
func cmSample(k ib.CMKind, end netip.Addr, other netip.Addr) ib.CM {
	return ib.CM{Kind: k, TID: 0x8123456789abcdef, Local: 0x80000001, Remote: 0x80000002,
		Req: ib.CMRequest{ServiceID: ib.IPServiceID(0x0106, 7174), GUID: 0x8877665544332211,
			QPN: 0x111111, PSN: 0x222222, Responder: 4, Initiator: 5, Retries: 6,
			RNRRetries: 7, SRQ: true, PKey: ib.DefaultPKey, MTU: 3, ResponseTime: 20, LocalTime: 19,
			MaxRetries: 15, AckTimeout: 18,
			Source: end, Destination: other, HopLimit: 64},
		Rep: ib.CMReply{QPN: 0x333333, PSN: 0x444444, Responder: 3, Initiator: 2, RNRRetries: 1,
			SRQ: true, GUID: 0x1122334455667788},
		SIDR: ib.CMService{ServiceID: ib.IPServiceID(0x0111, 7174), PKey: ib.DefaultPKey,
			QPN: 0x555555, QKey: 0x1234567},
		About: ib.AboutRep, Service: 24, Reason: ib.RejectConsumer, QPN: 0x666666,
		Private: ib.IPHeader{Source: netip.AddrPortFrom(end, 4000), Destination: other}.Append(nil)}
}

// managementPacket returns a datagram between the queue pairs 1.
func managementPacket(mad []byte) ib.Packet {
	return ib.Packet{BTH: ib.BTH{Opcode: ib.SendOnly.On(ib.UD), PKey: ib.DefaultPKey, QPN: ib.ManagementQPN, PSN: 9},
		DETH: ib.DETH{QKey: ib.ManagementQKey, SourceQPN: ib.ManagementQPN}, Payload: mad}
}

// allRoCE returns a capture with a packet of every opcode, every kind of acknowledgement, and every
// message of connection management.
func allRoCE(t testing.TB, family string) []byte {
	r := newRoCETalk(t, family)
	psn := ib.PSN(0xfffff0)
	for o := range 256 {
		if o := ib.Opcode(o); o.Assigned() {
			psn = psn.Add(2) // a gap, so that the order of opcodes does not matter
			from := 0
			if !o.Kind().Request() {
				from = 1
			}
			r.say(from, roceSample(o, psn))
		}
	}
	for _, s := range []ib.Syndrome{ib.RNR(0), ib.RNR(31), ib.NAKSequence, ib.NAKInvalidRequest, ib.NAKRemoteAccess, ib.NAKRemoteOp} {
		p := roceSample(ib.Acknowledge, psn)
		p.AETH.Syndrome = s
		r.say(1, p)
	}
	for k := ib.CMReq; k <= ib.CMSIDRRep; k++ {
		c := cmSample(k, r.ends[0].Addr(), r.ends[1].Addr())
		r.say(int(k)&1, managementPacket(c.Append(nil)))
	}
	return r.capture()
}

// TestRoCE: the decoder reports the name of every packet, without a CRC error, and the kind of
// every message of connection management.
func TestRoCE(t *testing.T) {
	for family := range roceEnds {
		t.Run(family, func(t *testing.T) {
			names := map[string]bool{}
			for _, m := range all(t, Options{}, allRoCE(t, family)) {
				names[m.Proto+" "+m.Name] = true
				if v, _ := m.Get("roce.icrc"); v != "good" {
					t.Errorf("ICRC %q: %s", v, m.line)
				}
				if len(m.Wrong) > 0 {
					t.Errorf("a false alarm: %s", m.line)
				}
			}
			for _, want := range []string{"roce RC Send First", "roce UC RDMA Write Only with Immediate", "roce UD Send Only", "roce RC Compare and Swap",
				"roce RC RDMA Read Response Middle", "cm REQ", "cm MRA", "cm REJ", "cm REP", "cm RTU", "cm DREQ", "cm DREP", "cm SIDR_REQ", "cm SIDR_REP"} {
				if !names[want] {
					t.Errorf("no %s among %d names", want, len(names))
				}
			}
		})
	}
}

// TestRoCELines checks the lines for people.
func TestRoCELines(t *testing.T) {
	r := newRoCETalk(t, "IPv4")
	c := cmSample(ib.CMReq, r.ends[0].Addr(), r.ends[1].Addr())
	r.say(0, managementPacket(c.Append(nil)))
	read := roceSample(ib.ReadRequest, 5)
	r.say(0, read)
	nak := roceSample(ib.Acknowledge, 5)
	nak.AETH.Syndrome = ib.NAKRemoteAccess
	r.say(1, nak)
	got := all(t, Options{}, r.capture())
	for i, want := range []string{
		"> cm REQ tid=0x8123456789abcdef local=0x80000001 service_id=0x1061c06 guid=0x8877665544332211 qpn=0x111111 psn=2236962 responder=4",
		"> roce RC RDMA Read Request bth.qpn=0x123456 bth.ack_req=true bth.psn=5 reth.va=0xfedcba9876543210 reth.rkey=0xdeadbeef reth.length=1000",
		`< roce RC Acknowledge bth.qpn=0x123456 bth.ack_req=true bth.psn=5 aeth.text="NAK remote access error" aeth.msn=9991764`,
	} {
		if i >= len(got) || !strings.Contains(got[i].line, want) {
			t.Errorf("line %d of %d is not %q: %s", i, len(got), want, got[min(i, len(got)-1)].line)
		}
	}
	if v, _ := got[0].Get("cm.source"); v != "10.0.0.1:4000" {
		t.Errorf("source %q", v)
	}
}

// TestRoCEWrong: each fault of a packet is reported with the violated requirement, and no other
// requirement is reported.
func TestRoCEWrong(t *testing.T) {
	only := func(o ib.Opcode) []byte { p := roceSample(o, 6); return p.Append(nil) }
	packets := func(ps ...ib.Packet) func(r *roceTalk) {
		return func(r *roceTalk) {
			for _, p := range ps {
				r.say(0, p)
			}
		}
	}
	with := func(p ib.Packet, change func(p *ib.Packet)) ib.Packet { change(&p); return p }
	cases := []struct {
		name, id string
		say      func(r *roceTalk)
	}{
		{"nothing", "", packets(roceSample(ib.SendFirst, 1), roceSample(ib.SendMiddle, 2), roceSample(ib.SendLast, 3), roceSample(ib.FetchAdd, 4))},
		{"goes again", "", packets(roceSample(ib.SendFirst, 1), roceSample(ib.SendMiddle, 2), roceSample(ib.SendFirst, 1), roceSample(ib.SendMiddle, 2), roceSample(ib.SendLast, 3))},
		{"a gap", "", packets(roceSample(ib.SendFirst, 1), roceSample(ib.WriteMiddle, 3), roceSample(ib.WriteLast, 4))},
		{"short", "ROCE-BTH-1", func(r *roceTalk) { r.raw(0, only(ib.SendOnly)[:7]) }},
		{"version", "ROCE-BTH-2", func(r *roceTalk) { b := only(ib.SendOnly); b[1] |= 1; r.raw(0, b) }},
		{"pad", "ROCE-BTH-3", func(r *roceTalk) { b := only(ib.SendOnly); r.raw(0, b[:len(b)-1]) }},
		{"partition", "ROCE-BTH-4", packets(with(roceSample(ib.SendOnly, 1), func(p *ib.Packet) { p.PKey = 0x8000 }))},
		{"reserved bits", "ROCE-BTH-6", func(r *roceTalk) { b := only(ib.SendOnly); b[8] |= 4; r.raw(0, b) }},
		{"congestion seen", "", func(r *roceTalk) { b := only(ib.SendOnly); b[4] |= 0xc0; r.raw(0, b) }},
		{"opcode", "ROCE-OP-1", func(r *roceTalk) { b := only(ib.SendOnly); b[0] = 0x1f; r.raw(0, b) }},
		{"congestion notification", "", func(r *roceTalk) { b := only(ib.SendOnly); b[0] = 0x81; r.raw(0, b) }},
		{"no RETH", "ROCE-OP-2", func(r *roceTalk) { r.raw(0, only(ib.ReadRequest)[:20]) }},
		{"payload of a Read", "ROCE-OP-2", func(r *roceTalk) { r.raw(0, append(only(ib.ReadRequest), 1, 2, 3, 4)) }},
		{"reserved syndrome", "ROCE-OP-5", packets(with(roceSample(ib.Acknowledge, 1), func(p *ib.Packet) { p.AETH.Syndrome = 0x40 }))},
		{"NAK code", "ROCE-OP-13", packets(with(roceSample(ib.Acknowledge, 1), func(p *ib.Packet) { p.AETH.Syndrome = 0x7e }))},
		{"order", "ROCE-OP-12", packets(roceSample(ib.SendFirst, 1), roceSample(ib.WriteMiddle, 2))},
		{"order across 2^24", "ROCE-OP-12", packets(roceSample(ib.SendFirst, 1<<24-1), roceSample(ib.SendOnly, 0))},
		{"order after a Read", "ROCE-OP-12", packets(roceSample(ib.ReadRequest, 1), roceSample(ib.SendMiddle, 9))},
		{"MTU", "ROCE-NET-6", packets(with(roceSample(ib.SendFirst, 1), func(p *ib.Packet) { p.Payload = p.Payload[:200] }))},
		{"MTU changes", "ROCE-REQ-1", packets(with(roceSample(ib.SendFirst, 1), func(p *ib.Packet) { p.Payload = make([]byte, 512) }), roceSample(ib.SendMiddle, 2))},
		{"Last is empty", "ROCE-REQ-1", packets(roceSample(ib.SendFirst, 1), with(roceSample(ib.SendLast, 2), func(p *ib.Packet) { p.Payload = nil }))},
		{"length of a Write", "ROCE-REQ-3", packets(with(roceSample(ib.WriteOnly, 1), func(p *ib.Packet) { p.RETH.Length = 14 }))},
		{"length of a long Write", "ROCE-REQ-3", packets(with(roceSample(ib.WriteFirst, 1), func(p *ib.Packet) { p.RETH.Length = 256 + 12 }), roceSample(ib.WriteLast, 2))},
		{"a long Write", "", packets(with(roceSample(ib.WriteFirst, 1), func(p *ib.Packet) { p.RETH.Length = 256 + 13 }), roceSample(ib.WriteLast, 2))},
		{"atomic alignment", "ROCE-RESP-17", packets(with(roceSample(ib.CompareSwap, 1), func(p *ib.Packet) { p.Atomic.VA++ }))},
		{"key of queue pair 1", "ROCE-CM-1", func(r *roceTalk) {
			c := cmSample(ib.CMRTU, r.ends[0].Addr(), r.ends[1].Addr())
			r.say(0, with(managementPacket(c.Append(nil)), func(p *ib.Packet) { p.DETH.QKey++ }))
		}},
		{"attribute", "ROCE-CM-2", func(r *roceTalk) {
			c := cmSample(ib.CMRTU, r.ends[0].Addr(), r.ends[1].Addr())
			b := c.Append(nil)
			b[17] = 0x33
			r.say(0, managementPacket(b))
		}},
		{"CRC", "ROCE-ICRC-1", func(r *roceTalk) {
			src, dst := r.route(0)
			r.c.RoCE(true, src, dst, append(only(ib.SendOnly), 1, 2, 3, 4))
		}},
		{"CRC of another identification", "ROCE-ICRC-4", func(r *roceTalk) {
			src, dst := r.route(0)
			flow := ib.Flow{Source: src, Destination: dst, ID: 0x1234}
			r.c.Datagram(true, src, dst, flow.Seal(only(ib.SendOnly)))
		}},
		{"CRC of the identification that the frame has", "", func(r *roceTalk) {
			src, dst := r.route(0)
			flow := ib.Flow{Source: src, Destination: dst, ID: 0x1234}
			r.c.RoCE(true, src, dst, flow.Seal(only(ib.SendOnly)))
		}},
	}
	for _, x := range cases {
		t.Run(x.name, func(t *testing.T) {
			r := newRoCETalk(t, "IPv4")
			x.say(r)
			var got []string
			for _, m := range all(t, Options{}, r.capture()) {
				for _, w := range m.Wrong {
					got = append(got, w.ID)
				}
			}
			if s := strings.Join(got, " "); s != x.id {
				t.Errorf("named %q, expected %q", s, x.id)
			}
		})
	}
}

// TestRoCEFlow expects a note on a repeated packet, and a note on a gap in the sequence numbers. A
// queue pair connecting again begins with other numbers. The change must not count as a gap.
func TestRoCEFlow(t *testing.T) {
	r := newRoCETalk(t, "IPv6")
	for _, p := range []ib.Packet{
		roceSample(ib.SendFirst, 1), roceSample(ib.SendLast, 2), roceSample(ib.SendLast, 2), roceSample(ib.SendOnly, 6),
		roceSample(ib.SendOnly, 0x800000), roceSample(ib.SendOnly, 0x800001),
	} {
		r.say(0, p)
	}
	c := cmSample(ib.CMRep, r.ends[0].Addr(), r.ends[1].Addr())
	c.Rep.QPN = 0x123456
	r.say(1, managementPacket(c.Append(nil)))
	r.say(0, roceSample(ib.SendOnly, 0x7fffff))
	var notes []string
	for _, m := range all(t, Options{}, r.capture()) {
		notes = append(notes, m.Note)
	}
	want := "||sent before|packets missing before it: 3||||"
	if got := strings.Join(notes, "|"); got != want {
		t.Errorf("notes %q, expected %q", got, want)
	}
}

// TestRoCECutShort: truncated packets are reported as truncated, and judged only by the captured
// part.
func TestRoCECutShort(t *testing.T) {
	r := newRoCETalk(t, "IPv4")
	defer r.capture()
	src, dst := r.route(0)
	flow := ib.Flow{Source: src, Destination: dst}
	p := roceSample(ib.WriteOnly, 1)
	whole := flow.Seal(p.Append(nil))
	for n := range whole {
		m := new(Message)
		d := New(Options{}, func(x *Message) { *m = *x })
		d.datagram(&packet{src: src, dst: dst, proto: protoUDP, payload: whole[:n], missing: len(whole) - n})
		if len(m.Wrong) > 0 || m.Note == "" && n < len(whole)-ib.ICRCLen {
			t.Errorf("%d bytes: %s", n, m.AppendLine(nil))
		}
	}
}
