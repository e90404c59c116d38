package frameio

import (
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A descriptor's number may belong to another file as soon as it is closed:
// neither role touches it after Close.
func TestClosedDescriptorIsLeftAlone(t *testing.T) {
	a, b := kinds[0].connect(t)
	a.c.Start(nil)
	done := b.expect(t, [][]byte{{1}})
	b.c.Start(nil)
	a.post([]byte{1})
	a.c.Kick()
	await(t, "traffic", done)
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	fd := a.c.sock.Load().fd
	a.c.Close()
	// A pipe takes the number over.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
		unix.Close(p[1])
		t.Skip("another file has the number already")
	}
	if err := unix.Dup3(p[1], fd, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	unix.Close(p[1])
	defer unix.Close(fd)
	a.c.tx.batch = batches.Get().(*Batch)
	copy(a.c.tx.batch.Header(5), "stray")
	a.c.tx.batch.close()
	if err := a.c.try(); err == nil {
		t.Error("a write after Close succeeds")
	}
	a.c.Poll()
	buf := make([]byte, 10)
	if n, err := unix.Read(p[0], buf); err != unix.EAGAIN {
		t.Errorf("%q was written to somebody else's file (%v)", buf[:max(n, 0)], err)
	}
}

// A reset between the last look at the socket and the first time that
// somebody sleeps on it wakes him, in either direction.
func TestResetBeforeFirstSleep(t *testing.T) {
	for _, events := range []uint32{unix.EPOLLIN | unix.EPOLLRDHUP, unix.EPOLLOUT} {
		nc, peer := tcpPair(t)
		s := takeSocket(nc)
		if s == nil {
			t.Fatal("the socket was not taken")
		}
		var w watch
		if !w.open(s.fd, events) {
			t.Fatal("no watch")
		}
		peer.(*net.TCPConn).SetLinger(0)
		peer.Close()
		eventually(t, "the reset arrives", func() bool {
			v, err := unix.GetsockoptTCPInfo(s.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
			return err == nil && v.State == 7 // closed
		})
		time.Sleep(5 * time.Millisecond) // the runtime's poller has heard of it
		woken := make(chan error, 1)
		go func() {
			woken <- w.raw.Read(func(uintptr) bool {
				if w.armed {
					return true
				}
				return !w.arm(s.fd)
			})
		}()
		if err := await(t, "the sleeper is woken", woken); err != nil {
			t.Error(err)
		}
		w.close()
		s.close(false)
	}
}

// openFiles is how many descriptors this process has.
func openFiles() int {
	entries, _ := os.ReadDir("/proc/self/fd")
	return len(entries)
}
