package bench

import (
	"os"
	"testing"

	"viaduct/internal/status"
	"viaduct/internal/testkit"
)

// TestShow: both ends of a measured connection are listed.
func TestShow(t *testing.T) {
	dir, err := os.MkdirTemp("", "show") // short: a socket's path is limited
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	t.Setenv("XDG_RUNTIME_DIR", dir)
	shown, err := status.Listen(status.Config{Program: "bench"})
	if err != nil {
		t.Fatal(err)
	}
	defer shown.Close()
	for _, transport := range []string{"vitcp", "fcvi", "iwarp", "sdp"} {
		s := spec{Transport: transport, Op: OpSend, Size: 4096, Doorbell: 1, Conns: 1, Host: "127.0.0.1"}
		h, err := open(s)
		if err != nil {
			t.Fatal(err)
		}
		accepted := make(chan lane, 1)
		go func() {
			l, _, err := h.accept(t.Context())
			if err != nil {
				t.Error(err)
			}
			accepted <- l
		}()
		d, err := newDialer(s, h.url())
		if err != nil {
			t.Fatal(err)
		}
		near, err := d.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		far := <-accepted
		if far == nil {
			return
		}
		s.show(shown, near, h.url(), "dial")
		s.show(shown, far, h.url(), "accept")
		var ps []status.Process
		testkit.Eventually(t, "this process answers, which may be busy", func() bool {
			if ps, err = status.List(t.Context(), "", false); err != nil || len(ps) != 1 {
				t.Fatalf("%d processes, %v", len(ps), err)
			}
			return ps[0].Problem == ""
		})
		roles := map[string]int{}
		for _, c := range ps[0].Conns {
			if c.Transport == transport && c.Why == "bench measures "+s.String() {
				roles[c.Role]++
			}
		}
		if roles["dial"] != 1 || roles["accept"] != 1 {
			t.Errorf("%s: %+v", transport, ps[0].Conns)
		}
		near.close()
		far.close()
		d.close()
		h.close()
	}
}
