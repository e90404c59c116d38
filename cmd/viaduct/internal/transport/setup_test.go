package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/internal/testkit"
)

func testOptions(t *testing.T) *Options {
	e := shell.NewEnv()
	e.LogLevel, e.LogFormat = "error", "text"
	if err := e.Open(); err != nil {
		t.Fatal(err)
	}
	return &Options{Env: e, MTU: 1 << 20, RecvCount: 16}
}

func parse(t *testing.T, s string) (*addr.URL, *Transport) {
	t.Helper()
	u, err := addr.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := For(u)
	if err != nil {
		t.Fatal(err)
	}
	return u, tr
}

// TestHungServer: every transport gives up after the same time if the kernel of the server accepts
// the connection and the server then sends nothing, as a stopped server does. [V-35]
func TestHungServer(t *testing.T) {
	testkit.Long(t, "10 s")
	var all sync.WaitGroup // all run concurrently on any number of processors, because they wait for a timer
	defer all.Wait()
	for _, scheme := range Names() {
		if scheme == "tcp" {
			continue // tcp needs no answer to be connected
		}
		all.Go(func() {
			t.Run(scheme, func(t *testing.T) {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				s := fmt.Sprintf("%s://%s", scheme, l.Addr())
				if scheme == "vitcp" || scheme == "fcvi" {
					s += "/x"
				}
				u, tr := parse(t, s)
				began := time.Now()
				if tr.IsStream() {
					_, err = tr.DialStream(t.Context(), u, testOptions(t))
				} else {
					_, err = tr.DialMsg(t.Context(), u, testOptions(t))
				}
				if took := time.Since(began); err == nil || took < SetupTimeout/2 || took > testkit.Patience {
					t.Fatalf("%v after %v", err, took)
				}
				if scheme == "sdp" {
					return // SDP's time-out for the Hello is as long, and may end first
				}
				if line := shell.LastLine("ping", err); !errors.Is(err, os.ErrDeadlineExceeded) ||
					!strings.Contains(line, "no answer within 10s") || !strings.Contains(line, "stopped") {
					t.Error(line)
				}
			})
		})
	}
}

// TestSetupBound: the bound ends the context of the set-up only. The results of a set-up within the
// bound are unchanged, and the end of the caller's context is not reported as a time-out. The bound
// is longer if the set-up asks another host.
func TestSetupBound(t *testing.T) {
	u, _ := parse(t, "tcp://127.0.0.1:1")
	fails := errors.New("refused")
	var used context.Context
	dial := bounded(func(ctx context.Context, _ *addr.URL, _ *Options) (int, error) {
		used = ctx
		return 7, fails
	})
	if n, err := dial(t.Context(), u, nil); n != 7 || err != fails || used.Err() == nil {
		t.Error(n, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(shell.ErrInterrupted)
	if _, err := dial(ctx, u, nil); err != fails {
		t.Error(err)
	}
	for s, want := range map[string]time.Duration{
		"sdp://h:1?portmap=p": RemoteSetupTimeout, "fcvi://h/x?fabric=f": RemoteSetupTimeout, "fcvi://h/x": SetupTimeout,
	} {
		u, _ := parse(t, s)
		if d := setupTimeout(u); d != want {
			t.Errorf("%s: %v", s, d)
		}
	}
}

// TestOnePort: VI/TCP listeners with different discriminators share a port. A second listener with
// the same discriminator is refused. [VIT-2.2.2.2.1-2]
func TestOnePort(t *testing.T) {
	o := testOptions(t)
	port := testkit.FreePort(t)
	listen := func(host, disc string) (msg.Listener, error) {
		u, tr := parse(t, fmt.Sprintf("vitcp://%s:%d/%s", host, port, disc))
		return tr.ListenMsg(u, o)
	}
	var ls []msg.Listener
	for i, disc := range []string{"a", "b"} {
		l, err := listen([]string{"127.0.0.1", "localhost"}[i], disc)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ls = append(ls, l)
	}
	if _, err := listen("127.0.0.1", "b"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second listener for b: %v", err)
	}
	ask := func(disc string, l msg.Listener) error {
		u, tr := parse(t, fmt.Sprintf("vitcp://127.0.0.1:%d/%s", port, disc))
		c, err := tr.DialMsg(t.Context(), u, o)
		if err != nil {
			return err
		}
		defer c.Close()
		s, err := l.Accept(t.Context())
		if err != nil {
			return err
		}
		defer s.Close()
		if err := c.Send(t.Context(), msg.Message{Data: []byte(disc)}); err != nil {
			return err
		}
		m, err := s.Recv(t.Context())
		if err != nil || string(m.Data) != disc {
			return fmt.Errorf("%q: %w", m.Data, err)
		}
		return nil
	}
	for i, disc := range []string{"a", "b"} {
		if err := ask(disc, ls[i]); err != nil {
			t.Error(err)
		}
	}
	ls[1].Close() // the other listener is not affected, and b can be used again
	if err := ask("a", ls[0]); err != nil {
		t.Error(err)
	}
	l, err := listen("127.0.0.1", "b")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := ask("b", l); err != nil {
		t.Error(err)
	}
}
