package roceudp

import (
	"io"
	"net"
	"testing"
	"time"

	"viaduct/internal/rocecore"
	"viaduct/internal/testkit"
	"viaduct/internal/wire/ib"
)

// A zeros is a Buffer of any length that needs no memory.
type zeros int

func (z zeros) Len() int                  { return int(z) }
func (z zeros) ReadAt([]byte, int) error  { return nil }
func (z zeros) WriteAt([]byte, int) error { return nil }

// clogged returns a port whose socket stays full once its buffer is full, until the returned
// connection is read. A UDP socket needs a privilege for that, so the socket is a TCP socket, which
// ignores the destination addresses of packets.
func clogged(t *testing.T) (*Port, net.Conn) {
	ours, theirs := testkit.TCPPair(t)
	sock, err := socketOf(ours.(*net.TCPConn))
	if err != nil {
		t.Fatal(err)
	}
	p := newPort(loopback(), new(Share))
	p.start(sock)
	t.Cleanup(func() { p.Close() })
	return p, theirs
}

// soon calls f, and fails the test if f does not return in time.
func soon(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(testkit.Patience):
		t.Fatalf("%s does not return", what)
	}
}

// Post returns although the socket is full, and other calls are not blocked either. Once there is
// room, the packets are sent in the order of posting.
func TestFullSocket(t *testing.T) {
	p, far := clogged(t)
	h := new(host)
	q, err := p.NewPair()
	if err != nil {
		t.Fatal(err)
	}
	q.Receive(h, loopback(), rocecore.Config{Transport: ib.UC, MTU: 4096, PeerQPN: 99})
	q.Send(rocecore.SendConfig{})
	const size = 32 << 20 // larger than TCP buffers grow
	soon(t, "Post", func() { q.Post(&rocecore.Request{Op: rocecore.Write, Buf: zeros(size)}) })
	testkit.Eventually(t, "a full socket", q.Full)
	soon(t, "Post to a full socket", func() { q.Post(new(rocecore.Request)) })
	soon(t, "Counters", func() { q.Counters() })
	soon(t, "Poll", func() { p.Poll() })

	other, err := p.NewPair() // its packets wait as well
	if err != nil {
		t.Fatal(err)
	}
	h2 := new(host)
	other.Datagrams(h2, rocecore.DatagramConfig{MTU: 4096})
	// TCP may have acknowledged bytes meanwhile, and then has room for a few datagrams.
	testkit.Eventually(t, "a datagram that waits", func() bool {
		soon(t, "Post of a datagram", func() {
			other.Post(&rocecore.Request{Buf: zeros(4096), To: rocecore.Destination{Addr: loopback()}})
		})
		return other.Full()
	})
	other.Close()

	go io.Copy(io.Discard, far)
	testkit.Eventually(t, "the end of both requests", func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return h.done == 2 && q.taken == q.out.Len()
	})
	if n := q.Counters().SentPackets; n != size/4096+1 {
		t.Errorf("%d packets were sent", n)
	}
}

// Close returns while the socket of the port is full.
func TestCloseFull(t *testing.T) {
	p, _ := clogged(t)
	q, err := p.NewPair()
	if err != nil {
		t.Fatal(err)
	}
	q.Receive(new(host), loopback(), rocecore.Config{Transport: ib.UC, MTU: 4096, PeerQPN: 99})
	q.Send(rocecore.SendConfig{})
	q.Post(&rocecore.Request{Op: rocecore.Write, Buf: zeros(32 << 20)})
	testkit.Eventually(t, "a full socket", q.Full)
	soon(t, "Close", func() { p.Close() })
}

// Poll handles a bounded number of packets, and leaves the others to the goroutine of the port.
// [ROCE-NET-8]
func TestPollBounded(t *testing.T) {
	p := port(t)
	c, err := net.Dial("udp", net.JoinHostPort(p.Addr().String(), "4791"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p.rx.Lock() // so that no other goroutine receives
	const most, sent = pollMost * batchLen, pollMost*batchLen + 44
	for range sent {
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	any, left, _ := p.pollLocked(nil, sending)
	handled := p.Counters().Malformed
	p.rx.Unlock()
	if !any || !left || handled != most {
		t.Errorf("a poll handled %d packets, %v %v; want %d", handled, any, left, most)
	}
	testkit.Eventually(t, "the rest", func() bool { return p.Counters().Malformed == sent })
}

// The goroutine of the port sends the packets a bounded Poll has left in the backlog.
func TestPollLeaves(t *testing.T) {
	p := port(t)
	h := new(host)
	q, err := p.NewPair()
	if err != nil {
		t.Fatal(err)
	}
	q.Receive(h, loopback(), rocecore.Config{Transport: ib.UC, MTU: 256, PeerQPN: 99})
	q.Send(rocecore.SendConfig{})
	q.mu.Lock()
	q.conn.Post(&rocecore.Request{Op: rocecore.Write, Buf: zeros(256 * turn * 4 * pollMost)})
	q.mu.Unlock()
	p.rx.Lock()
	p.touched = append(p.touched, q)
	p.rx.Unlock()
	p.Poll() // nothing arrives, so the goroutine of the port sleeps
	testkit.Eventually(t, "the end", func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return h.done == 1
	})
}
