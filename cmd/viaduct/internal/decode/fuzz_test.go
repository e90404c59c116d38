package decode

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fcip"
	"viaduct/internal/wire/ib"
	"viaduct/internal/wire/iu"
	"viaduct/internal/wire/portmapwire"
	"viaduct/internal/wire/rdmap"
	"viaduct/internal/wire/sdpwire"
	"viaduct/internal/wire/vitcpwire"
)

// FuzzCapture decodes a file with arbitrary content.
func FuzzCapture(f *testing.F) {
	// Seeds are beginnings of connections. The seeds are truncated because the fuzzer minimizes
	// findings, and takes a minute for each long seed.
	for _, b := range kernel(f) {
		if len(b) < 8000 {
			f.Add(b[:1500], false)
			f.Add(b[:700], true)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, segments bool) {
		_ = New(Options{Segments: segments}, func(m *Message) { m.AppendLine(nil); m.AppendJSON(nil) }).Read(bytes.NewReader(b))
	})
}

// FuzzPacket parses one packet.
func FuzzPacket(f *testing.F) {
	c, _ := iwarpTalk(true, false)
	f.Add(c.frames[len(c.frames)-1], uint16(layers.LinkTypeEthernet))
	f.Fuzz(func(t *testing.T, b []byte, link uint16) {
		var p packet
		if parsePacket(layers.LinkType(link), b, &p) == "" && len(p.payload) > len(b) {
			t.Fatal("more payload than there is")
		}
	})
}

// fuzzStream decodes both directions of a connection of protocol proto. Each two bytes of plan
// describe the next piece of a direction: the length, and whether the piece is lost, truncated,
// repeated or early. The seeds are conversations, with a plan for unchanged delivery.
func fuzzStream(f *testing.F, proto string, seeds ...*talk) {
	const (
		segments = 1 << iota
		middle   // the start is not in the capture
		content  // the decoder has to recognise the protocol
	)
	for _, c := range seeds {
		plan, a, b := c.script()
		for _, opt := range []uint8{0, segments, middle, content} {
			f.Add(opt, plan, a, b)
		}
	}
	f.Fuzz(func(t *testing.T, how uint8, plan, a, b []byte) {
		opt := Options{As: map[uint16]string{}, Segments: how&segments != 0}
		if how&content == 0 {
			opt.As[talkers[1].Port()] = proto
		}
		total := 0
		d := New(opt, func(m *Message) { total++; m.AppendLine(nil) })
		c := &talk{seq: [2]uint32{100, 200}}
		if how&middle == 0 {
			c = newTalk()
		}
		rest := [2][]byte{a, b}
		for ; len(plan) >= 2; plan = plan[2:] {
			x := plan[0]
			i := int(x & 1)
			n := min(len(rest[i]), int(x>>4)<<8|int(plan[1]))
			piece := rest[i][:n]
			rest[i] = rest[i][n:]
			switch x >> 1 & 7 {
			case 0: // lost
				c.seq[i] += uint32(n)
			case 1: // repeated
				c.packet(i, ackFlag, piece)
				c.frames = append(c.frames, c.frames[len(c.frames)-1])
			case 2: // early
				c.packet(i, ackFlag, piece)
				if k := len(c.frames); k > 3 {
					c.frames[k-1], c.frames[k-2] = c.frames[k-2], c.frames[k-1]
				}
			case 3:
				c.packet(i, ackFlag|finFlag, piece)
			default:
				c.packet(i, ackFlag, piece)
			}
		}
		for i := range rest {
			c.say(i, rest[i])
		}
		var p packet
		for _, frame := range c.frames {
			d.frame++
			if parsePacket(layers.LinkTypeEthernet, frame, &p) == "" {
				if how&0x80 != 0 && d.frame%7 == 0 && len(p.payload) > 3 {
					p.payload, p.missing = p.payload[:len(p.payload)-3], 3
				}
				d.packet(&p)
			}
		}
		d.end()
		if d.kept != 0 {
			t.Fatalf("%d bytes are held for ever", d.kept)
		}
		if total > 10*(len(a)+len(b)+len(c.frames)+100) {
			t.Fatalf("%d messages of %d bytes", total, len(a)+len(b))
		}
	})
}

// script converts a conversation to the input of fuzzStream.
func (c *talk) script() (plan, a, b []byte) {
	const plain = 4 << 1
	var p packet
	for _, frame := range c.frames {
		if parsePacket(layers.LinkTypeEthernet, frame, &p) != "" || len(p.payload) == 0 {
			continue
		}
		from := 0
		if p.src == talkers[1] {
			from = 1
		}
		n := len(p.payload)
		plan = append(plan, byte(n>>8)<<4|plain|byte(from), byte(n))
		if from == 0 {
			a = append(a, p.payload...)
		} else {
			b = append(b, p.payload...)
		}
	}
	return plan, a, b
}

// TestSeeds: the seeds of the stream fuzz targets decode to messages of every kind, without a
// violation.
func TestSeeds(t *testing.T) {
	for _, x := range []struct {
		name  string
		seed  *talk
		names []string
	}{
		{"iwarp", rdmaSeed(true, false), []string{"MPA Request Frame", "MPA Reply Frame", "Send", "RDMA Write", "RDMA Read Request", "RDMA Read Response", "Terminate"}},
		{"iwarp with markers", rdmaSeed(true, true), []string{"MPA Request Frame", "MPA Reply Frame", "Send", "RDMA Write", "RDMA Read Request", "RDMA Read Response", "Terminate"}},
		{"sdp", sdpSeed(), []string{"Hello", "HelloAck", "Data", "SrcAvail", "RdmaRdCompl", "ModeChange", "SinkAvail", "RdmaWrCompl", "ChRcvBuf", "ChRcvBufAck", "DisConn"}},
		{"vitcp", vitcpSeed(), []string{"Connect Request", "Connect Accept", "Send", "RDMA Write", "RDMA Read Request", "RDMA Read Response", "NOP", "Disconnect"}},
		{"fcip", fcipSeed(), []string{"FCIP Special Frame", "PLOGI", "SEND_RQST", "WRITE_RQST", "GID_FT"}},
	} {
		list := all(t, Options{}, record(t, x.seed.frames))
		for _, name := range x.names {
			if !named(list, []string{name}) {
				t.Errorf("%s: there is no %s:%s", x.name, name, lines(list))
			}
		}
		for _, m := range list {
			if len(m.Wrong) > 0 || m.Proto == "tcp" {
				t.Errorf("%s: %s", x.name, m.line)
			}
		}
	}
}

// rdmaSeed returns a connection with a message of each kind of RDMAP.
func rdmaSeed(crc, markers bool) *talk {
	c, e := iwarpTalk(crc, markers)
	fpdu := func(from int, parts ...[]byte) { c.say(from, e[from].Append(nil, parts...)) }
	fpdu(0, rdmap.Send.UntaggedHeader(1, 0, false, 0).Append(nil), make([]byte, 20))
	fpdu(0, rdmap.Send.UntaggedHeader(1, 20, true, 0).Append(nil), make([]byte, 20))
	fpdu(0, rdmap.Write.TaggedHeader(7, 100, false).Append(nil), make([]byte, 16))
	fpdu(0, rdmap.Write.TaggedHeader(7, 116, true).Append(nil), make([]byte, 16))
	fpdu(0, rdmap.ReadRequestOp.UntaggedHeader(1, 0, true, 0).Append(nil),
		rdmap.ReadRequest{SinkSTag: 7, Size: 24, SourceSTag: 9}.Append(nil))
	fpdu(1, rdmap.ReadResponse.TaggedHeader(7, 0, false).Append(nil), make([]byte, 8))
	fpdu(1, rdmap.ReadResponse.TaggedHeader(7, 8, true).Append(nil), make([]byte, 16))
	fpdu(1, rdmap.SendInvalidate.UntaggedHeader(1, 0, true, 7).Append(nil), make([]byte, 9))
	fpdu(1, rdmap.TerminateOp.UntaggedHeader(1, 0, true, 0).Append(nil),
		rdmap.Terminate{Layer: rdmap.LayerRDMAP, Type: 1, Code: 5}.Append(nil))
	return c
}

// sdpSeed returns a connection with Read Zcopy, Write Zcopy, a resize and an orderly end.
func sdpSeed() *talk {
	c := newSDPTalk()
	msg := func(from int, m sdpwire.Message, n int) { m.MSeqAck = c.seq[1-from] - 1; c.send(from, m, n) }
	fpdu := func(from int, parts ...[]byte) { c.talk.say(from, c.enc[from].Append(nil, parts...)) }
	msg(0, sdpwire.Message{MID: sdpwire.Data}, 20)
	msg(1, sdpwire.Message{MID: sdpwire.Data}, 0)
	msg(0, sdpwire.Message{MID: sdpwire.SrcAvail, STag: 0x700, VA: 1000, Size: 50}, 1)
	fpdu(1, rdmap.ReadRequestOp.UntaggedHeader(1, 0, true, 0).Append(nil),
		rdmap.ReadRequest{SinkSTag: 1, Size: 49, SourceSTag: 0x700, SourceTO: 1001}.Append(nil))
	fpdu(0, rdmap.ReadResponse.TaggedHeader(1, 0, true).Append(nil), make([]byte, 49))
	msg(1, sdpwire.Message{MID: sdpwire.RdmaRdCompl, Size: 49}, 0)
	msg(0, sdpwire.Message{MID: sdpwire.ModeChange, Mode: sdpwire.Pipelined}, 0)
	msg(1, sdpwire.Message{MID: sdpwire.SinkAvail, STag: 0x900, Size: 30, NonDiscards: 2}, 0)
	fpdu(0, rdmap.Write.TaggedHeader(0x900, 0, true).Append(nil), make([]byte, 30))
	msg(0, sdpwire.Message{MID: sdpwire.RdmaWrCompl, Size: 30}, 0)
	msg(0, sdpwire.Message{MID: sdpwire.ChRcvBuf, Size: 300}, 0)
	msg(1, sdpwire.Message{MID: sdpwire.ChRcvBufAck, Size: 300}, 0)
	msg(0, sdpwire.Message{MID: sdpwire.DisConn}, 0)
	msg(1, sdpwire.Message{MID: sdpwire.DisConn}, 0)
	return c.talk
}

// vitcpSeed returns a connection with a message of each kind, and an orderly end.
func vitcpSeed() *talk {
	c := newTalk()
	ce := vitcpwire.CE{Attributes: vitcpwire.Reliable | vitcpwire.FlowControl, MTU: 1000, ReadWindow: 2}
	seg := func(from int, h vitcpwire.Header, body ...[]byte) {
		h.Posted = 8
		all := bytes.Join(body, nil)
		h.Length = uint16(vitcpwire.HeaderLen + len(all))
		c.say(from, append(dialect.AppendHeader(nil, h), all...))
	}
	const eom = vitcpwire.EndOfMessage
	seg(0, vitcpwire.Header{Type: vitcpwire.ConnectRequest, Number: 1, Flags: eom}, ce.Append(nil))
	seg(1, vitcpwire.Header{Type: vitcpwire.ConnectAccept, Number: 1, Flags: eom}, ce.Append(nil))
	seg(0, vitcpwire.Header{Type: vitcpwire.Send, Number: 2}, make([]byte, 20))
	seg(0, vitcpwire.Header{Type: vitcpwire.Send, Number: 2, Offset: 20, Flags: eom | vitcpwire.ImmediateValid, Immediate: 5}, make([]byte, 20))
	seg(0, vitcpwire.Header{Type: vitcpwire.Write, Number: 3},
		vitcpwire.RDMA{Address: 4096, Handle: 7, Length: 30}.Append(nil), make([]byte, 20))
	seg(0, vitcpwire.Header{Type: vitcpwire.Write, Number: 3, Offset: 20, Flags: eom},
		vitcpwire.RDMA{Address: 4096, Handle: 7, Length: 30}.Append(nil), make([]byte, 10))
	seg(0, vitcpwire.Header{Type: vitcpwire.ReadRequest, Number: 4, Flags: eom},
		vitcpwire.RDMA{Address: 4096, Handle: 7, Length: 12}.Append(nil))
	seg(1, vitcpwire.Header{Type: vitcpwire.ReadResponse, Number: 4, Ack: 4, Flags: eom},
		vitcpwire.RDMA{Address: 4096, Handle: 7, Length: 12}.Append(nil), make([]byte, 12))
	seg(1, vitcpwire.Header{Type: vitcpwire.NOP, Ack: 4})
	seg(0, vitcpwire.Header{Type: vitcpwire.Disconnect, Flags: eom})
	return c
}

// fcipSeed returns a link with Special Frames, a login, the directory and FC-VI IUs.
func fcipSeed() *talk {
	c := newTalk()
	s := fcip.Special{Source: 0x1000020000000001, Entity: 2, Nonce: 3, Destination: 0x1000020000000002,
		KATOV: fcip.DefaultKATOV}
	c.say(0, s.Append(nil))
	c.say(1, s.Append(nil))
	frame := func(from int, h fc.Header, opt, payload []byte) {
		f := fc.Frame{SOF: fc.SOFi3, EOF: fc.EOFt, Header: h, Opt: opt, Payload: payload}
		c.say(from, fcip.Append(nil, &f))
	}
	frame(0, fc.Header{RCtl: fc.RCtlELSReq, DID: 0xfffffe, Type: fc.TypeELS, OXID: 1, RXID: fc.Unassigned},
		nil, append([]byte{3, 0, 0, 0}, make([]byte, 20)...))
	frame(0, fc.Header{RCtl: fc.RCtlUnsolControl, DID: 0xfffffc, SID: 0x10101, Type: fc.TypeCT, OXID: 2, RXID: fc.Unassigned}, nil, append([]byte{1, 0, 0, 0, 0xfc, 2, 0, 0, 1, 0x71}, make([]byte, 10)...))
	for _, h := range []iu.Header{{Op: iu.SendRqst, Handle: 1, MsgID: 1}, {Op: iu.WriteRqst, Handle: 1, MsgID: 2, RmtVA: 4096, RmtHandle: 7, Total: 8}} {
		opt, df := h.Append(nil), uint8(fc.DFCtlDev16)
		if len(opt) > 16 {
			df = fc.DFCtlDev32
		}
		frame(1, fc.Header{RCtl: 4, DID: 0x10101, SID: 0x10201, Type: fc.TypeFCVI, DFCtl: df, OXID: 3, RXID: fc.Unassigned}, opt, make([]byte, 8))
	}
	return c
}

// FuzzIWARP decodes MPA with DDP and RDMAP.
func FuzzIWARP(f *testing.F) {
	fuzzStream(f, "iwarp", rdmaSeed(true, false), rdmaSeed(false, false), rdmaSeed(true, true))
}

// FuzzSDP decodes SDP over MPA.
func FuzzSDP(f *testing.F) { fuzzStream(f, "sdp", sdpSeed()) }

// FuzzVITCP decodes VI/TCP.
func FuzzVITCP(f *testing.F) { fuzzStream(f, "vitcp", vitcpSeed()) }

// FuzzFCIP decodes FCIP with Fibre Channel and FC-VI.
func FuzzFCIP(f *testing.F) { fuzzStream(f, "fcip", fcipSeed()) }

// A probe is a parser whose frames are single bytes. It checks the reassembly of a stream of known
// content.
type probe struct {
	t  *testing.T
	at uint32 // next position in the stream
}

// pattern returns byte i of the stream.
func pattern(i uint32) byte { return byte(i*167 + i>>8*13) }

func (p *probe) layer() string                              { return "probe" }
func (p *probe) need(*half, []byte) (int, int, error)       { return 1, 1, nil }
func (p *probe) find(*half, []byte, bool) (at int, ok bool) { return 0, true }
func (p *probe) forget(*half)                               {}
func (p *probe) size() int                                  { return 0 }
func (p *probe) frame(_ *half, b []byte, total, _ int) int {
	if b[0] != pattern(p.at) {
		p.t.Fatalf("byte %d is %#x, sent was %#x", p.at, b[0], pattern(p.at))
	}
	p.at++
	return total
}

// FuzzReassembly delivers a stream in pieces. Every byte must be decoded once and in order, or be
// reported as missing. Each three bytes of plan describe a segment: treatment, length, and shift.
func FuzzReassembly(f *testing.F) {
	f.Add(uint32(0), []byte{0, 9, 0, 1, 20, 0, 0, 30, 0, 2, 5, 9, 3, 8, 4, 4, 9, 3, 5, 0, 0, 6, 0, 0})
	f.Add(uint32(0xfffffff0), []byte{3, 40, 40, 0, 200, 0, 2, 90, 80, 5, 0, 0, 0, 7, 0})
	f.Fuzz(func(t *testing.T, isn uint32, plan []byte) {
		if len(plan) > 3000 {
			return
		}
		p := &probe{t: t}
		d := New(Options{}, func(m *Message) {
			if m.Name == "bytes missing" {
				for i := range m.Fields {
					if m.Fields[i].Key == "tcp.bytes" {
						p.at += uint32(m.Fields[i].N)
					}
				}
			}
		})
		seg := func(from int, flags byte, at uint32, n, missing int) {
			x := packet{src: talkers[from], dst: talkers[1-from], proto: protoTCP, seq: isn + 1 + at,
				flags: flags, missing: missing}
			for i := range n {
				x.payload = append(x.payload, pattern(at+uint32(i)))
			}
			d.frame++
			d.packet(&x)
		}
		d.packet(&packet{src: talkers[0], dst: talkers[1], proto: protoTCP, seq: isn, flags: synFlag})
		c := d.order[0]
		c.name, c.p = "probe", p
		next, most := uint32(0), uint32(0) // next byte to send, and end of the captured bytes
		sent := func(at uint32, n int) { most = max(most, at+uint32(n)) }
		for ; len(plan) >= 3 && !c.closed; plan = plan[3:] {
			n, by := int(plan[1]), uint32(plan[2])
			switch plan[0] % 7 {
			case 0, 1:
				seg(0, ackFlag, next, n, 0)
				sent(next, n)
				next += uint32(n)
			case 2: // some earlier bytes are repeated
				at := next - min(next, by)
				seg(0, ackFlag, at, n, 0)
				sent(at, n)
			case 3: // early
				seg(0, ackFlag, next+by, n, 0)
				sent(next+by, n)
			case 4: // truncated
				seg(0, ackFlag, next, n, int(by))
				sent(next, n+int(by))
				next += uint32(n) + by
			case 5: // acknowledged
				d.frame++
				d.packet(&packet{src: talkers[1], dst: talkers[0], proto: protoTCP, flags: ackFlag,
					ack: isn + 1 + most})
			case 6: // lost
				next += uint32(n)
			}
		}
		if most < next { // end of the stream
			seg(0, ackFlag, next, 0, 0)
		}
		seg(0, ackFlag|finFlag, max(next, most), 0, 0)
		d.end()
		if want := max(next, most); p.at != want {
			t.Fatalf("%d bytes were decoded or missed, sent were %d", p.at, want)
		}
		if d.kept != 0 {
			t.Fatalf("%d bytes are held for ever", d.kept)
		}
	})
}

// FuzzDatagram decodes a datagram of the Port Mapper and a packet of RoCEv2.
func FuzzDatagram(f *testing.F) {
	for typ := portmapwire.Request; typ <= portmapwire.Deny; typ++ {
		ap := netip.MustParseAddrPort("192.0.2.1:80")
		f.Add(portmapwire.Message{Type: typ, PmTime: 1, AssocHandle: 7, Cp: netip.AddrPortFrom(ap.Addr(), 9), Ap: ap}.Append(nil))
	}
	f.Add(make([]byte, 48))
	f.Add([]byte{0x10, 4})
	for _, o := range []ib.Opcode{ib.SendFirst, ib.WriteOnlyImm, ib.FetchAdd, ib.ReadResponseOnly, ib.AtomicAcknowledge, ib.SendOnlyImm.On(ib.UD)} {
		p := roceSample(o, 7)
		f.Add(append(p.Append(nil), 0, 0, 0, 0))
	}
	c := cmSample(ib.CMReq, talkers[0].Addr(), talkers[1].Addr())
	p := managementPacket(c.Append(nil))
	f.Add(append(p.Append(nil), 0, 0, 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, as := range []string{"portmap", "roce"} {
			d := New(Options{As: map[uint16]string{talkers[0].Port(): as}},
				func(m *Message) { m.AppendJSON(m.AppendLine(nil)) })
			for missing := range 8 {
				d.datagram(&packet{src: talkers[0], dst: talkers[1], proto: protoUDP, payload: b, missing: missing})
			}
		}
	})
}
