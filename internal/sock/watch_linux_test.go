package sock

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/testkit"
)

// TestResetBeforeFirstSleep: a reset between the last read of a socket and the first sleep at it
// ends the sleep, in either direction.
func TestResetBeforeFirstSleep(t *testing.T) {
	for _, events := range []uint32{unix.EPOLLIN | unix.EPOLLRDHUP, unix.EPOLLOUT} {
		nc, peer := testkit.TCPPair(t)
		s := Take(nc)
		if s == nil {
			t.Fatal("the socket was not taken")
		}
		var w Watch
		if !w.Open(s.fd, events) {
			t.Fatal("no watch")
		}
		peer.(*net.TCPConn).SetLinger(0)
		peer.Close()
		testkit.Eventually(t, "the reset arrives", func() bool {
			v, err := unix.GetsockoptTCPInfo(s.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
			return err == nil && v.State == 7 // closed
		})
		time.Sleep(5 * time.Millisecond) // the runtime's poller has been notified
		woken := make(chan error, 1)
		go func() {
			woken <- w.Sleep(func(uintptr) bool { return w.Ready(s.fd) })
		}()
		if err := testkit.Await(t, "the sleeper is woken", woken); err != nil {
			t.Error(err)
		}
		w.Close()
		s.Close(false)
	}
}
