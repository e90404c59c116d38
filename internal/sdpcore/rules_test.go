package sdpcore

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"viaduct/internal/wire/sdpwire"
)

// sums returns an error if the machine's counters differ from the contents of its queues.
func (m *Machine) sums() error {
	if m.life == lifeDead {
		return nil
	}
	s, k := &m.src, &m.snk
	queued, urgents, forced := 0, 0, 0
	for i := range s.writes.len() {
		w := s.writes.at(i)
		queued += w.n - w.off
		if w.urgent && !w.pended {
			urgents++
		}
		if w.forced && i == forced {
			forced++
		}
	}
	held, apart, private := 0, 0, 0
	for i := range k.held.runs.len() {
		h := k.held.runs.at(i)
		held += h.n
		if h.private {
			private++
		} else {
			apart += h.n
		}
	}
	locals, reading := 0, 0
	for i := range k.fetch.ops.len() {
		if op := k.fetch.ops.at(i); op.local {
			locals++
		} else {
			reading += op.n
		}
	}
	offered, inflight := 0, 0
	for i := range k.reads.len() {
		r := k.reads.at(i)
		if r.offered {
			offered++
		}
		inflight += r.inflight
	}
	for _, c := range [...]struct {
		what      string
		got, want int
	}{
		{"bytes queued", s.writes.queued, queued}, {"urgent bytes to announce", s.writes.urgents, urgents}, {"forced writes", s.writes.forced, forced}, {"advertised writes", s.writes.advertised, s.advs.len()},
		{"bytes held", k.held.n, held}, {"bytes held outside Private Buffers", k.held.compacted, apart}, {"Private Buffers in use", m.cr.pool - m.cr.free, private},
		{"RDMA Reads without reader", k.fetch.opsLocal, locals}, {"bytes of reads in flight", inflight, reading}, {"reads advertised", k.offer.len(), offered},
	} {
		if c.got != c.want {
			return fmt.Errorf("%s: counted %d, there are %d", c.what, c.got, c.want)
		}
	}
	return nil
}

// suspend requests a suspension.
func (p *probe) suspend() *probe {
	p.t.Helper()
	acts, err := p.m.Suspend(p.now, 5000, mark())
	if err != nil {
		p.t.Error(err)
	}
	return p.took(acts)
}

// resume continues the suspended connection over a new one.
func (p *probe) resume(change ...func(*Params)) *probe {
	p.t.Helper()
	np := params()
	for _, f := range change {
		f(&np)
	}
	p.seq, p.ack, p.bufs = np.FirstRecv, np.FirstSend, uint16(np.PeerBufs)
	return p.took(p.m.Resume(p.now, np, mark()))
}

// due compares the time when Tick is due, counted from the beginning. A negative want means never.
func (p *probe) due(want time.Duration) *probe {
	p.t.Helper()
	at, ok := p.m.Deadline()
	if !ok {
		at = -1
	}
	if at != max(want, -1) {
		p.t.Errorf("next due at %v, wanted %v", at, want)
	}
	return p
}

// credits sends a message of the peer that only announces bufs buffers.
func (p *probe) credits(bufs uint16) *probe {
	p.t.Helper()
	p.bufs = bufs
	return p.recv("Data")
}

// TestSDP_8_2_2_Suspending checks that AbortConn revokes a sent DisConn, even while the suspension
// requested by the peer waits for the end of an RDMA Read.
func TestSDP_8_2_2_Suspending(t *testing.T) {
	t.Run("SDP-8.2.2-1", func(t *testing.T) {
		p := newProbe(t).recv("SrcAvail size=300 +1").read(1, 300).closeWrite().recv("SuspComm port=6000").skip()
		p.abort(errors.New("boom")).want("AbortConn", "abort after AbortConn boom", "got 1 1")
	})
	// The LLP of a suspended connection must end. [SDP-8.2.1-12] [D-48]
	t.Run("SDP-8.2.2-4", func(t *testing.T) {
		p := newProbe(t).write(1, 300).recv("SuspComm port=6000").skip()
		p.took(p.m.LLPClosed(p.now, nil, mark())).want().alive().resume().wantMsgs("SrcAvail size=299 +1")
	})
	// An abort is reported as an abort even if no bytes were left to send. [SDP-8.2.1-12]
	t.Run("SDP-8.2.1-22", func(t *testing.T) {
		boom := errors.New("boom")
		if err := newProbe(t).recv("DisConn").abort(boom).m.WriteErr(); err != boom {
			t.Error(err)
		}
		if err := newProbe(t).recv("DisConn", "AbortConn").m.WriteErr(); err != ErrReset {
			t.Error(err)
		}
	})
}

// TestSDP_9_5_2_Forced checks that later transfers do not wait for payload whose answer was already
// sent.
func TestSDP_9_5_2_Forced(t *testing.T) {
	ms := time.Millisecond
	// The time of the next SrcAvail counts from the SendSm. [D-38] [D-32]
	t.Run("SDP-9.5.2.1-1", func(t *testing.T) {
		p := newProbe(t).pipelined(false, true).recv("SrcAvail size=50", "SrcAvail size=300").due(ms)
		p.now = ms / 2
		p.read(1, 20).want("SendSm").due(-1).recv("Data +50").want("hold 50", "copy 1 20@0", "got 1 20").due(ms/2 + ms)
	})
	// If a SendSm crosses a cancel, the write is detached once, and its bytes are sent even so.
	// [SDP-9.5.2.1-5] [D-31]
	t.Run("SDP-9.2-24", func(t *testing.T) {
		p := newProbe(t).write(1, 400).skip()
		ack := p.ack
		p.cancelWrite(1).want("SrcAvailCancel")
		p.bufs, p.ack = 2, ack
		p.recv("SendSm").want("revoke", "detach 1 1").cancelWrite(1).want()
		p.recv("SuspComm port=6000").want("SuspCommAck", "reconnect 6000").resume().want("Data +84",
			"Data +84", "Data +84", "Data +84", "Data +63", "wrote 1 400")
	})
}

func TestSDP_9_5_1_Apart(t *testing.T) {
	// Messages are counted from the first one on, also in Combined Mode. [SDP-9.5.1-8] [D-25]
	t.Run("SDP-9.5.1-7", func(t *testing.T) {
		p := newProbe(t).write(1, 200).want("SrcAvail size=200 +1").recv("RdmaRdCompl size=199").pipelined(true, false)
		p.recv("SinkAvail size=300 nd=0").stats("StaleSinkAvails=1").recv("SinkAvail size=300 nd=0").stats("StaleSinkAvails=1")
	})
	apart := func(p *Params) { p.UrgentApart = true }
	t.Run("SDP-6.1.2-6", func(t *testing.T) { // only an urgent byte is kept out of the stream
		newProbe(t, apart).recv("Data +5").want("hold 5").recv("Data +5 PRES").want("pending", "urgent 9", "hold 4")
		newProbe(t).recv("Data +5").want("hold 5").recv("Data +5 PRES").want("pending", "urgent 9", "hold 5")
	})
	// A message that consists of an urgent byte consumes a SinkAvail, and its read gets no bytes.
	// The read stays the first one, and is not advertised after others.
	t.Run("SDP-9.5.1-4", func(t *testing.T) { // [SDP-9.5.1-5] [SDP-9.5.1-1] [SDP-9.3-2] [SDP-9.3-14] [SDP-11.3-8] [SDP-11.3-14]
		p := newProbe(t, apart).pipelined(false, true).read(1, 300).read(2, 300).read(3, 300).skip()
		p.recv("Data +1 PRES").want("pending", "urgent 0", "revoke")
		p.recv("Data +5").want("revoke", "hold 5", "copy 1 5@0", "got 1 5")
		p.recv("RdmaWrCompl size=7").want("revoke", "got 3 7", "SinkAvail size=300 nd=0")
	})
}

// TestSDP_9_5_2_SrcAvail checks that each SrcAvail ends by RDMA or by a SendSm, or by a violation
// of the peer.
func TestSDP_9_5_2_SrcAvail(t *testing.T) {
	ms := time.Millisecond
	pipe := func(change ...func(*Params)) *probe { return newProbe(t, change...).pipelined(false, true) }
	t.Run("SDP-9.5.2.1-4", func(t *testing.T) { // [SDP-11-2] [D-21] [SDP-8.2.1-8]
		pipe().recv("DisConn", "SrcAvail size=300").aborted("SDP-8.2.1-8")
		// Bytes that a SendSm asked for arrive only by Data. A SrcAvail may follow these bytes.
		newProbe(t).recv("SrcAvail size=300 +1").read(1, 1).read(2, 20).recv("SrcAvail size=300 +5").aborted("SDP-11.2-4")
		pipe().recv("SrcAvail size=150").read(1, 20).want("SendSm").recv("SrcAvail size=300").want().alive()
		pipe().recv("SrcAvail size=300").credits(0).recv("SrcAvailCancel", "SrcAvail size=300").aborted("SDP-9.5.4-10")
		// While a SinkAvail is open, a SrcAvail is void: it gets no answer.
		pipe().read(1, 300).want("SinkAvail size=300 nd=0").recv("SrcAvail size=300").want().recv("RdmaWrCompl size=9").want("revoke", "got 1 9").read(2, 20).want()
		// With NoRead, each SrcAvail gets its SendSm when the bytes of the one before have arrived.
		pipe(func(p *Params) { p.NoRead = true }).recv("SrcAvail size=50", "SrcAvail size=60").wantMsgs("SendSm").recv("Data +50").wantMsgs("SendSm").recv("Data +60").alive()
		// Each SrcAvail has a separate answer, even if two answers wait for credit.
		p := pipe().recv("SrcAvail size=200", "SrcAvail size=300").credits(0).read(1, 200).read(2, 300).readDone().readDone().wantMsgs()
		p.credits(9).wantMsgs("RdmaRdCompl size=200", "RdmaRdCompl size=300")
	})
	// A read that must be full asks for all advertised bytes at once. [SDP-9.2-7]
	t.Run("SDP-9-4", func(t *testing.T) {
		p := pipe().recv("SrcAvail size=200", "SrcAvail size=200", "SrcAvail size=200").skip()
		p.readAll(1, 600).want("read 1 200@0 from 0", "read 1 200@200 from 0", "read 1 200@400 from 0")
	})
	// The waiting time of a SrcAvail counts from the time when it became the oldest.
	// [SDP-9.5.2.1-4] [SDP-9.2-9]
	t.Run("D-38", func(t *testing.T) {
		p := pipe().recv("SrcAvail size=200").due(ms)
		p.now = ms / 2
		p.recv("SrcAvail size=300").due(ms)
		p.read(1, 200).readDone().want("read 1 200@0 from 0", "got 1 200", "RdmaRdCompl size=200").due(ms/2 + ms)
	})
	t.Run("SDP-8.2.1-8", func(t *testing.T) { // a refused message does not count
		newProbe(t).recv("DisConn", "Data +5").stats("RecvBytesBcopy=0 Violations=1")
	})
}

func TestSDP_9_5_5_Cancels(t *testing.T) {
	// No SinkAvail is sent between the request to cancel and the cancel. [SDP-9.3-2] [SDP-9.5.1-1]
	t.Run("SDP-9.5.5-10", func(t *testing.T) {
		p := newProbe(t).pipelined(true, true).write(1, 200).read(2, 300).skip().cancelWrite(1).want("SrcAvailCancel")
		p.cancelRead(2).want().read(3, 300).want() // [D-34] waits for the end of the SrcAvailCancel
		p.recv("SendSm").want("revoke", "wrote 1 0 cancelled", "SinkAvailCancel")
		p.recv("SinkCancelAck").want("revoke", "got 2 0 cancelled", "SinkAvail size=300 nd=0")
	})
	t.Run("SDP-9.5.5-8", func(t *testing.T) { // [SDP-9.5.5-3] [SDP-9.5.5-5] [D-35] room that was given up is not written to
		p := newProbe(t).pipelined(true, false).recv("SinkAvail size=500 nd=0").credits(0).write(1, 300).want("write 1 300@0 -> 0", "wrote 1 300")
		p.recv("SinkAvailCancel").write(2, 160).want()
		p.credits(20).want("RdmaWrCompl size=300", "SinkCancelAck", "SrcAvail size=160")
	})
	// A cancel is answered on the connection on which it arrived, or never.
	t.Run("SDP-13-1", func(t *testing.T) {
		p := newProbe(t).pipelined(true, false).recv("SinkAvail size=300 nd=0").suspend().skip()
		p.recv("SinkAvailCancel").want().recv("SuspCommAck").want("suspended").resume().want()
	})
	// A SinkAvail from before a change of mode is not used after the next change.
	t.Run("SDP-12.4-6", func(t *testing.T) {
		p := newProbe(t, autoPolicy).goMode(sdpwire.Pipelined).recv("SinkAvail size=500 nd=0").goMode(sdpwire.Combined).recv("Data").goMode(sdpwire.Pipelined).skip()
		p.write(1, 300).want("SrcAvail size=300").stats("ModeChangesSent=3") // [SDP-12-6] [SDP-12-7]
	})
	// A new change of mode after a move does not wait for the acknowledgement of an earlier
	// ModeChange. [SDP-13-1]
	t.Run("SDP-12.4-3", func(t *testing.T) {
		p := newProbe(t, autoPolicy).goMode(sdpwire.Pipelined).goMode(sdpwire.Combined).wantMsgs("ModeChange Pipelined",
			"ModeChange Combined")
		p.ack = 0
		p.recv("SuspComm port=6000").skip().resume(autoPolicy).want().goMode(sdpwire.Pipelined).want("ModeChange Pipelined", "mode send Pipelined")
	})
}

func TestSDP_9_3_13_Says(t *testing.T) {
	p := newProbe(t).pipelined(false, true).read(1, 300).read(2, 400).recv("RdmaWrCompl size=350")
	var v *Violation
	if !errors.As(p.m.Err(), &v) || v.Row != "D-20" || v.What != "350 bytes in a buffer of 300" { // [SDP-9.3-13] [D-20]
		t.Error(p.m.Err())
	}
}

func TestSDP_9_5_6_Runs(t *testing.T) {
	few := func(p *Params) { p.RecvBufs = 4 }
	// The memory for held payload does not grow with the number of messages. [D-79]
	t.Run("SDP-9.5.6-1", func(t *testing.T) {
		p := newProbe(t, few)
		for range 300 {
			p.recv("Data +1")
		}
		if n := p.m.snk.held.runs.len(); n > 3 || p.m.Held() != 300 {
			t.Errorf("%d bytes held in %d runs", p.m.Held(), n)
		}
		p.skip().read(1, 300).wantMsgs("Data")
		// Bytes that are held outside of the Private Buffers are not copied again.
		p = newProbe(t, few).recv("Data +84", "Data +84", "Data +5").want("hold 84", "hold 84", "hold 5", "compact 5").pass(time.Second).stats("CompactedBytes=5")
		p.recv("Data +6").stats("CompactedBytes=11")
	})
}

func TestSDP_9_2_29_Lonely(t *testing.T) {
	ms := time.Millisecond
	pipe := func(change ...func(*Params)) *probe { return newProbe(t, change...).pipelined(true, true) }
	full := func(p *Params) { p.RecvBudget = 0 }
	t.Run("SDP-9.2-29", func(t *testing.T) { // [D-38] a SendSm is only sent in a deadlock
		for after, role := range map[time.Duration]Role{10 * ms: Accepting, 30 * ms: Connecting} {
			as := func(p *Params) { p.Role = role }
			pipe(full, as).recv("SrcAvail size=300").due(-1).pass(time.Minute).want()
			p := pipe(full, as, func(p *Params) { p.SendBudget = 0 }).write(1, 200).skip().due(-1).recv("SrcAvail size=300").due(after)
			p.pass(after - 1).want().pass(1).want("SendSm").due(-1)
			// SendSm is not sent either if a read waits, now or later.
			p = pipe(full, as, func(p *Params) { p.SendBudget = 0 }).write(1, 200).recv("SrcAvail size=300").read(2, 300).skip().due(-1).pass(time.Minute).want()
			p.readDone().want("got 2 300", "RdmaRdCompl size=300")
		}
	})
	// Bytes are fetched without a read, piece by piece as there is room. [D-38]
	t.Run("SDP-9.5.6-1", func(t *testing.T) {
		p := pipe(func(p *Params) { p.RecvBudget = 150 }).recv("SrcAvail size=500").pass(ms).want("read local 150 from 0").due(-1)
		// While a piece arrives, neither the rest nor a late read gets bytes out of order.
		p.pass(time.Minute).want().read(1, 400).want()
		p.readDone().want("copy 1 150@0", "read 1 250@150 from 150").readDone().want("got 1 400",
			"RdmaRdCompl size=400")
	})
	t.Run("D-38", func(t *testing.T) { // the rest is fetched when there is room again
		p := pipe(func(p *Params) { p.RecvBudget = 150 }).recv("SrcAvail size=200").pass(ms).readDone().skip().read(1, 150).skip()
		p.pass(ms).want("read local 50 from 150").readDone().want("RdmaRdCompl size=50")
	})
	// No byte is fetched from a SrcAvail that the peer cancels. [D-38] [D-33]
	t.Run("SDP-9.5.4-5", func(t *testing.T) {
		p := pipe(func(p *Params) { p.ORD = 1 }).recv("SrcAvail size=300").credits(0).recv("SrcAvailCancel").due(-1).pass(time.Minute).want()
		p.read(1, 300).want().credits(5).want("SendSm", "SinkAvail size=300 nd=0")
	})
}

func TestSDP_10_6_Bounds(t *testing.T) {
	// TestSDP_10_6_Bounds checks that an answer never changes the size away from the requested
	// size, nor beyond it, whatever the limits of this end are.
	for _, c := range []struct {
		min, max, ask, want int
	}{
		// Less than the present size was requested, so the answer is not more. [SDP-10.6-8]
		// [SDP-10.6-11]
		{150, 300, 70, 100},
		// The answer is not less than the request. [SDP-10.6-9]
		{37, 50, 70, 70},
		// More than the present size was requested, so the answer is not less. [SDP-10.6-10]
		{37, 50, 200, 100},
		{37, 150, 200, 150}, {60, 300, 50, 60}, {150, 300, 120, 150}, // [SDP-10.6-5] [SDP-10.6-6]
	} {
		p := newProbe(t, func(p *Params) { p.MinRecvSize, p.MaxRecvSize = c.min, c.max }).recv(fmt.Sprintf("ChRcvBuf size=%d", c.ask))
		p.took(p.m.Resized(p.now, mark())).wantMsgs(fmt.Sprintf("ChRcvBufAck size=%d", c.want))
	}
}

// TestD08_Doubt checks that an empty Data that asks for credit is sent only if it may help.
func TestD08_Doubt(t *testing.T) { // [D-08] [D-10]
	ms := time.Millisecond
	// The peer had two buffers while nothing had been sent, so a later two proves nothing. Without
	// any credit, only a message of the peer helps.
	p := newProbe(t, autoPolicy, func(p *Params) { p.PeerBufs = 3 }).credits(2).goMode(sdpwire.Pipelined).write(1, 1)
	p.ack = 0
	p.credits(3).wantMsgs("ModeChange Pipelined", "Data").due(200 * 5 * ms)
	p.ack = 0
	p.credits(2).due(-1)
	// Payload in a SrcAvail counts as sent payload. So payload that waits later causes an empty
	// Data after its own wait, independent of an old nudge. [SDP-9.2-2]
	p = newProbe(t, func(p *Params) { p.PeerBufs = 5 }).write(1, 1).write(2, 1).write(3, 1).recv("Data ack=1 bufs=3").write(4, 300).skip()
	p.pass(5 * ms).wantMsgs("Data").recv("Data ack=3 bufs=3").wantMsgs("SrcAvail size=300 +1")
	p.recv("RdmaRdCompl size=299 ack=3 bufs=3").skip()
	p.now = time.Minute
	p.write(5, 1).want().pass(5*ms - 1).want().pass(1).want("Data")
}

func TestSDP_13_1_1_Urgent(t *testing.T) {
	// Each urgent byte is announced once on the new connection. [SDP-13.1.1-10] [D-52]
	// [SDP-9.5.3-4]
	t.Run("SDP-13.1.1-17", func(t *testing.T) {
		p := newProbe(t).credits(2).write(1, 10).urgent(2, 3).write(3, 80_000).urgent(4, 1).write(5, 5).wantMsgs("Data OOB_PEND")
		p.recv("SuspComm port=6000").skip().resume(func(p *Params) { p.SendThreshold = Infinite })
		pended := 0
		for i := range p.msgs {
			if p.msgs[i].Flags&sdpwire.OOBPend != 0 {
				pended++
			}
		}
		p.skip().recv("Data bufs=4000")
		for i := range p.msgs {
			if p.msgs[i].Flags&sdpwire.OOBPend != 0 {
				pended++
			}
		}
		if pended != 2 || p.m.SendQueue() != 0 {
			t.Errorf("%d announcements of two urgent bytes, %d bytes left", pended, p.m.SendQueue())
		}
	})
}

// TestSDP_11_3_Order checks that waiting bytes keep their order: only one mechanism moves bytes at
// a time.
func TestSDP_11_3_Order(t *testing.T) {
	pipe := func() *probe { return newProbe(t, autoPolicy).goMode(sdpwire.Pipelined).skip() }
	// Bytes that a SendSm asked for are sent before bytes that are written. [SDP-9.2-25] [D-22]
	t.Run("SDP-11.3-11", func(t *testing.T) {
		p := pipe().write(2, 200).write(3, 300).credits(2).skip().recv("SendSm").want("revoke").recv("SinkAvail size=500 nd=0").want("revoke")
		p.credits(20).wantMsgs("Data +84", "Data +84", "Data +32", "SrcAvail size=300")
	})
	// No bytes are written once Combined Mode is wanted. [SDP-11.3-11] [D-22]
	t.Run("SDP-12.4-5", func(t *testing.T) {
		p := pipe().recv("SinkAvail size=500 nd=0").credits(0).goMode(sdpwire.Combined).write(1, 300).want()
		p.credits(9).want("ModeChange Combined", "mode send Combined", "SrcAvail size=300 +1")
	})
	// A write never places more bytes than the remaining room. [SDP-9.3-1] [SDP-6.3.3.3-1]
	// [SDP-6.3.3.2-2] [SDP-9.4-3]
	t.Run("SDP-9.3-5", func(t *testing.T) {
		p := pipe().write(1, 200).write(2, 200).skip().recv("SinkAvail size=250 nd=0")
		p.want("revoke", "revoke", "write 1 200@0 -> 0", "wrote 1 200", "write 2 50@0 -> 200",
			"RdmaWrCompl size=250", "Data +84", "Data +66", "wrote 2 200")
	})
	// Refused payload ends the connection, with the advertisement that carried it.
	t.Run("SDP-9.5.1-10", func(t *testing.T) {
		p := pipe().recv("DisConn", "SinkAvail size=300 nd=0 +5").stats("Violations=1 RecvBytesTransact=0 RecvSinkAvails=0")
		p.aborted("SDP-8.2.1-8")
	})
	// SrcAvails a late SinkAvail has discarded are not cancelled again. [SDP-12.4-8] [D-26]
	t.Run("SDP-12.4-6", func(t *testing.T) {
		p := pipe().write(1, 200).skip()
		ack := p.ack
		p.goMode(sdpwire.Combined).cancelWrite(1).want("ModeChange Combined", "mode send Combined", "SrcAvailCancel")
		p.ack = ack
		p.recv("SinkAvail size=500 nd=0").want("revoke", "wrote 1 0 cancelled").due(-1)
	})
	t.Run("D-45", func(t *testing.T) { // no acknowledgement is requested if no other change is wanted
		p := pipe().recv("Data").goMode(sdpwire.Combined).skip()
		p.ack--
		p.recv("Data").due(-1).pass(time.Minute).want()
	})
}

func TestSDP_9_5_3_Announced(t *testing.T) {
	t.Run("SDP-9.5.3-3", func(t *testing.T) { // [SDP-9.5.3-7] [SDP-9.5.3-4] one message for each byte that waits, and none without credit
		p := newProbe(t).credits(0).write(1, 200).urgent(2, 1).urgent(3, 1).urgent(4, 1).want()
		p.credits(9).want("SrcAvail size=200 OOB_PEND +1", "Data OOB_PEND", "Data OOB_PEND")
	})
}

func TestSDP_9_3_Partly(t *testing.T) {
	// A read is advertised from its first byte on, or not at all. [SDP-9.3-3]
	t.Run("SDP-9.3-2", func(t *testing.T) {
		p := newProbe(t).read(1, 300)
		p.m.Expect(true)
		p.recv("Data +5").want("hold 5", "copy 1 5@0").recv("ModeChange Pipelined").want("mode recv Pipelined")
	})
	// DisConn voids open SinkAvails, so they no longer count for MaxAdverts. [SDP-8.2.1-4]
	// [SDP-8.2.1-15]
	t.Run("SDP-8.2.1-19", func(t *testing.T) {
		p := newProbe(t, func(p *Params) { p.MaxAdverts = 1 }).pipelined(true, true).recv("SinkAvail size=300 nd=0").closeWrite().want("DisConn")
		p.recv("SrcAvail size=300").alive().read(1, 300).readDone().want("read 1 300@0 from 0",
			"got 1 300", "RdmaRdCompl size=300")
	})
}

func TestSDP_10_4_Last(t *testing.T) {
	// The last credit is kept while the peer has credit. [D-10] [SDP-10.5-3]
	t.Run("SDP-10.4-1", func(t *testing.T) {
		p := newProbe(t).credits(1).skip()
		for i := range uint64(12) {
			p.recv("Data +1").read(i, 1)
		}
		p.wantMsgs().credits(2).wantMsgs("Data")
	})
}
