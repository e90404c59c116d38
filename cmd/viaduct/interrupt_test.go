//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	lastTrip       = 250 * time.Millisecond // how long an interrupted ping waits for the last echo
	interruptGrace = 700 * time.Millisecond // how long an interrupted command waits for the peer's end
)

// orderly checks that an interrupted command ends a connection in an orderly way. try interrupts a
// command, and returns the time until the exit and whether the end was orderly. A command may give
// up waiting for the peer after grace. If the end took that long, because the processes had to wait
// for a processor, the result does not count, and orderly tries again.
func orderly(t *testing.T, what string, grace time.Duration, try func() (took time.Duration, orderly bool)) {
	t.Helper()
	for range 20 {
		took, ok := try()
		if ok {
			return
		}
		if took < grace {
			t.Errorf("%s: the end after %v is taken for a failure", what, took)
			return
		}
	}
	t.Errorf("%s: every end took %v or longer, and is taken for a failure", what, grace)
}

// TestInterruptedClient: an interrupted ping ends the connection in an orderly way, and the server
// logs no failure. If ping is killed, the server must log a failure, except over transports whose
// only end of connection is TCP's.
func TestInterruptedClient(t *testing.T) {
	t.Parallel()
	for _, scheme := range schemes() {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			server, urls := start(t, 1, "echo", "--listen", listenURL(scheme, "127.0.0.1"), "--log-level", "info")
			ended := func() int { return strings.Count(server.stderr(), "msg=disconnected") }
			failed := func() int { return strings.Count(server.stderr(), `msg="connection failed"`) }
			for _, args := range []string{"-i 0 -s 100000", "-i 0", "-i 1ms", "-i 0 -s 100000"} {
				orderly(t, "ping "+args, lastTrip, func() (time.Duration, bool) {
					ends, failures := ended(), failed()
					client, _ := start(t, 0, append([]string{"ping", urls[0], "-c", "0"}, strings.Fields(args)...)...)
					for range 20 {
						client.line() // round trips have begun
					}
					go func() {
						for range client.out {
						}
					}()
					took := stopped(t, client, syscall.SIGINT, 0)
					eventually(t, "end of the connection", func() bool { return ended()+failed() > ends+failures })
					return took, failed() == failures
				})
			}
			if !hasDisc(scheme) {
				return // the only end is TCP's, which the kernel also sends for a killed process
			}
			failures := failed()
			client, _ := start(t, 0, "ping", urls[0], "-c", "0")
			client.line()
			client.stop(syscall.SIGKILL)
			eventually(t, "failure", func() bool { return failed() > failures })
		})
	}
}

// TestInterruptQuiet: a client interrupted in the middle of RDMA Reads ends the stream without an
// error at the server.
func TestInterruptQuiet(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if f, err := os.Create(filepath.Join(root, "big")); err != nil || f.Truncate(1<<40) != nil {
		t.Fatal(err)
	}
	orderly(t, "get", interruptGrace, func() (time.Duration, bool) {
		srv, urls := start(t, 1, "serve", "--root", root, "--listen", "iwarp://127.0.0.1:0", "--log-level", "info")
		cl, _ := start(t, 0, "get", at(urls[0], "big"), "-o", os.DevNull, "--metrics", "127.0.0.1:0")
		moving(t, cl)
		took := stopped(t, cl, syscall.SIGINT, 1)
		eventually(t, "the end of the connection", func() bool {
			return strings.Contains(srv.stderr(), "msg=disconnected") || strings.Contains(srv.stderr(), `msg="connection failed"`)
		})
		s := srv.stderr()
		return took, !strings.Contains(s, "catastrophic") && !strings.Contains(s, "level=WARN")
	})
}
