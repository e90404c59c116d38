package sdpcore

import (
	"errors"
	"math"
	"testing"
	"time"

	"viaduct/internal/wire/sdpwire"
)

func TestSDP_5_Serial(t *testing.T) {
	for _, c := range []struct {
		a, b serial
		d    int32
	}{{5, 3, 2}, {3, 5, -2}, {0, math.MaxUint32, 1}, {math.MaxUint32, 0, -1}, {1 << 31, 0, math.MinInt32}} {
		if got := c.a.sub(c.b); got != c.d { // [SDP-5-3] [D-09]
			t.Errorf("%d - %d = %d, want %d", c.a, c.b, got, c.d)
		}
	}
}

func TestSDP_6_1_Header(t *testing.T) {
	t.Run("SDP-6.1.5-1 SDP-6.1.6-2", func(t *testing.T) {
		p := newProbe(t).write(1, 10).write(2, 10)
		if m := p.msgs[0]; m.MSeq != 0 || m.MSeqAck != 0 { // [D-05]
			t.Errorf("first message: %v", &m)
		}
		if m := p.msgs[1]; m.MSeq != 1 || m.MSeqAck != 0 { // [SDP-6.1.5-2]
			t.Errorf("second message: %v", &m)
		}
	})
	t.Run("SDP-6.1.6-1 SDP-6.1.3-1", func(t *testing.T) {
		p := newProbe(t)
		for range 5 {
			p.recv("Data +10")
		}
		p.skip().write(1, 10)
		if m := p.msgs[0]; m.MSeqAck != 4 || m.Bufs != 16-5 {
			t.Errorf("after five messages that were not read: %v", &m)
		}
		p.read(9, 35).skip().write(2, 10)
		if m := p.msgs[0]; m.Bufs != 16-2 {
			t.Errorf("after three and a half were read: %v", &m)
		}
	})
	t.Run("SDP-6.1.5-3", func(t *testing.T) {
		p := newProbe(t, func(p *Params) { p.FirstSend, p.FirstRecv = math.MaxUint32, math.MaxUint32 })
		p.write(1, 10).write(2, 10).recv("Data +1", "Data +1").write(3, 1).alive()
		if p.msgs[1].MSeq != 0 || p.msgs[2].MSeqAck != 0 {
			t.Errorf("%v; %v", &p.msgs[1], &p.msgs[2])
		}
	})
	t.Run("SDP-6.1.2-3", func(t *testing.T) { // parsing clears reserved bits
		newProbe(t).recv("Data +1").alive()
	})
}

func TestSDP_6_1_2_Preference(t *testing.T) {
	for _, pol := range []Policy{PinCombined, PinPipelined} {
		flag := ""
		if pol == PinPipelined {
			flag = " REQ_PIPE"
		}
		// [SDP-6.1.2-9] [SDP-6.1.2-10] [SDP-6.3.7-3]
		p := newProbe(t, func(p *Params) { p.RecvPolicy = pol })
		p.recv("SrcAvail size=500 +1 stag=7 va=1000").read(1, 500).readDone()
		p.wantMsgs("RdmaRdCompl size=499" + flag)
		// [SDP-6.1.2-16] [SDP-6.3.6-3]
		p = newProbe(t, func(p *Params) { p.RecvPolicy = pol }).pipelined(true, false)
		p.recv("SinkAvail size=300 nd=0 stag=9").write(1, 300)
		p.wantMsgs("RdmaWrCompl size=300" + flag)
	}
	t.Run("SDP-6.1.2-12 SDP-6.1.2-13", func(t *testing.T) {
		p := newProbe(t, autoPolicy)
		for range 9 {
			p.recv("Data +1 PIPE", "Data PIPE")
		}
		p.write(1, 10).pass(time.Millisecond)
		if p.m.SendMode() != sdpwire.Combined {
			t.Error("a hint in Data was taken")
		}
	})
	t.Run("SDP-6.1.2-15 SDP-12-5", func(t *testing.T) {
		p := newProbe(t)
		for i := range uint64(5) {
			p.write(i, 200).recv("RdmaRdCompl size=199 PIPE")
		}
		if p.m.SendMode() != sdpwire.Combined {
			t.Error("a pinned half followed a hint")
		}
	})
	t.Run("SDP-12-4", func(t *testing.T) {
		p := newProbe(t, autoPolicy)
		p.write(1, 200).recv("RdmaRdCompl size=199 PIPE").write(2, 200).skip().recv("RdmaRdCompl size=199 PIPE")
		p.wantMsgs("ModeChange Pipelined") // [SDP-12.3-1]
	})
	t.Run("SDP-6.1.2-14", func(t *testing.T) {
		p := newProbe(t).goMode(sdpwire.Buffered)
		p.m.p.SendPolicy = Auto
		p.recv("ModeChange Pipelined").read(1, 500).skip()
		// After a change to Buffered Mode, a late completion of the other half carries a hint.
		p.recv("ModeChange Combined S").skip()
		p.goMode(sdpwire.Buffered).skip()
		p.recv("RdmaWrCompl size=0 PIPE").recv("Data PIPE").alive()
		if p.m.SendMode() != sdpwire.Buffered || p.m.src.mode.pol.hints != 0 {
			t.Fatal("a hint was taken in Buffered Mode")
		}
	})
}

func TestSDP_6_2_Order(t *testing.T) {
	for _, c := range []struct{ msg, row string }{
		{"Data seq=5", "SDP-6.1.5-2"}, // [SDP-10.1-2] [D-06]
		{"HelloAck", "SDP-6.1.1-3"},   // [D-75]
		{"Hello", "SDP-6.1.1-3"},      // [SDP-6.2-1]
		{"Data +85", "SDP-10-4"},      // [SDP-6.2.1.5-1] [SDP-6.2.2.4-1]
		{"Data ack=9", "D-09"},
	} {
		newProbe(t).recv(c.msg).aborted(c.row)
	}
	p := newProbe(t).recv("Data +1")
	p.seq = 0
	p.recv("Data +1").aborted("SDP-6.1.5-2") // the message repeats a sequence number
	newProbe(t).recv("Data +84").alive()     // the message is exactly as long as announced [SDP-5-2] [SDP-10-1]
	// Acknowledgements must not decrease. [D-09]
	p = newProbe(t).write(1, 1).write(2, 1).write(3, 1).recv("Data ack=2")
	p.recv("Data ack=1").aborted("D-09")
	// An error of Parse ends the connection and names the row. [SDP-8.2.2-6]
	for err, row := range map[error]string{sdpwire.ErrLen: "SDP-6.1.4-1", sdpwire.ErrMID: "SDP-6.1.1-3", sdpwire.ErrSize: "SDP-6.3.2.1-2",
		sdpwire.ErrMode: "SDP-6.3.8.2-1", sdpwire.ErrConst: "SDP-6.5.1.2-1", sdpwire.ErrFlags: "SDP-6.1.2-5", errors.New("other"): "SDP-8.2.2-6"} {
		p := newProbe(t)
		p.took(p.m.ReceiveBad(0, sdpwire.Data, err, mark()))
		p.aborted(row)
	}
	// Only the two completions may invalidate an STag. [D-41]
	newProbe(t).recv("Data +1 inv=5").aborted("D-41")
}

// TestSDP_10_2_Credit checks windows of all sizes, growing and shrinking. [SDP-10.5-10]
// [SDP-10.3-2]
func TestSDP_10_2_Credit(t *testing.T) {
	p := newProbe(t, func(p *Params) { p.PeerBufs = 8 })
	// Message 0 counts as unreceived until its receipt is certain [D-08]: n-2 payload messages are
	// sent.
	for i := range uint64(12) {
		p.write(i, 84)
	}
	if len(p.msgs) != 6 { // [SDP-10.5-1] [SDP-10.5-7]
		t.Errorf("%d messages with 8 credits", len(p.msgs))
	}
	// Four were received and eight posted: 8 - 2 = 6 credits, two of them reserved. [SDP-10.2-1]
	// [SDP-10.5-4]
	p.skip().recv("Data ack=3 bufs=8")
	if len(p.msgs) != 4 {
		t.Errorf("%d messages, want 4", len(p.msgs))
	}
	// The window shrinks: no message is sent, and data stays queued. [SDP-10.5-5]
	p.skip().recv("Data ack=7 bufs=2").wantMsgs()
	if p.m.Stats().CreditStalls == 0 {
		t.Error("stall not counted")
	}
	// With two credits a control message may be sent, but no payload. New checks the lower limits.
	// [SDP-10.5-3] [SDP-10.5-7] [SDP-6.1.3-2]
	p.recv("Data ack=9 bufs=2").skip()
	p.goMode(sdpwire.Pipelined).wantMsgs("ModeChange Pipelined")
}

func TestSDP_10_5_LastCredits(t *testing.T) {
	// With one credit left, a message that gives no credit must wait. [SDP-10.5-6]
	p := newProbe(t, func(p *Params) { p.PeerBufs = 3 })
	// One credit is left, and the peer has acknowledged message 0.
	p.write(1, 1).recv("Data ack=0 bufs=1").skip()
	p.goMode(sdpwire.Pipelined).wantMsgs()
	// A message that gives credit may use the last credit: two messages have arrived and are read
	// at once. [SDP-10.5-2] [D-11]
	p = newProbe(t, func(p *Params) { p.PeerBufs = 3 }).write(1, 1)
	p.recv("Data ack=0 bufs=2 +5", "Data ack=0 bufs=2 +5", "Data ack=0 bufs=2 +5").skip()
	p.bufs = 2
	p.goMode(sdpwire.Pipelined).read(2, 100)
	if len(p.msgs) == 0 {
		t.Error("a message that gives credit did not go with the last one")
	}
	for _, c := range []struct {
		free, told int
		rcvd       serial
		must       bool
	}{{4, 4, 0, false}, {4, 4, 3, true}, {1, 4, 3, false}, {4, 4, 2, false}, {0, 4, 4, false}} {
		cr := credits{pool: 4, free: c.free, told: c.told, high: serial(c.told), expect: c.rcvd}
		if got := cr.mustRefresh(); got != c.must { // [SDP-10.5-8]
			t.Errorf("free %d, told %d, received %d: must refresh %t", c.free, c.told, c.rcvd, got)
		}
	}
}

func TestSDP_10_4_Refresh(t *testing.T) {
	// An end with nothing to send returns the credit of a peer that only sends. [SDP-10.4-1]
	// [SDP-10.5-8] [SDP-10.5-9]
	p := newProbe(t, func(p *Params) { p.RecvBufs = 8 })
	sent, given := 0, 8
	for i := range uint64(1000) {
		if given <= 2 {
			t.Fatalf("stalled after %d messages", sent)
		}
		p.recv("Data +50").read(i, 50)
		sent++
		given--
		for _, m := range p.msgs {
			given = int(m.Bufs) - (sent - 1 - int(m.MSeqAck))
		}
		p.skip()
	}
	if n := p.m.Stats().SentCreditUpdates; n < 100 || n > 400 {
		t.Errorf("%d updates for 1000 messages of a pool of 8", n) // batched [D-10]
	}
	// An empty Data is not answered by an empty Data. [D-10]
	p = newProbe(t, func(p *Params) { p.RecvBufs = 3 })
	p.recv("Data").wantMsgs()
	p.recv("Data")
	if len(p.msgs) != 1 { // the peer has one credit left, so the update must be sent
		t.Errorf("%d answers", len(p.msgs))
	}
	// Without reads, full buffers are not announced. [D-13]
	p = newProbe(t, func(p *Params) { p.RecvBufs = 4; p.RecvBudget = 0 })
	p.recv("Data +50", "Data +50").wantMsgs()
}

// TestGrowth: the number of Private Buffers doubles, up to the limit, when reads have consumed as
// many bytes as all buffers hold. Without reads the number must not change.
func TestGrowth(t *testing.T) { // [SDP-10.3-2] [SDP-6.1.3-1]
	few := func(p *Params) { p.RecvBufs, p.MaxRecvBufs, p.RecvSize, p.RecvBudget = 4, 12, 100, 0 }
	p := newProbe(t, few)
	for i, pool := range []int{4, 4, 4, 4, 4, 4, 4, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 12, 12} {
		p.recv("Data +50").read(uint64(i), 50)
		if p.m.cr.pool != pool || p.m.cr.free != pool {
			t.Errorf("%d bytes were read: %d of %d Private Buffers are free, want %d", 50*(i+1),
				p.m.cr.free, p.m.cr.pool, pool)
		}
		p.skip()
	}
	p.write(1, 1)
	if n := int(p.msgs[len(p.msgs)-1].Bufs); n != 12 { // the peer must know the new number of buffers
		t.Errorf("%d buffers announced", n)
	}
	p = newProbe(t, few).recv("Data +50", "Data +50", "Data +50")
	if p.m.cr.pool != 4 || p.m.cr.free != 1 {
		t.Errorf("nothing was read: %d of %d Private Buffers are free", p.m.cr.free, p.m.cr.pool)
	}
}

func TestD08_MessageZero(t *testing.T) {
	c := credits{}
	c.start(Params{RecvBufs: 3, PeerBufs: 3, FirstSend: 0})
	c.next = 1
	c.received(3, 0)
	if c.credit() != 2 {
		t.Errorf("credit %d although message 0 may not have arrived", c.credit())
	}
	c.received(2, 0) // fewer buffers than ever before, so message 0 has arrived
	if c.credit() != 2 {
		t.Errorf("credit %d, message 0 has arrived", c.credit())
	}
	// With three buffers an empty Data resolves the doubt. [D-08]
	p := newProbe(t, func(p *Params) { p.PeerBufs = 3 }).write(1, 1).write(2, 1)
	p.wantMsgs("Data +1", "Data")
	// A peer that follows the printed formula literally then counts two credits for us and sends
	// nothing. The peer gets exactly one more empty Data, after a while. [D-08]
	for after, role := range map[time.Duration]Role{time.Second: Connecting, 3 * time.Second: Accepting} {
		p := newProbe(t, func(p *Params) { p.PeerBufs, p.Role = 3, role }).write(1, 1).write(2, 1)
		p.wantMsgs("Data +1", "Data")
		if at, ok := p.m.Deadline(); !ok || at != after {
			t.Errorf("%v: next at %v, want %v", role, at, after)
		}
		p.pass(after - time.Millisecond).wantMsgs()
		p.pass(time.Millisecond).wantMsgs("Data")
		p.pass(time.Minute).wantMsgs()
		p.recv("Data ack=2 bufs=3").wantMsgs("Data +1")
	}
	// A peer that answers gets no further empty Data.
	p = newProbe(t, func(p *Params) { p.PeerBufs = 3 }).write(1, 1).write(2, 1).skip()
	p.recv("Data ack=1 bufs=3").wantMsgs("Data +1").recv("Data ack=2 bufs=3").pass(time.Minute).wantMsgs()
}

func TestNudge(t *testing.T) {
	// A peer that gives credit only when a single credit is left gets an empty Data after a while.
	// [D-10] [SDP-10.4-1]
	p := newProbe(t, func(p *Params) { p.PeerBufs = 4 }).write(1, 1)
	p.recv("Data ack=0 bufs=3").skip()
	p.recv("Data bufs=3 ack=0").write(2, 1).write(3, 1).skip()
	p.pass(10 * time.Millisecond)
	if len(p.msgs) > 1 {
		t.Errorf("%d messages", len(p.msgs))
	}
}

func TestSDP_11_Bcopy(t *testing.T) {
	for _, mode := range []sdpwire.Mode{sdpwire.Buffered, sdpwire.Combined, sdpwire.Pipelined} {
		p := newProbe(t, func(p *Params) { p.PeerSize = 50 })
		p.m.p.SendPolicy = map[sdpwire.Mode]Policy{sdpwire.Buffered: PinBuffered, sdpwire.Combined: PinCombined, sdpwire.Pipelined: PinPipelined}[mode]
		p.pass(time.Second).skip()
		p.write(1, 100) // [SDP-11-1] [SDP-11.1-1] [SDP-11.2-1] [SDP-11.3-1] [SDP-9.1-1] [SDP-10-4] [SDP-9-2]
		p.want("Data +34", "Data +34", "Data +32", "wrote 1 100")
	}
	// The pieces of a long write end at page boundaries, and the last has the rest.
	long := newProbe(t, func(p *Params) { p.PeerSize, p.SendPolicy = 128<<10+64, PinBuffered }).pass(time.Second).skip().write(1, 300<<10)
	long.want("Data +131072", "Data +131072", "Data +45056", "wrote 1 307200")
	// Buffered Mode has no other mechanism. [SDP-11.1-1]
	p := newProbe(t, func(p *Params) { p.SendPolicy = PinBuffered }).pass(time.Second).skip().write(1, 200)
	p.want("Data +84", "Data +84", "Data +32", "wrote 1 200")
	// Small writes waiting for credit are sent together. [D-78]
	p = newProbe(t, func(p *Params) { p.PeerBufs = 3 })
	for i := range uint64(5) {
		p.write(i, 3)
	}
	p.skip().recv("Data ack=1 bufs=3").want("Data +12", "wrote 1 3", "wrote 2 3", "wrote 3 3", "wrote 4 3")
	// These are the smallest buffers. [SDP-10-5] [SDP-10-7]
	p = newProbe(t, func(p *Params) { p.PeerSize, p.RecvSize = 37, 37 }).write(1, 30)
	p.want("Data +21", "Data +9", "wrote 1 30")
}

func TestSDP_9_2_ReadZcopy_Source(t *testing.T) {
	combined := func() *probe { return newProbe(t).write(1, 200) }
	// [SDP-9.2-1] [SDP-9.2-2] [SDP-9.2-4] [SDP-11.2-2] [SDP-11.2-6] [SDP-6.3.2.1-1] [SDP-6.3.2-2]
	combined().want("SrcAvail size=200 +1").recv("RdmaRdCompl size=199").want("revoke", "wrote 1 200")
	// After partial answers, the peer acknowledges the rest. [SDP-9.2-14] [SDP-9.2-15] [SDP-9.2-17]
	// [SDP-9.2-18]
	combined().skip().recv("RdmaRdCompl size=100").want().recv("RdmaRdCompl size=0").want().recv("RdmaRdCompl size=99").want("revoke", "wrote 1 200")
	combined().recv("RdmaRdCompl size=200").aborted("SDP-9.2-17")
	combined().recv("RdmaRdCompl size=100", "RdmaRdCompl size=100").aborted("SDP-9.2-17")
	// At most 16 answers in a row may bring no progress. [D-19]
	p := combined()
	for range 16 {
		p.recv("RdmaRdCompl size=0").alive()
	}
	p.recv("RdmaRdCompl size=0").aborted("D-19")
	// The peer reads one half of the write and forces the other half to Bcopy. [SDP-9.2-24]
	// [SDP-9.2-25] [SDP-9.5.2.1-1] [SDP-9.5.2.1-2] [SDP-9.5.2.1-5]
	combined().skip().recv("RdmaRdCompl size=99").want().recv("SendSm").want("revoke", "Data +84",
		"Data +16", "wrote 1 200")
	// The peer may send only a single SendSm. [SDP-9.2-16]
	combined().recv("SendSm", "SendSm").aborted("SDP-9.2-16")
	newProbe(t).recv("RdmaRdCompl size=1").aborted("SDP-9.2-13")
	// [SDP-9.2-22] [D-41]
	combined().skip().recv("RdmaRdCompl size=199 inv*").alive()
	combined().recv("RdmaRdCompl size=199 inv=3").aborted("SDP-9.2-22")
	combined().recv("RdmaRdCompl size=50 inv*").aborted("SDP-9.2-22")
	// No payload is sent after an open SrcAvail. [SDP-11.2-4] [SDP-11.2-5]
	combined().skip().write(2, 5).write(3, 300).want().recv("RdmaRdCompl size=199").
		want("revoke", "wrote 1 200", "Data +5", "wrote 2 5", "SrcAvail size=300 +1")
	// Without remote invalidation, the STag is invalidated locally. [SDP-9.2-23]
	p = combined().skip().recv("RdmaRdCompl size=199")
	if p.full[0].Op != OpRevoke || p.full[0].Remote {
		t.Errorf("%+v", p.full[0])
	}
	// With BigPrefix the prefix is longer, but never all of the buffer. [D-82] [D-18]
	big := func(p *Params) { p.BigPrefix = true }
	newProbe(t, big).write(1, 200).want("SrcAvail size=200 +68")
	newProbe(t, big, func(p *Params) { p.SendThreshold = 10 }).write(1, 30).want("SrcAvail size=30 +29")

	// In Pipelined Mode several SrcAvails are sent, without payload. [SDP-9.2-3] [SDP-11.3-2]
	// [SDP-11.3-4] [SDP-11.3-17]
	pipe := func() *probe { return newProbe(t).pipelined(true, false).write(1, 200).write(2, 300).write(3, 400) }
	pipe().want("SrcAvail size=200", "SrcAvail size=300", "SrcAvail size=400")
	// The SrcAvails are answered in order. [SDP-9.2-12] [SDP-9.2-13]
	pipe().skip().recv("RdmaRdCompl size=200", "RdmaRdCompl size=300").want("revoke", "wrote 1 200",
		"revoke", "wrote 2 300")
	// Small data waits for open SrcAvails, except bytes forced by a SendSm. [SDP-11.3-5]
	// [SDP-11.3-6] [SDP-11.3-7]
	pipe().write(4, 10).skip().recv("SendSm").want("revoke", "Data +84", "Data +84", "Data +32", "wrote 1 200").
		recv("RdmaRdCompl size=300", "RdmaRdCompl size=400").want("revoke", "wrote 2 300",
		"revoke", "wrote 3 400", "Data +10", "wrote 4 10")
	// The Data Source sends forced bytes first, so the peer may not complete a later SrcAvail
	// before the forced bytes. [SDP-9.2-26] [SDP-9.2-27]
	p = newProbe(t, func(p *Params) { p.PeerBufs = 5 }).pipelined(true, false).write(1, 400).write(2, 300)
	p.bufs = 3
	p.recv("SendSm", "RdmaRdCompl size=300").aborted("SDP-9.2-27")
	// No more SrcAvails are open at a time than the peer allows. [SDP-6.2.1.3-1] [SDP-11.3-18]
	newProbe(t, func(p *Params) { p.PeerMaxAdverts = 2 }).pipelined(true, false).write(1, 200).write(2, 200).write(3, 200).
		want("SrcAvail size=200", "SrcAvail size=200").recv("RdmaRdCompl size=200").want("revoke",
		"wrote 1 200", "SrcAvail size=200")
}

func TestSDP_9_2_ReadZcopy_Sink(t *testing.T) {
	// The prefix is copied, and RDMA Reads start after the prefix, at any address. [SDP-9.2-1]
	// [SDP-9.2-7] [SDP-9.2-8] [SDP-6.3.2.3-1] [SDP-6.3.2.2-1]
	p := newProbe(t).recv("SrcAvail size=500 +10 stag=0x77 va=1001").want("hold 10").read(1, 500)
	p.want("copy 1 10@0", "read 1 490@10 from 1011")
	if a := p.full[len(p.full)-1]; a.STag != 0x77 {
		t.Errorf("[SDP-6.3.2.3-1] reads from STag %#x", a.STag)
	}
	// [SDP-9.2-9] [SDP-9.2-10] [SDP-9.2-11] [SDP-6.3.7.1-1] [SDP-6.3.7.1-2] [SDP-6.3.7.1-3]
	p.want().readDone().want("got 1 500", "RdmaRdCompl size=490")
	if a := p.full[len(p.full)-1]; !a.Solicited || !a.Invalidate || a.STag != 0x77 { // [SDP-9.2-20]
		t.Errorf("final completion %+v", a)
	}
	p = newProbe(t, func(p *Params) { p.NoInvalidate = true }).recv("SrcAvail size=500 +10").read(1, 500).readDone()
	if a := p.full[len(p.full)-1]; !a.Solicited || a.Invalidate { // [SDP-9.2-21]
		t.Errorf("without remote invalidation %+v", a)
	}
	// A SrcAvail is read in pieces. [SDP-9.2-14] [SDP-9.2-15] [SDP-9.2-28]
	p = newProbe(t).recv("SrcAvail size=601 +1 va=0").skip().read(1, 201).readDone().want("copy 1 1@0",
		"read 1 200@1 from 1", "got 1 201", "RdmaRdCompl size=200")
	if a := p.full[len(p.full)-1]; a.Invalidate { // this is not the last RdmaRdCompl [SDP-9.2-21]
		t.Error("partial completion invalidates")
	}
	p.read(2, 400).readDone().want("read 2 400@0 from 201", "got 2 400", "RdmaRdCompl size=400")
	// The read is too small: the read gets the prefix, and then SendSm follows. [SDP-9.2-5]
	// [SDP-9.2-6] [SDP-6.3.5-1]
	newProbe(t).recv("SrcAvail size=500 +1").skip().read(1, 20).want("copy 1 1@0", "got 1 1").read(2, 20).want("SendSm")
	// With NoRead there is no RDMA Read at all. [SDP-9-5]
	newProbe(t, func(p *Params) { p.NoRead = true }).recv("SrcAvail size=500 +1").want("hold 1", "SendSm")
	// The peer owes all bytes forced by a SendSm before the next SrcAvail is read. [SDP-9.2-26]
	// [SDP-9.2-27]
	p = newProbe(t).pipelined(false, true)
	p.recv("SrcAvail size=150", "SrcAvail size=300").read(1, 20).wantMsgs("SendSm")
	// The second SrcAvail stays valid. [SDP-11.3-7]
	p.readAll(2, 130).read(3, 300).recv("Data +84", "Data +60").wantMsgs()
	p.recv("Data +6").want("hold 6", "copy 2 6@124", "got 2 130", "read 3 300@0 from 0").readDone().wantMsgs("RdmaRdCompl size=300")
	// SrcAvails are read in order, and each gets an answer, in any mode. [D-21] [SDP-11-2]
	// [SDP-9.5.2.1-3] [SDP-9.5.2.1-4]
	p = newProbe(t).pipelined(false, true).recv("SrcAvail size=200 stag=1", "SrcAvail size=200 stag=2", "SrcAvail size=200 stag=3").skip()
	p.read(1, 200).read(2, 200).read(3, 200).want("read 1 200@0 from 0", "read 2 200@0 from 0", "read 3 200@0 from 0")
	for i, a := range p.full {
		if a.STag != uint32(i+1) {
			t.Errorf("read %d from STag %d", i, a.STag)
		}
	}
	p.skip().readDone().readDone().readDone().wantMsgs("RdmaRdCompl size=200", "RdmaRdCompl size=200",
		"RdmaRdCompl size=200")
	// The number of outstanding RDMA Reads is limited. [SDP-6.2.1.7-1] [SDP-8.1.1-21]
	// [SDP-8.1.1-29]
	p = newProbe(t, func(p *Params) { p.ORD = 2 }).pipelined(false, true).recv("SrcAvail size=200", "SrcAvail size=200", "SrcAvail size=200").skip()
	p.read(1, 200).read(2, 200).read(3, 200).want("read 1 200@0 from 0", "read 2 200@0 from 0").
		readDone().want("got 1 200", "read 3 200@0 from 0", "RdmaRdCompl size=200")

	for _, c := range []struct {
		row  string
		msgs []string
	}{
		// This SrcAvail has no payload in Combined Mode.
		{"SDP-9.2-2", []string{"SrcAvail size=500"}},
		// Two SrcAvails are open in Combined Mode.
		{"SDP-11.2-4", []string{"SrcAvail size=500 +1", "SrcAvail size=500 +1"}},
		// Payload follows the SrcAvail.
		{"SDP-11.2-4", []string{"SrcAvail size=500 +1", "Data +5"}},
		// This SrcAvail has payload in Pipelined Mode.
		{"SDP-9.2-3", []string{"ModeChange Pipelined", "SrcAvail size=500 +1"}},
		// Payload follows the SrcAvail.
		{"SDP-11.3-5", []string{"ModeChange Pipelined", "SrcAvail size=500", "Data +5"}},
		{"SDP-11.1-1", []string{"ModeChange Buffered", "SrcAvail size=500 +1"}}, // the mode is Buffered
		// The SrcAvail has more payload than its buffer.
		{"D-18", []string{"SrcAvail size=5 +6"}},
		// The address range wraps around.
		{"SDP-6.3.2.1-1", []string{"SrcAvail size=500 +1 va=0xffffffffffffff00"}},
		{"SDP-8.2.1-8", []string{"DisConn", "SrcAvail size=500 +1"}}, // the SrcAvail follows DisConn
		{"SDP-8.2.1-8", []string{"DisConn", "Data +1"}},              // the Data follows DisConn
		{"SDP-8.2.1-4", []string{"SrcAvail size=500 +1", "DisConn"}}, // the SrcAvail is not complete
	} {
		newProbe(t).recv(c.msgs...).aborted(c.row)
	}
	// If the payload is the whole buffer, RdmaRdCompl acknowledges 0 bytes. [D-18]
	newProbe(t).recv("SrcAvail size=5 +5").want("hold 5", "RdmaRdCompl size=0")
	// The peer may have no more SrcAvails open than the local end allows. [SDP-11.3-18] [D-15]
	p = newProbe(t, func(p *Params) { p.MaxAdverts = 2 }).pipelined(false, true)
	p.recv("SrcAvail size=500", "SrcAvail size=500").alive().recv("SrcAvail size=500").aborted("SDP-11.3-18")
}

func TestSDP_9_3_WriteZcopy_Source(t *testing.T) {
	pipe := func() *probe { return newProbe(t).pipelined(true, false) }
	// [SDP-9.3-1] [SDP-9.3-5] [SDP-9.3-7] [SDP-9.3-12] [SDP-11.3-11] [SDP-6.3.3.3-1]
	// [SDP-6.3.6.1-1] [SDP-6.3.3.2-2]
	p := pipe().recv("SinkAvail size=500 nd=0 stag=9 va=33").write(1, 300)
	// This write is shorter than the SinkAvail. [SDP-6.3.6.1-2] [D-37]
	p.want("write 1 300@0 -> 33", "wrote 1 300", "RdmaWrCompl size=300")
	if a := p.full[len(p.full)-1]; !a.Solicited || !a.Invalidate || a.STag != 9 || p.full[0].STag != 9 { // [SDP-9.3-8]
		t.Errorf("%+v", a)
	}
	p = newProbe(t, func(p *Params) { p.NoInvalidate = true }).pipelined(true, false).recv("SinkAvail size=500 nd=0 stag=9").write(1, 300)
	if a := p.full[len(p.full)-1]; !a.Solicited || a.Invalidate { // [SDP-9.3-9]
		t.Errorf("%+v", a)
	}
	// The rest of a write larger than the buffer is advertised by SrcAvail. [SDP-11.3-13]
	pipe().recv("SinkAvail size=150 nd=0").write(1, 400).want("write 1 150@0 -> 0",
		"RdmaWrCompl size=150", "SrcAvail size=250")
	// A small write goes into the SinkAvail if no other write follows. [SDP-9.3-6] [SDP-9.5.2.2-1]
	// [D-22]
	pipe().recv("SinkAvail size=150 nd=0").write(1, 10).want("write 1 10@0 -> 0", "wrote 1 10", "RdmaWrCompl size=10")
	// If a SrcAvail and a SinkAvail cross, the SrcAvail is dropped and the SinkAvail is used.
	// [SDP-11.3-9] [SDP-11.3-11] [SDP-11.3-12]
	pipe().write(1, 400).want("SrcAvail size=400").recv("SinkAvail size=400 nd=0").want("revoke",
		"write 1 400@0 -> 0", "wrote 1 400", "RdmaWrCompl size=400")
	// No SinkAvail may arrive before Pipelined Mode. [SDP-12-11] [SDP-8.1.1-23]
	newProbe(t).recv("SinkAvail size=400 nd=0").aborted("SDP-12-10")
	// [D-15]
	p = newProbe(t, func(p *Params) { p.MaxAdverts = 1 }).pipelined(true, false)
	p.recv("SinkAvail size=400 nd=0").alive().recv("SinkAvail size=400 nd=0").aborted("SDP-11.3-18")
	pipe().recv("SinkAvail size=400 nd=0 va=0xffffffffffffff00").aborted("SDP-6.3.3.1-1")
}

func TestSDP_9_3_WriteZcopy_Sink(t *testing.T) {
	pipe := func() *probe { return newProbe(t).pipelined(false, true) }
	// The reads are as long as a Private Buffer, or longer by a byte. [SDP-9.3-2] [SDP-9.5.1-1]
	// [SDP-9-1]
	pipe().read(1, 100).want()
	pipe().read(1, 101).want("SinkAvail size=101 nd=0")                                             // [SDP-9.3-3] [SDP-9.3-4] [SDP-6.3.3.4-1] [SDP-6.3.3.4-2] [SDP-11.3-8]
	newProbe(t, func(p *Params) { p.RecvThreshold = 5 }).pipelined(false, true).read(1, 100).want() // [SDP-9.5.1-2] [SDP-10-6]
	// SinkAvails end in order, also after short writes. [SDP-9.3-13] [SDP-9.3-14] [SDP-6.3.3.2-1]
	// [SDP-6.3.6.1-2] [SDP-9.5.5-8]
	pipe().read(1, 300).read(2, 300).skip().recv("RdmaWrCompl size=300").want("revoke", "got 1 300").recv("RdmaWrCompl size=7").want("revoke", "got 2 7")
	pipe().read(1, 300).recv("RdmaWrCompl size=301").aborted("D-20")
	pipe().recv("RdmaWrCompl size=1").aborted("SDP-9.3-13")
	// [SDP-9.3-10]
	pipe().read(1, 300).recv("RdmaWrCompl size=300 inv*").alive()
	pipe().read(1, 300).recv("RdmaWrCompl size=300 inv=3").aborted("SDP-9.3-10")
	// No bytes were written: the read continues to wait, and is advertised again. [D-20]
	pipe().read(1, 300).skip().recv("RdmaWrCompl size=0").want("revoke", "SinkAvail size=300 nd=0")
	// A read that must be full is not advertised. [SDP-9.3-15]
	pipe().readAll(1, 500).want().recv("Data +50", "Data +50").want("hold 50", "copy 1 50@0", "hold 50", "copy 1 50@50")
	// In Combined Mode no SinkAvail is sent. [SDP-12-11]
	newProbe(t).read(1, 300).want()
	// No SinkAvail is sent while a SrcAvail is open, because the bytes arrive by Read Zcopy.
	// [SDP-11.3-14] [SDP-11.3-15]
	pipe().recv("SrcAvail size=300").read(1, 500).want("read 1 300@0 from 0")
	// While a SinkAvail is open, a SrcAvail is dropped, but the numbers in its header count.
	// [SDP-11.3-16]
	p := pipe().read(1, 300).skip().recv("SrcAvail size=300 bufs=9").want()
	if p.m.cr.bufs != 9 {
		t.Error("credits of a discarded SrcAvail")
	}
	// [SDP-11.3-18] [SDP-6.2.1.3-1]
	newProbe(t, func(p *Params) { p.PeerMaxAdverts = 1 }).pipelined(false, true).read(1, 300).read(2, 300).want("SinkAvail size=300 nd=0")
}

// TestSDP_9_4_Transaction checks a SinkAvail that carries payload. [D-27]
func TestSDP_9_4_Transaction(t *testing.T) {
	// A small write and a large read share a message. [SDP-9.4-1] [SDP-6.3.3-3]
	p := newProbe(t).pipelined(false, true)
	p.took(p.m.Exchange(0, 1, 10, 2, 300, mark())).want("SinkAvail size=300 nd=0 +10", "wrote 1 10")
	// Without Pipelined Mode of the receiving half, the read is not advertised. [SDP-9.4-2]
	p = newProbe(t)
	p.took(p.m.Exchange(0, 1, 10, 2, 300, mark())).want("Data +10", "wrote 1 10")
	// At the other end, the payload is delivered, and the reply is written. [SDP-9.4-3] [SDP-9.4-4]
	// [SDP-11.2-3] [SDP-11.3-3]
	p = newProbe(t).pipelined(true, false).read(1, 50).recv("SinkAvail size=300 nd=0 stag=8 +10").want("hold 10",
		"copy 1 10@0", "got 1 10")
	p.write(2, 300).want("write 2 300@0 -> 0", "wrote 2 300", "RdmaWrCompl size=300")
	// An urgent reply cannot be written. [SDP-9.4-5]
	p = newProbe(t).pipelined(true, false).recv("SinkAvail size=300 nd=0 +10").skip()
	p.urgent(2, 1).wantMsgs("Data OOB_PRES|OOB_PEND +1")
	// The payload of a stale SinkAvail counts too. [SDP-9.5.1-10]
	p = newProbe(t).pipelined(true, false).write(1, 5).read(2, 50).skip().recv("SinkAvail size=300 nd=0 +10").want("hold 10", "copy 2 10@0", "got 2 10")
	if p.m.Stats().StaleSinkAvails != 1 {
		t.Error("not stale")
	}
}

func TestSDP_9_5_1_Stale(t *testing.T) {
	// This is the example of the draft: two Data were sent, and three SinkAvails have NonDiscards
	// 0. [D-23] [SDP-9.5.1-3] [SDP-9.5.1-8] [SDP-9.5.1-9]
	p := newProbe(t).pipelined(true, false).write(1, 10).write(2, 10).skip()
	p.recv("SinkAvail size=300 nd=0", "SinkAvail size=300 nd=0").write(3, 300).want("SrcAvail size=300")
	p.recv("SinkAvail size=300 nd=0").want("revoke", "write 3 300@0 -> 0", "wrote 3 300", "RdmaWrCompl size=300") // [SDP-11.3-10]
	// The next SinkAvail, numbered by the rules, is used, because nothing has changed the count
	// since. [SDP-9.5.2.2-2]
	p.recv("SinkAvail size=200 nd=0").write(4, 200).want("write 4 200@0 -> 0", "wrote 4 200", "RdmaWrCompl size=200")
	// A NonDiscards greater than the counter is a violation. [D-24]
	newProbe(t).pipelined(true, false).recv("SinkAvail size=300 nd=1").aborted("D-24")
	// The counters wrap from all ones to zero. [SDP-9.5.1-7] [SDP-6.3.3.4-4]
	p = newProbe(t, func(p *Params) { p.FirstSrcCount, p.FirstSnkCount = math.MaxUint32, math.MaxUint32 }).pipelined(true, true)
	p.write(1, 10).recv("SinkAvail size=300 nd=0").write(2, 200).skip()
	p.recv("Data +5").read(3, 5).read(4, 300).want("hold 5", "copy 3 5@0", "got 3 5", "SinkAvail size=300 nd=0")

	// At the Data Sink, each message with payload counts, in any mode. [SDP-6.3.3.4-3]
	p = newProbe(t).recv("Data +5", "Data", "SrcAvail size=9 +9").read(1, 100).skip() // [D-25]
	p.recv("ModeChange Pipelined", "Data +5").read(2, 5).skip().read(3, 300).want("SinkAvail size=300 nd=3")
	// A message that ends an advertised read does not count. [SDP-9.5.1-4] [SDP-9.5.1-5]
	p.read(4, 300).skip().recv("Data +5").want("revoke", "hold 5", "copy 3 5@0", "got 3 5")
	p.recv("Data +6").want("revoke", "hold 6", "copy 4 6@0", "got 4 6").read(5, 300).want("SinkAvail size=300 nd=3")
	// An unadvertised read may get the bytes of several messages. [SDP-9.5.1-6]
	newProbe(t).recv("Data +5", "Data +6").skip().read(1, 50).want("copy 1 11@0", "got 1 11")
}

func TestSDP_9_5_3_Urgent(t *testing.T) {
	// The urgent byte is sent in order, as the last byte of the message. [SDP-6.1.2-4]
	// [SDP-9.5.3-1] [SDP-9.5.3-2] [SDP-9.5.3-8]
	p := newProbe(t, func(p *Params) { p.PeerBufs = 3 })
	p.bufs = 2
	p.recv("Data").write(1, 10).skip()
	p.urgent(2, 3).wantMsgs("Data OOB_PEND") // [SDP-9.5.3-3] [SDP-9.5.3-7] announced with a reserved credit
	p.write(3, 10).skip()
	p.bufs = 9
	p.recv("Data").wantMsgs("Data OOB_PRES +13", "Data +10") // [SDP-9.5.3-4] [SDP-9.5.3-5] [SDP-6.1.2-6]
	if !p.m.src.writes.empty() {
		t.Error("bytes left")
	}
	// The announcement waits until at most 65535 bytes precede the byte. [SDP-9.5.3-6]
	p = newProbe(t, func(p *Params) { p.PeerSize, p.SendThreshold = 10016, Infinite })
	p.bufs = 2
	p.recv("Data").write(1, 100_000).urgent(2, 1).wantMsgs()
	p.bufs = 60
	p.recv("Data")
	far := 0
	for i, m := range p.msgs {
		if m.Flags&sdpwire.OOBPend != 0 {
			far = 100_000 - i*10_000
			break
		}
	}
	if far != 60_000 {
		t.Errorf("announced %d bytes ahead", far)
	}
	// Advertised bytes before the urgent byte count for the distance as well. [D-30]
	p = newProbe(t).write(1, 100_000).urgent(2, 1).wantMsgs("SrcAvail size=100000 +1")
	p.recv("RdmaRdCompl size=40000").wantMsgs("Data OOB_PEND").recv("RdmaRdCompl size=59999").wantMsgs("Data OOB_PRES +1")
	// Urgent bytes are never written by RDMA. [SDP-9.5.3-8]
	p = newProbe(t).pipelined(true, false).recv("SinkAvail size=900 nd=0").urgent(1, 300)
	for _, a := range p.full {
		if a.Op == OpRDMAWrite {
			t.Error("urgent data by RDMA Write")
		}
	}
	// This end receives urgent bytes. [SDP-9.5.3-9] [SDP-6.1.2-6] [SDP-6.1.2-8] [D-29]
	p = newProbe(t).recv("Data PEND").want("pending").recv("Data +5").want("hold 5").recv("Data PRES +4").want("urgent 8", "hold 4")
	p.recv("Data PRES +1").want("pending", "urgent 9", "hold 1")
	p.recv("Data PEND PRES +1").want("pending", "urgent 10", "hold 1")
	// A message of any type may announce an urgent byte. [SDP-6.1.2-7] [D-74]
	for _, s := range []string{"ModeChange Pipelined PEND", "Data PEND", "ChRcvBuf size=100 PEND", "SrcAvail size=300 +1 PEND", "DisConn PEND"} {
		p := newProbe(t).recv(s)
		if p.said[0] != "pending" {
			t.Errorf("%s: %v", s, p.said)
		}
	}
	p = newProbe(t).write(1, 200).skip().recv("SendSm PEND")
	if p.said[0] != "pending" {
		t.Error("SendSm")
	}
	// With UrgentApart the urgent byte is kept out of the stream. [D-29]
	newProbe(t, func(p *Params) { p.UrgentApart = true }).recv("Data PEND PRES +4").want("pending",
		"urgent 3", "hold 3")
}

func (d *deque[T]) empty() bool { return d.n == 0 }

func TestSDP_9_5_4_SrcCancel_Source(t *testing.T) {
	pipe := func() *probe { return newProbe(t).pipelined(true, false).write(1, 200).write(2, 300).skip() }
	// The SrcAvails not cancelled are advertised again. [SDP-9.5.4-1] [SDP-9.5.4-10] [SDP-9.5.4-11]
	p := pipe().cancelWrite(1).want("SrcAvailCancel").write(3, 400).want()
	p.recv("SendSm").want("revoke", "revoke", "wrote 1 0 cancelled", "SrcAvail size=300", "SrcAvail size=400")
	// A SendSm that crossed the cancel ends one SrcAvail in the normal way. [D-31]
	p = pipe().cancelWrite(2).skip()
	p.recv("SendSm ack=1").want("revoke", "Data +84", "Data +84", "Data +32", "wrote 1 200")
	p.recv("SendSm").want("revoke", "wrote 2 0 cancelled").alive()
	// If the SendSm ends the last SrcAvail, the cancel has ended too. [SDP-9.2-24] [SDP-9.5.2.1-5]
	p = newProbe(t).write(1, 200).skip().cancelWrite(1).want("SrcAvailCancel").recv("SendSm ack=0")
	p.want("revoke", "detach 1 1", "Data +84", "Data +84", "Data +31", "wrote 1 200")
	p.write(2, 300).want("SrcAvail size=300 +1")
	// The counts of cancelled writes are exact. [D-32] [D-83]
	newProbe(t).write(1, 200).cancelWrite(1).skip().recv("RdmaRdCompl size=50").want().recv("SendSm").want("revoke",
		"wrote 1 51 cancelled")
	// If the peer has answered all SrcAvails, no write is cancelled. [SDP-9.5.4-11]
	pipe().cancelWrite(1).skip().recv("RdmaRdCompl size=200").want("revoke", "wrote 1 200").recv("RdmaRdCompl size=300").want("revoke", "wrote 2 300").
		write(3, 200).want("SrcAvail size=200")
	// A SinkAvail overrides the SrcAvails. [SDP-9.5.4-11] [SDP-11.3-12]
	pipe().cancelWrite(1).skip().recv("SinkAvail size=500 nd=0").
		want("revoke", "revoke", "wrote 1 0 cancelled", "write 2 300@0 -> 0", "wrote 2 300", "RdmaWrCompl size=300")
	// A write that has not begun is cancelled at once.
	newProbe(t).write(1, 200).write(2, 7).skip().cancelWrite(2).want("wrote 2 0 cancelled")
	// A peer that does not answer a cancel for five seconds counts as dead. [D-81]
	p = pipe().cancelWrite(1).pass(5 * time.Second)
	if p.m.Err() != ErrDeadPeer {
		t.Error(p.m.Err())
	}
	// A SrcAvail unanswered for a second is sent by Bcopy. [D-81]
	p = newProbe(t).write(1, 200).skip()
	p.pass(time.Second).want("SrcAvailCancel").recv("SendSm").want("revoke", "Data +84",
		"Data +84", "Data +31", "wrote 1 200")
}

func TestSDP_9_5_4_SrcCancel_Sink(t *testing.T) {
	pipe := func() *probe {
		return newProbe(t).pipelined(false, true).recv("SrcAvail size=200", "SrcAvail size=200", "SrcAvail size=200").skip()
	}
	// Three Unprocessed SrcAvails get a single SendSm, to acknowledge the cancel. [SDP-9.5.4-2]
	// [SDP-9.5.4-9]
	p := pipe().recv("SrcAvailCancel").want("SendSm")
	if m := p.msgs[0]; m.MSeqAck != p.seq-1 {
		t.Errorf("[SDP-9.5.4-5] SendSm acknowledges %d, the cancel is %d", m.MSeqAck, p.seq-1)
	}
	p.read(1, 200).want("SinkAvail size=200 nd=0") // [SDP-9.5.4-8] no byte of the SrcAvails is delivered
	// While a SrcAvail is In-Process, no new reads begin, MSeqAck is held, and completions come
	// first. [SDP-9.5.4-3] [SDP-9.5.4-5] [SDP-9.5.4-6] [SDP-9.5.4-7]
	p = pipe().read(1, 150).skip().recv("SrcAvailCancel").want()
	cancel := p.seq - 1
	p.read(2, 200).want() // [D-12] the peer counts too little credit during the hold, which does no harm
	p.write(9, 5)
	if m := p.msgs[0]; m.MSeqAck != cancel-1 { // [D-33]
		t.Errorf("MSeqAck %d while %d is held", m.MSeqAck, cancel)
	}
	p.skip().readDone().want("got 1 150", "RdmaRdCompl size=150", "SendSm", "SinkAvail size=200 nd=0")
	if a, b := p.msgs[0].MSeqAck, p.msgs[1].MSeqAck; a != cancel-1 || b != cancel {
		t.Errorf("[D-33] RdmaRdCompl acknowledges %d, SendSm %d, the cancel is %d", a, b, cancel)
	}
	// If all SrcAvails are Processed, the cancel is ignored. [SDP-9.5.4-4] [SDP-5-1]
	p = newProbe(t).recv("SrcAvail size=200 +1").read(1, 200).readDone().skip().recv("SrcAvailCancel").want()
	p.write(2, 3)
	if m := p.msgs[0]; m.MSeqAck != p.seq-1 {
		t.Error("MSeqAck held for nothing")
	}
	// If all bytes were read, no SendSm is sent, and the hold ends. [D-33] [SDP-9.2-9]
	p = newProbe(t).recv("SrcAvail size=200 +1").read(1, 200).recv("SrcAvailCancel").skip().readDone().wantMsgs("RdmaRdCompl size=199")
	p.write(2, 3)
	if m := p.msgs[0]; m.MSeqAck != p.seq-1 {
		t.Error("MSeqAck still held")
	}
	pipe().read(1, 150).recv("SrcAvailCancel", "SrcAvail size=200").aborted("SDP-9.5.4-10")
	pipe().read(1, 150).recv("SrcAvailCancel", "SrcAvailCancel").aborted("SDP-9.5.4-10")
}

func TestSDP_9_5_5_SinkCancel(t *testing.T) {
	// The local end is the Data Sink, and cancels the SinkAvails. [SDP-9.5.5-1] [SDP-9.5.5-10]
	// [SDP-9.5.5-11]
	pipe := func() *probe { return newProbe(t).pipelined(false, true).read(1, 300).read(2, 400).skip() }
	p := pipe().cancelRead(1).want("SinkAvailCancel").cancelRead(2).want().read(3, 500).want()
	p.recv("SinkCancelAck").want("revoke", "revoke", "got 1 0 cancelled", "got 2 0 cancelled",
		"SinkAvail size=500 nd=0")
	// Each SinkAvail is resolved separately. [D-34]
	p = pipe().cancelRead(1).skip().recv("Data +5").want("revoke", "hold 5", "copy 1 5@0", "got 1 5")
	p.recv("RdmaWrCompl size=8").want("revoke", "got 2 8").read(3, 300).want("SinkAvail size=300 nd=0")
	p.recv("SinkCancelAck ack=2").want() // that cancel has ended, so its acknowledgement has no effect
	p.cancelRead(3).want("SinkAvailCancel")
	p = pipe().cancelRead(1).skip().pass(5 * time.Second)
	if p.m.Err() != ErrDeadPeer {
		t.Error(p.m.Err())
	}
	// This end is the Data Source, and answers the peer's cancel. [SDP-9.5.5-2] [SDP-9.5.5-6]
	// [SDP-9.5.5-9] [SDP-6.3.11-1]
	src := func() *probe { return newProbe(t).pipelined(true, false) }
	src().recv("SinkAvail size=300 nd=0", "SinkAvail size=300 nd=0", "SinkAvail size=300 nd=0", "SinkAvailCancel").want("SinkCancelAck").
		write(1, 200).want("SrcAvail size=200")
	// Without an open SinkAvail the cancel is ignored. [SDP-9.5.5-4] [D-36]
	src().recv("SinkAvailCancel").want()
	src().write(1, 5).skip().recv("SinkAvail size=300 nd=0", "SinkAvailCancel").want()
	// For an In-Process SinkAvail the completion is sent first, then the SinkCancelAck.
	// [SDP-9.5.5-3] [SDP-9.5.5-5] [SDP-9.5.5-7] [D-35]
	p = newProbe(t, func(p *Params) { p.PeerBufs = 3 }).pipelined(true, false)
	p.bufs = 0
	p.recv("SinkAvail size=500 nd=0").write(1, 300).want("write 1 300@0 -> 0", "wrote 1 300")
	p.recv("SinkAvailCancel").want()
	p.bufs = 9
	p.recv("Data").want("RdmaWrCompl size=300", "SinkCancelAck").write(2, 300).want("SrcAvail size=300") // [SDP-9.5.5-8]
}

func TestSDP_9_5_6_Buffering(t *testing.T) {
	// One-byte messages do not exhaust the buffers. [SDP-9.5.6-1] [D-79]
	p := newProbe(t, func(p *Params) { p.RecvBufs, p.RecvBudget = 8, 1000 })
	given := 8
	n := 0
	for ; n < 900; n++ {
		if given <= 2 {
			break
		}
		p.recv("Data +1")
		given--
		for _, m := range p.msgs {
			given = int(m.Bufs) - int(p.seq-1-m.MSeqAck)
		}
		p.skip()
	}
	if n < 900 {
		t.Errorf("%d bytes buffered, 1000 promised", n)
	}
	p.read(1, 2000)
	if got := p.full[len(p.full)-1]; p.full[0].N != 900 {
		t.Errorf("%+v", got)
	}
}

func TestSDP_9_2_29_Deadlock(t *testing.T) {
	// A lone SrcAvail is fetched into local memory after a while. [D-38]
	p := newProbe(t).recv("SrcAvail size=500 +1").skip().pass(time.Millisecond).want("read local 499 from 1")
	p.readDone().want("RdmaRdCompl size=499").read(1, 500).want("copy 1 500@0", "got 1 500")
	// If there is not enough room, as much as fits is fetched, and the rest uses Bcopy.
	// [SDP-9.5.6-1]
	newProbe(t).recv("SrcAvail size=5000 +1").skip().pass(time.Millisecond).want("read local 1000 from 1").readDone().want("RdmaRdCompl size=1000").
		pass(time.Second).want()
	// If a SrcAvail is too large to be fetched and both ends wait, the Accepting Peer yields first.
	small := func(p *Params) { p.RecvBudget = 0; p.SendBudget = 0 }
	newProbe(t, small, accepting).write(1, 500).recv("SrcAvail size=500 +1").skip().pass(10 * time.Millisecond).want("SendSm")
	newProbe(t, small).write(1, 500).recv("SrcAvail size=500 +1").skip().pass(29 * time.Millisecond).want().pass(time.Millisecond).want("SendSm")
}
