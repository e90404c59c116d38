package sdp

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"viaduct/internal/attend"
	"viaduct/internal/testkit"
	"viaduct/samehost"
)

// pairVariable is an environment variable. If set, TestPairChild is one of the two processes of
// TestPairStorm: "listen", or the address to dial.
const pairVariable = "VIADUCT_TEST_PAIR"

// pairConns is the number of connections between the two processes.
const pairConns = 12

func TestPairChild(t *testing.T) {
	role := os.Getenv(pairVariable)
	if role == "" {
		t.Skip("not a test by itself")
	}
	var s pairSide
	if role == "listen" {
		l, err := Listen("127.0.0.1:0", &Options{SameHost: samehost.Require})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println(l.Addr())
		s.serve(l)
		return
	}
	s.dial(role)
	s.wg.Wait()
}

// A pairSide is one process's part of TestPairStorm.
type pairSide struct {
	wg    sync.WaitGroup
	turns [pairConns]atomic.Int64 // messages received, by connection
	wrong atomic.Pointer[error]
}

// serve sends back what comes, until l is closed.
func (s *pairSide) serve(l net.Listener) {
	for i := 0; ; i++ {
		c, err := l.Accept()
		if err != nil {
			return
		}
		s.wg.Go(func() {
			defer c.Close()
			b := make([]byte, 1024)
			for {
				if _, err := io.ReadFull(c, b[:8]); err != nil {
					return
				}
				n := 8 + int(binary.BigEndian.Uint64(b)%1000)
				if _, err := io.ReadFull(c, b[8:n]); err != nil {
					return
				}
				s.turns[i%pairConns].Add(1)
				if _, err := c.Write(b[:n]); err != nil {
					return
				}
			}
		})
	}
}

// dial makes the connections. On each of them it sends requests and checks the answers, until the
// connection ends.
func (s *pairSide) dial(at string) {
	d := Dialer{Options: Options{SameHost: samehost.Require}}
	for i := range pairConns {
		c, err := d.DialContext(context.Background(), "tcp", at)
		if err != nil {
			s.wrong.Store(&err)
			return
		}
		s.wg.Go(func() {
			defer c.Close()
			b, answer := make([]byte, 1024), make([]byte, 1024)
			for k := uint64(i); ; k++ {
				binary.BigEndian.PutUint64(b, k)
				n := 8 + int(k%1000)
				if _, err := c.Write(b[:n]); err != nil {
					return
				}
				if _, err := io.ReadFull(c, answer[:n]); err != nil {
					return
				}
				if got := binary.BigEndian.Uint64(answer); got != k {
					err := fmt.Errorf("connection %d: answer %d to %d", i, got, k)
					s.wrong.Store(&err)
				}
				s.turns[i].Add(1)
			}
		})
	}
}

// advance waits until each connection has had n more messages.
func (s *pairSide) advance(t *testing.T, n int64) {
	t.Helper()
	var before [pairConns]int64
	for i := range before {
		before[i] = s.turns[i].Load()
	}
	for i := range before {
		testkit.Eventually(t, fmt.Sprintf("messages of connection %d", i), func() bool {
			return s.turns[i].Load() >= before[i]+n || s.wrong.Load() != nil
		})
	}
}

// TestPairStorm has two processes with many connections between them, which wake each other by a
// pair. One process is stopped and continued, and finally killed, at random moments. No message may
// be lost meanwhile, each connection must notice the death, and nothing of the pair may remain.
func TestPairStorm(t *testing.T) {
	child := func(role string) (*exec.Cmd, *bufio.Reader) {
		t.Helper()
		cmd := exec.Command(os.Args[0], "-test.run=^TestPairChild$")
		cmd.Env = append(os.Environ(), pairVariable+"="+role)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return cmd, bufio.NewReader(out)
	}
	harm := func(cmd *exec.Cmd, s *pairSide) {
		t.Helper()
		s.advance(t, 30)
		for range 10 {
			time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
			cmd.Process.Signal(syscall.SIGSTOP)
			time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
			cmd.Process.Signal(syscall.SIGCONT)
			s.advance(t, 3)
		}
		time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
		cmd.Process.Kill()
		cmd.Wait()
		over := make(chan error, 1)
		go func() { s.wg.Wait(); over <- nil }()
		testkit.Await(t, "the end of all connections", over)
		if err := s.wrong.Load(); err != nil {
			t.Error(*err)
		}
	}
	rounds := 2
	if testing.Short() {
		rounds = 1
	}
	for range rounds {
		before := attend.Drained()
		l, err := Listen("127.0.0.1:0", &Options{SameHost: samehost.Require})
		if err != nil {
			t.Fatal(err)
		}
		var s pairSide
		served := make(chan error, 1)
		go func() { s.serve(l); served <- errors.New("closed") }()
		cmd, _ := child(l.Addr().String())
		harm(cmd, &s)
		l.Close()
		<-served

		var d pairSide
		cmd, out := child("listen")
		at, err := out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		d.dial(strings.TrimSpace(at))
		harm(cmd, &d)
		n := attend.Drained() - before
		t.Logf("%d bits", n)
		if n == 0 {
			t.Error("no message was announced by a pair")
		}
	}
	testkit.Eventually(t, "the memory of the pairs is given back", func() bool {
		b, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return !strings.Contains(string(b), "viaduct-pair")
	})
}
