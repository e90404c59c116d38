package fcip

import (
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Frames leave when they are sent: Nagle's algorithm is off at both ends, even
// if who wrapped the connection turned it on. [FCFS-2.3-5]
func TestFCFS_2_3_NoDelay(t *testing.T) {
	nagle := func(nc net.Conn) net.Conn {
		if err := nc.(*net.TCPConn).SetNoDelay(false); err != nil {
			t.Error(err)
		}
		return nc
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	acceptor := NewAcceptor(Config{FabricName: 2, WrapConn: nagle})
	links := make(chan *Link, 1)
	go func() {
		defer close(links)
		nc, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		x, err := acceptor.Accept(t.Context(), nc)
		if err != nil {
			t.Error(err)
			return
		}
		links <- x
	}()
	x, err := Dial(t.Context(), l.Addr().String(), Config{FabricName: 1, Peer: 2, WrapConn: nagle})
	if err != nil {
		t.Fatal(err)
	}
	y, ok := <-links
	if !ok {
		t.FailNow()
	}
	for _, x := range []*Link{x, y} {
		defer x.Close()
		raw, err := x.NetConn().(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var on int
		var gerr error
		if err := raw.Control(func(fd uintptr) { on, gerr = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NODELAY) }); err != nil || gerr != nil {
			t.Fatal(err, gerr)
		}
		if on != 1 {
			t.Error("Nagle's algorithm is on")
		}
	}
}
