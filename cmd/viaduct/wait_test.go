//go:build unix

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"viaduct/cmd/viaduct/internal/transport"
)

// TestWait: with --wait a client may be started before the server.
func TestWait(t *testing.T) {
	t.Parallel()
	for _, scheme := range schemes() {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			u := strings.Replace(listenURL(scheme, "127.0.0.1"), ":0", fmt.Sprintf(":%d", freePort(t)), 1)
			cl, _ := start(t, 0, "ping", u, "-c", "1", "--wait", "1m", "--json")
			select {
			case <-cl.done:
				t.Fatalf("the client did not wait: %s", cl.stderr())
			case <-time.After(200 * time.Millisecond): // the client was refused at least once
			}
			start(t, 1, "echo", "--listen", u)
			if code := cl.wait(); code != 0 {
				t.Errorf("exit %d: %s", code, cl.stderr())
			}
			// A server that never starts is reported as a refused connection.
			nowhere := strings.Replace(listenURL(scheme, "127.0.0.1"), ":0", ":1", 1)
			began := time.Now()
			fails(t, 1, "refused", "ping", nowhere, "-c", "1", "--wait", "100ms")
			if d := time.Since(began); d > patience/2 {
				t.Errorf("waited %v", d)
			}
		})
	}
	t.Run("rping", func(t *testing.T) { t.Parallel(); rpingWaits(t) })
	t.Run("bench", func(t *testing.T) { t.Parallel(); benchWaits(t) })
}

func rpingWaits(t *testing.T) {
	port := fmt.Sprint(freePort(t))
	cl, _ := start(t, 0, "rping", "-c", "-a", "127.0.0.1", "-p", port, "-C", "1", "--wait", "1m")
	srv, _ := start(t, 1, "rping", "-s", "-a", "127.0.0.1", "-p", port)
	if code := cl.wait(); code != 0 {
		t.Errorf("rping: exit %d: %s", code, cl.stderr())
	}
	srv.wait()
}

func benchWaits(t *testing.T) {
	at := "tcp://127.0.0.1:" + fmt.Sprint(freePort(t))
	cl, _ := start(t, 0, "bench", "--client", at, "--transports", "tcp", "--ops", "wait",
		"--sizes", "64", "--rounds", "1", "--time", "5ms", "--wait", "1m")
	select {
	case <-cl.done:
		t.Fatalf("bench did not wait: %s", cl.stderr())
	case <-time.After(200 * time.Millisecond):
	}
	start(t, 1, "bench", "--server", at)
	if code := cl.wait(); code != 0 {
		t.Errorf("bench: exit %d: %s", code, cl.stderr())
	}
}

// TestRefusal: the error about a refused connection gives no advice about discriminators.
func TestRefusal(t *testing.T) {
	t.Parallel()
	for _, scheme := range transport.Names() {
		u := strings.Replace(listenURL(scheme, "127.0.0.1"), ":0", ":1", 1)
		r := run(t, "ping", u, "-c", "1")
		if r.code != 1 || !strings.Contains(r.last(), "connection refused") ||
			strings.Contains(r.last(), "discriminator") ||
			!strings.Contains(r.last(), "check that the server is running") {
			t.Errorf("%s: exit %d, %s", scheme, r.code, r.last())
		}
	}
}
