package debug_test

import (
	"net"
	"path/filepath"
	"slices"
	"testing"

	"viaduct/debug"
	"viaduct/internal/status"
	"viaduct/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// TestShown checks that "viaduct ps" shows how a program describes itself and a connection.
func TestShown(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	s, err := debug.Listen(debug.Config{Program: "test", Version: "7", Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	over := s.Listening("tcp", l.Addr().String())
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	h := debug.Hint{Transport: "tcp", Role: "dial", Local: "here", Remote: "there", Why: "the test says so", Memory: 9}
	s.WatchConn(c, h)

	// On a busy machine, an answer may take longer than List waits.
	list := func() (ps []status.Process) {
		t.Helper()
		testkit.Eventually(t, "an answer", func() bool {
			var err error
			if ps, err = status.List(t.Context(), dir, false); err != nil {
				t.Fatal(err)
			}
			return !slices.ContainsFunc(ps, func(p status.Process) bool { return p.Problem != "" })
		})
		return ps
	}
	ps := list()
	if len(ps) != 1 || ps[0].Program != "test" || ps[0].Version != "7" ||
		len(ps[0].Listeners) != 1 || len(ps[0].Conns) != 1 {
		t.Fatalf("%+v", ps)
	}
	x := ps[0].Conns[0]
	if got := (debug.Hint{Transport: x.Transport, Role: x.Role, Local: x.Local, Remote: x.Remote, Why: x.Why, Memory: x.Memory}); got != h {
		t.Errorf("%+v, want %+v", got, h)
	}
	over()
	if ps := list(); len(ps) != 1 || len(ps[0].Listeners) != 0 {
		t.Errorf("an address that is over is shown: %+v", ps)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("the second Close: %v", err)
	}
	if ps := list(); len(ps) != 0 {
		t.Errorf("%+v after Close", ps)
	}
}

// TestNil checks that a program without a status socket can call the methods of a nil Server.
func TestNil(t *testing.T) {
	var none *debug.Server
	none.WatchConn(nil)
	none.WatchQueuePair(nil)
	none.WatchVI(nil)
	none.Listening("x", "x")()
	if err := none.Close(); err != nil {
		t.Error(err)
	}
}
