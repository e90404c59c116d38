package decode

import (
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
	h := sdpwire.Hello{Bufs: 4, MajV: 1, MinV: 1, MaxAdverts: 2, LocalRcvSz: 200, DesRemRcvSz: 200, LocIRD: 1, LocORD: 1}
	c.talk.say(0, mpa.Frame{Kind: mpa.Request, Rev: 1, Private: h.Append(nil, c.layout)}.Append(nil))
	c.talk.say(1, mpa.Frame{Kind: mpa.Reply, Rev: 1}.Append(nil))
	a := sdpwire.HelloAck{Bufs: 4, MajV: 1, MinV: 1, MaxAdverts: 2, ActRcvSz: 200, LocIRD: 1, LocORD: 1}
	c.raw(1, a.Append(nil, c.layout))
}

func (c *sdpTalk) raw(from int, b []byte) {
	c.talk.say(from, c.enc[from].Append(nil, rdmap.SendSE.UntaggedHeader(c.msn[from], 0, true, 0).Append(nil), b))
	c.msn[from] = c.msn[from].Next()
}

// send sends m with n bytes of payload; its number is the next one.
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
		c.talk.say(1, c.enc[1].Append(nil, rdmap.ReadRequestOp.UntaggedHeader(1, 0, true, 0).Append(nil), r.Append(nil)))
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
			c.send(1, sdpwire.Message{MID: sdpwire.SinkAvail, STag: 0x900, Size: 100, MSeqAck: 2}, 0)
			write(c, 0x900, 100)
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
