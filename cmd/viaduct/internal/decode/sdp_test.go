package decode

import (
	"strings"
	"testing"

	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
	"viaduct/internal/wire/sdpwire"
)

// An sdpTalk is an SDP connection after Hello and HelloAck: each side has four
// buffers of 200 bytes.
type sdpTalk struct {
	*talk
	enc [2]mpa.Encoder
	msn [2]ddp.MSN
	seq [2]uint32

	layout sdpwire.Layout
}

func newSDPTalk() *sdpTalk {
	c := &sdpTalk{talk: newTalk()}
	c.greet()
	return c
}

// greet sends Hello and HelloAck.
func (c *sdpTalk) greet() {
	c.msn = [2]ddp.MSN{1, 1}
	h := sdpwire.Hello{Bufs: 4, MajV: 1, MinV: 1, MaxAdverts: 2, LocalRcvSz: 200, DesRemRcvSz: 200,
		LocIRD: 1, LocORD: 1}
	c.talk.say(0, mpa.Frame{Kind: mpa.Request, Rev: 1, Private: h.Append(nil, c.layout)}.Append(nil))
	c.talk.say(1, mpa.Frame{Kind: mpa.Reply, Rev: 1}.Append(nil))
	a := sdpwire.HelloAck{Bufs: 4, MajV: 1, MinV: 1, MaxAdverts: 2, ActRcvSz: 200, LocIRD: 1, LocORD: 1}
	c.raw(1, a.Append(nil, c.layout))
}

func (c *sdpTalk) raw(from int, b []byte) {
	c.talk.say(from, c.enc[from].Append(nil, rdmap.SendSE.UntaggedHeader(c.msn[from], 0, true, 0).Append(nil), b))
	c.msn[from] = c.msn[from].Next()
}

// send sends m with n bytes of payload and the next sequence number.
func (c *sdpTalk) send(from int, m sdpwire.Message, n int) {
	m.MSeq = c.seq[from]
	c.seq[from]++
	if m.Bufs == 0 {
		m.Bufs = 4
	}
	m.Len = uint32(m.MID.HeaderLen() + n)
	c.raw(from, append(m.Append(nil, c.layout), make([]byte, n)...))
}

// TestWrongSDP is TestWrong for SDP.
func TestWrongSDP(t *testing.T) {
	data := sdpwire.Message{MID: sdpwire.Data}
	src := sdpwire.Message{MID: sdpwire.SrcAvail, STag: 0x700, VA: 1000, Size: 500}
	change := func(to sdpwire.Mode, s bool) sdpwire.Message {
		return sdpwire.Message{MID: sdpwire.ModeChange, Mode: to, S: s}
	}
	read := func(c *sdpTalk, r rdmap.ReadRequest) {
		c.talk.say(1, c.enc[1].Append(nil, rdmap.ReadRequestOp.UntaggedHeader(1, 0, true, 0).Append(nil),
			r.Append(nil)))
	}
	write := func(c *sdpTalk, stag uint32, n int) {
		c.talk.say(0, c.enc[0].Append(nil, rdmap.Write.TaggedHeader(stag, 0, true).Append(nil), make([]byte, n)))
	}
	for _, x := range []struct {
		name, id string
		say      func(c *sdpTalk)
	}{
		{"all is well", "", func(c *sdpTalk) {
			c.send(0, data, 50)
			c.send(0, src, 1)
			read(c, rdmap.ReadRequest{SinkSTag: 1, Size: 499, SourceSTag: 0x700, SourceTO: 1001})
			c.send(1, sdpwire.Message{MID: sdpwire.RdmaRdCompl, Size: 499, MSeqAck: 1}, 0)
			c.send(0, change(sdpwire.Pipelined, false), 0)
			c.send(1, sdpwire.Message{MID: sdpwire.SinkAvail, STag: 0x900, Size: 100, NonDiscards: 2, MSeqAck: 2}, 0)
			write(c, 0x900, 100)
			c.send(0, sdpwire.Message{MID: sdpwire.RdmaWrCompl, Size: 100, MSeqAck: 1}, 0)
			c.send(0, sdpwire.Message{MID: sdpwire.DisConn}, 0)
		}},
		{"a number left out", "SDP-6.1.5-2", func(c *sdpTalk) { c.send(0, data, 50); c.seq[0]++; c.send(0, data, 0) }},
		{"the first number", "SDP-6.1.5-1", func(c *sdpTalk) { c.seq[0]++; c.send(0, data, 0) }},
		{"the reserve of credit", "SDP-10.5-7", func(c *sdpTalk) { c.send(0, data, 1); c.send(0, data, 1); c.send(0, data, 1) }},
		{"no credit", "SDP-10.5-5", func(c *sdpTalk) {
			for range 5 {
				c.send(0, data, 0)
			}
		}},
		{"too long", "SDP-10-4", func(c *sdpTalk) { c.send(0, data, 190) }},
		{"an acknowledgement of nothing", "D-09", func(c *sdpTalk) { c.send(0, sdpwire.Message{MID: sdpwire.Data, MSeqAck: 9}, 0) }},
		{"SrcAvail in Buffered", "SDP-11.1-1", func(c *sdpTalk) { c.send(0, change(sdpwire.Buffered, false), 0); c.send(0, src, 0) }},
		{"SrcAvail without payload", "SDP-11.2-6", func(c *sdpTalk) { c.send(0, src, 0) }},
		{"SrcAvail with payload", "SDP-11.3-4", func(c *sdpTalk) { c.send(0, change(sdpwire.Pipelined, false), 0); c.send(0, src, 1) }},
		{"SinkAvail in Combined", "SDP-12-10", func(c *sdpTalk) {
			c.send(1, sdpwire.Message{MID: sdpwire.SinkAvail, STag: 0x900, Size: 100}, 0)
		}},
		{"a change to the present mode", "SDP-12-3", func(c *sdpTalk) { c.send(0, change(sdpwire.Combined, false), 0) }},
		{"the wrong master", "SDP-12-2", func(c *sdpTalk) { c.send(1, change(sdpwire.Pipelined, true), 0) }},
		{"no such arrow", "SDP-12-1", func(c *sdpTalk) {
			c.send(0, change(sdpwire.Pipelined, false), 0)
			c.send(0, change(sdpwire.Buffered, false), 0)
		}},
		{"data behind DisConn", "SDP-8.2.1-8", func(c *sdpTalk) { c.send(0, sdpwire.Message{MID: sdpwire.DisConn}, 0); c.send(0, data, 1) }},
		{"a Read of nothing advertised", "RDMAP-7.2-7", func(c *sdpTalk) { read(c, rdmap.ReadRequest{SinkSTag: 1, Size: 4, SourceSTag: 0x700}) }},
		{"a Read beyond", "RDMAP-7.2-10", func(c *sdpTalk) {
			c.send(0, src, 1)
			read(c, rdmap.ReadRequest{SinkSTag: 1, Size: 501, SourceSTag: 0x700, SourceTO: 1000})
		}},
		{"a Write to nothing advertised", "DDP-7.1-9", func(c *sdpTalk) { write(c, 0x900, 4) }},
		{"an unknown type", "SDP-6.1.1-3", func(c *sdpTalk) {
			b := data.Append(nil, sdpwire.Figure)
			b[3], b[7] = 0x50, sdpwire.BSDHLen
			c.raw(0, b)
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := newSDPTalk()
			x.say(c)
			got := ""
			for _, m := range all(t, Options{}, record(t, c.frames)) {
				for _, w := range m.Wrong {
					got += w.ID
				}
			}
			if got != x.id {
				t.Errorf("named %q, want %q", got, x.id)
			}
		})
	}
}

// reply sends m with n bytes of payload from a peer, after all earlier messages have reached the
// peer. If inv is given, the message invalidates the STag inv.
func (c *sdpTalk) reply(from int, m sdpwire.Message, n int, inv ...uint32) {
	if other := c.seq[1-from]; other > 0 {
		m.MSeqAck = other - 1
	}
	if len(inv) == 0 {
		c.send(from, m, n)
		return
	}
	m.MSeq, m.Bufs, m.Len = c.seq[from], 4, uint32(m.MID.HeaderLen()+n)
	c.seq[from]++
	u := rdmap.SendSEInvalidate.UntaggedHeader(c.msn[from], 0, true, inv[0])
	c.msn[from] = c.msn[from].Next()
	c.talk.say(from, c.enc[from].Append(nil, u.Append(nil), m.Append(nil, c.layout), make([]byte, n)))
}

// TestSDPViews: a message against a rule in the sender's view is reported with the requirement, and
// crossing messages break no rule.
func TestSDPViews(t *testing.T) {
	msg := func(mid sdpwire.MID) sdpwire.Message { return sdpwire.Message{MID: mid} }
	sized := func(mid sdpwire.MID, size uint32) sdpwire.Message { return sdpwire.Message{MID: mid, Size: size} }
	data, bye := msg(sdpwire.Data), msg(sdpwire.DisConn)
	src := func(stag uint32) sdpwire.Message {
		return sdpwire.Message{MID: sdpwire.SrcAvail, STag: stag, VA: 1000, Size: 500}
	}
	sink := func(nd uint32) sdpwire.Message {
		return sdpwire.Message{MID: sdpwire.SinkAvail, STag: 0x900, Size: 300, NonDiscards: nd}
	}
	change := func(to sdpwire.Mode) sdpwire.Message { return sdpwire.Message{MID: sdpwire.ModeChange, Mode: to} }
	pipelined := func(c *sdpTalk) { c.reply(0, change(sdpwire.Pipelined), 0) }
	read := func(c *sdpTalk, from int) {
		r := rdmap.ReadRequest{SinkSTag: 1, Size: 10, SourceSTag: 0x700, SourceTO: 1001}
		c.talk.say(from, c.enc[from].Append(nil, rdmap.ReadRequestOp.UntaggedHeader(1, 0, true, 0).Append(nil),
			r.Append(nil)))
	}
	write := func(c *sdpTalk) {
		c.talk.say(0, c.enc[0].Append(nil, rdmap.Write.TaggedHeader(0x900, 0, true).Append(nil), make([]byte, 9)))
	}
	for _, x := range []struct {
		name, id, text string
		say            func(c *sdpTalk)
	}{
		{"a RdmaRdCompl of nothing", "SDP-9.2-13", "no SrcAvail is open", func(c *sdpTalk) { c.reply(1, sized(sdpwire.RdmaRdCompl, 5), 0) }},
		{"a RdmaRdCompl too many", "SDP-9.2-13", "no SrcAvail is open", func(c *sdpTalk) {
			c.reply(0, src(0x700), 1)
			c.reply(1, sized(sdpwire.RdmaRdCompl, 499), 0, 0x700)
			c.reply(1, sized(sdpwire.RdmaRdCompl, 1), 0)
		}},
		{"a second SendSm", "SDP-9.2-16", "no SrcAvail is open", func(c *sdpTalk) {
			c.reply(0, src(0x700), 1)
			c.reply(1, msg(sdpwire.SendSm), 0)
			c.reply(1, msg(sdpwire.SendSm), 0)
		}},
		{"more read than was left", "SDP-9.2-17", "500 bytes of the 499 that were left", func(c *sdpTalk) {
			c.reply(0, src(0x700), 1)
			c.reply(1, sized(sdpwire.RdmaRdCompl, 500), 0)
		}},
		{"in rounds, more than was left", "SDP-9.2-17", "400 bytes of the 399 that were left", func(c *sdpTalk) {
			c.reply(0, src(0x700), 1)
			c.reply(1, sized(sdpwire.RdmaRdCompl, 100), 0)
			c.reply(1, sized(sdpwire.RdmaRdCompl, 400), 0)
		}},
		{"another STag invalidated", "SDP-9.2-22", "invalidates STag 0x701, the oldest SrcAvail has 0x700", func(c *sdpTalk) {
			c.reply(0, src(0x700), 1)
			c.reply(1, sized(sdpwire.RdmaRdCompl, 499), 0, 0x701)
		}},
		{"invalidated too soon", "SDP-9.2-22", "invalidates STag 0x700 with 9 bytes left", func(c *sdpTalk) {
			c.reply(0, src(0x700), 1)
			c.reply(1, sized(sdpwire.RdmaRdCompl, 490), 0, 0x700)
		}},
		{"a RdmaRdCompl before the bytes by Data", "SDP-9.2-27", "499 bytes of an earlier SrcAvail", func(c *sdpTalk) {
			pipelined(c)
			c.reply(0, src(0x700), 0)
			c.reply(0, src(0x701), 0)
			c.reply(1, sized(sdpwire.RdmaRdCompl, 1), 0)
			c.reply(1, msg(sdpwire.SendSm), 0)
			c.reply(1, sized(sdpwire.RdmaRdCompl, 5), 0)
		}},
		{"another SinkAvail's STag", "SDP-9.3-10", "invalidates STag 0x901, the oldest SinkAvail has 0x900", func(c *sdpTalk) {
			pipelined(c)
			c.reply(1, sink(0), 0)
			c.reply(0, sized(sdpwire.RdmaWrCompl, 9), 0, 0x901)
		}},
		{"a RdmaWrCompl of nothing", "SDP-9.3-13", "no SinkAvail is open", func(c *sdpTalk) { c.reply(0, sized(sdpwire.RdmaWrCompl, 9), 0) }},
		{"a RdmaWrCompl of what Data used up", "SDP-9.3-13", "no SinkAvail is open", func(c *sdpTalk) {
			pipelined(c)
			c.reply(1, data, 0)
			c.reply(1, sink(0), 0)
			c.reply(0, data, 9)
			c.reply(0, sized(sdpwire.RdmaWrCompl, 9), 0)
		}},
		{"Data behind SuspComm", "SDP-13.1.1-5", "after SuspComm", func(c *sdpTalk) { c.reply(0, msg(sdpwire.SuspComm), 0); c.reply(0, data, 9) }},
		{"credit behind SuspComm", "", "", func(c *sdpTalk) { c.reply(0, msg(sdpwire.SuspComm), 0); c.reply(0, data, 0) }},
		{"RDMA behind SuspComm", "SDP-13.1.1-5", "after SuspComm", func(c *sdpTalk) {
			c.reply(0, src(0x700), 1)
			c.reply(1, msg(sdpwire.SuspComm), 0)
			read(c, 1)
		}},
		{"SuspCommAck of nothing", "SDP-13.1.1-6", "nothing was asked", func(c *sdpTalk) { c.reply(1, msg(sdpwire.SuspCommAck), 0) }},
		{"SuspCommAck within a Read", "SDP-13.1.1-6", "RDMA Reads of its sender are not answered yet", func(c *sdpTalk) {
			c.reply(0, src(0x700), 1)
			read(c, 1)
			c.reply(0, msg(sdpwire.SuspComm), 0)
			c.reply(1, msg(sdpwire.SuspCommAck), 0)
		}},
		{"SuspComm within a Read", "SDP-13.1.1-3", "RDMA Reads of its sender are not answered yet", func(c *sdpTalk) {
			c.reply(0, src(0x700), 1)
			read(c, 1)
			c.reply(1, msg(sdpwire.SuspComm), 0)
		}},
		{"Data within Read Zcopy", "SDP-11.2-4", "payload while a SrcAvail is open", func(c *sdpTalk) { c.reply(0, src(0x700), 1); c.reply(0, data, 9) }},
		{"a second SrcAvail in Combined", "SDP-11.2-4", "another is open in Combined Mode", func(c *sdpTalk) { c.reply(0, src(0x700), 1); c.reply(0, src(0x701), 1) }},
		{"payload of a SrcAvail where Data is owed", "SDP-11.2-4", "with payload while 499 bytes are owed by Data", func(c *sdpTalk) {
			c.reply(0, src(0x700), 1)
			c.reply(1, msg(sdpwire.SendSm), 0)
			c.reply(0, src(0x701), 1)
		}},
		{"Data within Read Zcopy, Pipelined", "SDP-11.3-5", "payload while a SrcAvail is open", func(c *sdpTalk) {
			pipelined(c)
			c.reply(1, data, 0)
			c.reply(0, src(0x700), 0)
			c.reply(0, data, 9)
		}},
		{"more Data than is owed", "SDP-11.3-6", "9 bytes where 5 were owed", func(c *sdpTalk) {
			pipelined(c)
			x := src(0x700)
			x.Size = 5
			c.reply(0, x, 0)
			c.reply(0, src(0x701), 0)
			c.reply(1, msg(sdpwire.SendSm), 0)
			c.reply(0, data, 9)
		}},
		{"a Transaction where Data is owed", "SDP-11.3-6", "payload while 499 bytes are owed by Data", func(c *sdpTalk) {
			c.reply(1, change(sdpwire.Pipelined), 0)
			c.reply(0, src(0x700), 1)
			c.reply(1, msg(sdpwire.SendSm), 0)
			c.reply(0, sink(0), 9)
		}},
		{"too many SrcAvails", "SDP-11.3-18", "2 advertisements are open, and the other peer takes 2", func(c *sdpTalk) {
			pipelined(c)
			c.reply(0, src(0x700), 0)
			c.reply(0, src(0x701), 0)
			c.reply(1, data, 0)
			c.reply(0, src(0x702), 0)
		}},
		{"too many SinkAvails", "SDP-11.3-18", "2 advertisements are open, and the other peer takes 2", func(c *sdpTalk) {
			pipelined(c)
			for range 3 {
				c.reply(1, sink(0), 0)
			}
		}},
		{"a SrcAvail behind its cancel", "SDP-9.5.4-10", "is not Processed", func(c *sdpTalk) {
			pipelined(c)
			c.reply(0, src(0x700), 0)
			c.reply(0, msg(sdpwire.SrcAvailCancel), 0)
			c.reply(0, src(0x701), 0)
		}},
		{"a second cancel", "SDP-9.5.4-10", "a SrcAvailCancel is open already", func(c *sdpTalk) {
			c.reply(0, src(0x700), 1)
			c.reply(0, msg(sdpwire.SrcAvailCancel), 0)
			c.reply(0, msg(sdpwire.SrcAvailCancel), 0)
		}},
		{"a SrcAvail behind a cancel that is Processed", "", "", func(c *sdpTalk) {
			pipelined(c)
			c.reply(0, src(0x700), 0)
			c.reply(0, src(0x701), 0)
			c.reply(0, msg(sdpwire.SrcAvailCancel), 0)
			c.reply(1, msg(sdpwire.SendSm), 0)
			c.reply(0, src(0x702), 0)
		}},
		{"a source buffer past the end", "SDP-6.3.2.1-1", "500 bytes at 0xffffffffffffff00 pass the end", func(c *sdpTalk) {
			x := src(0x700)
			x.VA = 0xffffffffffffff00
			c.reply(0, x, 1)
		}},
		{"a sink buffer past the end", "SDP-6.3.3.1-1", "300 bytes at 0xffffffffffffff00 pass the end", func(c *sdpTalk) {
			pipelined(c)
			x := sink(0)
			x.VA = 0xffffffffffffff00
			c.reply(1, x, 0)
		}},
		{"to Buffered within Read Zcopy", "SDP-12.1-2", "with a SrcAvail open", func(c *sdpTalk) { c.reply(0, src(0x700), 1); c.reply(0, change(sdpwire.Buffered), 0) }},
		{"a second ChRcvBuf", "SDP-10.6-19", "the last one is not acknowledged", func(c *sdpTalk) {
			c.reply(0, sized(sdpwire.ChRcvBuf, 300), 0)
			c.reply(0, sized(sdpwire.ChRcvBuf, 400), 0)
		}},
		{"ChRcvBufs cross", "", "", func(c *sdpTalk) {
			c.send(0, data, 0)
			c.reply(1, data, 0)
			c.send(0, sized(sdpwire.ChRcvBuf, 300), 0)
			c.send(1, sized(sdpwire.ChRcvBuf, 300), 0)
			c.reply(0, sized(sdpwire.ChRcvBufAck, 300), 0)
			c.reply(0, sized(sdpwire.ChRcvBuf, 300), 0)
			c.reply(1, sized(sdpwire.ChRcvBufAck, 300), 0)
		}},
		{"a ChRcvBuf from a peer that owes an answer", "D-47", "its sender owes a ChRcvBufAck", func(c *sdpTalk) {
			c.reply(0, data, 0)
			c.reply(0, sized(sdpwire.ChRcvBuf, 300), 0)
			c.reply(1, sized(sdpwire.ChRcvBuf, 400), 0)
		}},
		{"a ChRcvBufAck of nothing", "D-47", "nothing was asked", func(c *sdpTalk) { c.reply(1, sized(sdpwire.ChRcvBufAck, 200), 0) }},
		{"a ChRcvBufAck in the wrong direction", "D-47", "300 bytes when asked to go from 200 to 100", func(c *sdpTalk) {
			c.reply(0, sized(sdpwire.ChRcvBuf, 100), 0)
			c.reply(1, sized(sdpwire.ChRcvBufAck, 300), 0)
		}},
		{"DisConn within Read Zcopy", "SDP-8.2.1-4", "1 SrcAvails are open", func(c *sdpTalk) { c.reply(0, src(0x700), 1); c.reply(0, bye, 0) }},
		{"DisConn before the bytes by Data", "SDP-8.2.1-4", "499 bytes are owed", func(c *sdpTalk) {
			c.reply(0, src(0x700), 1)
			c.reply(1, msg(sdpwire.SendSm), 0)
			c.reply(0, bye, 0)
		}},
		{"DisConn twice", "SDP-8.2.1-6", "a second time", func(c *sdpTalk) { c.reply(0, bye, 0); c.reply(0, bye, 0) }},
		{"more payload than the buffer has", "D-18", "9 bytes of payload from a buffer of 5", func(c *sdpTalk) {
			x := src(0x700)
			x.Size = 5
			c.reply(0, x, 9)
		}},
		{"nothing but payload", "", "", func(c *sdpTalk) {
			x := src(0x700)
			x.Size = 9
			c.reply(0, x, 9)
			c.reply(1, sized(sdpwire.RdmaRdCompl, 0), 0)
			c.reply(0, data, 1)
		}},
		{"no progress", "D-19", "no progress 17 times", func(c *sdpTalk) {
			c.reply(0, src(0x700), 1)
			for range 17 {
				c.reply(1, sized(sdpwire.RdmaRdCompl, 0), 0)
				c.reply(0, data, 0)
			}
		}},
		{"more written than the buffer has", "D-20", "301 bytes in a buffer of 300", func(c *sdpTalk) {
			pipelined(c)
			c.reply(1, sink(0), 0)
			c.reply(0, sized(sdpwire.RdmaWrCompl, 301), 0)
		}},
		{"NonDiscards ahead", "D-24", "NonDiscards 2, but its sender took 1", func(c *sdpTalk) {
			c.reply(0, data, 9)
			pipelined(c)
			c.reply(1, sink(2), 0)
		}},
		{"NonDiscards behind", "SDP-6.3.3.4-1", "NonDiscards 0, but its sender took 1", func(c *sdpTalk) {
			c.reply(0, data, 9)
			pipelined(c)
			c.reply(1, sink(0), 0)
		}},
		{"SinkAvail and Data cross", "", "", func(c *sdpTalk) {
			pipelined(c)
			c.reply(1, data, 0)
			c.reply(1, sink(0), 0)
			c.send(0, data, 9)
			c.reply(1, sink(0), 0)
			c.reply(0, sized(sdpwire.RdmaWrCompl, 9), 0, 0x900)
		}},
		{"SinkAvail and SrcAvail cross", "", "", func(c *sdpTalk) {
			pipelined(c)
			c.reply(1, data, 0)
			c.reply(1, sink(0), 0)
			c.send(0, src(0x700), 0)
			write(c)
			c.reply(0, sized(sdpwire.RdmaWrCompl, 9), 0, 0x900)
			c.reply(0, bye, 0)
		}},
		{"message 0 and SrcAvail cross", "", "", func(c *sdpTalk) {
			pipelined(c)
			c.reply(1, sink(0), 0)
			c.send(0, src(0x700), 0)
			c.reply(0, sized(sdpwire.RdmaWrCompl, 9), 0, 0x900)
			c.reply(0, bye, 0)
		}},
		{"a Send invalidates", "D-41", "Data invalidates STag 0x700", func(c *sdpTalk) {
			c.reply(1, src(0x700), 1)
			c.reply(0, data, 0, 0x700)
		}},
		{"a loss between", "", "", func(c *sdpTalk) {
			c.reply(0, src(0x700), 1)
			lost := len(c.frames)
			c.reply(1, msg(sdpwire.SendSm), 0)
			c.frames = c.frames[:lost]
			c.reply(0, data, 9)
			c.reply(1, data, 0)
			c.reply(0, bye, 0)
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := newSDPTalk()
			x.say(c)
			var id, text string
			for _, m := range all(t, Options{}, record(t, c.frames)) {
				for _, w := range m.Wrong {
					id, text = id+w.ID, text+w.Text
				}
			}
			if id != x.id || !strings.Contains(text, x.text) {
				t.Errorf("named %q (%s), want %q (%s)", id, text, x.id, x.text)
			}
		})
	}
}
