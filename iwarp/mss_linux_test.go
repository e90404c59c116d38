package iwarp

import (
	"context"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"viaduct/internal/wire/mpa"
)

// limitMSS reports whether withMSS can limit the segment size of the peer of c. It changes nothing,
// because the limit must be set before connecting.
func limitMSS(net.Conn, int) bool { return true }

// withMSS sets up the ends like asResponder, over a connection whose segments have at most mss
// bytes.
func withMSS(t *testing.T, mss int) (*peer, *QueuePair) {
	t.Helper()
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, mss) })
	}}
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan *QueuePair, 1)
	go func() {
		q, err := Dial(ctxt(t), l.Addr().String(), &Config{Interop: Interop{NoNudge: true}})
		if err != nil {
			t.Error(err)
		}
		got <- q
	}()
	a, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{t: t, c: a, enc: mpa.Encoder{CRC: true}, dec: mpa.Decoder{CRC: true}}
	p.frame()
	p.raw(mpa.Frame{Kind: mpa.Reply, Rev: 2, CRC: true, Enhanced: true, Conn: mpa.Enhanced{PeerToPeer: true, RTR: mpa.RTRWrite}}.Append(nil))
	q := <-got
	t.Cleanup(func() { a.Close(); q.Abort(); q.Close() })
	p.next()
	return p, q
}
