package sdp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// A gate is a relay for TCP connections. A shut gate reads no bytes.
type gate struct {
	mu   sync.Mutex
	cond *sync.Cond
	shut bool
}

// newGate returns a gate for connections to addr, and the address of the gate.
func newGate(t *testing.T, addr string) (g *gate, at string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g = new(gate)
	g.cond = sync.NewCond(&g.mu)
	var wg sync.WaitGroup
	copies := func(to, from net.Conn) {
		defer to.(*net.TCPConn).CloseWrite()
		b := make([]byte, 64<<10)
		for {
			n, err := from.Read(b)
			g.mu.Lock()
			for g.shut {
				g.cond.Wait()
			}
			g.mu.Unlock()
			if _, werr := to.Write(b[:n]); err != nil || werr != nil {
				return
			}
		}
	}
	wg.Go(func() {
		for {
			a, err := ln.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", addr)
			if err != nil {
				a.Close()
				continue
			}
			wg.Go(func() {
				var both sync.WaitGroup
				both.Go(func() { copies(b, a) })
				both.Go(func() { copies(a, b) })
				both.Wait()
				a.Close()
				b.Close()
			})
		}
	})
	t.Cleanup(func() {
		g.open(true)
		ln.Close()
		wg.Wait()
	})
	return g, ln.Addr().String()
}

func (g *gate) open(yes bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = !yes
	g.cond.Broadcast()
}

// TestD32_Stall writes while TCP takes no bytes. A write must end at the deadline, and when the
// connection is closed. The memory of the write must be free then, and the counted bytes must
// arrive after the network works again.
func TestD32_Stall(t *testing.T) {
	// The first size needs no queue, and the second needs the queue.
	for _, size := range []int{300 << 10, 3 << 20} {
		ln, err := Listen("127.0.0.1:0", &Options{})
		if err != nil {
			t.Fatal(err)
		}
		g, at := newGate(t, ln.Addr().String())
		accepted := make(chan net.Conn, 1)
		go func() {
			c, _ := ln.Accept()
			accepted <- c
		}()
		a, err := (&Dialer{Options: Options{SendThreshold: 1 << 30}}).DialContext(t.Context(), "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		b := <-accepted
		ln.Close()
		g.open(false)
		var want []byte
		a.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		for p := make([]byte, size); ; {
			for i := range p {
				p[i] = byte(len(want)>>10 + i)
			}
			n, err := within(t, func() (int, error) { return a.Write(p) })
			want = append(want, p[:n]...)
			clear(p) // the memory belongs to the test again
			if err != nil {
				if !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error(err)
				}
				break
			}
		}
		a.SetWriteDeadline(time.Time{})
		late := make(chan error, 1)
		go func() {
			p := make([]byte, 64<<20)
			n, err := a.Write(p)
			if clear(p); n < len(p) && err == nil {
				err = io.ErrShortWrite
			}
			late <- err
		}()
		// By now the write is blocked. If not, the write will find the connection closed.
		time.Sleep(10 * time.Millisecond)
		g.open(true)
		got := make([]byte, len(want))
		if _, err := within(t, func() (int, error) { return b.(*Conn).ReadFull(got) }); err != nil ||
			!bytes.Equal(got, want) {
			t.Errorf("%d: %v, or other bytes", size, err)
		}
		g.open(false)
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			a.Close()
		}()
		if _, err := within(t, func() (int, error) { return 0, <-late }); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		g.open(true) // otherwise Close would wait its full time for the network
		b.Close()
		<-closed
	}
}

// within returns the results of f. It fails the test if f does not return in time.
func within(t *testing.T, f func() (int, error)) (n int, err error) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		n, err = f()
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("it goes on and on")
	}
	return n, err
}
