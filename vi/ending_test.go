package vi_test

import (
	"testing"
	"time"

	"viaduct/internal/vitest/memvi"
	"viaduct/vi"
)

// A slowLink is a link whose end takes as long as the test wants.
type slowLink struct {
	vi.Link
	stopped vi.StopReason
	over    chan struct{}
}

func (l *slowLink) Stop(r vi.StopReason) { l.stopped = r }
func (l *slowLink) Wait()                { <-l.over }

// TestCloseWaitsForLinks: what a stopped link has still to say to the peer is said
// before Close returns, though its VI is destroyed by then: a process that ends
// after Close would take it along. [VIA-6.4-1]
func TestCloseWaitsForLinks(t *testing.T) {
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
		select {
		case <-closed:
			t.Error("Close returned before the links were over")
		case <-time.After(5 * time.Millisecond):
		}
		close(l.over)
	}
	<-closed
}
