package frameio

import (
	"errors"
	"syscall"
	"testing"

	"viaduct/internal/testkit"
)

// TestReset: the peer sees a reset, and no method of the protocol is called after Reset has
// returned. A second Reset, or a Reset after Abort, only waits.
func TestReset(t *testing.T) {
	for _, first := range []func(*Conn){func(*Conn) {}, (*Conn).Abort} {
		x, y := testkit.TCPPair(t)
		a, b := newFramed(x, Options{}), newFramed(y, Options{})
		a.c.Start(nil)
		b.c.Start(nil)
		first(a.c)
		for range 2 {
			if err := a.c.Reset(); err != nil {
				t.Errorf("%v", err)
			}
		}
		if err := testkit.Await(t, "the end", b.failed); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the peer heard of %v", err)
		}
		a.close(t)
		b.close(t)
	}
}
