package vitcp

import (
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/vitcpwire"
)

// If the caller of a request disconnects just before a wait is found, the wait does not get the
// request.
func TestCallerGone(t *testing.T) {
	nc, peer := testkit.Pipe()
	defer peer.Close()
	defer nc.Close()
	l := &listener{p: &Provider{cfg: Config{Grace: time.Minute}},
		waits: map[vitcpwire.Discriminator][]*wait{}, held: map[vitcpwire.Discriminator][]chan bool{}}
	r := &request{l: l, nc: nc, tcp: nc, m: passive{state: passiveMatching}}
	w := &wait{got: make(chan *request, 1)}
	offered := make(chan bool, 1)
	go func() { offered <- l.offerWait(r) }()
	testkit.Eventually(t, "the request waits", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.held[r.g.ce.Called]) == 1
	})
	r.mu.Lock()
	l.wait(r.g.ce.Called, w) // now a wait exists, so that the request would be offered
	r.m.closed()             // the event that watch reports
	r.mu.Unlock()
	if testkit.Await(t, "the verdict", offered) {
		t.Error("handed over")
	}
	select {
	case <-w.got:
		t.Error("the wait has a caller that is gone")
	default:
	}
	if len(l.waits[r.g.ce.Called]) != 1 {
		t.Error("the wait is off the list")
	}
}
