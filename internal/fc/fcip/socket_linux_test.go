package fcip

import (
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/testkit"
)

// TestFCFS_2_3_NoDelay: Nagle's algorithm is off at both ends, even if WrapConn has turned it on.
// [FCFS-2.3-5]
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

// TestFCFS_2_3_Untuned: if a socket option can't be set, the connection ends at both ends.
// [FCFS-2.3-5]
func TestFCFS_2_3_Untuned(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	// The maximum of Linux is 32767 s.
	if x, err := newLink(nc, Config{FabricName: 1, KeepAlive: 24 * time.Hour}, 2); err == nil {
		x.Close()
		t.Fatal("a period that no socket takes is accepted")
	}
	peer.SetReadDeadline(time.Now().Add(testkit.Patience))
	if _, err := peer.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the other end reads: %v", err)
	}
}
