package sdpcore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/sdpwire"
)

var allModes = []sdpwire.Mode{sdpwire.Buffered, sdpwire.Combined, sdpwire.Pipelined}

// inModes returns a probe whose half-connections are in the given modes.
func inModes(t testing.TB, send, recv sdpwire.Mode) *probe {
	p := newProbe(t)
	p.m.p.SendPolicy = map[sdpwire.Mode]Policy{sdpwire.Buffered: PinBuffered, sdpwire.Combined: PinCombined, sdpwire.Pipelined: PinPipelined}[send]
	p.pass(time.Second)
	if recv != sdpwire.Combined {
		p.recv("ModeChange " + recv.String())
	}
	if p.m.SendMode() != send || p.m.RecvMode() != recv { // [SDP-11-3] the modes can be any pair
		t.Fatalf("modes are %v and %v, want %v and %v", p.m.SendMode(), p.m.RecvMode(), send, recv)
	}
	return p.skip()
}

// TestSDP_12_Matrix records the machine's reactions to all messages in all pairs of modes: Figure
// 25, and for the changes Figures 26 and 27. The golden file shows a changed rule as a changed
// line. [SDP-11-4] [SDP-12-1] [SDP-12-2] [SDP-12-3]
func TestSDP_12_Matrix(t *testing.T) {
	var b strings.Builder
	for _, send := range allModes {
		for _, recv := range allModes {
			fmt.Fprintf(&b, "sending %v, receiving %v\n", send, recv)
			try := func(name string, f func(p *probe)) {
				p := inModes(t, send, recv)
				f(p)
				var out []string
				for i := range p.full {
					if a := &p.full[i]; a.Op == OpSend || a.Op == OpRDMARead || a.Op == OpRDMAWrite || a.Op == OpAbort {
						out = append(out, p.word(a))
					}
				}
				if len(out) == 0 {
					out = []string{"-"}
				}
				fmt.Fprintf(&b, "  %-28s %s\n", name, strings.Join(out, "; "))
			}
			for _, to := range allModes {
				for _, s := range []string{"", " S"} {
					try("ModeChange "+to.String()+s, func(p *probe) { p.recv("ModeChange " + to.String() + s) })
				}
			}
			for _, s := range []string{"Data", "Data +5", "SrcAvail size=500", "SrcAvail size=500 +1", "SinkAvail size=500 nd=0", "SinkAvail size=500 nd=0 +5",
				"SendSm", "RdmaRdCompl size=1", "RdmaWrCompl size=1", "SrcAvailCancel", "SinkAvailCancel", "SinkCancelAck", "ChRcvBuf size=200",
				"ChRcvBufAck size=200", "DisConn", "AbortConn", "SuspComm port=5000", "SuspCommAck", "Hello", "HelloAck"} {
				try(s, func(p *probe) { p.recv(s) })
			}
			try("ULP writes 10", func(p *probe) { p.write(1, 10) })
			try("ULP writes 200", func(p *probe) { p.write(1, 200) })
			try("ULP writes 200 twice", func(p *probe) { p.write(1, 200).write(2, 200) })
			try("ULP reads 500", func(p *probe) { p.read(1, 500) })
			try("ULP exchanges 10 for 500", func(p *probe) { p.took(p.m.Exchange(p.now, 1, 10, 2, 500, mark())) })
			for _, to := range allModes {
				try("policy wants "+to.String(), func(p *probe) { p.m.p.SendPolicy = Auto; p.goMode(to) })
			}
		}
	}
	testkit.Golden(t, "modes", []byte(b.String()))
	testkit.Golden(t, "modes.dot", []byte(dot()))
}

// dot returns Figure 26 as a dot drawing.
func dot() string {
	var b strings.Builder
	b.WriteString("digraph modes {\n\tstart [shape=point]\n\tstart -> Combined\n")
	for _, a := range modeArrows {
		master := "Data Source"
		if a.master == dataSink {
			master = "Data Sink"
		}
		fmt.Fprintf(&b, "\t%v -> %v [label=%q]\n", a.from, a.to, master)
	}
	b.WriteString("}\n")
	return b.String()
}

func TestSDP_12_Transitions(t *testing.T) {
	t.Run("SDP-12-11 SDP-8.1.1-30", func(t *testing.T) {
		p := newProbe(t)
		if p.m.SendMode() != sdpwire.Combined || p.m.RecvMode() != sdpwire.Combined {
			t.Error("not Combined")
		}
		p.write(1, 200).want("SrcAvail size=200 +1")
	})
	t.Run("SDP-12-1", func(t *testing.T) {
		newProbe(t).recv("ModeChange Buffered", "ModeChange Pipelined").aborted("SDP-12-1")
	})
	t.Run("SDP-12-2", func(t *testing.T) { // [D-43] the request is from the wrong side
		newProbe(t).recv("ModeChange Buffered S").aborted("SDP-12-2")
		newProbe(t).recv("ModeChange Buffered", "ModeChange Combined").aborted("SDP-12-2")
	})
	t.Run("SDP-12-3", func(t *testing.T) {
		newProbe(t).recv("ModeChange Combined").aborted("SDP-12-3")
		newProbe(t).goMode(sdpwire.Combined).want() // a change that is not allowed is never sent
	})
	t.Run("SDP-6.3.8-3 SDP-12-9 SDP-12-10", func(t *testing.T) {
		newProbe(t).recv("ModeChange Buffered", "SrcAvail size=300 +1").aborted("SDP-11.1-1")
		newProbe(t).pipelined(false, true).read(1, 300).want("SinkAvail size=300 nd=0").
			recv("ModeChange Combined").want("revoke", "mode recv Combined").read(2, 300).want()
	})
	t.Run("SDP-12-6 SDP-12-7 SDP-12-8", func(t *testing.T) {
		newProbe(t, func(p *Params) { p.SendPolicy = Auto }).goMode(sdpwire.Buffered).want("ModeChange Buffered", "mode send Buffered").write(1, 200).
			want("Data +84", "Data +84", "Data +32", "wrote 1 200")
	})
	t.Run("SDP-12.1-1 SDP-12.1-2", func(t *testing.T) {
		p := newProbe(t).write(1, 200).skip()
		p.m.p.SendPolicy = PinBuffered
		p.pass(time.Millisecond).want()
		p.recv("RdmaRdCompl size=199").want("revoke", "wrote 1 200", "ModeChange Buffered", "mode send Buffered")
		// The sink refuses a change to Buffered Mode while a SrcAvail is open. [SDP-12.1-2]
		newProbe(t).recv("SrcAvail size=300 +1", "ModeChange Buffered").aborted("SDP-12.1-2")
	})
	t.Run("SDP-12.2-1", func(t *testing.T) {
		p := newProbe(t, func(p *Params) { p.RecvPolicy = Auto }).recv("ModeChange Buffered").skip()
		p.took(p.m.RequestRecvMode(p.now, mark())).want("ModeChange Combined S", "mode recv Combined")
		p.recv("SrcAvail size=300 +1").alive()
		// By policy: many bytes arrived by Bcopy, and a large read is posted. [D-42]
		p = newProbe(t, func(p *Params) { p.RecvPolicy = Auto; p.RecvBudget = 1 << 20 }).recv("ModeChange Buffered")
		for i := range uint64(1000) {
			p.recv("Data +80").read(i, 80)
		}
		p.skip().pass(2*time.Second).read(5000, 5000).wantMsgs("ModeChange Combined S")
		// The other end follows the change. [SDP-6.3.8.1-1]
		p = newProbe(t, func(p *Params) { p.SendPolicy = Auto }).goMode(sdpwire.Buffered).skip().recv("ModeChange Combined S").want("mode send Combined")
		p.write(1, 200).want("SrcAvail size=200 +1")
	})
	t.Run("SDP-12.3-1 SDP-12.3-2", func(t *testing.T) {
		p := newProbe(t, autoPolicy).write(1, 200).skip().write(2, 200).want("ModeChange Pipelined",
			"mode send Pipelined", "SrcAvail size=200")
		p.recv("RdmaRdCompl size=199", "RdmaRdCompl size=200").want("revoke", "wrote 1 200", "revoke", "wrote 2 200")
		newProbe(t).recv("SrcAvail size=300 +1", "ModeChange Pipelined").read(1, 300).readDone().alive()
	})
	t.Run("SDP-12.5-1", func(t *testing.T) { // every legal change is possible at any time
		p := newProbe(t)
		for range 3 {
			p.recv("ModeChange Pipelined", "ModeChange Combined", "ModeChange Buffered")
			p.took(p.m.RequestRecvMode(p.now, mark()))
		}
		p.alive()
	})
}

func TestSDP_12_4(t *testing.T) {
	leave := func(p *probe) *probe { p.m.p.SendPolicy = Auto; return p.goMode(sdpwire.Combined) }
	t.Run("SDP-12.4-1 SDP-12.4-2", func(t *testing.T) {
		leave(newProbe(t).pipelined(true, false)).want("ModeChange Combined", "mode send Combined").write(1, 200).want("SrcAvail size=200 +1")
	})
	t.Run("SDP-12.4-3", func(t *testing.T) { // [D-45]
		p := leave(newProbe(t).pipelined(true, false)).skip()
		ack := p.ack
		p.goMode(sdpwire.Pipelined).want()
		p.ack = ack - 1
		p.recv("Data").want()
		p.pass(200 * time.Millisecond).want("Data") // asks for the acknowledgement
		p.ack = ack
		p.recv("Data").want("ModeChange Pipelined", "mode send Pipelined")
	})
	t.Run("SDP-12.4-5", func(t *testing.T) {
		p := newProbe(t).pipelined(true, false)
		p.bufs = 0
		p.recv("SinkAvail size=500 nd=0").write(1, 300).skip() // the completion waits for credit
		leave(p).want()
		// The ModeChange waits even if there is credit.
		p.m.cr.bufs += 9
		if p.m.src.changeMode() || p.m.src.mode.current != sdpwire.Pipelined {
			t.Error("a ModeChange overtook the RdmaWrCompl")
		}
		p.m.cr.bufs -= 9
		p.bufs = 9
		p.recv("Data").want("RdmaWrCompl size=300", "ModeChange Combined", "mode send Combined")

		// A ModeChange from Pipelined waits for the answer to a SrcAvailCancel. A ModeChange to
		// Pipelined does not.
		p = newProbe(t).pipelined(true, false).write(1, 200).skip().cancelWrite(1).want("SrcAvailCancel")
		leave(p).want().recv("SendSm").want("revoke", "wrote 1 0 cancelled", "ModeChange Combined", "mode send Combined")
		p = newProbe(t).write(1, 200).skip().cancelWrite(1).want("SrcAvailCancel")
		p.m.p.SendPolicy = Auto
		p.goMode(sdpwire.Pipelined).want("ModeChange Pipelined", "mode send Pipelined")
	})
	t.Run("SDP-12.4-6", func(t *testing.T) { // [SDP-12.4-4] Figure 28, with incomplete SinkAvails
		p := leave(newProbe(t).pipelined(true, false).recv("SinkAvail size=500 nd=0").skip())
		p.want("ModeChange Combined", "mode send Combined").write(1, 300).want("SrcAvail size=300 +1")
		// If a SinkAvail arrives before the acknowledgement, the SrcAvails are issued again, with
		// payload, one at a time.
		p = newProbe(t).pipelined(true, false).write(1, 200).write(2, 300).skip()
		ack := p.ack
		leave(p).skip()
		p.ack = ack
		p.recv("SinkAvail size=500 nd=0").want("revoke", "revoke", "SrcAvail size=200 +1")
		p.recv("RdmaRdCompl size=199").want("revoke", "wrote 1 200", "SrcAvail size=300 +1")
	})
	t.Run("SDP-12.4-7", func(t *testing.T) { // a late SinkAvail is ignored except for its BSDH and payload
		p := newProbe(t).pipelined(true, false)
		ack := p.ack
		leave(p).skip()
		p.ack = ack
		p.recv("SinkAvail size=500 nd=0 bufs=9 +5").want("hold 5").write(1, 300).want("SrcAvail size=300 +1")
		if p.m.cr.bufs != 9 {
			t.Error("credits not taken")
		}
		p.ack = ack
		p.recv("SinkAvail size=500 nd=0").want() // a SrcAvail sent after the change stays valid [D-26]
		// After the acknowledgement, a SinkAvail is an error.
		p.ack = ack + 1
		p.recv("Data", "SinkAvail size=500 nd=0").aborted("SDP-12-10")
	})
	t.Run("SDP-12.4-8", func(t *testing.T) { // without a SinkAvail no SrcAvail is issued again [D-44]
		p := newProbe(t).pipelined(true, false).write(1, 200).write(2, 300).skip()
		leave(p).want("ModeChange Combined", "mode send Combined").write(3, 400).want()
		p.recv("RdmaRdCompl size=200", "RdmaRdCompl size=300").want("revoke", "wrote 1 200",
			"revoke", "wrote 2 300", "SrcAvail size=400 +1")
	})
	t.Run("D-26", func(t *testing.T) { // stale SinkAvails keep the counters equal
		p := newProbe(t).pipelined(true, false).write(1, 5).write(2, 200).skip()
		ack := p.ack
		leave(p).skip()
		p.ack = ack
		// The Data has crossed the SinkAvail, so no SrcAvail is issued again.
		p.recv("SinkAvail size=500 nd=0").want()
		p.ack++
		p.recv("Data", "RdmaRdCompl size=200").skip()
		p.goMode(sdpwire.Pipelined).skip().recv("SinkAvail size=500 nd=0").write(3, 300).want("write 3 300@0 -> 0",
			"wrote 3 300", "RdmaWrCompl size=300")
		newProbe(t).alive()
		p = newProbe(t).pipelined(true, false)
		ack = p.ack
		leave(p)
		p.ack = ack
		p.recv("SinkAvail size=500 nd=3").aborted("D-24")
	})
	t.Run("SDP-12.4-9", func(t *testing.T) { // as in Figure 29 of the draft
		p := newProbe(t).pipelined(false, true).read(1, 300).read(2, 300).cancelRead(2).skip()
		p.recv("ModeChange Combined").want("revoke", "revoke", "got 2 0 cancelled", "mode recv Combined")
		p.recv("Data +5").want("hold 5", "copy 1 5@0", "got 1 5")
	})
}

func TestD42_Policy(t *testing.T) {
	// Four SendSm in a row change the mode from Combined to Buffered, and from Pipelined to
	// Combined.
	p := newProbe(t, autoPolicy)
	for i := range uint64(4) {
		p.write(i, 2000).skip().recv("SendSm")
	}
	if p.m.SendMode() != sdpwire.Buffered {
		t.Errorf("after four SendSm: %v", p.m.SendMode())
	}
	// The threshold must be higher than before. [D-39]
	if p.m.src.mode.threshold <= 150 {
		t.Error("threshold not raised")
	}
	// If all writes of a second are small, the mode changes to Buffered.
	p = newProbe(t, autoPolicy)
	p.now = time.Hour
	p.write(1, 5).pass(1100*time.Millisecond).write(2, 5)
	if p.m.SendMode() != sdpwire.Buffered {
		t.Errorf("after a second of small writes: %v", p.m.SendMode())
	}
	// The mode does not change a second time within a second.
	p = newProbe(t, autoPolicy).write(1, 200).write(2, 200)
	for range 2 {
		p.recv("SendSm")
	}
	for i := range uint64(6) {
		p.write(10+i, 2000).recv("SendSm")
	}
	if p.m.SendMode() != sdpwire.Pipelined {
		t.Errorf("changed again within a second, to %v", p.m.SendMode())
	}
}
