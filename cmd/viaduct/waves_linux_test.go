package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/internal/testkit"
)

// residentOf returns the resident memory of a process in bytes.
func residentOf(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.Fields(string(b))[1])
	if err != nil {
		t.Fatal(err)
	}
	return n * os.Getpagesize()
}

// TestEchoWaves sends waves of 1000 connections to an echo server, each with 17 messages of 1 kB:
// one more than the 16 receives of 1 MiB the server must post per connection. The server must use
// memory only for received bytes, not for possible bytes, and no wave may add to the memory of the
// previous wave. [V-43] [I-70]
func TestEchoWaves(t *testing.T) {
	lengthy(t, "14 s")
	t.Parallel()
	waves, conns := 2, 1000
	if !testkit.LongRuns() || raceDetector {
		conns = 200 // the race detector needs ten times the memory and the time
	}
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	if most := int(min(files.Max, 1<<20)) - 200; most < conns {
		t.Logf("*** %d connections in place of %d: no more descriptors are allowed ***", most, conns)
		conns = most
	}
	// A connection needs a page for each receive, the connection's state, and garbage not yet
	// collected: together a fifth of a MiB, although 16 MiB may arrive.
	most := 64<<20 + conns*(200<<10)
	if raceDetector {
		most = 256<<20 + conns*(1<<20)
	}
	for _, scheme := range []string{"vitcp", "iwarp"} {
		t.Run(scheme, func(t *testing.T) {
			server, urls := start(t, 1, "echo", "--listen", listenURL(scheme, "127.0.0.1"))
			u, err := addr.Parse(urls[0])
			if err != nil {
				t.Fatal(err)
			}
			tr, err := transport.For(u)
			if err != nil {
				t.Fatal(err)
			}
			e := shell.NewEnv()
			e.LogLevel, e.LogFormat = "error", "text"
			if err := e.Open(); err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			o := &transport.Options{Env: e, MTU: 1 << 20, RecvCount: 16}
			var held []string
			for wave := range waves {
				begin := time.Now()
				all := wave1kB(t, conns, func(ctx context.Context) (msg.Conn, error) { return tr.DialMsg(ctx, u, o) })
				has := residentOf(t, server.cmd.Process.Pid)
				held = append(held, fmt.Sprintf("%d MiB after %.1f s", has>>20, time.Since(begin).Seconds()))
				for _, c := range all {
					c.Close()
				}
				if has > most {
					t.Errorf("wave %d: %d connections take %d MiB at the server, and %d MiB are the limit",
						wave, conns, has>>20, most>>20)
				}
			}
			t.Logf("%d connections: %s", conns, strings.Join(held, ", "))
			if code := server.stop(syscall.SIGTERM); code != 0 {
				t.Errorf("the server ended with %d", code)
			}
		})
	}
}

// wave1kB returns open connections to an echo server. Each connection has echoed 17 messages of 1
// kB.
func wave1kB(t *testing.T, conns int, dial func(context.Context) (msg.Conn, error)) []msg.Conn {
	t.Helper()
	all := make([]msg.Conn, conns)
	errs := make(chan error, conns)
	slots := make(chan struct{}, 16) // limits the connections that are being set up
	var wg sync.WaitGroup
	for i := range conns {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			c, err := dial(ctx)
			if err != nil {
				errs <- err
				return
			}
			all[i] = c
			for n := range 17 {
				want := bytes.Repeat([]byte{byte(i), byte(n)}, 500)
				if err := c.Send(ctx, msg.Message{Data: want}); err != nil {
					errs <- err
					return
				}
				if m, err := c.Recv(ctx); err != nil || !bytes.Equal(m.Data, want) {
					errs <- fmt.Errorf("%d bytes came back: %w", len(m.Data), err)
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
	return all
}
