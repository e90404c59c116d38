package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/sdp"
)

// TestHandover replaces each of two proxies by a new process, twice, while connections are busy in
// both directions. No connection may be dropped and no byte lost, and new connections must reach
// the successor at the same address.
func TestHandover(t *testing.T) {
	t.Parallel()
	proxy := func(n int, args ...string) (*proc, []string) {
		t.Helper()
		return startWith(t, func(c *exec.Cmd) {
			if raceDetector {
				// A connection moves only after the data in flight has arrived. Small buffers limit
				// the data in flight, because computing checksums of much data under the race
				// detector takes seconds.
				c.Env = append(c.Env, transport.SDPEnvironment+"=recv-buffers=8,recv-buffer-size=16448")
			}
		}, n, args...)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // the echo service behind both proxies
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(c, c)
				c.(*net.TCPConn).CloseWrite()
				c.Close()
			}()
		}
	}()
	dir := t.TempDir()
	far := []string{"proxy", "--listen", "sdp://127.0.0.1:0", "--to", "tcp://" + l.Addr().String(),
		"--handover", filepath.Join(dir, "far"), "--log-level", "info"}
	farProc, farURL := proxy(1, far...)
	near := []string{"proxy", "--listen", "tcp://127.0.0.1:0", "--to", farURL[0],
		"--handover", filepath.Join(dir, "near"), "--log-level", "info"}
	nearProc, nearURL := proxy(1, near...)

	const busy = 4
	const inFlight = 1 << 20 // per connection: draining full buffers would take seconds
	stop := make(chan struct{})
	results := make(chan string, busy)
	moved := make(chan struct{}, 1000)
	for i := range busy {
		c, err := net.Dial("tcp", hostPort(nearURL[0]))
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(5 * patience)) // the connection lasts for the whole test
		go func() {
			defer c.Close()
			sent, got := new(bytes.Buffer), new(counted)
			r := rand.NewChaCha8([32]byte{byte(i)})
			done := make(chan error, 1)
			go func() {
				_, err := io.Copy(got, c)
				done <- err
			}()
			b := make([]byte, 40_000)
			for n := 0; ; n++ {
				select {
				case <-stop:
					c.(*net.TCPConn).CloseWrite()
					switch err := <-done; {
					case err != nil:
						results <- err.Error()
					case !bytes.Equal(sent.Bytes(), got.b.Bytes()):
						results <- "other bytes came back: " + difference(sent.Bytes(), got.b.Bytes())
					default:
						results <- ""
					}
					return
				default:
				}
				if int64(sent.Len())-got.n.Load() > inFlight {
					time.Sleep(100 * time.Microsecond)
					continue
				}
				k := 1 + n*7919%len(b)
				r.Read(b[:k])
				sent.Write(b[:k])
				if _, err := c.Write(b[:k]); err != nil {
					results <- err.Error()
					return
				}
				select {
				case moved <- struct{}{}:
				default:
				}
			}
		}()
	}
	progress := func() {
		for range 100 {
			select {
			case <-moved:
			case <-time.After(patience):
				t.Fatal("nothing moves any more")
			}
		}
	}
	replace := func(old *proc, was string, args []string) *proc {
		t.Helper()
		progress()
		fresh, urls := proxy(1, args...)
		if urls[0] != was {
			t.Errorf("the successor listens at %s, not at %s", urls[0], was)
		}
		// There may be more than the busy connections: one in the queue of the moved listening
		// socket, and those of earlier new clients whose end is still under way.
		if code := old.wait(); code != 0 ||
			!regexp.MustCompile(`connections=[1-9]`).MatchString(old.stderr()) ||
			strings.Contains(old.stderr(), "lost") {
			t.Errorf("the predecessor ended with %d: %s", code, old.stderr())
		}
		c, err := net.Dial("tcp", hostPort(nearURL[0])) // a new client
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		if _, err := io.WriteString(c, "hello"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
			t.Fatalf("a new connection: %v", err)
		}
		return fresh
	}
	for _, path := range []string{"far", "near"} { // a caller that is no successor gets nothing and changes nothing
		c, err := net.Dial("unix", filepath.Join(dir, path))
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(patience))
		io.WriteString(c, "nonsense")
		if n, err := c.Read(make([]byte, 1)); err == nil || n > 0 {
			t.Errorf("%d bytes for nonsense", n)
		}
		c.Close()
	}
	for range 2 {
		farProc = replace(farProc, farURL[0], far)
		nearProc = replace(nearProc, nearURL[0], near)
	}
	progress()
	close(stop)
	for range busy {
		if r := <-results; r != "" {
			t.Error(r)
		}
	}
	fails(t, 2, "--handover", "proxy", "--listen", "tcp://127.0.0.1:0", "--to", "tcp://127.0.0.1:1",
		"--handover", filepath.Join(dir, "x"), "--tls")
}

// TestHandoverDuringSetup replaces a proxy while a client sets up a connection, and takes a second
// for it. The connection must not be lost.
func TestHandoverDuringSetup(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	args := []string{"proxy", "--listen", "sdp://127.0.0.1:0", "--to", "tcp://" + l.Addr().String(),
		"--handover", filepath.Join(t.TempDir(), "h"), "--log-level", "info"}
	old, urls := start(t, 1, args...)
	at := strings.TrimPrefix(urls[0], "sdp://")
	refused, err := net.Dial("tcp", at) // a set-up that failed does not count
	if err != nil {
		t.Fatal(err)
	}
	refused.Close()
	var fresh *proc
	replace := sync.OnceFunc(func() {
		fresh, _ = start(t, 0, args...)
		time.Sleep(time.Second)
	})
	c, err := sdp.Dial(at, &sdp.Options{WrapConn: func(nc net.Conn) net.Conn { // called again when the connection moves
		replace()
		return nc
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Error(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	far.SetDeadline(time.Now().Add(patience))
	b := make([]byte, 5)
	if _, err := io.ReadFull(far, b); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := far.Write(b); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
	// A predecessor that stood still may have left the connection in the queue of the listening socket.
	// The successor then accepts it.
	moved := regexp.MustCompile(`connections=[01]\b`)
	n := ""
	if code := old.wait(); code == 0 {
		n = moved.FindString(old.stderr())
	}
	if n == "" {
		t.Fatalf("the predecessor did not hand over: %s", old.stderr())
	}
	eventually(t, "as many connections at the successor, "+n, func() bool { return moved.FindString(fresh.stderr()) == n })
}

// A counted buffer lets another goroutine read the length during a write.
type counted struct {
	b bytes.Buffer
	n atomic.Int64
}

func (c *counted) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return c.b.Write(p)
}

// difference describes the first position where got differs from sent. difference also searches
// each slice for the other slice's 64 bytes at the first difference.
func difference(sent, got []byte) string {
	n := 0
	for n < min(len(sent), len(got)) && sent[n] == got[n] {
		n++
	}
	msg := fmt.Sprintf("%d sent, %d came, alike up to %d", len(sent), len(got), n)
	if len(got) >= n+64 {
		msg += fmt.Sprintf("; what came there was sent at %d", bytes.Index(sent, got[n:n+64]))
	}
	if len(sent) >= n+64 {
		msg += fmt.Sprintf("; what was sent there came at %d", bytes.Index(got, sent[n:n+64]))
	}
	return msg
}
