package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/internal/testkit"
	"viaduct/sdp"
)

func TestEchoPing(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, scheme, listen string) {
		_, urls := start(t, 1, "echo", "--listen", listen)
		for _, size := range []string{"1", "64", "70000", "1M"} {
			d := document(t, good(t, "ping", urls[0], "-c", "5", "-s", size, "-i", "0", "--json"))
			if d["sent"] != 5.0 || d["received"] != 5.0 {
				t.Errorf("%v", d)
			}
			last := 0.0
			for _, k := range []string{"min_us", "median_us", "p90_us", "p99_us", "max_us"} {
				v := d[k].(float64)
				if v <= 0 || v < last {
					t.Errorf("%s of %v", k, d)
				}
				last = v
			}
		}
		r := good(t, "ping", urls[0], "-c", "2", "-i", "1ms")
		if strings.Count(r.stdout, "seq=") != 2 || !strings.Contains(r.stdout, "min/median/p90/p99/max") {
			t.Error(r.stdout)
		}
		if !isStream(scheme) {
			good(t, "ping", urls[0], "-c", "1", "-s", "0")
			fails(t, 2, "more than the", "ping", urls[0], "-c", "1", "-s", "2M")
			good(t, "ping", urls[0], "-c", "1") // no other connection was harmed
		}
	})
}

// TestTooLong: a message longer than an iWARP echo server accepts is a length error, and the server
// continues.
func TestTooLong(t *testing.T) {
	t.Parallel()
	_, urls := start(t, 1, "echo", "--listen", "iwarp://127.0.0.1:0")
	fails(t, 1, "too long", "ping", withQuery(urls[0], "mtu=4M"), "-c", "1", "-s", "2M")
	good(t, "ping", urls[0], "-c", "1", "-s", "1M")
	_, urls = start(t, 1, "echo", "--listen", "iwarp://127.0.0.1:0?mtu=4M")
	good(t, "ping", urls[0], "-c", "2", "-s", "4M")
}

// TestAttributes: the parameters of an address reach the connection.
func TestAttributes(t *testing.T) {
	t.Parallel()
	lengthy(t, "5 s")
	for _, q := range []string{"reliability=unreliable", "reliability=delivery", "flow=off&reliability=delivery", "mtu=64K", "window=1"} {
		_, urls := start(t, 1, "echo", "--listen", "vitcp://127.0.0.1:0/a?"+q)
		good(t, "ping", urls[0], "-c", "3", "-i", "0", "-s", "2000")
	}
	_, urls := start(t, 1, "echo", "--listen", "vitcp://127.0.0.1:0/a?reliability=delivery")
	fails(t, 1, "reliability", "ping", strings.Replace(urls[0], "delivery", "unreliable", 1), "-c", "1")
	for _, q := range []string{"crc=off", "markers=on", "fpdu=1460", "mpa=1", "p2p=off", "window=1"} {
		_, urls := start(t, 1, "echo", "--listen", "iwarp://127.0.0.1:0?"+q)
		good(t, "ping", urls[0], "-c", "3", "-i", "0", "-s", "70000")
	}
}

func TestNC(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, scheme, listen string) {
		work := t.TempDir()
		there := random(t, filepath.Join(work, "there"), 3<<20+1)
		back := random(t, filepath.Join(work, "back"), 1<<20+1)
		p, urls := startRaw(t, filepath.Join(work, "back"), "nc", "-l", listen)
		in, err := os.Open(filepath.Join(work, "there"))
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		r := runFrom(t, in, "nc", urls)
		if r.code != 0 || r.stdout != string(back) {
			t.Errorf("exit %d, %d bytes came back, %s", r.code, len(r.stdout), r.stderr)
		}
		if got := p(); !bytes.Equal(got, there) {
			t.Errorf("%d bytes arrived of %d", len(got), len(there))
		}
	})
}

// TestNCAborted: a peer ends the sending direction of a connection and then resets the connection,
// so that nc's data is lost. nc reports the loss and exits with 1, whether nc's input ends before
// or after the reset. [SDP-8.2.2-4] [SDP-8.2.1-22]
func TestNCAborted(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{true, false} {
		l, err := new(sdp.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		p, _ := start(t, 0, "nc", "sdp://"+l.Addr().String())
		nc, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c := nc.(*sdp.Conn)
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if before { // send more than the connection buffers while the peer does not read
			go func() {
				io.CopyN(p.in, zeros{}, 100<<20)
				p.in.Close()
			}()
			if _, err := io.ReadFull(c, make([]byte, 1000)); err != nil {
				t.Fatal(err)
			}
		}
		c.Abort()
		if !before {
			<-c.Done()
			p.in.Close()
		}
		if code := p.wait(); code != 1 {
			t.Errorf("input ends before the reset %t: exit %d\n%s", before, code, p.stderr())
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// startRaw starts a listening command with a file as input, and returns the command's address. The
// returned function waits for the end and returns stdout. stdout holds only received bytes: the
// listening line is on stderr.
func startRaw(t *testing.T, input string, args ...string) (func() []byte, string) {
	t.Helper()
	c := command(t.Context(), args...)
	f, err := os.Open(input)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	c.Stdin = f
	var out bytes.Buffer
	c.Stdout = &out
	stderr, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill() })
	lines := bufio.NewReader(stderr)
	late := time.AfterFunc(patience, func() { c.Process.Kill() })
	line, err := lines.ReadString('\n')
	late.Stop()
	u, ok := strings.CutPrefix(strings.TrimSpace(line), "listening ")
	if !ok {
		t.Fatalf("no listening line on stderr: %q, %v", line, err)
	}
	ended := make(chan error, 1)
	var errs []byte
	go func() {
		errs, _ = io.ReadAll(lines)
		ended <- c.Wait()
	}()
	return func() []byte {
		t.Helper()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("%v\n%s", err, errs)
			}
			return out.Bytes()
		case <-time.After(patience):
			t.Fatalf("viaduct %s does not end", strings.Join(args, " "))
			return nil
		}
	}, u
}

// TestPeer: two nc processes dialling each other exchange their inputs.
func TestPeer(t *testing.T) {
	t.Parallel()
	for _, tr := range transport.All() {
		if tr.PeerMsg == nil {
			continue
		}
		t.Run(tr.Scheme, func(t *testing.T) {
			a, b := freePort(t), freePort(t)
			ua, ub := fmt.Sprintf("%s://127.0.0.1:%d/a", tr.Scheme, a), fmt.Sprintf("%s://127.0.0.1:%d/b", tr.Scheme, b)
			work := t.TempDir()
			x := random(t, filepath.Join(work, "x"), 100_000)
			y := random(t, filepath.Join(work, "y"), 200_001)
			first, _ := startRaw(t, filepath.Join(work, "x"), "nc", "--timeout", "2m", "--peer", ua, ub)
			second, _ := startRaw(t, filepath.Join(work, "y"), "nc", "--timeout", "2m", "--peer", ub, ua)
			if got := second(); !bytes.Equal(got, x) {
				t.Errorf("second got %d bytes of %d", len(got), len(x))
			}
			if got := first(); !bytes.Equal(got, y) {
				t.Errorf("first got %d bytes of %d", len(got), len(y))
			}
		})
	}
}

func freePort(t *testing.T) int { return testkit.FreePort(t) }

// hostPort returns the address to dial for a tcp URL.
func hostPort(u string) string { return strings.TrimPrefix(u, "tcp://") }

// TestProxy: half-closes and resets are forwarded, over every pair of stream transports.
func TestProxy(t *testing.T) {
	t.Parallel()
	for _, scheme := range transport.Names() {
		if !isStream(scheme) {
			continue
		}
		t.Run(scheme, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			// tcp -> scheme -> tcp
			_, far := start(t, 1, "proxy", "--listen", listenURL(scheme, "127.0.0.1"),
				"--to", "tcp://"+l.Addr().String())
			_, near := start(t, 1, "proxy", "--listen", "tcp://127.0.0.1:0", "--to", far[0])
			pair := func() (*net.TCPConn, *net.TCPConn) {
				c, err := net.Dial("tcp", hostPort(near[0]))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := c.Write([]byte("x")); err != nil { // SDP connects lazily, with the first byte
					t.Fatal(err)
				}
				s, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				for _, x := range []net.Conn{c, s} {
					x.SetDeadline(time.Now().Add(patience))
				}
				if _, err := io.ReadFull(s, make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
				return c.(*net.TCPConn), s.(*net.TCPConn)
			}

			c, s := pair()
			body := bytes.Repeat([]byte("0123456789"), 300_000)
			go func() { c.Write(body); c.CloseWrite() }()
			if got, err := io.ReadAll(s); err != nil || !bytes.Equal(got, body) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
			go func() { s.Write(body); s.CloseWrite() }() // the other half is still open
			if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, body) {
				t.Fatalf("%d bytes back, %v", len(got), err)
			}
			c.Close()
			s.Close()

			for _, side := range []string{"client", "server"} {
				c, s := pair()
				breaks, sees := c, s
				if side == "server" {
					breaks, sees = s, c
				}
				breaks.SetLinger(0)
				breaks.Close()
				if n, err := io.Copy(io.Discard, sees); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("%s reset: the other side saw %d bytes and %v", side, n, err)
				}
				sees.Close()
			}
		})
	}
	_, urls := start(t, 1, "proxy", "--listen", "tcp://127.0.0.1:0", "--to", "tcp://127.0.0.1:1")
	c, err := net.Dial("tcp", hostPort(urls[0]))
	if err == nil { // the reset may arrive before Dial returns
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a dead service looked like %v", err)
	}
}
