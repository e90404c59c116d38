package testkit

import (
	"net"
	"os"
	"sync/atomic"
	"syscall"
)

// Shortage wraps l: the first n calls of Accept fail, as if the process had no free descriptor.
func Shortage(l net.Listener, n int) net.Listener {
	s := &shortage{Listener: l}
	s.left.Store(int32(n))
	return s
}

type shortage struct {
	net.Listener
	left atomic.Int32
}

func (s *shortage) Accept() (net.Conn, error) {
	if s.left.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Source: s.Addr(), Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return s.Listener.Accept()
}
