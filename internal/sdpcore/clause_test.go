package sdpcore

import (
	"errors"
	"io"
	"testing"
	"time"

	"viaduct/internal/wire/sdpwire"
)

// The tests in this file check single rows at their limits. The other files test each chapter as a
// whole.

// TestSDP_6_1_Refused: a message refused by the header rules has no other effect.
func TestSDP_6_1_Refused(t *testing.T) {
	for _, c := range []struct{ row, msg string }{
		{"SDP-6.1.5-2", "Data seq=5 +3"}, // [SDP-10.1-2] [D-06]
		{"SDP-10-4", "Data +85"},         // [SDP-5-2]
		{"D-09", "Data ack=9 +3"},        // [D-09]
		{"D-41", "Data +1 inv=5"},        // [D-41]
	} {
		p := newProbe(t).recv(c.msg).want("abort " + c.row).stats("RecvMessages=0 Violations=1")
		p.recv("Data +3").want() // later messages have no effect either, because the connection has ended
		p.read(1, 5).want("got 1 0 " + c.row)
	}
	p := newProbe(t, func(p *Params) { p.RecvBufs, p.RecvBudget = 3, 0 })
	// The fourth message uses the spare buffer.
	p.recv("Data +1", "Data +1", "Data +1", "Data +1").alive().skip()
	p.recv("Data +1").want("abort SDP-10.5-5") // [SDP-10.5-5]
	p = newProbe(t)
	p.took(p.m.ReceiveBad(time.Second, sdpwire.Data, sdpwire.ErrLen, mark())).want("abort SDP-6.1.4-1").stats("Violations=1") // [SDP-8.2.2-6]
	p.took(p.m.ReceiveBad(time.Second, sdpwire.Data, sdpwire.ErrLen, mark())).want().stats("Violations=1")
}

func TestSDP_6_1_2_Hints(t *testing.T) {
	t.Run("SDP-12-4", func(t *testing.T) { // [SDP-6.1.2-15] only two hints in a row change the mode
		answer := func(p *probe, id uint64, flag string) { p.write(id, 200).recv("RdmaRdCompl size=199" + flag) }
		p := newProbe(t, autoPolicy)
		answer(p, 1, " PIPE")
		answer(p, 2, "")
		answer(p, 3, " PIPE")
		p.skip().pass(time.Millisecond).want()
		answer(p, 4, " PIPE")
		p.wantMsgs("SrcAvail size=200 +1", "ModeChange Pipelined")
	})
	t.Run("SDP-6.1.2-13", func(t *testing.T) { // [SDP-6.1.2-12] messages of other types carry no hint
		p := newProbe(t, autoPolicy)
		for range 3 {
			p.recv("SrcAvail size=300 +1 PIPE", "SrcAvailCancel PIPE", "ChRcvBuf size=100 PIPE")
			p.write(1, 200).recv("SendSm PIPE").write(1, 200).recv("RdmaRdCompl size=199 PIPE")
			p.write(1, 200).recv("RdmaRdCompl size=199") // without REQ_PIPE the count of hints restarts
		}
		if p.m.src.mode.pol.hints != 0 || p.m.SendMode() != sdpwire.Combined {
			t.Errorf("%d hints, mode %v", p.m.src.mode.pol.hints, p.m.SendMode())
		}
		p = newProbe(t, autoPolicy).recv("ModeChange Pipelined").read(1, 300).recv("RdmaWrCompl size=300 PIPE").alive()
		if p.m.src.mode.pol.hints != 1 {
			t.Errorf("%d hints in a RdmaWrCompl", p.m.src.mode.pol.hints)
		}
	})
}

// TestSDP_8_2_1_Finished: after both DisConns only AbortConn and credits have an effect.
func TestSDP_8_2_1_Finished(t *testing.T) {
	t.Run("SDP-8.2.1-8", func(t *testing.T) {
		done := func() *probe {
			return newProbe(t).closeWrite().recv("DisConn").want("DisConn", "closed", "finish")
		}
		for _, s := range []string{"Data", "ModeChange Pipelined", "ModeChange Combined", "SrcAvailCancel", "SendSm", "RdmaRdCompl size=1", "DisConn", "ChRcvBuf size=200", "SuspComm port=6000"} {
			done().recv(s).want().alive()
		}
		done().recv("Data +5").want("abort SDP-8.2.1-8")
		done().recv("SrcAvail size=300 +1").want("abort SDP-8.2.1-8")
		done().recv("SrcAvail size=300").want("abort SDP-8.2.1-8")
		done().recv("AbortConn").want("abort reset")
	})
}

// TestSDP_8_2_2_Die: an event that ends a connection ends every transfer of the connection, in any
// state.
func TestSDP_8_2_2_Die(t *testing.T) {
	boom := errors.New("boom")
	t.Run("SDP-8.2.1-13", func(t *testing.T) { // [SDP-8.2.1-12] [SDP-8.2.2-4] [SDP-8.2.1-14] [SDP-8.2.1-24] [SDP-8.2.2-5]
		p := newProbe(t).pipelined(true, true).write(1, 200).write(2, 20).read(3, 300).read(4, 300).skip()
		p.cancelRead(3).cancelWrite(1).skip().abort(boom).want("abort boom", "revoke", "revoke",
			"revoke", "wrote 1 0 boom", "wrote 2 0 boom", "got 3 0 boom", "got 4 0 boom")
		p.abort(boom).want() // a second abort has no effect
		p.took(p.m.LLPClosed(p.now, nil, mark())).want()
		p.write(5, 5).read(6, 5).want("wrote 5 0 boom", "got 6 0 boom").cancelRead(3).cancelWrite(1).closeWrite().pass(time.Hour).want()
		if _, ok := p.m.Deadline(); ok || !p.m.Dead() || p.m.SendQueue() != 0 || p.m.Finished() ||
			p.m.WriteErr() != boom || p.m.Err() != boom {
			t.Errorf("%v, %v", p.m.Err(), p.m.WriteErr())
		}
	})
	t.Run("SDP-8.2.1-14", func(t *testing.T) { // aborts while an RDMA Read is in progress
		p := newProbe(t).recv("SrcAvail size=300 +1").read(1, 300).skip().abort(boom).want("abort boom", "got 1 1")
		p.readDone().want() // the RDMA Read completes although the connection is dead
	})
	// Received bytes stay readable, unless the local end has closed the connection.
	t.Run("SDP-8.2.2-5", func(t *testing.T) {
		newProbe(t).recv("Data +5").skip().abort(boom).want("abort boom").read(1, 3).read(2, 3).read(3, 3).want("copy 1 3@0", "got 1 3", "copy 2 2@0", "got 2 2", "got 3 0 boom")
		newProbe(t).recv("Data +5").skip().abort(ErrClosed).want("abort "+ErrClosed.Error(), "drop 5").read(1, 3).want("got 1 0 " + ErrClosed.Error())
		newProbe(t).recv("Data +5").skip().abort(boom).readAll(1, 9).want("abort boom", "copy 1 5@0", "got 1 5 boom")
	})
	t.Run("SDP-8.2.1-24", func(t *testing.T) {
		p := newProbe(t).recv("DisConn").skip()
		p.took(p.m.LLPClosed(0, nil, mark())).read(1, 3).write(2, 3).want("got 1 0 EOF", "wrote 2 0 reset")
		if p.m.WriteErr() != nil || p.m.Err() != io.EOF { // [SDP-8.2.1-22]
			t.Errorf("%v, %v", p.m.WriteErr(), p.m.Err())
		}
		// A queued, unsent DisConn is lost like data.
		p = newProbe(t)
		p.bufs = 0
		p.recv("Data", "DisConn").closeWrite().skip()
		p.took(p.m.LLPClosed(0, nil, mark()))
		if p.m.WriteErr() != ErrReset {
			t.Errorf("%v", p.m.WriteErr())
		}
	})
	// No AbortConn is sent on a suspended connection. [SDP-8.2.1-18]
	t.Run("SDP-8.2.2-1", func(t *testing.T) {
		p := newProbe(t).closeWrite().recv("SuspComm port=6000").skip().abort(boom).want("abort boom")
		if p.m.Err() != boom {
			t.Error(p.m.Err())
		}
	})
}

// TestSDP_9_1_Thresholds: thresholds are exact to the byte.
func TestSDP_9_1_Thresholds(t *testing.T) {
	threshold := func(n int) func(*Params) { return func(p *Params) { p.RecvThreshold = n } }
	t.Run("SDP-9-1", func(t *testing.T) { // [SDP-10-6] [SDP-9.5.1-2] at least the buffer size
		newProbe(t, threshold(5)).recv("SrcAvail size=500 +1").read(1, 1).skip().read(2, 100).want("SendSm")
		newProbe(t, threshold(5)).recv("SrcAvail size=500 +1").read(1, 1).skip().read(2, 101).want("read 2 101@0 from 1")
		p := newProbe(t)
		p.took(p.m.SetThresholds(0, 20, 5, mark())).recv("SrcAvail size=500 +1").read(1, 1).skip().read(2, 100).want("SendSm")
		p.write(3, 21).want("SrcAvail size=21 +1")
	})
	// The first read is too small, and the second read takes all bytes. [SDP-9.2-6] [SDP-9-4]
	t.Run("SDP-9.2-5", func(t *testing.T) {
		newProbe(t, threshold(200)).recv("SrcAvail size=500 +1").read(1, 1).skip().read(2, 200).want("SendSm")
		newProbe(t, threshold(200)).recv("SrcAvail size=500 +1").read(1, 1).skip().read(2, 201).want("read 2 201@0 from 1")
		newProbe(t, threshold(200)).recv("SrcAvail size=180 +1").read(1, 1).skip().read(2, 179).want("read 2 179@0 from 1")
		newProbe(t, threshold(200)).recv("SrcAvail size=180 +1").read(1, 1).skip().read(2, 178).want("SendSm")
		// Only the oldest SrcAvail is answered with SendSm, because the read too small for the
		// second SrcAvail may be cancelled.
		p := newProbe(t).pipelined(false, true).recv("SrcAvail size=150", "SrcAvail size=300").read(1, 150).read(2, 20).skip()
		p.cancelRead(2).read(3, 300).want("got 2 0 cancelled", "read 3 300@0 from 0")
		// A read that has received bytes ends with these bytes, before the rest is forced to Bcopy.
		newProbe(t).recv("SrcAvail size=500 +10").skip().read(1, 60).want("copy 1 10@0", "got 1 10").readAll(2, 60).want("SendSm")
	})
	t.Run("SDP-11-1", func(t *testing.T) { // [SDP-11.2-1] [SDP-11.2-2] [SDP-11.3-1] [SDP-11.3-2] [D-18]
		newProbe(t).write(1, 150).want("Data +84", "Data +66", "wrote 1 150").write(2, 151).want("SrcAvail size=151 +1")
		newProbe(t).pipelined(true, false).write(1, 150).want("Data +84", "Data +66", "wrote 1 150").write(2, 151).want("SrcAvail size=151")
		for _, n := range []int{0, 1} {
			zero := func(p *Params) { p.SendThreshold = n }
			newProbe(t, zero).write(1, 1).want("Data +1", "wrote 1 1").write(2, 2).want("SrcAvail size=2 +1")
		}
		newProbe(t, func(p *Params) { p.SendThreshold = Infinite }).write(1, 300).want("Data +84",
			"Data +84", "Data +84", "Data +48", "wrote 1 300")
	})
	t.Run("SDP-9.5.3-1", func(t *testing.T) { // [SDP-8.2.1-2] [SDP-8.2.1-20] a write has at least one byte
		for _, n := range []int{0, -1} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("a write of %d bytes", n)
					}
				}()
				newProbe(t).write(1, n)
			}()
		}
		p := newProbe(t).write(1, 1).want("Data +1", "wrote 1 1").write(2, 10)
		p.closeWrite().skip().write(3, 5).urgent(4, 5).want("wrote 3 0 "+ErrWriteClosed.Error(),
			"wrote 4 0 "+ErrWriteClosed.Error())
		if p.m.SendQueue() != 0 {
			t.Errorf("%d bytes queued", p.m.SendQueue())
		}
	})
}

// TestSDP_9_1_Straight: Straight has the effect of Write if Data messages can carry all bytes.
func TestSDP_9_1_Straight(t *testing.T) {
	t.Run("SDP-9.1-1", func(t *testing.T) {
		straight := func(p *probe, n, room int) []sdpwire.Message {
			t.Helper()
			msgs := make([]sdpwire.Message, room)
			k := p.m.Straight(p.now, n, msgs)
			return msgs[:k]
		}
		for _, c := range []struct {
			mode     sdpwire.Mode
			n, room  int
			messages int
		}{
			{sdpwire.Combined, 0, 4, 0}, {sdpwire.Combined, -1, 4, 0}, {sdpwire.Combined, 1, 4, 1}, {sdpwire.Combined, 84, 1, 1}, {sdpwire.Combined, 85, 1, 0},
			{sdpwire.Combined, 85, 2, 2}, {sdpwire.Combined, 150, 4, 2}, {sdpwire.Combined, 151, 4, 0}, {sdpwire.Pipelined, 150, 4, 2}, {sdpwire.Pipelined, 151, 4, 0},
			{sdpwire.Buffered, 151, 4, 2}, {sdpwire.Buffered, 168, 4, 2}, {sdpwire.Buffered, 169, 4, 3}, {sdpwire.Buffered, 252, 3, 3}, {sdpwire.Buffered, 253, 3, 0},
		} {
			p := inModes(t, c.mode, sdpwire.Combined)
			before := p.m.Stats()
			seq, total := p.m.cr.next, 0
			msgs := straight(p, c.n, c.room)
			for i, m := range msgs {
				if m.MID != sdpwire.Data || serial(m.MSeq) != seq+serial(i) {
					t.Errorf("%d bytes in %v: message %d is %v", c.n, c.mode, i, &m)
				}
				total += m.PayloadLen()
			}
			if len(msgs) != c.messages || len(msgs) > 0 && total != c.n ||
				p.m.Stats().SentBytesBcopy-before.SentBytesBcopy != uint64(total) ||
				p.m.Stats().SentMessages-before.SentMessages != uint64(len(msgs)) ||
				p.m.src.room.count != serial(len(msgs)) {
				t.Errorf("%d bytes in %v: %d messages with %d bytes, want %d", c.n, c.mode,
					len(msgs), total, c.messages)
			}
		}
		for n, want := range []int{0, 1, 0} { // with a threshold of 0, a write of one byte is still copied
			p := newProbe(t, func(p *Params) { p.SendThreshold = 0 })
			if got := len(straight(p, n, 4)); got != want {
				t.Errorf("%d bytes without a threshold: %d messages", n, got)
			}
		}
		// Each message needs three credits.
		for bufs := range uint16(6) {
			p := newProbe(t)
			p.bufs = bufs
			p.recv("Data").skip()
			want := 0
			if bufs >= 4 {
				want = 2
			}
			if got := len(straight(p, 100, 4)); got != want {
				t.Errorf("%d messages with %d credits, want %d", got, bufs, want)
			}
		}
		// In these cases another message must be sent first, or no message may be sent any more.
		for what, p := range map[string]*probe{
			"a write that waits":  newProbe(t).write(1, 200),
			"a SinkAvail":         newProbe(t).pipelined(true, false).recv("SinkAvail size=300 nd=0"),
			"closed":              newProbe(t).closeWrite(),
			"dead":                newProbe(t).abort(ErrClosed),
			"suspended":           newProbe(t).recv("SuspComm port=6000"),
			"a change of mode":    newProbe(t, autoPolicy).goModeLater(),
			"the peer has closed": nil,
		} {
			if p == nil {
				p = newProbe(t).recv("DisConn")
				if len(straight(p, 10, 4)) != 1 {
					t.Errorf("%s: not straight", what)
				}
				continue
			}
			if n := len(straight(p, 10, 4)); n != 0 {
				t.Errorf("%s: %d messages", what, n)
			}
		}
	})
}

// goModeLater makes the policy choose Buffered Mode at its next decision.
func (p *probe) goModeLater() *probe {
	p.write(1, 5).skip()
	p.now += 2 * time.Second
	return p
}

func TestSDP_9_2_Edges(t *testing.T) {
	t.Run("SDP-9.5.2.1-4", func(t *testing.T) { // values of the counters
		newProbe(t).recv("SrcAvail size=500 +10").read(1, 500).readDone().stats("RecvSrcAvails=1 RecvBytesPrefix=10 RecvBytesRead=490 RecvBytesBcopy=0 RecvMessages=1 SentMessages=1")
		newProbe(t).recv("SrcAvail size=500 +10").read(1, 10).read(2, 20).stats("SentSendSms=1").recv("Data +20").stats("RecvBytesBcopy=20 RecvBytesPrefix=10")
	})
	t.Run("SDP-9.5.4-8", func(t *testing.T) { // [SDP-9.5.4-9] [SDP-9.5.2.1-1] [D-32] [D-33]
		newProbe(t).pipelined(false, true).recv("SrcAvail size=500", "SrcAvail size=500", "SrcAvailCancel").stats("SentSendSms=1 RecvSrcAvails=2").read(1, 300).wantMsgs("SendSm", "SinkAvail size=300 nd=0")
	})
	// While other advertisements are open, a message carries only forced bytes. [SDP-11.3-6]
	// [SDP-9.5.2.1-2] [SDP-10-4]
	t.Run("SDP-9.2-25", func(t *testing.T) {
		newProbe(t).write(1, 200).write(2, 5).skip().recv("SendSm").want("revoke", "Data +84",
			"Data +84", "Data +36", "wrote 1 200", "wrote 2 5")
		newProbe(t).pipelined(true, false).write(1, 200).write(2, 300).write(3, 5).skip().recv("SendSm").want("revoke",
			"Data +84", "Data +84", "Data +32", "wrote 1 200")
	})
	t.Run("SDP-9.5.4-1", func(t *testing.T) { // [D-32] the write is cancelled twice
		p := newProbe(t, func(p *Params) { p.PeerBufs = 4 }).write(1, 400)
		p.bufs = 3
		p.recv("SendSm").skip() // one Data is sent, and the rest of the write waits for credit
		p.cancelWrite(1).want("detach 1 85").cancelWrite(1).want()
		newProbe(t).write(1, 200).skip().cancelWrite(1).want("SrcAvailCancel").cancelWrite(1).want()
		// An unannounced urgent byte is cancelled like any other byte.
		p = newProbe(t)
		p.bufs = 2
		p.recv("Data").write(1, 70_000).urgent(2, 1).skip().cancelWrite(2).want("wrote 2 0 cancelled")
		// An announced byte must be sent, so the write is detached.
		p = newProbe(t)
		p.bufs = 2
		p.recv("Data").write(1, 10).urgent(2, 3).skip().cancelWrite(2).want("detach 2 0")
		// No write has this ID.
		newProbe(t).write(1, 200).skip().cancelWrite(7).want()
	})
}

func TestSDP_9_3_Edges(t *testing.T) {
	pipe := func(change ...func(*Params)) *probe { return newProbe(t, change...).pipelined(false, true) }
	// Most of these reads are not advertised. [SDP-9.5.1-1] [SDP-11.3-8] [SDP-11.3-14] [SDP-9.4-2]
	// [SDP-12-10]
	t.Run("SDP-9.3-2", func(t *testing.T) {
		pipe(func(p *Params) { p.NoSinkAvail = true }).read(1, 300).want()
		pipe(func(p *Params) { p.RecvThreshold = 200 }).read(1, 200).want().read(2, 201).want()
		pipe(func(p *Params) { p.RecvThreshold = 200 }).read(1, 201).want("SinkAvail size=201 nd=0")
		pipe().readAll(1, 300).want()
		pipe().read(1, 300).skip().cancelRead(1).read(2, 300).want("SinkAvailCancel")
		newProbe(t).recv("ModeChange Pipelined ", "DisConn").skip().read(1, 300).want("got 1 0 EOF")
		newProbe(t).recv("Data +5", "ModeChange Pipelined").skip().readAll(1, 7).read(2, 300).want("copy 1 5@0")
		// Bytes requested by a SendSm arrive first.
		pipe().recv("SrcAvail size=500").read(1, 20).skip().read(2, 300).want()
		// A read after a read without a SinkAvail gets no SinkAvail either.
		pipe().read(1, 300).read(2, 50).read(3, 300).want("SinkAvail size=300 nd=0")
	})
	// If no bytes were written, the read waits again, after the reads to which the peer may be
	// writing. [D-20]
	t.Run("SDP-9.3-13", func(t *testing.T) {
		p := pipe().read(1, 300).read(2, 300).read(3, 50).skip().recv("RdmaWrCompl size=0").want("revoke",
			"SinkAvail size=300 nd=0")
		p.recv("RdmaWrCompl size=5").want("revoke", "got 2 5").recv("RdmaWrCompl size=6").want("revoke", "got 1 6").recv("Data +5").want("hold 5", "copy 3 5@0", "got 3 5")
		p = pipe().read(1, 300).read(2, 300).read(3, 300).read(4, 50).skip().recv("RdmaWrCompl size=0").want("revoke",
			"SinkAvail size=300 nd=0")
		p.recv("RdmaWrCompl size=5").want("revoke", "got 2 5").recv("RdmaWrCompl size=6").want("revoke", "got 3 6").recv("RdmaWrCompl size=7").want("revoke", "got 1 7")
		p.stats("RecvBytesWrite=18 SentSinkAvails=4")
	})
	t.Run("D-37", func(t *testing.T) { // [SDP-9.5.1-10] [SDP-11.3-12] one completion reports several writes
		p := newProbe(t).pipelined(true, false).write(1, 200).write(2, 200).skip().recv("SinkAvail size=500 nd=0")
		p.want("revoke", "revoke", "write 1 200@0 -> 0", "wrote 1 200", "write 2 200@0 -> 200", "wrote 2 200", "RdmaWrCompl size=400").stats("Overrides=2 SentBytesWrite=400")
		newProbe(t).pipelined(true, false).recv("SinkAvail size=500 nd=0").stats("Overrides=0 RecvSinkAvails=1")
	})
	// A cancel whose SinkAvails are Processed does not delay others. [SDP-9.5.5-11] [D-34]
	t.Run("SDP-9.5.5-10", func(t *testing.T) {
		p := pipe().read(1, 300).cancelRead(1).skip()
		ack := p.ack // the SinkAvail and the cancel were received
		p.ack = ack - 1
		// On arrival, the peer ignores the cancel, and sends no answer. [SDP-9.5.5-4]
		p.recv("RdmaWrCompl size=8").want("revoke", "got 1 8").read(2, 300).cancelRead(2).want("SinkAvail size=300 nd=0", "SinkAvailCancel")
		p.ack = ack
		p.recv("SinkCancelAck").want() // this answers the first cancel, and has no effect on the second
		p.ack = ack + 2
		p.recv("SinkCancelAck").want("revoke", "got 2 0 cancelled").stats("SentSinkCancels=2")
	})
	// SinkAvails use up MaxAdverts, so writes use Bcopy at once. [SDP-6.2.1.3-1] [D-15]
	t.Run("SDP-11.3-18", func(t *testing.T) {
		newProbe(t, func(p *Params) { p.PeerMaxAdverts = 1 }).pipelined(true, true).read(1, 300).skip().write(2, 160).want("Data +84", "Data +76", "wrote 2 160")
	})
	t.Run("SDP-9.5.1-6", func(t *testing.T) { // reads are served in order
		newProbe(t).readAll(1, 10).recv("Data +8", "Data +8").want("hold 8", "copy 1 8@0",
			"hold 8", "copy 1 2@8", "got 1 10")
		newProbe(t).recv("SrcAvail size=301 +1").skip().read(1, 200).readAll(2, 101).want("copy 1 1@0",
			"read 1 199@1 from 1", "read 2 101@0 from 200")
	})
}

func TestD39_Threshold(t *testing.T) {
	p := newProbe(t, autoPolicy)
	// Every third SendSm in a row doubles the threshold. [D-39]
	for i, want := range []int{150, 150, 300, 300, 300, 600} {
		p.m.src.mode.noteSendSm()
		if got := p.m.src.mode.threshold; got != want {
			t.Errorf("after %d SendSm: %d, want %d", i+1, got, want)
		}
	}
	for _, c := range []struct{ from, to int }{{0, 0}, {1<<30 - 1, 1<<31 - 2}, {1 << 30, 1 << 30}} {
		q := newProbe(t, autoPolicy)
		q.m.src.mode.threshold = c.from
		for range 3 {
			q.m.src.mode.noteSendSm()
		}
		if q.m.src.mode.threshold != c.to {
			t.Errorf("%d became %d, want %d", c.from, q.m.src.mode.threshold, c.to)
		}
	}
	fixed := newProbe(t)
	for range 3 {
		fixed.m.src.mode.noteSendSm()
	}
	if fixed.m.src.mode.threshold != 150 {
		t.Error("a fixed threshold was raised")
	}
}

func TestSDP_10_6_Edges(t *testing.T) {
	lim := func(p *Params) { p.MinRecvSize, p.MaxRecvSize = 60, 300 }
	// A smaller size applies before the acknowledgement. [SDP-10.6.1-1]
	t.Run("SDP-10.6-11", func(t *testing.T) {
		p := newProbe(t, lim)
		p.bufs = 0
		p.recv("Data").skip().recv("ChRcvBuf size=70").want("resize 70").recv("Data +55").want("abort SDP-10-4")
		p = newProbe(t, lim)
		p.bufs = 0
		p.recv("Data").skip().recv("ChRcvBuf size=200").want("resize 200").recv("Data +84").want("hold 84")
		newProbe(t, lim).recv("ChRcvBuf size=100").want("ChRcvBufAck size=100").stats("Resizes=0")
		newProbe(t, lim).recv("ChRcvBuf size=101").want("resize 101").stats("Resizes=1")
		newProbe(t, lim).recv("ChRcvBuf size=99").want("resize 99", "ChRcvBufAck size=99").stats("Resizes=1")
	})
	// The acknowledgement waits while a SinkAvail is not larger than the new size.
	t.Run("SDP-9.5.1-1", func(t *testing.T) {
		grow := func(n int) *probe {
			p := newProbe(t, lim).pipelined(false, true).read(1, n).skip().recv("ChRcvBuf size=200").skip()
			return p.took(p.m.Resized(0, mark()))
		}
		grow(200).want().recv("RdmaWrCompl size=9").want("revoke", "got 1 9", "ChRcvBufAck size=200")
		grow(201).want("ChRcvBufAck size=200")
	})
	t.Run("SDP-10.6-1", func(t *testing.T) {
		ask := func(p *probe, n int) bool {
			acts, ok := p.m.RequestPeerSize(p.now, n, mark())
			p.took(acts)
			return ok
		}
		p := newProbe(t)
		if ask(p, 100) || !ask(p, 101) || ask(p, 200) {
			t.Error("a request for the size there is, or while one is open")
		}
		p.wantMsgs("ChRcvBuf size=101").recv("ChRcvBufAck size=100")
		if ask(p, 101) || !ask(p, 99) {
			t.Error("a direction that was refused, or the other")
		}
		p.wantMsgs("ChRcvBuf size=99").recv("ChRcvBufAck size=100")
		if ask(p, 99) || ask(p, 1) {
			t.Error("a direction that was refused")
		}
		p = newProbe(t)
		if !ask(p, 1) {
			t.Error("the least")
		}
		p.wantMsgs("ChRcvBuf size=37").recv("ChRcvBufAck size=37")
		p = newProbe(t)
		ask(p, 200)
		p.recv("ChRcvBufAck size=200")
		if ask(p, 200) || !ask(p, 300) {
			t.Error("after it was granted")
		}
	})
}

// TestSDP_13_1_1_Silence: during a suspension only credit is sent, so that the peer can answer.
func TestSDP_13_1_1_Silence(t *testing.T) {
	t.Run("SDP-13.1.1-5", func(t *testing.T) { // [SDP-10.5-9] [D-53]
		p := newProbe(t)
		acts, err := p.m.Suspend(0, 5000, mark())
		if err != nil {
			t.Fatal(err)
		}
		p.took(acts).wantMsgs("SuspComm port=5000")
		for i := range 14 {
			p.recv("Data +1").read(uint64(i), 1)
			if len(p.msgs) > 0 {
				t.Fatalf("after %d messages: %v", i+1, &p.msgs[0])
			}
		}
		p.skip().recv("Data +1").read(99, 1).wantMsgs("Data")
	})
}

func panics(f func()) (yes bool) {
	defer func() { yes = recover() != nil }()
	f()
	return false
}

func TestSDP_10_3_Limits(t *testing.T) {
	// New refuses these values. [SDP-10.3-1] [SDP-6.1.3-2] [SDP-10-5]
	t.Run("SDP-10-2", func(t *testing.T) {
		for i, c := range []struct {
			change func(*Params)
			bad    bool
		}{
			{func(p *Params) { p.RecvBufs = 2 }, true}, {func(p *Params) { p.RecvBufs = 3 }, false},
			{func(p *Params) { p.RecvBufs = 65535 }, false}, {func(p *Params) { p.RecvBufs = 65536 }, true},
			{func(p *Params) { p.PeerBufs = 2 }, true}, {func(p *Params) { p.PeerBufs = 3 }, false},
			{func(p *Params) { p.RecvSize = 36 }, true}, {func(p *Params) { p.RecvSize = 37 }, false},
			{func(p *Params) { p.PeerSize = 36 }, true}, {func(p *Params) { p.PeerSize = 37 }, false},
			{func(p *Params) { p.MaxAdverts = 0 }, true}, {func(p *Params) { p.PeerMaxAdverts = 0 }, true}, {func(p *Params) { p.ORD = 0 }, true},
			{func(p *Params) { p.MaxAdverts, p.PeerMaxAdverts, p.ORD = 1, 1, 1 }, false},
		} {
			if got := panics(func() { newProbe(t, c.change) }); got != c.bad {
				t.Errorf("case %d: refused %v", i, got)
			}
		}
	})
	t.Run("SDP-9.3-15", func(t *testing.T) { // a read has room for at least one byte
		for _, n := range []int{0, -1} {
			if !panics(func() { newProbe(t).read(1, n) }) {
				t.Errorf("a read of %d bytes", n)
			}
		}
		newProbe(t).read(1, 1).recv("Data +1").want("hold 1", "copy 1 1@0", "got 1 1")
	})
	t.Run("SDP-9.4-1", func(t *testing.T) {
		for _, c := range [][2]int{{0, 5}, {5, 0}, {-1, 5}} {
			if !panics(func() { p := newProbe(t); p.took(p.m.Exchange(0, 1, c[0], 2, c[1], mark())) }) {
				t.Errorf("an exchange of %d for %d bytes", c[0], c[1])
			}
		}
		exchange := func(p *probe) *probe { return p.skip().took(p.m.Exchange(p.now, 1, 5, 2, 300, mark())) }
		exchange(newProbe(t).pipelined(false, true)).want("SinkAvail size=300 nd=0 +5", "wrote 1 5").stats("SentBytesTransact=5 SentSinkAvails=1 SentBytesBcopy=0")
		exchange(newProbe(t).pipelined(false, true).closeWrite()).want("wrote 1 0 "+
			ErrWriteClosed.Error(), "SinkAvail size=300 nd=0")
		exchange(newProbe(t).abort(ErrReset)).want("wrote 1 0 reset", "got 2 0 reset")
		p := newProbe(t).pipelined(false, true)
		exchange(p.took(p.m.CloseRead(0, true, mark()))).want("Data +5", "wrote 1 5", "got 2 0 "+ErrClosed.Error())
	})
}

// TestSDP_10_5_Arithmetic checks the computations of credit.
func TestSDP_10_5_Arithmetic(t *testing.T) {
	start := func(p Params) (c credits) { c.start(p); return c }
	t.Run("D-09", func(t *testing.T) { // [D-08] the meaning of an acknowledgement
		sent := func(n serial) credits {
			c := start(Params{RecvBufs: 4, PeerBufs: 4})
			c.next = n
			return c
		}
		for i, v := range []struct {
			sent   serial
			bufs   int
			ack    serial
			ok     bool
			acked  serial
			sure   bool
			credit int
		}{
			{0, 4, 0, true, 0, false, 4}, // nothing was sent, and the number is zero
			{0, 4, 1, false, 0, true, 4}, // nothing was sent, so nothing can be acknowledged
			{1, 4, 0, true, 0, false, 3}, // message 0 may not have arrived
			// Fewer buffers than in any earlier message, so message 0 has arrived.
			{1, 3, 0, true, 1, false, 3},
			{3, 4, 0, true, 0, false, 1},
			{3, 3, 0, true, 1, false, 1},
			{3, 4, 1, true, 2, true, 3},
			{3, 4, 2, true, 3, true, 4},
			{3, 4, 3, false, 0, true, 1}, // the acknowledged message was not sent
		} {
			c := sent(v.sent)
			ok := c.received(v.bufs, v.ack)
			if ok != v.ok || c.acked != v.acked || c.ackSure != v.sure || ok && c.bufs != v.bufs ||
				c.credit() != v.credit {
				t.Errorf("case %d: %v, acked %d, sure %v, bufs %d, credit %d", i, ok, c.acked,
					c.ackSure, c.bufs, c.credit())
			}
		}
		c := sent(3)
		if !c.received(4, 2) || c.received(4, 1) || c.received(4, 0) {
			t.Error("an acknowledgement goes back")
		}
		c = sent(0)
		// Three buffers were announced before anything was sent, so three buffers prove nothing
		// later.
		if c.received(3, 0); c.idleBufs != 3 {
			t.Errorf("%d buffers while idle", c.idleBufs)
		}
		c.next = 1
		if c.received(3, 0); c.acked != 0 {
			t.Error("as many buffers as before prove nothing")
		}
	})
	t.Run("D-08", func(t *testing.T) { // the peer's understanding of the zero that we send
		for i, v := range []struct {
			c    credits
			want serial
		}{
			{credits{expect: 0}, 0}, {credits{expect: 1}, 0}, {credits{expect: 2}, 2}, {credits{expect: 1, ackTold: true}, 1},
			{credits{expect: 1, rfirst: 1 << 31}, 1}, {credits{expect: 9, hold: true, holdAt: 4}, 5}, {credits{expect: 9, hold: true, holdAt: 0}, 0},
		} {
			if got := v.c.ackNext(); got != v.want {
				t.Errorf("case %d: %d, want %d", i, got, v.want)
			}
		}
		c := credits{expect: 1}
		if c.announced(); c.ackTold {
			t.Error("a zero tells an acknowledgement")
		}
		c.expect = 2
		if c.announced(); !c.ackTold {
			t.Error("a one tells none")
		}
		if c.expect = 1; c.ack() != 0 { // after 2^32 messages zero is a number like any other
			t.Errorf("acknowledges %d", c.ack())
		}
		if c.announced(); !c.ackTold || c.ackNext() != 1 { // [D-12]
			t.Error("what was told is forgotten when the numbers wrap")
		}
		p := newProbe(t, func(p *Params) { p.FirstSend = 7 }).write(1, 1)
		if p.m.Acknowledged() || !p.recv("Data ack=7").m.Acknowledged() {
			t.Error("acknowledged too soon, or not at all")
		}
		p = newProbe(t).write(1, 1)
		if !p.m.Acknowledged() { // the zero that came before has acknowledged message 0
			t.Error("message 0 is not taken as acknowledged")
		}
		p.write(2, 1)
		if p.m.Acknowledged() || p.recv("Data ack=0").m.Acknowledged() || !p.recv("Data ack=1").m.Acknowledged() {
			t.Error("acknowledged too soon, or not at all")
		}
	})
	t.Run("D-12", func(t *testing.T) { // announced credit is not withdrawn
		c := credits{expect: 5, free: 4, pool: 8, high: 20}
		if c.announced(); c.high != 20 || c.told != 4 || c.toldAck != 5 {
			t.Errorf("%+v", c)
		}
		c.high = 3
		if c.announced(); c.high != 9 {
			t.Errorf("high %d, want 9", c.high)
		}
		c = credits{expect: 9, free: 4, pool: 8, hold: true, holdAt: 5, empties: 3}
		if c.announced(); c.high != 10 || c.toldAck != 6 || c.empties != 0 {
			t.Errorf("held: high %d, acknowledged %d", c.high, c.toldAck)
		}
	})
	t.Run("D-11", func(t *testing.T) { // the credit that a message would give
		c := credits{expect: 9, toldAck: 5, free: 6, told: 4, pool: 8}
		if c.gain() != 6 || c.peerHas() != 0 {
			t.Errorf("gain %d, the peer has %d", c.gain(), c.peerHas())
		}
	})
	t.Run("SDP-10.5-8", func(t *testing.T) { // [SDP-10.5-9] when the peer has one credit left
		c := credits{expect: 9, toldAck: 6, free: 4, told: 4, pool: 8, high: 100, bufs: 2, first: 1, next: 1, acked: 1}
		if c.peerHas() != 1 || c.gainForLast() != 0 || !c.mustRefresh() {
			t.Error("no refresh with two credits, and something to give")
		}
		c.bufs = 1
		if c.mustRefresh() {
			t.Error("the last credit is given up for nothing")
		}
		if c.high = 12; !c.mustRefresh() { // 9 + 4 exceeds high, so the message brings new credit
			t.Error("the last credit is kept though it brings one")
		}
		if c.high = 13; c.mustRefresh() {
			t.Error("the last credit is given up for nothing new")
		}
		// With no free buffer or one, the message gives no credit: gain subtracts the four buffers
		// announced before from the free buffers and the three messages received since.
		for free, want := range []bool{false, false, true} {
			c := credits{expect: 9, toldAck: 6, free: free, told: 4, pool: 8, high: 100, bufs: 2}
			if c.mustRefresh() != want {
				t.Errorf("gain %d: refresh %v", c.gain(), !want)
			}
		}
		c.bufs, c.expect = 2, 8
		if c.mustRefresh() {
			t.Error("a refresh with two credits left")
		}
	})
	t.Run("SDP-10.5-6", func(t *testing.T) { // [SDP-10.5-7] [SDP-10.5-5]
		for bufs, want := range []struct{ control, payload bool }{{false, false}, {true, false}, {true, false}, {true, true}} {
			c := credits{expect: 9, free: 4, pool: 8, high: 12, bufs: bufs}
			if c.mayControl() != want.control || c.mayPayload() != want.payload {
				t.Errorf("%d credits: %v, %v", bufs, c.mayControl(), c.mayPayload())
			}
			if c.high = 13; c.mayControl() != (bufs >= 2) {
				t.Errorf("%d credits and nothing to give: %v", bufs, c.mayControl())
			}
		}
	})
	t.Run("SDP-10.4-1", func(t *testing.T) { // [D-10] when an empty Data is worth its cost
		for i, v := range []struct {
			c    credits
			want bool
		}{
			// An update is sent once half of the pool is new.
			{credits{pool: 8, free: 8, told: 8, expect: 5, toldAck: 0}, true},
			{credits{pool: 8, free: 8, told: 8, expect: 4, toldAck: 0}, true},  //
			{credits{pool: 8, free: 8, told: 8, expect: 3, toldAck: 0}, false}, //
			// Half of an odd pool is rounded up.
			{credits{pool: 9, free: 9, told: 9, expect: 4, toldAck: 0}, false},
			{credits{pool: 9, free: 9, told: 9, expect: 5, toldAck: 0}, true}, //
			// If the peer has two credits left, an update is sent.
			{credits{pool: 8, free: 4, told: 4, expect: 2, toldAck: 0}, true},
			// The credit to return was consumed by empty Data.
			{credits{pool: 8, free: 4, told: 4, expect: 2, toldAck: 0, empties: 2}, false},
			// There is no credit to give.
			{credits{pool: 8, free: 2, told: 4, expect: 2, toldAck: 0}, false},
		} {
			if got := v.c.shouldRefresh(); got != v.want {
				t.Errorf("case %d: %v (gain %d, the peer has %d)", i, got, v.c.gain(), v.c.peerHas())
			}
		}
	})
}

// TestD10_Nudge checks when an empty Data is sent to get more credit.
func TestD10_Nudge(t *testing.T) { // [D-10] [D-08] [SDP-10.4-1]
	// waiting returns a probe that has sent three messages with payload, two of them acknowledged,
	// and has two credits left.
	waiting := func(change ...func(*Params)) *probe {
		p := newProbe(t, append(change, func(p *Params) { p.PeerBufs = 5 })...).write(1, 1).write(2, 1).write(3, 1)
		return p.recv("Data ack=1 bufs=3").write(4, 1).want("Data +1", "wrote 1 1", "Data +1",
			"wrote 2 1", "Data +1", "wrote 3 1")
	}
	const ms = time.Millisecond
	for again, role := range map[time.Duration]Role{5 * ms: Connecting, 15 * ms: Accepting} {
		p := waiting(func(p *Params) { p.Role = role })
		if at, ok := p.m.Deadline(); !ok || at != 5*ms {
			t.Errorf("%v: next at %v, %v", role, at, ok)
		}
		p.pass(5*ms - 1).want().pass(1).want("Data").stats("CreditStalls=1 SentCreditUpdates=1")
		p.pass(time.Minute).want() // no empty Data with one credit, because there is no doubt
		p = waiting(func(p *Params) { p.Role = role }).pass(5 * ms).want("Data").recv("Data ack=2 bufs=3").want()
		if at, ok := p.m.Deadline(); !ok || at != 5*ms+again {
			t.Errorf("%v: again at %v, %v", role, at, ok)
		}
		p.pass(again - 1).want().pass(1).want("Data")
		p.recv("Data ack=4 bufs=9").want("Data +1", "wrote 4 1").stats("CreditStalls=1")
	}
	// Without waiting payload no credit is spent.
	p := newProbe(t, func(p *Params) { p.PeerBufs = 5 }).write(1, 1).write(2, 1).write(3, 1).recv("Data ack=1 bufs=3").skip()
	p.pass(time.Minute).want()
	// If all unacknowledged messages are empty Data, which the peer need not answer, another empty
	// Data is sent at once.
	p = newProbe(t, func(p *Params) { p.PeerBufs, p.RecvBufs, p.FirstSend = 5, 4, 10 })
	p.ack = 9
	p.recv("Data +1").read(1, 1).recv("Data +1").read(2, 1).wantMsgs("Data")
	p.ack = 9
	// This end has sent two empty Data, because the first did not give the peer all credit.
	p.recv("Data bufs=4").skip().write(3, 1).wantMsgs("Data")
	// If message 0 is unacknowledged, an empty Data is sent at once, because the acknowledgement of
	// message 0 looks like none. [D-08]
	newProbe(t, func(p *Params) { p.PeerBufs = 3 }).write(1, 1).write(2, 1).wantMsgs("Data +1", "Data")
	// The write after an open SrcAvail waits for the SrcAvail, not for credit, so no empty Data is
	// sent.
	p = newProbe(t, func(p *Params) { p.PeerBufs = 5 }).write(1, 1).write(2, 1).write(3, 300).recv("Data ack=1 bufs=3").skip().write(4, 1)
	p.pass(100 * ms).want()
}

func TestSDP_9_2_Sink_Edges(t *testing.T) {
	t.Run("SDP-9.2-10", func(t *testing.T) { // each round has one answer
		p := newProbe(t).pipelined(false, true).recv("SrcAvail size=400").skip().read(1, 200).read(2, 200).want("read 1 200@0 from 0", "read 2 200@0 from 200")
		p.readDone().want("got 1 200").readDone().want("got 2 200", "RdmaRdCompl size=400")
	})
	t.Run("SDP-9.5.2.1-4", func(t *testing.T) { // [D-49] after CloseRead
		p := newProbe(t).pipelined(false, true)
		p.took(p.m.CloseRead(0, false, mark())).recv("SrcAvail size=300").want("abort " + ErrReadClosed.Error())
		p = newProbe(t).pipelined(false, true)
		p.took(p.m.CloseRead(0, true, mark())).recv("SrcAvail size=300").want("SendSm")
		p = newProbe(t).pipelined(false, true).recv("SrcAvail size=300").skip()
		p.took(p.m.CloseRead(0, true, mark())).want("SendSm")
		p = newProbe(t).pipelined(false, true).read(1, 300).read(2, 20).skip()
		p.took(p.m.CloseRead(0, true, mark())).want("SinkAvailCancel").recv("SinkCancelAck").want("revoke",
			"got 1 0 cancelled", "got 2 0 cancelled")
		p = newProbe(t).read(1, 20).readAll(2, 20)
		p.took(p.m.CloseRead(0, false, mark())).want("got 1 0 cancelled", "got 2 0 cancelled")
	})
	t.Run("SDP-9.5.5-1", func(t *testing.T) {
		newProbe(t).read(1, 10).read(2, 10).cancelRead(2).want("got 2 0 cancelled").cancelRead(2).want().cancelRead(1).want("got 1 0 cancelled")
		newProbe(t).recv("SrcAvail size=300 +1").read(1, 300).skip().cancelRead(1).want().readDone().want("got 1 300 cancelled", "RdmaRdCompl size=299")
		newProbe(t).recv("SrcAvail size=500 +1").read(1, 300).skip().cancelRead(1).want().readDone().want("got 1 300 cancelled", "RdmaRdCompl size=299").cancelRead(1).want()
		p := newProbe(t).readAll(1, 300).recv("Data +9").skip().cancelRead(1).want("got 1 9 cancelled")
		if _, ok := p.m.Deadline(); ok {
			t.Error("something is waited for")
		}
	})
	t.Run("SDP-9.5.1-4", func(t *testing.T) { // [SDP-9.5.1-5] the STag is not invalidated by the peer
		p := newProbe(t).pipelined(false, true).read(1, 300).skip().recv("Data +5")
		if p.full[0].Op != OpRevoke || p.full[0].Remote {
			t.Errorf("%+v", p.full[0])
		}
		p = newProbe(t).pipelined(false, true).read(1, 300).skip().recv("RdmaWrCompl size=5 inv*")
		if p.full[0].Op != OpRevoke || !p.full[0].Remote { // [SDP-9.3-11]
			t.Errorf("%+v", p.full[0])
		}
	})
	// The answer to a cancel may use the last credit. [SDP-10.5-2] [D-12] [D-33] [D-21]
	t.Run("SDP-9.5.4-5", func(t *testing.T) {
		p := newProbe(t).pipelined(false, true).recv("SrcAvail size=200").write(9, 5).skip()
		p.recv("SrcAvailCancel bufs=1").want("SendSm")
		p = newProbe(t).pipelined(false, true).recv("SrcAvail size=200").read(1, 200).write(9, 5).skip()
		p.recv("SrcAvailCancel bufs=1").want().readDone().want("got 1 200", "RdmaRdCompl size=200")
		p = newProbe(t).pipelined(false, true).recv("SrcAvail size=200").write(9, 5).skip()
		p.recv("SrcAvailCancel bufs=0").want().recv("Data bufs=1").want("SendSm")
	})
	// A message advertises at most the largest size. [SDP-6.3.3.1-1] [SDP-6.3.2.1-1]
	t.Run("SDP-9.3-3", func(t *testing.T) {
		newProbe(t).pipelined(false, true).read(1, sdpwire.MaxSize+5).want("SinkAvail size=2147483648 nd=0")
		newProbe(t).pipelined(true, false).write(1, sdpwire.MaxSize+5).want("SrcAvail size=2147483648")
	})
}

func TestSDP_6_1_2_Wish(t *testing.T) {
	t.Run("SDP-6.1.2-9", func(t *testing.T) { // [SDP-6.1.2-10] [SDP-6.3.7-3] depends on lengths of reads
		wish := func(reads []int, change ...func(*Params)) string {
			p := newProbe(t, append(change, autoPolicy)...)
			for i, n := range reads {
				p.recv("SrcAvail size=500 +1").skip().readAll(uint64(i), n)
				for p.m.snk.fetch.ops.len() > 0 {
					p.readDone()
				}
			}
			for _, a := range p.full {
				if a.Op == OpSend && a.Msg.MID == sdpwire.RdmaRdCompl {
					return p.word(&a)
				}
			}
			return "none"
		}
		for _, c := range []struct {
			got, want string
		}{
			{wish([]int{500}), "RdmaRdCompl size=499"},
			{wish([]int{500, 500}), "RdmaRdCompl size=499 REQ_PIPE"},
			{wish([]int{500, 500, 500}), "RdmaRdCompl size=499 REQ_PIPE"},
			{wish([]int{500, 500}, func(p *Params) { p.NoSinkAvail = true }), "RdmaRdCompl size=499"},
		} {
			if c.got != c.want {
				t.Errorf("%s, want %s", c.got, c.want)
			}
		}
	})
}

func TestSDP_9_5_3_Edges(t *testing.T) {
	t.Run("SDP-9.5.3-6", func(t *testing.T) { // [D-30]
		for n, want := range map[int]bool{65535: true, 65536: false} {
			p := newProbe(t)
			p.bufs = 2
			p.recv("Data").write(1, n).skip().urgent(2, 1)
			if got := len(p.msgs) == 1 && p.msgs[0].Flags == sdpwire.OOBPend; got != want {
				t.Errorf("%d bytes before it: announced %v", n, got)
			}
		}
	})
	// One message of the peer's size could carry the byte and more bytes before it than the
	// distance allows. So the message ends where the byte may be announced.
	t.Run("SDP-9.5.3-5", func(t *testing.T) { // [SDP-9.5.3-4] [SDP-9.5.3-2]
		for _, tc := range []struct{ ahead, urgent int }{{65535, 1}, {65536, 1}, {100_000, 1}, {190_000, 10_000}, {0, 65536}, {0, 65537}, {0, 200_000}, {150_000, 150_000}} {
			p := newProbe(t, func(p *Params) { p.PeerSize, p.SendThreshold = 200_000+sdpwire.BSDHLen, Infinite })
			p.bufs = 1
			p.recv("Data")
			if tc.ahead > 0 {
				p.write(1, tc.ahead)
			}
			p.urgent(2, tc.urgent).skip()
			p.bufs = 60
			p.recv("Data")
			pended, at, end := 0, 0, 0
			for _, m := range p.msgs {
				if m.Flags&sdpwire.OOBPend != 0 {
					pended, at = pended+1, end
				}
				end += m.PayloadLen()
				if m.PayloadLen() == 0 {
					t.Errorf("%+v: %v carries nothing", tc, &m)
				}
				if m.Flags&sdpwire.OOBPres != 0 && pended == 0 {
					t.Errorf("%+v: the byte came unannounced", tc)
				}
			}
			last := tc.ahead + tc.urgent - 1
			if end != last+1 || p.msgs[len(p.msgs)-1].Flags&sdpwire.OOBPres == 0 {
				t.Errorf("%+v: %d bytes, last message %v", tc, end, p.msgs[len(p.msgs)-1])
			}
			if pended != 1 || last-at > 65535 {
				t.Errorf("%+v: announced %d times, %d bytes ahead", tc, pended, last-at)
			}
		}
	})
}

func TestSDP_9_3_Source_Edges(t *testing.T) {
	low := func(n uint16, p *probe) *probe { p.bufs = n; return p.recv("Data").skip() }
	pipe := func() *probe { return newProbe(t).pipelined(true, false) }
	t.Run("SDP-9.5.2.2-1", func(t *testing.T) { // [D-22] [SDP-9.3-6] [SDP-11.3-11] small writes among others
		p := low(2, pipe()).write(1, 10).write(2, 10).want()
		p.bufs = 9
		// When there is credit, Data is sent, and the payload makes the SinkAvail stale.
		p.recv("SinkAvail size=500 nd=0").want("Data +20", "wrote 1 10", "wrote 2 10")
		// After a large write, small writes share the completion of the large write.
		p = pipe().write(1, 200).write(2, 10).write(3, 10).skip().recv("SinkAvail size=500 nd=0")
		p.want("revoke", "write 1 200@0 -> 0", "wrote 1 200", "write 2 10@0 -> 200", "wrote 2 10",
			"write 3 10@0 -> 210", "wrote 3 10", "RdmaWrCompl size=220")
		// The rest of a large write counts as small.
		p = low(0, pipe().write(1, 200).write(2, 10)).recv("SinkAvail size=120 nd=0").recv("SinkAvail size=120 nd=0").want("revoke", "write 1 120@0 -> 0")
		p.bufs = 20
		p.recv("Data").want("RdmaWrCompl size=120", "Data +84", "wrote 1 200", "Data +6", "wrote 2 10")
	})
	// Two forced writes are sent together. [SDP-12-8] [SDP-9.5.2.1-5]
	t.Run("SDP-9.2-24", func(t *testing.T) {
		p := low(2, pipe().write(1, 200).write(2, 300)).recv("SendSm", "SendSm").skip()
		p.bufs = 20
		p.recv("Data").wantMsgs("Data +84", "Data +84", "Data +84", "Data +84", "Data +84", "Data +80").stats("RecvSendSms=2 SentBytesBcopy=500") // [SDP-9-2] [SDP-9.1-1]
	})
	t.Run("SDP-12.4-3", func(t *testing.T) { // no ModeChange after DisConn
		newProbe(t, autoPolicy).closeWrite().skip().goMode(sdpwire.Buffered).want()
	})
	// A SrcAvail sent after the ModeChange stays valid. [SDP-12.4-8] [D-26]
	t.Run("SDP-12.4-6", func(t *testing.T) {
		p := pipe().write(9, 5).skip()
		ack := p.ack
		p.m.p.SendPolicy = Auto
		p.goMode(sdpwire.Combined).write(1, 300).skip()
		p.ack = ack
		p.recv("SinkAvail size=500 nd=1").want().recv("SinkAvail size=500 nd=1").want()
		p.recv("RdmaRdCompl size=299").want("revoke", "wrote 1 300").stats("Overrides=0")
	})
	t.Run("SDP-8.2.1-20", func(t *testing.T) { // [SDP-9.5.3-1] [SDP-8.2.1-2]
		p := newProbe(t).closeWrite().skip().abort(ErrReset).skip().write(1, 5).want("wrote 1 0 reset")
		p.urgent(2, 5).want("wrote 2 0 reset")
	})
}

func TestSDP_13_1_1_Edges(t *testing.T) {
	suspend := func(p *probe) *probe {
		t.Helper()
		acts, err := p.m.Suspend(p.now, 5000, mark())
		if err != nil {
			t.Error(err)
		}
		return p.took(acts)
	}
	resume := func(p *probe, change ...func(*Params)) *probe {
		np := params()
		for _, f := range change {
			f(&np)
		}
		p.seq, p.ack = np.FirstRecv, np.FirstSend
		return p.took(p.m.Resume(p.now, np, mark()))
	}
	// A SrcAvail that is not In-Process does not delay the suspension. [SDP-13.1.1-6] [D-53]
	t.Run("SDP-13.1.1-3", func(t *testing.T) {
		suspend(newProbe(t).recv("SrcAvail size=200 +1").skip()).want("SuspComm port=5000")
		suspend(newProbe(t).pipelined(false, true).recv("SrcAvail size=400").read(1, 200).skip()).want()
		newProbe(t).recv("SrcAvail size=200 +1").skip().recv("SuspComm port=6000").want("SuspCommAck", "reconnect 6000")
		if _, err := newProbe(t).abort(ErrReset).m.Suspend(0, 5000, nil); err != ErrNoSuspend {
			t.Error(err)
		}
	})
	t.Run("D-55", func(t *testing.T) { // [SDP-13.1-1] limits of port and number of suspensions
		newProbe(t, func(p *Params) { p.MinSuspendPort = 6000 }).recv("SuspComm port=6000").want("SuspCommAck",
			"reconnect 6000")
		newProbe(t, func(p *Params) { p.MinSuspendPort = 6000 }).recv("SuspComm port=5999").want("abort " +
			ErrNoSuspend.Error())
		for _, after := range []time.Duration{time.Minute - 1, time.Minute} {
			p := newProbe(t)
			p.now = time.Hour
			for range 3 {
				resume(p.recv("SuspComm port=6000"))
			}
			p.now += 10 * time.Second
			resume(p.recv("SuspComm port=6000")).alive()
			p.now += after - 10*time.Second
			p.skip().recv("SuspComm port=6000")
			if refused := p.m.Err() == ErrNoSuspend; refused != (after < time.Minute) {
				t.Errorf("a fifth one %v after the first: refused %v", after, refused)
			}
		}
		p := newProbe(t, func(p *Params) { p.Timers.SuspendLimit = -1 })
		for range 20 {
			resume(p.recv("SuspComm port=6000"), func(p *Params) { p.Timers.SuspendLimit = -1 }).alive()
		}
		if n := p.m.Stats().Suspensions; n != 20 {
			t.Errorf("%d suspensions", n)
		}
	})
	// Held bytes stay readable, and occupy the receive budget. [SDP-13.1.1-10] [D-52]
	t.Run("SDP-13.1.1-17", func(t *testing.T) {
		p := resume(newProbe(t).recv("Data +5", "SuspComm port=6000")).skip().recv("SrcAvail size=1500 +1").skip().pass(time.Millisecond)
		p.want("read local 995 from 1")
		// Urgent bytes are announced again.
		p = newProbe(t)
		p.bufs = 2
		p.recv("Data").write(1, 10).urgent(2, 3).wantMsgs("Data OOB_PEND").recv("SuspComm port=6000").skip()
		p.bufs = 64
		resume(p).wantMsgs("Data OOB_PRES|OOB_PEND +13")
		// Sequence numbers belong to the new connection.
		p = resume(newProbe(t).write(1, 5).recv("SuspComm port=6000").skip(), func(p *Params) { p.FirstSend, p.FirstRecv = 40, 50 }).skip().write(2, 5)
		if m := p.msgs[0]; m.MSeq != 40 || m.MSeqAck != 49 {
			t.Errorf("%v", &m)
		}
	})
}

func TestSDP_9_5_5_Source_Edges(t *testing.T) {
	// These are the answers of the Data Source to a SinkAvailCancel. [SDP-9.5.5-2] [SDP-9.5.5-5]
	// [SDP-9.5.5-6] [SDP-9.5.5-4] [SDP-9.5.5-9]
	t.Run("SDP-9.5.5-3", func(t *testing.T) {
		stuck := func(sinks ...string) *probe { // there is no credit for completions
			p := newProbe(t).pipelined(true, false)
			p.bufs = 0
			return p.recv(sinks...).write(1, 300).skip()
		}
		finish := func(p *probe, want ...string) {
			t.Helper()
			p.recv("SinkAvailCancel").want()
			p.bufs = 20
			p.recv("Data").want(want...)
		}
		finish(stuck("SinkAvail size=300 nd=0"), "RdmaWrCompl size=300")
		finish(stuck("SinkAvail size=301 nd=0"), "RdmaWrCompl size=300", "SinkCancelAck")
		finish(stuck("SinkAvail size=300 nd=0", "SinkAvail size=300 nd=0"), "RdmaWrCompl size=300", "SinkCancelAck")
		finish(stuck("SinkAvail size=301 nd=0", "SinkAvail size=300 nd=0", "SinkAvail size=300 nd=0"),
			"RdmaWrCompl size=300", "SinkCancelAck")
	})
	t.Run("SDP-9.2-17", func(t *testing.T) { // [SDP-9.2-18] [D-19] progress resets the count
		p := newProbe(t).write(1, 200)
		for range 3 {
			for range 16 {
				p.recv("RdmaRdCompl size=0").alive()
			}
			p.recv("RdmaRdCompl size=1").alive()
		}
		p.skip().recv("RdmaRdCompl size=196").want("revoke", "wrote 1 200").stats("SentBytesRead=199 SentBytesPrefix=1")
	})
}

func TestSDP_9_5_6_Edges(t *testing.T) {
	few := func(budget int) func(*Params) {
		return func(p *Params) { p.RecvBufs, p.RecvBudget = 4, budget }
	}
	t.Run("SDP-9.5.6-1", func(t *testing.T) { // [D-79] bytes that are copied to free a buffer
		newProbe(t, few(100)).recv("Data +50", "Data +50").wantMsgs().stats("CompactedBytes=50")
		newProbe(t, few(100)).recv("Data +50", "Data +51").want("hold 50", "hold 51").stats("CompactedBytes=0")
		newProbe(t, few(49)).recv("Data +50", "Data +50").want("hold 50", "hold 50")
		p := newProbe(t, few(10)).recv("Data +5").want("hold 5").recv("Data +5").want("hold 5", "compact 5").recv("Data +5").want("hold 5", "Data", "compact 5")
		p.recv("Data +1").want("hold 1", "Data").stats("CompactedBytes=10")
		p.read(1, 3).want("copy 1 3@0", "got 1 3").read(2, 100).want("copy 2 13@0", "got 2 13", "Data")
		// Reading frees the receive budget again.
		p.recv("Data +6", "Data +6").want("hold 6", "hold 6", "compact 6").read(3, 100).want("copy 3 12@0", "got 3 12", "Data").stats("CompactedBytes=16")
	})
	t.Run("D-38", func(t *testing.T) { // [SDP-9.5.6-1] bytes that are fetched without a read
		lone := func(budget, size int) *probe {
			p := newProbe(t, func(p *Params) { p.RecvBudget = budget }).pipelined(false, true)
			msg, inv, has := p.parse("SrcAvail")
			msg.Size = uint32(size)
			p.took(p.m.Receive(p.now, &msg, inv, has, mark()))
			p.seq++
			return p.skip()
		}
		lone(100, 500).pass(time.Millisecond - 1).want().pass(1).want("read local 100 from 0")
		lone(99, 500).pass(time.Second).want()
		lone(50, 50).pass(time.Millisecond).want("read local 50 from 0")
		lone(49, 50).pass(time.Second).want()
		lone(1000, 500).pass(time.Millisecond).want("read local 500 from 0").pass(time.Second).want().readDone().want("RdmaRdCompl size=500").
			read(1, 500).want("copy 1 500@0", "got 1 500")
		newProbe(t, func(p *Params) { p.NoRead = true; p.RecvPolicy = PinPipelined }).pipelined(false, true).recv("SrcAvail size=500").want("SendSm")
		if at, ok := lone(100, 500).m.Deadline(); !ok || at != time.Millisecond {
			t.Errorf("next at %v, %v", at, ok)
		}
		if _, ok := lone(99, 500).m.Deadline(); ok {
			t.Error("something is waited for")
		}
	})
	t.Run("D-81", func(t *testing.T) { // the time limits are exact
		p := newProbe(t).write(1, 200).skip().pass(time.Second - 1).want().pass(1).want("SrcAvailCancel").pass(5*time.Second - 1).alive().pass(1)
		if p.m.Err() != ErrDeadPeer {
			t.Error(p.m.Err())
		}
		p = newProbe(t).pipelined(false, true).read(1, 300).cancelRead(1).pass(5*time.Second - 1).alive()
		if at, ok := p.m.Deadline(); !ok || at != 5*time.Second {
			t.Errorf("next at %v, %v", at, ok)
		}
		if p.pass(1); p.m.Err() != ErrDeadPeer {
			t.Error(p.m.Err())
		}
		// The time counts from the last bytes that the peer has read. [SDP-9.2-18] [SDP-9.2-19]
		p = newProbe(t).write(1, 200).skip().pass(900 * time.Millisecond).recv("RdmaRdCompl size=100").want()
		p.pass(time.Second - 1).want().pass(1).want("SrcAvailCancel")
		// A write longer than the driver can copy is not cancelled.
		newProbe(t).write(1, 1002).skip().pass(time.Minute).want()
		newProbe(t).write(1, 1001).skip().pass(time.Minute).want("SrcAvailCancel")
	})
}

func TestSDP_8_2_1_Owed(t *testing.T) {
	t.Run("SDP-8.2.1-4", func(t *testing.T) { // DisConn arrives before bytes that a SendSm has asked for
		newProbe(t).pipelined(false, true).recv("SrcAvail size=500").read(1, 20).recv("Data +84", "DisConn").aborted("SDP-8.2.1-4")
		newProbe(t).pipelined(false, true).recv("SrcAvail size=50").read(1, 20).recv("Data +50", "DisConn").alive()
	})
	// After the suspensions have crossed, the peer may send nothing but credit.
	t.Run("SDP-13.1.1-5", func(t *testing.T) {
		p := newProbe(t, accepting)
		acts, _ := p.m.Suspend(0, 5000, mark())
		p.took(acts).recv("SuspComm port=6000").skip().recv("Data").alive().recv("Data +1").want("abort SDP-13.1.1-5")
	})
	t.Run("SDP-10.6-7", func(t *testing.T) { // [SDP-10.6-11] the default limits
		newProbe(t).recv("ChRcvBuf size=1048576").want("resize 65536")
		newProbe(t).recv("ChRcvBuf size=1").want("resize 37", "ChRcvBufAck size=37")
		newProbe(t, func(p *Params) { p.RecvSize = 100_000 }).recv("ChRcvBuf size=1048576").want("ChRcvBufAck size=100000")
	})
	t.Run("SDP-12.2-1", func(t *testing.T) { // no change after DisConn
		p := newProbe(t).recv("ModeChange Buffered", "DisConn").skip()
		p.took(p.m.RequestRecvMode(0, mark())).want()
		p = newProbe(t)
		p.took(p.m.RequestRecvMode(0, mark())).want() // the request has no effect in Combined Mode either
	})
}

// TestSDP_13_1_1_Resume: a resumed connection behaves like a new connection, except for the queued
// bytes.
func TestSDP_13_1_1_Resume(t *testing.T) {
	t.Run("SDP-13.1.1-10", func(t *testing.T) { // [SDP-13-1] [SDP-13.1.1-17] [D-52]
		p := newProbe(t, autoPolicy).pipelined(true, true).write(1, 200).write(2, 200).read(3, 300).recv("Data PEND").cancelRead(3)
		p.m.p.SendPolicy = Auto
		p.goMode(sdpwire.Combined)
		p.now = time.Minute
		p.recv("SuspComm port=6000")
		if !p.m.Suspended() {
			t.Fatal("not suspended")
		}
		np := params()
		np.SendThreshold, np.PeerMaxAdverts = 500, 1
		p.seq, p.ack = 0, 0
		p.m.src.room.count0, p.m.src.mode.nudgeAck, p.m.upd.stalled, p.m.urg.announced = 9, true, true, 3
		p.m.upd.nudged, p.m.upd.nudgedAt = true, p.now
		p.skip().took(p.m.Resume(p.now, np, mark())).want("Data +84", "Data +84", "Data +84",
			"wrote 1 200", "Data +84", "Data +64", "wrote 2 200")
		s, k := &p.m.src, &p.m.snk
		if s.mode.leaving || s.mode.nudgeAck || p.m.upd.stalled || p.m.upd.nudged || p.m.upd.nudgedAt != 0 || s.disSent || s.room.ackOwed || s.advs.cancelOpen || s.advs.cancelWant ||
			s.room.count0 != 0 || s.mode.threshold != 500 || s.writes.urgents != 0 || s.writes.forced != 0 {
			t.Errorf("source %+v", s)
		}
		pol := s.mode.pol
		if pol != (srcPolicy{bigAt: pol.bigAt, smalls: pol.smalls, smallAt: pol.smallAt}) ||
			s.mode.current != sdpwire.Combined || s.room.count != 5 {
			t.Errorf("source policy %+v", pol)
		}
		if k.disSeen || p.m.urg.announced != 0 || k.offer.cancelOpen || k.offer.cancelWant || k.fetch.expected != 0 ||
			k.fetch.srcCancel || k.offer.count != 0 || k.mode.current != sdpwire.Combined || k.mode.pol != (snkPolicy{changedAt: time.Minute}) {
			t.Errorf("sink %+v", k)
		}
		if u := p.m.susp; u.local || u.remote || u.retry || u.peerDone || p.m.life != lifeOpen || p.m.cr.hold {
			t.Errorf("suspension %+v", u)
		}
	})
}

func TestSDP_Small(t *testing.T) {
	t.Run("SDP-6.1.2-4", func(t *testing.T) { // [SDP-9.5.1-8] a message has at most 32 parts
		p := newProbe(t)
		p.bufs = 0
		p.recv("Data")
		for i := range 40 {
			p.write(uint64(i), 1)
		}
		p.skip()
		p.bufs = 20
		p.recv("Data").wantMsgs("Data +32", "Data +8")
		p = newProbe(t)
		p.bufs = 0
		p.recv("Data")
		for i := range 31 {
			p.write(uint64(i), 1)
		}
		p.urgent(98, 1).write(99, 1).skip()
		p.bufs = 20
		p.recv("Data").wantMsgs("Data OOB_PRES|OOB_PEND +32", "Data +1")
	})
	// A SendSm waits for RDMA Reads in progress, and a finished SrcAvail gets none. [SDP-11-2]
	t.Run("D-21", func(t *testing.T) {
		p := newProbe(t).pipelined(false, true).recv("SrcAvail size=400").skip().read(1, 200).read(2, 20).want("read 1 200@0 from 0")
		p.readDone().want("got 1 200", "RdmaRdCompl size=200", "SendSm")
		p = newProbe(t)
		p.bufs = 0
		p.recv("SrcAvail size=5 +5").skip().recv("SrcAvailCancel bufs=1").want("RdmaRdCompl size=0")
	})
	t.Run("SDP-9.5.2.1-4", func(t *testing.T) {
		p := newProbe(t)
		p.took(p.m.CloseRead(0, false, mark())).recv("SrcAvail size=300 +1").want("abort " + ErrReadClosed.Error()).stats("RecvBytesPrefix=0")
		if p.m.Readable() != true || p.m.snk.fetch.adverts.len() != 0 {
			t.Error("advertised on a connection that is over")
		}
		newProbe(t, func(p *Params) { p.MaxAdverts = 1 }).recv("SrcAvail size=300 +1", "SrcAvail size=300 +1").aborted("SDP-11.2-4")
		p = newProbe(t)
		p.now = time.Hour
		p.recv("SrcAvail size=300 +1")
		if at, ok := p.m.Deadline(); !ok || at != time.Hour+time.Millisecond {
			t.Errorf("next at %v, %v", at, ok)
		}
	})
	t.Run("SDP-10.1-2", func(t *testing.T) { // no message has an effect on a suspended connection
		p := newProbe(t).recv("SuspComm port=6000").skip().recv("Data +5").want().stats("RecvMessages=1")
		if p.m.Held() != 0 {
			t.Error("held")
		}
	})
	t.Run("SDP-9.1-1", func(t *testing.T) { // the policy records a straight write, and its time
		p := newProbe(t, autoPolicy)
		p.m.Straight(time.Hour, 5, make([]sdpwire.Message, 1))
		if p.m.src.mode.pol.smalls != 1 || p.m.src.mode.pol.smallAt != time.Hour || p.m.now != time.Hour {
			t.Errorf("%+v at %v", p.m.src.mode.pol, p.m.now)
		}
	})
	t.Run("SDP-9.5.3-1", func(t *testing.T) { // [SDP-8.2.1-2] [SDP-8.2.1-20]
		p := newProbe(t).write(1, 5).write(2, 5)
		if p.m.src.mode.pol.smalls != 2 {
			t.Errorf("%+v", p.m.src.mode.pol)
		}
	})
	t.Run("SDP-10.6-1", func(t *testing.T) {
		newProbe(t).peerSize(50).recv("ChRcvBufAck size=100").skip().peerSize(200).want("ChRcvBuf size=200")
		p := newProbe(t)
		p.bufs = 0
		if p.recv("Data").peerSize(50).want().peerSize(40); p.m.rsz.want != 50 {
			t.Errorf("asks for %d", p.m.rsz.want)
		}
		if p.abort(ErrReset).m.rsz.want = 0; p.skip().peerSize(60).m.rsz.want != 0 {
			t.Error("asks on a connection that is over")
		}
	})
	t.Run("SDP-6.3.8-3", func(t *testing.T) { // [SDP-12-9] [D-43]
		newProbe(t).recv("ModeChange Pipelined", "ModeChange Combined").stats("ModeChangesRecv=2").recv("ModeChange Combined").stats("ModeChangesRecv=2 Violations=1")
	})
	t.Run("D-49", func(t *testing.T) { // a later CloseRead does not undo the discard
		p := newProbe(t)
		p.took(p.m.CloseRead(0, true, mark()))
		p.took(p.m.CloseRead(0, false, mark())).recv("Data +5").want("hold 5", "drop 5").alive()
	})
	t.Run("SDP-12.2-1", func(t *testing.T) { // the change is requested only once
		p := newProbe(t, func(p *Params) { p.RecvPolicy = Auto }).recv("ModeChange Buffered")
		p.took(p.m.RequestRecvMode(0, mark())).wantMsgs("ModeChange Combined S").recv("ModeChange Buffered").wantMsgs()
	})
	t.Run("SDP-6.1.5-1", func(t *testing.T) { // without credit no number is used
		p := newProbe(t)
		p.bufs = 0
		p.recv("Data")
		if !panics(func() { p.m.snd.send(sdpwire.Data, 0) }) {
			t.Error("sent without credit")
		}
	})
	t.Run("SDP-6.1.6-1", func(t *testing.T) { // [SDP-6.1.6-2]
		for i, v := range []struct {
			c    credits
			want serial
		}{{credits{}, 0}, {credits{expect: 1}, 0}, {credits{expect: 9}, 8}, {credits{rfirst: 5, expect: 5}, 4}, {credits{rfirst: 5, expect: 0}, 1<<32 - 1}, {credits{expect: 9, hold: true, holdAt: 3}, 3}} {
			if got := v.c.ack(); got != v.want {
				t.Errorf("case %d: %d, want %d", i, got, v.want)
			}
		}
	})
	t.Run("SDP-9.2-1", func(t *testing.T) { // [SDP-9-3] [SDP-6.3.2.1-1]
		newProbe(t).pipelined(true, false).write(1, 200).write(2, 300).stats("SentSrcAvails=2 SentBytesPrefix=0")
		newProbe(t).write(1, 200).stats("SentSrcAvails=1 SentBytesPrefix=1")
	})
	t.Run("SDP-12.4-7", func(t *testing.T) { // [D-26] a SinkAvail that was stale before the change
		p := newProbe(t).pipelined(true, false).write(1, 5).skip()
		ack := p.ack
		p.m.p.SendPolicy = Auto
		p.goMode(sdpwire.Combined).skip()
		p.ack = ack
		p.recv("SinkAvail size=500 nd=0").want().stats("StaleSinkAvails=1")
		if p.m.src.room.count != 0 || p.m.src.room.count0 != 0 {
			t.Errorf("counts %d, %d", p.m.src.room.count, p.m.src.room.count0)
		}
	})
	t.Run("D-45", func(t *testing.T) { // the empty Data is sent with two credits, not with one
		for bufs, want := range map[uint16]bool{3: true, 2: false} {
			p := newProbe(t).pipelined(true, false)
			ack := p.ack
			p.m.p.SendPolicy = Auto
			p.goMode(sdpwire.Combined).skip()
			p.goMode(sdpwire.Pipelined)
			p.ack = ack - 1
			if ack == 0 {
				p.ack = 0
			}
			p.bufs = bufs
			p.recv("Data").skip()
			p.m.cr.bufs, p.m.cr.ackSure = int(p.m.cr.next.sub(p.m.cr.acked))+int(bufs)-1, true
			p.pass(200*time.Millisecond - 1).want().pass(1)
			if got := len(p.msgs) == 1; got != want {
				t.Errorf("%d credits: asked %v", p.m.cr.credit(), got)
			}
		}
	})
	t.Run("SDP-13.1.1-17", func(t *testing.T) { // [SDP-13.1.1-10] [D-52] held bytes are counted once
		p := newProbe(t, func(p *Params) { p.RecvBufs = 4 }).recv("Data +5", "Data +6", "SuspComm port=6000")
		if p.m.snk.held.compacted != 6 {
			t.Fatalf("%d bytes compacted", p.m.snk.held.compacted)
		}
		p.seq, p.ack = 0, 0
		p.took(p.m.Resume(p.now, params(), mark()))
		if p.m.snk.held.compacted != 11 {
			t.Errorf("%d bytes compacted", p.m.snk.held.compacted)
		}
	})
}
