package sock

import (
	"bytes"
	"errors"
	"net"
	"testing"

	"viaduct/internal/testkit"
)

// TestOwnedCloseEndsSleep: Close ends a sleeping Read or Write, with an error that wraps
// net.ErrClosed.
func TestOwnedCloseEndsSleep(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789"), 1<<20)
	for what, f := range map[string]func(net.Conn) (int, error){
		"read":  func(c net.Conn) (int, error) { return c.Read(make([]byte, 1)) },
		"write": func(c net.Conn) (int, error) { return c.Write(big) },
	} {
		a, b := ownedPair(t)
		defer b.Close()
		failed := make(chan error, 1)
		go func() {
			_, err := f(a)
			failed <- err
		}()
		testkit.Eventually(t, what+" sleeps", func() bool {
			o := a.(*conn)
			o.mu.Lock()
			defer o.mu.Unlock()
			return o.limits != nil && o.limits.read.sleepers+o.limits.write.sleepers > 0
		})
		a.Close()
		if err := testkit.Await(t, what+" ends", failed); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
