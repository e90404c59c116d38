package status_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"viaduct/internal/status"
	"viaduct/internal/testkit"
	"viaduct/sdp"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func listen(t *testing.T, dir string) *status.Server {
	t.Helper()
	s, err := status.Listen(status.Config{Program: "test", Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func list(t *testing.T, dir string, counters bool) []status.Process {
	t.Helper()
	ps, err := status.List(t.Context(), dir, counters)
	if err != nil {
		t.Fatal(err)
	}
	return ps
}

// answered returns the report of List in which every process has answered. On a busy machine any
// process may need more than AnswerTimeout, and List then reports a Problem instead.
func answered(t *testing.T, dir string, counters bool) (ps []status.Process) {
	t.Helper()
	testkit.Eventually(t, "an answer of every process", func() bool {
		ps = list(t, dir, counters)
		return !slices.ContainsFunc(ps, late)
	})
	return ps
}

// late reports whether p did not answer within AnswerTimeout.
func late(p status.Process) bool { return strings.Contains(p.Problem, "no answer within") }

// TestStatus: a client gets the connections of a process, and finds no process after the Server was
// closed.
func TestStatus(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if ps := list(t, dir, true); len(ps) != 0 {
		t.Fatalf("%v without a directory", ps)
	}
	s := listen(t, dir)
	over := s.Listening("sdp", "sdp://127.0.0.1:1")
	l, err := sdp.Listen("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			got <- c
		}
	}()
	c, err := sdp.Dial(l.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	far := <-got
	s.WatchConn(c)
	s.WatchConn(far, status.Hint{Why: "the test says so"})
	if _, err := c.Write(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(far, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	ps := answered(t, dir, true)
	if len(ps) != 1 || ps[0].PID != os.Getpid() || ps[0].Program != "test" || len(ps[0].Listeners) != 1 ||
		len(ps[0].Conns) != 2 {
		t.Fatalf("%+v", ps)
	}
	a, b := ps[0].Conns[0], ps[0].Conns[1]
	if a.Role != "dial" || b.Role != "accept" || b.Why != "the test says so" || a.SentBytes != 1000 ||
		b.ReceivedBytes != 1000 || a.Local != c.LocalAddr().String() || a.State != "open" {
		t.Errorf("%+v\n%+v", a, b)
	}
	if a.Counters["sdp_sent_bytes_bcopy"] != 1000 || a.Counters["tx_bytes"] < 1000 {
		t.Errorf("counters %v", a.Counters)
	}
	if ps = answered(t, dir, false); ps[0].Conns[0].Counters != nil {
		t.Error("counters without being asked for")
	}
	over()
	far.Close()
	c.Close()
	testkit.Eventually(t, "connections forgotten", func() bool {
		ps = answered(t, dir, false)
		return len(ps) == 1 && len(ps[0].Conns)+len(ps[0].Listeners) == 0
	})
	s.Close()
	if ps := list(t, dir, false); len(ps) != 0 {
		t.Errorf("%v after Close", ps)
	}
	s.WatchConn(c) // a second call for the same connection changes nothing
	var none *status.Server
	none.WatchConn(c)
	none.Listening("x", "x")()
	if p := none.Status(true); p.PID != 0 || p.Conns != nil {
		t.Errorf("%+v of no server", p)
	}
	none.Close()
}

// private returns a new directory only the user can access, as required of a run directory.
func private(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestForgets: the server removes ended connections even if no client ever connects.
func TestForgets(t *testing.T) {
	s := listen(t, private(t))
	var asked atomic.Int64
	for range 10_000 {
		s.Watch(status.Source{
			Report: func(bool) status.Conn { return status.Conn{} },
			Ended:  func() bool { asked.Add(1); return true },
		})
	}
	before := asked.Swap(0)
	s.Status(false)
	if kept := asked.Load(); kept > 100 || before < 9_900 {
		t.Errorf("%d ended connections were kept, %d looked at before", kept, before)
	}
}

// TestDirectory: Listen refuses a directory that another user could have made, or can enter.
func TestDirectory(t *testing.T) {
	dir := private(t)
	open := filepath.Join(dir, "open")
	link := filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(open, 0o755), os.Chmod(open, 0o755), os.Symlink(dir, link)); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{open, link} {
		if _, err := status.Listen(status.Config{Dir: d}); !errors.Is(err, status.ErrUnsafe) {
			t.Errorf("Listen in %s: %v", d, err)
		}
		if _, err := status.List(t.Context(), d, false); !errors.Is(err, status.ErrUnsafe) {
			t.Errorf("List of %s: %v", d, err)
		}
	}
	s := listen(t, filepath.Join(dir, "new"))
	defer s.Close()
	for _, f := range []struct {
		path string
		mode os.FileMode
	}{{filepath.Join(dir, "new"), 0o700}, {filepath.Join(dir, "new", strconv.Itoa(os.Getpid())+".sock"), 0o600}} {
		if st, err := os.Stat(f.path); err != nil || st.Mode().Perm() != f.mode {
			t.Errorf("%s: %v, mode %v", f.path, err, st.Mode())
		}
	}
	if other := listen(t, filepath.Join(dir, "new")); len(list(t, filepath.Join(dir, "new"), false)) != 2 {
		t.Error("a second socket of the process is not seen")
	} else {
		other.Close()
	}
}

// TestComing: a socket has the final name only while listening, because a client removes a socket
// that does not listen, as the socket of a dead process.
func TestComing(t *testing.T) {
	dir := private(t)
	for n := range 64 {
		name := strconv.Itoa(os.Getpid()) + ".sock"
		if n > 0 {
			name = fmt.Sprintf("%d.%d.sock", os.Getpid(), n)
		}
		found := make(chan error)
		go func() {
			for {
				c, err := net.Dial("unix", filepath.Join(dir, name))
				if errors.Is(err, os.ErrNotExist) && t.Context().Err() == nil {
					continue
				}
				if err == nil {
					c.Close()
				}
				found <- err
				return
			}
		}()
		listen(t, dir)
		if err := <-found; err != nil {
			t.Fatalf("the first answer of %s: %v", name, err)
		}
	}
	if ps := list(t, dir, false); len(ps) != 64 {
		t.Errorf("%d of 64 sockets are seen", len(ps))
	}
}

// TestStrangers: List reports a socket only if the socket belongs to the process in the socket's
// name. List must remove a socket without a listener.
func TestStrangers(t *testing.T) {
	dir := private(t)
	at := func(name string) *net.UnixListener {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, name), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		t.Cleanup(func() { l.Close() })
		return l
	}
	at("77777.sock").Close() // a socket that a killed process has left
	at("notes.txt")
	answering := at("1.sock") // a socket of this process under the ID of another process
	go func() {
		for {
			c, err := answering.Accept()
			if err != nil {
				return
			}
			json.NewEncoder(c).Encode(status.Process{PID: 1, Program: "forged"})
			c.Close()
		}
	}()
	silent := at(strconv.Itoa(os.Getpid()) + ".sock") // the kernel accepts connections, but nothing answers them
	_ = silent
	// A busy machine may delay any question beyond AnswerTimeout, but only the silent socket delays
	// the question every time.
	var ps []status.Process
	testkit.Eventually(t, "the silent socket alone is late", func() bool {
		began := time.Now()
		ps = list(t, dir, false)
		if took := time.Since(began); took > testkit.Patience {
			t.Errorf("took %v", took)
		}
		return len(ps) == 2 && !late(ps[0])
	})
	if len(ps) != 2 || ps[0].PID != 1 || ps[0].Program == "forged" ||
		!strings.Contains(ps[0].Problem, "another process") {
		t.Fatalf("%+v", ps)
	}
	if !strings.Contains(ps[1].Problem, "no answer") {
		t.Errorf("the silent one: %+v", ps[1])
	}
	if _, err := os.Lstat(filepath.Join(dir, "77777.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the stale socket is still there: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := status.List(ctx, dir, false); !errors.Is(err, context.Canceled) {
		t.Errorf("with a cancelled context: %v", err)
	}
}
