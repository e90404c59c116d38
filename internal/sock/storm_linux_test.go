package sock

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"viaduct/internal/shm"
	"viaduct/internal/testkit"
	"viaduct/samehost"
)

// stormVariable contains the task of the child in a storm: "dial ADDRESS" or "listen".
const stormVariable = "VIADUCT_TEST_STORM"

// TestStormChild is the other process of TestStorm.
func TestStormChild(t *testing.T) {
	role, at, _ := strings.Cut(os.Getenv(stormVariable), " ")
	switch role {
	case "":
		t.Skip("for TestStorm alone")
	case "dial":
		var calls callers
		calls.run(t.Context(), at)
		fmt.Fprintln(os.Stderr, calls.wrong.Load())
	case "listen":
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		o, err := OwnListener(l, Tuning{SameHost: samehost.Auto})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println(o.Addr())
		echo(o, new(atomic.Int64))
	}
}

// echo sends back the bytes of each connection to l, until l is closed. It counts the connections in
// served.
func echo(l net.Listener, served *atomic.Int64) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		served.Add(1)
		wg.Go(func() {
			defer c.Close()
			b := make([]byte, 4096)
			for {
				n, err := ReadSoon(c, b)
				if err != nil {
					return
				}
				if _, err := c.Write(b[:n]); err != nil {
					return
				}
			}
		})
	}
}

// callers makes short connections, several at a time, and ends them in various ways.
type callers struct {
	done, shared atomic.Int64
	wrong        atomic.Int64 // connections that received bytes they had not sent

	killed atomic.Bool // the other process was killed or is about to be
	failed atomic.Pointer[error]
}

func (c *callers) run(ctx context.Context, at string) {
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := c.call(ctx, at); err != nil {
					if !c.killed.Load() {
						c.failed.Store(&err)
					}
					return
				}
				if mrand.IntN(8) == 0 {
					time.Sleep(time.Duration(mrand.IntN(300)) * time.Microsecond)
				}
			}
		})
	}
	wg.Wait()
}

func (c *callers) call(ctx context.Context, at string) error {
	nc, err := Dial(ctx, new(net.Dialer), "tcp", at)
	if err != nil {
		return err
	}
	defer nc.Close()
	if mrand.IntN(10) > 0 {
		if err := ShareMemory(ctx, nc, samehost.Auto, ""); err != nil {
			return err
		}
		if PathOf(nc).SharedMemory {
			c.shared.Add(1)
		}
	}
	want := make([]byte, 1+mrand.IntN(1000))
	if mrand.IntN(16) == 0 {
		want = make([]byte, 40000) // more bytes than one read returns
	}
	got := make([]byte, len(want))
	rand.Read(want)
	nc.SetDeadline(time.Now().Add(testkit.Patience))
	var wg sync.WaitGroup
	wg.Go(func() { nc.Write(want) })
	n, err := io.ReadFull(nc, got)
	wg.Wait()
	if !bytes.Equal(got[:n], want[:n]) {
		c.wrong.Add(1)
	}
	if err != nil {
		return err
	}
	if mrand.IntN(4) == 0 {
		nc.(*conn).s.Close(true)
	}
	c.done.Add(1)
	return nil
}

// TestStorm starts two processes that make many short connections, some at the same time, and stops
// and kills one process at random moments. No connection may receive bytes of another connection,
// the remaining process must keep working, and nothing of the killed process may remain.
func TestStorm(t *testing.T) {
	testkit.Long(t, "10 s")
	child := func(role string) (*exec.Cmd, io.Reader) {
		t.Helper()
		cmd := exec.Command(os.Args[0], "-test.run=^TestStormChild$")
		cmd.Env = append(os.Environ(), stormVariable+"="+role)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return cmd, out
	}
	var all callers
	const busy = 30 // connections of a child before its end
	// harm runs the child for a moment, stops it twice for a few milliseconds, and kills it once it
	// has had enough connections. done counts the connections.
	harm := func(cmd *exec.Cmd, killed *atomic.Bool, done *atomic.Int64) {
		t.Helper()
		enough := done.Load() + busy
		for range 2 {
			time.Sleep(time.Duration(50+mrand.IntN(100)) * time.Millisecond)
			cmd.Process.Signal(syscall.SIGSTOP)
			time.Sleep(time.Duration(mrand.IntN(5)) * time.Millisecond)
			cmd.Process.Signal(syscall.SIGCONT)
		}
		testkit.Eventually(t, "a storm of connections", func() bool {
			return done.Load() >= enough || all.failed.Load() != nil
		})
		time.Sleep(time.Duration(mrand.IntN(20000)) * time.Microsecond)
		killed.Store(true)
		cmd.Process.Kill()
		cmd.Wait()
	}
	const rounds = 4
	before := openSockets(t)
	for range rounds {
		l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto})
		var wg sync.WaitGroup
		var served atomic.Int64
		wg.Go(func() { echo(l, &served) })
		cmd, _ := child("dial " + l.Addr().String())
		harm(cmd, new(atomic.Bool), &served)
		l.Close()
		killed := time.Now()
		wg.Wait() // each connection has noticed
		if d := time.Since(killed); d > commitTimeout*9/10 {
			t.Errorf("connections of a killed dialer end after %v", d)
		}

		cmd, out := child("listen")
		var at string
		if _, err := fmt.Fscan(out, &at); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		all.killed.Store(false)
		wg.Go(func() { all.run(ctx, at) })
		harm(cmd, &all.killed, &all.done)
		cancel()
		wg.Wait()
	}
	t.Logf("%d connections, %d through shared memory", all.done.Load(), all.shared.Load())
	if all.shared.Load() == 0 {
		t.Error("no connection went through shared memory")
	}
	if err := all.failed.Load(); err != nil {
		t.Errorf("a connection failed while the listener was there: %v", *err)
	}
	if n := all.wrong.Load(); n > 0 {
		t.Errorf("%d connections got other bytes", n)
	}
	testkit.Eventually(t, "all memory is given back", func() bool {
		b, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return shm.Used() == 0 && !strings.Contains(string(b), "viaduct-rings")
	})
	testkit.Eventually(t, "all sockets are closed", func() bool {
		process.diag.Lock()
		process.diag.closeLocked()
		process.diag.Unlock()
		for name := range openSockets(t) {
			if !before[name] {
				return false
			}
		}
		return true
	})
}

// openSockets returns the names of the sockets this process has open.
func openSockets(t *testing.T) map[string]bool {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	open := make(map[string]bool)
	for _, f := range files {
		if to, _ := os.Readlink("/proc/self/fd/" + f.Name()); strings.HasPrefix(to, "socket:") {
			open[to] = true
		}
	}
	return open
}
