package vitcp

import (
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/vitcpwire"
)

// A request whose caller disconnects just before a wait is found for it is not passed to the wait.
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
	l.wait(r.g.ce.Called, w) // now it will be offered
	r.m.closed()             // as watch does
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
