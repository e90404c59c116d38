package sdpcore

import (
	"strings"
	"testing"
	"time"

	"viaduct/internal/wire/sdpwire"
)

// keep marks the bytes of write id as in the driver's own memory.
func (p *probe) keep(id uint64) *probe { p.m.KeepByCopy(id); return p }

// TestSDP_Refused checks that a message against a rule has no other effect: the request and the
// header numbers are ignored.
func TestSDP_Refused(t *testing.T) {
	pipe := func() *probe { return newProbe(t).pipelined(false, true) }
	t.Run("SDP-11.1-1", func(t *testing.T) { // [SDP-9.2-2] [SDP-9.2-3] [SDP-11.2-4] [SDP-9.5.4-10] [D-18] [SDP-6.3.2.1-1] [SDP-11.3-18] [SDP-6.2.1.3-1] [D-15] [SDP-8.2.1-8]
		few := func(p *Params) { p.MaxAdverts = 1 }
		for _, c := range []struct {
			p        *probe
			msg, row string
		}{
			{newProbe(t).recv("DisConn"), "SrcAvail size=300 +1", "SDP-8.2.1-8"},
			{newProbe(t).recv("ModeChange Buffered"), "SrcAvail size=300 +1", "SDP-11.1-1"},
			{newProbe(t), "SrcAvail size=300", "SDP-9.2-2"},
			{newProbe(t).recv("SrcAvail size=300 +1"), "SrcAvail size=300 +1", "SDP-11.2-4"},
			{newProbe(t).recv("SrcAvail size=300 +1").read(1, 1).read(2, 20), "SrcAvail size=300 +1", "SDP-11.2-4"},
			{pipe(), "SrcAvail size=300 +1", "SDP-9.2-3"},
			{pipe().recv("SrcAvail size=300").read(1, 300).recv("SrcAvailCancel"), "SrcAvail size=300", "SDP-9.5.4-10"},
			{newProbe(t), "SrcAvail size=5 +6", "D-18"},
			{newProbe(t), "SrcAvail size=300 va=0xfffffffffffffff0 +1", "SDP-6.3.2.1-1"},
			{newProbe(t, few).pipelined(false, true).recv("SrcAvail size=300"), "SrcAvail size=300", "SDP-11.3-18"},
			{newProbe(t, few).pipelined(true, true).recv("SinkAvail size=300 nd=0"), "SrcAvail size=300", "SDP-11.3-18"},
		} {
			before, held := c.p.m.Stats(), c.p.m.Held()
			c.p.skip().recv(c.msg).aborted(c.row)
			if st := c.p.m.Stats(); st.RecvBytesPrefix != before.RecvBytesPrefix ||
				c.p.m.snk.fetch.adverts.len() > 0 || c.p.m.Held() != held || c.p.said[0] != "abort "+c.row {
				t.Errorf("%s where [%s] forbids it: did %v", c.msg, c.row, c.p.said)
			}
		}
	})
	// A SrcAvail crossed by a SinkAvail is void, and stays void. [SDP-11.3-16]
	t.Run("SDP-11.3-9", func(t *testing.T) {
		p := pipe().read(1, 300).want("SinkAvail size=300 nd=0").recv("SrcAvail size=500").want()
		if n := p.m.snk.fetch.adverts.len(); n != 0 {
			t.Errorf("%d SrcAvails are open", n)
		}
		p.recv("RdmaWrCompl size=300").want("revoke", "got 1 300").read(2, 50).want()
	})
	// The payload of a SinkAvail counts, whether the SinkAvail is stale or not. [SDP-6.3.3.1-1]
	// [SDP-12-10] [SDP-6.2.1.3-1] [D-15] [SDP-11.3-18] [D-24]
	t.Run("SDP-9.5.1-10", func(t *testing.T) {
		few := func(p *Params) { p.MaxAdverts = 1 }
		for _, c := range []struct {
			p        *probe
			msg, row string
			counts   string
		}{
			{newProbe(t).pipelined(true, false), "SinkAvail size=300 nd=0 va=0xfffffffffffffff0", "SDP-6.3.3.1-1", "RecvSinkAvails=0 Violations=1"},
			{newProbe(t), "SinkAvail size=300 nd=0", "SDP-12-10", "Overrides=0 Violations=1"},
			{newProbe(t, func(p *Params) { p.SendPolicy = Auto }).goMode(sdpwire.Buffered), "SinkAvail size=300 nd=0", "SDP-12-10", "Violations=1"},
			{newProbe(t).pipelined(true, false), "SinkAvail size=300 nd=1", "D-24", "StaleSinkAvails=0 Violations=1"},
			{newProbe(t, few).pipelined(true, false).recv("SinkAvail size=300 nd=0"), "SinkAvail size=300 nd=0", "SDP-11.3-18", "RecvSinkAvails=2 Violations=1"},
			{newProbe(t, few).pipelined(true, true).recv("SrcAvail size=300"), "SinkAvail size=300 nd=0", "SDP-11.3-18", "RecvSinkAvails=1 Violations=1"},
		} {
			c.p.skip().recv(c.msg).aborted(c.row).stats(c.counts)
			if len(c.p.said) == 0 || !strings.HasPrefix(c.p.said[0], "abort "+c.row) {
				t.Errorf("%s: did %v", c.msg, c.p.said)
			}
		}
		// The last bytes of the address space can be written.
		newProbe(t).pipelined(true, false).recv("SinkAvail size=15 nd=0 va=0xfffffffffffffff0").alive()
		// The payload of a SinkAvail is accepted in any case.
		p := newProbe(t).pipelined(true, false).skip().recv("SinkAvail size=300 nd=0 +5").want("hold 5").stats("RecvBytesTransact=5 RecvSinkAvails=1 RecvBytesBcopy=0")
		// The SinkAvail ends the SrcAvails, and also a crossing cancel.
		p.read(9, 5).write(1, 200).want("copy 9 5@0", "got 9 5", "write 1 200@0 -> 0",
			"wrote 1 200", "RdmaWrCompl size=200")
		p.write(2, 200).cancelWrite(2).want("SrcAvail size=200", "SrcAvailCancel").recv("SinkAvail size=300 nd=0").want("revoke", "wrote 2 0 cancelled").due(-1)
		// After our DisConn the SinkAvail is void.
		p = newProbe(t).pipelined(true, false).closeWrite().recv("SinkAvail size=300 nd=0").alive().stats("RecvSinkAvails=1")
		if n := p.m.src.room.len(); n != 0 { // [SDP-8.2.1-15]
			t.Errorf("%d SinkAvails at hand behind DisConn", n)
		}
	})
	// AbortConn ends the connection, and revokes a DisConn. [SDP-8.2.1-22]
	t.Run("SDP-6.2.4-3", func(t *testing.T) {
		newProbe(t).recv("AbortConn").want("abort reset")
		newProbe(t).read(1, 5).recv("DisConn").want("closed", "got 1 0 EOF").write(2, 300).skip().recv("AbortConn").want("abort reset", "revoke", "wrote 2 1 reset").read(3, 5).want("got 3 0 reset")
	})
	t.Run("D-43", func(t *testing.T) { // [SDP-12.1-2] the modes do not change
		newProbe(t).recv("SrcAvail size=300 +1").skip().recv("ModeChange Buffered").want("abort SDP-12.1-2").stats("ModeChangesRecv=0")
		newProbe(t).skip().recv("ModeChange Combined").want("abort SDP-12-3").stats("ModeChangesRecv=0")
		newProbe(t).recv("ModeChange Buffered").skip().recv("ModeChange Combined").want("abort SDP-12-2").stats("ModeChangesRecv=1")
		newProbe(t).recv("ModeChange Buffered").skip().recv("ModeChange Pipelined").want("abort SDP-12-1").stats("ModeChangesRecv=1")
	})
	t.Run("SDP-9.2-16", func(t *testing.T) {
		newProbe(t).recv("SendSm").want("abort SDP-9.2-16").stats("RecvSendSms=1 Violations=1")
	})
	t.Run("SDP-10.1-2", func(t *testing.T) { // no message has an effect on a connection that has ended
		newProbe(t).abort(ErrReset).skip().recv("Data +5", "Data seq=77").want().stats("RecvMessages=0 Violations=0")
	})
	// A peer that suspends may only refresh credit. [SDP-13.1-1] [SDP-13.1.1-5]
	t.Run("SDP-6.3.1-3", func(t *testing.T) {
		crossed := func() *probe { return newProbe(t, accepting).suspend().recv("SuspComm port=6000").skip() }
		crossed().recv("Data", "Data").alive().recv("SuspCommAck").want("suspended")
		for _, s := range []string{"Data +1", "SrcAvailCancel", "SendSm", "DisConn"} {
			crossed().recv(s).want("abort SDP-13.1.1-5")
		}
		// The request of the peer did not cross a request of the local end.
		newProbe(t, accepting).recv("SuspComm port=6000").want("SuspCommAck", "reconnect 6000")
	})
	t.Run("D-47", func(t *testing.T) { // [SDP-10.6-1] the sizes that a ChRcvBufAck may contain
		for _, c := range []struct {
			asked, got int
			ok         bool
		}{
			{50, 49, false}, {50, 50, true}, {50, 70, true}, {50, 100, true}, {50, 101, false}, {37, 37, true}, {37, 36, false},
			{200, 99, false}, {200, 100, true}, {200, 200, true}, {200, 201, true}, {200, sdpwire.MaxSize, true}, {200, sdpwire.MaxSize + 1, false},
		} {
			p := newProbe(t).peerSize(c.asked).skip()
			msg, _, _ := p.parse("ChRcvBufAck")
			msg.Size = uint32(c.got)
			p.took(p.m.Receive(p.now, &msg, 0, false, mark()))
			if !c.ok {
				p.want("abort D-47")
			} else if p.alive(); p.m.p.PeerSize != c.got || p.m.rsz.actual != c.got {
				t.Errorf("asked for %d, got %d: sends up to %d", c.asked, c.got, p.m.p.PeerSize)
			}
		}
		newProbe(t).recv("ChRcvBufAck size=100").want("abort D-47")
	})
	t.Run("D-19", func(t *testing.T) { // the error contains the number of answers without bytes
		p := newProbe(t).write(1, 200)
		for range 17 {
			p.alive().recv("RdmaRdCompl size=0")
		}
		if p.aborted("D-19"); p.m.Err() == nil || !strings.Contains(p.m.Err().Error(), "17 times") {
			t.Errorf("%v", p.m.Err())
		}
	})
}

// TestSDP_11_Ways: each mechanism moves and counts the right bytes.
func TestSDP_11_Ways(t *testing.T) {
	pipe := func(change ...func(*Params)) *probe { return newProbe(t, change...).pipelined(true, false) }
	t.Run("SDP-11-1", func(t *testing.T) { // [SDP-11.2-1] [SDP-11.2-2] [SDP-11.3-1] [SDP-11.3-2] [D-18] [SDP-9.1-1] [SDP-9-2] urgent bytes and the driver's copies are never advertised
		for _, p := range []*probe{newProbe(t), pipe()} {
			p.urgent(1, 160).wantMsgs("Data OOB_PEND +84", "Data OOB_PRES +76").stats("UrgentSent=1 SentBytesBcopy=160")
			p.credits(0).write(2, 160).keep(2).want().credits(9).wantMsgs("Data +84", "Data +76")
		}
	})
	// Urgent bytes are never written by RDMA. [D-22] [SDP-9.5.2.2-1] [SDP-9.3-6]
	t.Run("SDP-11.3-11", func(t *testing.T) {
		pipe().recv("SinkAvail size=500 nd=0").urgent(1, 160).wantMsgs("Data OOB_PEND +84", "Data OOB_PRES +76")
		// A write as long as the threshold is sent by Data if another write follows.
		low := func(n int) *probe { return pipe().credits(0).write(1, n).write(2, 10).skip() }
		low(150).credits(9).wantMsgs("Data +84", "Data +76")
		low(150).credits(0).recv("SinkAvail size=500 nd=0").want().credits(9).wantMsgs("Data +84", "Data +76")
		low(151).recv("SinkAvail size=500 nd=0").want("write 1 151@0 -> 0", "wrote 1 151",
			"write 2 10@0 -> 151", "wrote 2 10")
	})
	// A single write fills two SinkAvails, each from its address on. [SDP-9.3-1] [SDP-6.3.3.3-1]
	// [SDP-6.3.3.2-2] [SDP-9.4-3..5]
	t.Run("SDP-9.3-5", func(t *testing.T) {
		p := pipe().credits(0).recv("SinkAvail size=120 nd=0 va=1000", "SinkAvail size=500 nd=0 va=2000").write(1, 500).want("write 1 120@0 -> 1000")
		p.credits(9).want("RdmaWrCompl size=120", "write 1 380@120 -> 2000", "wrote 1 500", "RdmaWrCompl size=380").stats("SentBytesWrite=500")
	})
	// Before the connection moves, written bytes are reported, and no more bytes are written.
	// [SDP-11.3-11] [D-22] [SDP-9.5.2.2-1]
	t.Run("SDP-13.1.1-3", func(t *testing.T) {
		p := pipe().credits(0).recv("SinkAvail size=500 nd=0").write(1, 300).want("write 1 300@0 -> 0", "wrote 1 300")
		p.recv("SuspComm port=6000").write(2, 200).want().credits(9).want("RdmaWrCompl size=300",
			"SuspCommAck", "reconnect 6000")
	})
	// A SinkAvail carries small writes, as many bytes as fit, up to an urgent or long write.
	// [SDP-6.3.3-3] [SDP-9.3-3]
	t.Run("SDP-9.4-1", func(t *testing.T) {
		offer := func(change ...func(p *probe)) *probe {
			p := newProbe(t).pipelined(false, true).credits(0)
			for _, f := range change {
				f(p)
			}
			return p.read(9, 300).skip().credits(9)
		}
		small := func(id uint64, n int) func(*probe) { return func(p *probe) { p.write(id, n) } }
		offer(small(1, 5), small(2, 6)).wantMsgs("SinkAvail size=300 nd=0 +11")
		offer(small(1, 150)).wantMsgs("SinkAvail size=300 nd=0 +64", "Data +84", "Data +2")
		offer(small(1, 5), func(p *probe) { p.urgent(2, 3) }).wantMsgs("SinkAvail size=300 nd=0 OOB_PEND +5",
			"Data OOB_PRES +3")
		offer(small(1, 5), small(2, 200)).wantMsgs("SinkAvail size=300 nd=0 +5", "SrcAvail size=200 +1")
		newProbe(t).pipelined(false, true).credits(2).write(1, 5).skip().read(9, 300).wantMsgs("SinkAvail size=300 nd=0") // payload takes three credits
		// The policies count an Exchange like Write and Read.
		p := newProbe(t, autoPolicy)
		p.took(p.m.Exchange(p.now, 1, 5, 2, 300, mark()))
		if p.m.src.mode.pol.smalls != 1 || p.m.snk.mode.pol.bigReads != 1 {
			t.Errorf("%d small writes, %d long reads", p.m.src.mode.pol.smalls, p.m.snk.mode.pol.bigReads)
		}
	})
	// An advertised write stays advertised, whatever the new threshold. [SDP-11.3-6]
	// [SDP-9.5.2.1-2] [SDP-9-2] [SDP-10-4]
	t.Run("SDP-9.2-25", func(t *testing.T) {
		p := pipe().write(1, 200).write(2, 300).skip()
		p.took(p.m.SetThresholds(p.now, 1000, 100, mark())).recv("SendSm").want("revoke",
			"Data +84", "Data +84", "Data +32", "wrote 1 200")
		p.recv("RdmaRdCompl size=300").want("revoke", "wrote 2 300")
	})
	// The pieces of a long write have equal lengths, except for the last, and each is a message.
	// [SDP-9.5.1-8]
	t.Run("SDP-6.1.2-4", func(t *testing.T) {
		p := newProbe(t, func(p *Params) { p.PeerSize, p.SendThreshold = 70_000+sdpwire.BSDHLen, Infinite })
		p.credits(0).write(1, 200_000).write(2, 5).credits(9).wantMsgs("Data +69632", "Data +69632", "Data +60741")
		if p.m.src.room.count != 3 {
			t.Errorf("%d messages carried payload", p.m.src.room.count)
		}
	})
	t.Run("D-23", func(t *testing.T) { // [SDP-9.5.2.2-2] Data uses up an open SinkAvail
		p := pipe().credits(2).write(1, 10).write(2, 10).skip()
		p.recv("SinkAvail size=500 nd=0").want().credits(9).want("Data +20", "wrote 1 10", "wrote 2 10")
		if p.m.src.room.len() != 0 || p.m.src.room.count != 0 {
			t.Errorf("%d SinkAvails at hand, count %d", p.m.src.room.len(), p.m.src.room.count)
		}
	})
	// The SrcAvails ended by a late SinkAvail are counted. [SDP-12.4-8] [D-26]
	t.Run("SDP-12.4-6", func(t *testing.T) {
		p := pipe().write(1, 200).write(2, 300).skip()
		ack := p.ack
		p.m.p.SendPolicy = Auto
		p.goMode(sdpwire.Combined).skip()
		p.ack = ack
		p.recv("SinkAvail size=500 nd=0").want("revoke", "revoke", "SrcAvail size=200 +1").stats("Overrides=2")
	})
	// A straight message is a Data without flags, and must be acknowledged.
	t.Run("SDP-9.1-1", func(t *testing.T) {
		p := newProbe(t, func(p *Params) { p.FirstSend = 10 })
		p.ack = 9
		msgs := make([]sdpwire.Message, 2)
		if n := p.m.Straight(p.now, 100, msgs); n != 2 || msgs[0].Flags != 0 || msgs[1].Flags != 0 {
			t.Fatalf("%d messages, %v", n, msgs)
		}
		if p.m.Acknowledged() {
			t.Error("acknowledged before it has come")
		}
		p.ack = 11
		if p.recv("Data"); !p.m.Acknowledged() {
			t.Error("not acknowledged")
		}
		// If the other half must change mode, the ModeChange is sent first.
		p = newProbe(t, func(p *Params) { p.RecvPolicy = Auto; p.RecvBudget = 1 << 20 }).recv("ModeChange Buffered")
		for i := range uint64(1000) {
			p.recv("Data +80").read(i, 80)
		}
		p.read(5000, 5000)
		p.now += 2 * time.Second
		if n := p.m.Straight(p.now, 10, msgs); n != 0 {
			t.Errorf("%d messages before the ModeChange", n)
		}
		p.skip().write(1, 10).wantMsgs("ModeChange Combined S", "Data +10")
	})
	t.Run("SDP-9-1", func(t *testing.T) { // a threshold that changes while the connection runs
		p := newProbe(t)
		p.took(p.m.SetThresholds(0, 20, 200, mark())).recv("SrcAvail size=500 +1").read(1, 1).skip().read(2, 200).want("SendSm")
	})
}

// TestSDP_Late checks positions, counters and late messages.
func TestSDP_Late(t *testing.T) {
	t.Run("SDP-9.3-13", func(t *testing.T) { // [D-20] written bytes count in the stream
		newProbe(t).pipelined(false, true).read(1, 300).recv("RdmaWrCompl size=300").skip().recv("Data +5 PRES").want("pending", "urgent 304", "hold 5")
	})
	t.Run("SDP-6.1.2-6", func(t *testing.T) {
		newProbe(t).recv("Data +5", "Data +5 PRES", "Data +1 PRES").stats("UrgentRecv=2")
	})
	t.Run("D-34", func(t *testing.T) { // a SinkCancelAck for an earlier cancel has no effect
		p := newProbe(t, func(p *Params) { p.FirstSend = 10 })
		p.ack = 9
		p.pipelined(false, true).read(1, 300).cancelRead(1).want("SinkAvail size=300 nd=0", "SinkAvailCancel")
		p.ack = 10
		p.recv("SinkCancelAck").want()
		p.ack = 11
		p.recv("SinkCancelAck").want("revoke", "got 1 0 cancelled")
	})
	t.Run("D-49", func(t *testing.T) { // a second call after CloseRead may ask to discard
		p := newProbe(t)
		p.took(p.m.CloseRead(0, false, mark())).took(p.m.CloseRead(0, true, mark())).recv("Data +5").want("hold 5", "drop 5").alive()
	})
	t.Run("D-53", func(t *testing.T) { // at the exact time, for a suspension from either end
		for name, begin := range map[string]func(*probe) *probe{
			"own":    (*probe).suspend,
			"peer's": func(p *probe) *probe { return p.credits(0).recv("SuspComm port=6000") },
		} {
			p := newProbe(t)
			p.now = time.Hour
			begin(p).due(time.Hour + 5*time.Second).pass(5*time.Second - 1).alive().pass(1)
			if p.m.Err() != ErrNoSuspend {
				t.Errorf("%s: %v", name, p.m.Err())
			}
		}
	})
	// The limit counts from the oldest counted suspension, and is at most 8. [SDP-13.1-1]
	t.Run("D-55", func(t *testing.T) {
		for limit, most := range map[int]int{1: 1, 3: 3, 5: 5, 8: 8, 20: 8} {
			few := func(p *Params) { p.Timers.SuspendLimit = limit }
			p := newProbe(t, few)
			p.now = time.Hour
			n := 0
			for ; n < 30 && p.m.Err() == nil; n++ {
				p.now += time.Second
				if p.recv("SuspComm port=6000"); p.m.Suspended() {
					p.resume(few)
				}
			}
			if n-1 != most {
				t.Errorf("limit %d: %d suspensions in a row", limit, n-1)
			}
			// Each suspension counts for one minute.
			p = newProbe(t, few)
			p.now = time.Hour
			for i := range 20 {
				p.now += time.Minute/time.Duration(most) + 1
				if p.recv("SuspComm port=6000"); !p.m.Suspended() {
					t.Fatalf("limit %d: number %d was refused", limit, i)
				}
				p.resume(few)
			}
		}
	})
	// Only a suspended connection can be resumed. [SDP-13.1.1-17] [D-52]
	t.Run("SDP-13.1.1-10", func(t *testing.T) {
		if !panics(func() { newProbe(t).resume() }) || !panics(func() { newProbe(t).suspend().resume() }) {
			t.Error("resumed without a suspension")
		}
		// A stall of the earlier connection does not continue to count.
		p := newProbe(t)
		if p.credits(2).write(1, 5).skip(); !p.m.upd.stalled {
			t.Fatal("no stall")
		}
		p.recv("SuspComm port=6000").want("SuspCommAck", "reconnect 6000")
		p.now += time.Hour
		p.resume().stats("LongestCreditStall=0s CreditStalls=1")
		// A suspension whose request was overtaken is requested again, each time.
		p = newProbe(t).suspend().want("SuspComm port=5000")
		for range 3 { // [SDP-13.1.2-3]
			p.recv("SuspComm port=6000").want("SuspCommAck", "reconnect 6000").resume().want("SuspComm port=5000")
		}
		p.recv("SuspCommAck").want("suspended").resume().want()
	})
	// No empty Data asks for an acknowledgement if the next change of mode waits for something
	// else.
	t.Run("D-45", func(t *testing.T) {
		p := newProbe(t).write(1, 200).skip()
		p.m.p.SendPolicy = PinBuffered
		p.pass(time.Millisecond).pass(900 * time.Millisecond).want()
	})
	t.Run("D-08", func(t *testing.T) { // the last credit is spent only in doubt
		few := func(p *Params) { p.PeerBufs = 3 }
		p := newProbe(t, few).write(1, 1).peerSize(50).write(2, 1).wantMsgs("Data +1", "ChRcvBuf size=50")
		p.due(-1).pass(time.Minute).want() // the second message was no empty Data
		p = newProbe(t, few).write(1, 1).write(2, 1).wantMsgs("Data +1", "Data")
		// After the peer has acknowledged message 0, there is no doubt.
		p.recv("Data ack=0 bufs=2").skip().pass(time.Minute).want()
		p = newProbe(t, few).write(1, 1).write(2, 1).wantMsgs("Data +1", "Data").cancelWrite(2).skip()
		p.due(-1).pass(time.Minute).want() // no payload waits any more
		newProbe(t, few).write(1, 1).write(2, 1).wantMsgs("Data +1", "Data").pass(time.Minute).wantMsgs("Data")
	})
	lim := func(p *Params) { p.MinRecvSize, p.MaxRecvSize = 60, 300 }
	// A larger size applies after the acknowledgement, and an Accepting Peer answers too.
	// [SDP-10.6.1-1] [SDP-10.6-16]
	t.Run("SDP-10.6-11", func(t *testing.T) {
		for _, role := range []func(*Params){func(*Params) {}, accepting} {
			newProbe(t, lim, role).recv("ChRcvBuf size=200").want("resize 200").recv("Data +85").aborted("SDP-10-4")
			p := newProbe(t, lim, role).recv("ChRcvBuf size=200").skip()
			p.took(p.m.Resized(0, mark())).want("ChRcvBufAck size=200").recv("Data +184").alive()
		}
	})
	t.Run("D-47", func(t *testing.T) { // an end that owes an acknowledgement sends no request
		p := newProbe(t, lim).recv("ChRcvBuf size=200").skip().peerSize(50).want()
		p.took(p.m.Resized(0, mark())).want("ChRcvBufAck size=200", "ChRcvBuf size=50", "peersize 50")
	})
	t.Run("SDP-10.6-1", func(t *testing.T) { // no request exceeds the largest size of a message
		newProbe(t).peerSize(sdpwire.MaxSize + 5).wantMsgs("ChRcvBuf size=2147483648")
	})
}
