//go:build linux && (amd64 || arm64)

package main

import (
	"bufio"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A plain TCP server is reached by plain TCP even if a rule says SDP. The change takes one round
// trip if the server answers anything. If the server waits for a line, a time-out passes first,
// announced by --explain. The next connection is plain at once, without a byte of SDP.
func TestRunPlainServer(t *testing.T) {
	t.Parallel()
	python := need(t, "python3", "python3-minimal")
	for _, tc := range []struct{ name, greeting, why string }{
		{"speaks first", "220 ready\r\n", "answers in another protocol"},
		{"waits for a line", "", "does not answer"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l := listenOn(t, "127.0.0.1")
			first := make(chan string, 10) // the first bytes of each connection
			var accepted atomic.Int64
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					accepted.Add(1)
					go func() {
						defer c.Close()
						c.Write([]byte(tc.greeting))
						line, err := bufio.NewReader(c).ReadString('\n')
						first <- line
						if err == nil {
							c.Write([]byte("you said " + line))
						}
					}()
				}
			}()
			r, es := runRun(t, []string{"--to", l.Addr().String()}, python, "-c", `
import socket, sys
for _ in range(2):
	c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
	c.sendall(b"hello\n")
	print(repr(c.makefile().read()))
`, portOf(l.Addr()))
			if r.code != 0 || strings.Count(r.stdout, "you said hello") != 2 {
				t.Fatalf("exit %d, %q; %s", r.code, r.stdout, r.stderr)
			}
			plain := count(es, "connect", "tcp") + count(es, "connect", "tcp, relayed")
			said := ""
			for _, e := range es {
				said += e.Path + ": " + e.Why + "\n"
			}
			if plain != 2 || strings.Count(said, tc.why) != 2 || strings.Count(said, "not tried again for") != 1 {
				t.Errorf("%d plain connections, explained by\n%s", plain, said)
			}
			if tc.greeting == "" && (count(es, "trying", "sdp") != 1 || es[0].Call != "trying" || !strings.Contains(es[0].Why, "for 5s at most")) {
				t.Errorf("what is being tried is not said at first: %s", said)
			}
			got := map[string]int{}
			for range 3 {
				select {
				case line := <-first:
					got[line]++
				case <-time.After(patience):
					t.Fatalf("the server has seen %v", got)
				}
			}
			// The third is the attempt over SDP. The program's second connection is made without any.
			if got["hello\n"] != 2 || accepted.Load() != 3 {
				t.Errorf("the server has seen %v in %d connections, want 3", got, accepted.Load())
			}
		})
	}
}

// With --require, a connection to a plain TCP server fails. A retry fails at once, without another
// attempt over SDP.
func TestRunPlainServerRequired(t *testing.T) {
	t.Parallel()
	python := need(t, "python3", "python3-minimal")
	l := listenOn(t, "127.0.0.1")
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func(c net.Conn) { c.Write([]byte("220 ready\r\n")); c.Read(make([]byte, 100)); c.Close() }(c)
		}
	}()
	r, es := runRun(t, []string{"--require", "--to", l.Addr().String()}, python, "-c", `
import socket, sys
for _ in range(2):
	try: socket.create_connection(("127.0.0.1", int(sys.argv[1])))
	except OSError as e: print(type(e).__name__)
`, portOf(l.Addr()))
	if r.stdout != "ConnectionRefusedError\nConnectionRefusedError\n" || count(es, "connect", "refused") != 2 {
		t.Errorf("%q, %+v; %s", r.stdout, es, r.stderr)
	}
}
