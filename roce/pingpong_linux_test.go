package roce

import (
	"net/netip"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkPingPong sends 8 bytes there and back. For comparison it sends the same bytes over plain
// UDP sockets, used as a C program uses them: the reader either blocks in the kernel or polls.
func BenchmarkPingPong(b *testing.B) {
	b.Run("udp waiting", func(b *testing.B) { udpPingPong(b, 0) })
	b.Run("udp polling", func(b *testing.B) { udpPingPong(b, unix.MSG_DONTWAIT) })
	b.Run("roce waiting", func(b *testing.B) { rocePingPong(b, wait) })
	b.Run("roce polling", func(b *testing.B) {
		rocePingPong(b, func(_ testing.TB, cq *CompletionQueue) Completion {
			for {
				if c, ok := cq.Poll(); ok {
					return c
				}
			}
		})
	})
}

const pingLen = 8

// udpSocket returns a blocking UDP socket that is bound to at. It avoids package net, whose sockets
// do not block.
func udpSocket(b *testing.B, at netip.AddrPort) int {
	b.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())})
	}
	if err != nil {
		b.Fatal(err)
	}
	return fd
}

func udpPingPong(b *testing.B, flags int) {
	near, far := netip.MustParseAddrPort("127.0.0.1:24791"), netip.MustParseAddrPort("127.0.0.1:24792")
	receive := func(fd int, p []byte) error {
		for {
			_, _, err := unix.Recvfrom(fd, p, flags)
			if err != unix.EAGAIN && err != unix.EINTR {
				return err
			}
		}
	}
	ready, done := make(chan int), make(chan error)
	go func() {
		runtime.LockOSThread()
		fd := udpSocket(b, far)
		defer unix.Close(fd)
		ready <- fd
		p := make([]byte, pingLen)
		to := &unix.SockaddrInet4{Addr: near.Addr().As4(), Port: int(near.Port())}
		for {
			if err := receive(fd, p); err != nil || p[0] == 0xff {
				done <- err
				return
			}
			unix.Sendto(fd, p, 0, to)
		}
	}()
	<-ready
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fd := udpSocket(b, near)
	defer unix.Close(fd)
	to := &unix.SockaddrInet4{Addr: far.Addr().As4(), Port: int(far.Port())}
	p := make([]byte, pingLen)
	for b.Loop() {
		unix.Sendto(fd, p, 0, to)
		if err := receive(fd, p); err != nil {
			b.Fatal(err)
		}
	}
	p[0] = 0xff
	unix.Sendto(fd, p, 0, to)
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}

func rocePingPong(b *testing.B, next func(testing.TB, *CompletionQueue) Completion) {
	near, far := connected(b, Config{})
	done := make(chan bool)
	receive := func(q *QueuePair, p []byte) {
		if err := q.PostRecv(RecvWR{SG: []SGE{Buf(p)}}); err != nil {
			b.Error(err)
		}
	}
	send := func(q *QueuePair, p []byte) {
		if err := q.Post(SendWR{SG: []SGE{Buf(p)}, Unsignaled: true}); err != nil {
			b.Error(err)
		}
	}
	in := make([]byte, pingLen)
	receive(far, in)
	go func() {
		defer close(done)
		out := make([]byte, pingLen)
		for {
			c := next(b, far.RecvCQ())
			if c.Status != StatusOK || in[0] == 0xff {
				return
			}
			receive(far, in)
			send(far, out)
		}
	}()
	out, back := make([]byte, pingLen), make([]byte, pingLen)
	for b.Loop() {
		receive(near, back)
		send(near, out)
		if c := next(b, near.RecvCQ()); c.Status != StatusOK {
			b.Fatalf("%+v", c)
		}
	}
	last := append([]byte{0xff}, out[1:]...)
	send(near, last)
	<-done
	b.ReportMetric(float64(near.Stats().Timeouts+near.Stats().Probes), "late")
}
