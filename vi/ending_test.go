package vi_test

import (
	"testing"
	"testing/synctest"

	"viaduct/internal/vitest/memvi"
	"viaduct/vi"
)

// A slowLink is a link whose end takes as long as the test decides.
type slowLink struct {
	vi.Link
	stopped vi.StopReason
	over    chan struct{}
}

func (l *slowLink) Stop(r vi.StopReason) { l.stopped = r }
func (l *slowLink) Wait()                { <-l.over }

// TestCloseWaitsForLinks: Close returns only after a stopped link has sent its last messages to the
// peer, even if the VI of the link is already destroyed. Otherwise a process ending after Close
// would lose the messages. [VIA-6.4-1]
func TestCloseWaitsForLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nic := open(t, memvi.New(), "mem0", nil)
		first := &slowLink{over: make(chan struct{})}
		second := &slowLink{over: make(chan struct{})}
		nic.StopLink(first, vi.StopDisconnect)
		nic.StopLink(second, vi.StopBroken)
		if first.stopped != vi.StopDisconnect || second.stopped != vi.StopBroken {
			t.Error("not stopped, or for another reason")
		}
		closed := make(chan struct{})
		go func() { nic.Close(); close(closed) }()
		for _, l := range []*slowLink{second, first} {
			synctest.Wait()
			select {
			case <-closed:
				t.Error("Close returned before the links were over")
			default:
			}
			close(l.over)
		}
		<-closed
	})
}

// TestEndOfLinks: the engine counts a stopped link until the link has ended. This holds for a link
// that reports its end, and for a link whose end the engine waits for.
func TestEndOfLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nic := open(t, memvi.New(), "mem0", nil)
		waits := &slowLink{over: make(chan struct{})}
		tells := &tellingLink{}
		nic.StopLink(waits, vi.StopBroken)
		nic.StopLink(tells, vi.StopDisconnect)
		nic.EndLink(waits)
		nic.EndLink(tells)
		if n := nic.Ending(); n != 2 {
			t.Errorf("%d links are ending, want 2", n)
		}
		if tells.gone(); nic.Ending() != 1 {
			t.Errorf("%d links are ending when one has told that it is gone", nic.Ending())
		}
		close(waits.over)
		if synctest.Wait(); nic.Ending() != 0 {
			t.Errorf("%d links are ending when all are gone", nic.Ending())
		}
	})
}

// A tellingLink reports its end to the engine.
type tellingLink struct {
	vi.Link
	gone func()
}

func (l *tellingLink) Stop(vi.StopReason) {}
func (l *tellingLink) Wait()              {}
func (l *tellingLink) End(gone func())    { l.gone = gone }

// The engine ends the network connection once, after it has stopped the link. The engine holds no
// lock then, because ending the connection may take a moment and may use the VI.
func TestEndWithoutLock(t *testing.T) {
	for name, end := range map[string]func(*vi.VI, *puppetLink){
		"disconnect": func(v *vi.VI, _ *puppetLink) { v.Disconnect() },
		"break":      func(_ *vi.VI, l *puppetLink) { l.ep.Break(true) },
	} {
		v, l := (&puppet{}).connected(t, vi.Attributes{Reliability: vi.ReliableDelivery})
		stops, ends := 0, 0
		l.onStop = func() { stops++ }
		l.onEnd = func() {
			if ends++; stops != 1 || v.PeerDisconnected() != (name == "break") {
				t.Errorf("%s: stopped %d times, the peer has disconnected: %t", name, stops, v.PeerDisconnected())
			}
		}
		if end(v, l); ends != 1 {
			t.Errorf("%s: ended %d times", name, ends)
		}
	}
}

// The counters of a connection can be read at every moment of its end, and are complete when it has
// ended. [VIA-2.2-8] [VIA-2.2-12] [VIA-2.2-13] [VIA-2.3-5]
func TestTrafficOfAnEnd(t *testing.T) {
	for name, end := range map[string]func(*vi.VI, *puppetLink){
		"disconnect": func(v *vi.VI, _ *puppetLink) { v.Disconnect() },
		"break":      func(_ *vi.VI, l *puppetLink) { l.ep.Break(false) },
	} {
		v, l := (&puppet{}).connected(t, vi.Attributes{Reliability: vi.ReliableDelivery})
		sent := uint64(3)
		l.traffic = func() vi.Traffic { return vi.Traffic{SentMessages: sent, Credits: 7} }
		var during vi.Traffic
		l.onStop = func() {
			during = v.Traffic()
			sent++ // a message that the kernel had accepted before
		}
		if before := v.Traffic(); before.SentMessages != 3 || before.Credits != 7 {
			t.Errorf("%s: %+v before", name, before)
		}
		end(v, l)
		if during.SentMessages != 3 || during.Credits != -1 {
			t.Errorf("%s: %+v while the link is stopped", name, during)
		}
		if after := v.Traffic(); after.SentMessages != 4 || after.Credits != -1 {
			t.Errorf("%s: %+v afterwards", name, after)
		}
	}
}

// PeerDisconnected is true for a VI in state Error after a disconnect by the peer. It is false once
// the VI has left the state. [VIA-4.6-17]
func TestPeerDisconnected(t *testing.T) {
	for _, orderly := range []bool{true, false} {
		v, l := (&puppet{}).connected(t, vi.Attributes{Reliability: vi.ReliableDelivery})
		if v.PeerDisconnected() {
			t.Error("while connected")
		}
		l.ep.Break(orderly)
		if v.State() != vi.Error || v.PeerDisconnected() != orderly {
			t.Errorf("orderly %v: state %v, the peer has disconnected %v", orderly, v.State(), v.PeerDisconnected())
		}
		if err := v.Disconnect(); err != nil || v.PeerDisconnected() {
			t.Errorf("orderly %v: %v; the peer has disconnected an idle VI: %v", orderly, err, v.PeerDisconnected())
		}
	}
}
