package conform

import (
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// A resetConn reports a reset once, and a deadline that has passed from then on. A TCP connection
// does the same if the goroutine is held up before its second read.
type resetConn struct {
	net.Conn
	reads int
}

func (c *resetConn) SetReadDeadline(time.Time) error { return nil }

func (c *resetConn) Read([]byte) (int, error) {
	if c.reads++; c.reads == 1 {
		return 0, &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	}
	return 0, &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}
}

// A connection that the peer resets has ended: no case may take it for one that goes on.
func TestResetIsAnEnd(t *testing.T) {
	s := &stream{c: &resetConn{}}
	if _, e := s.fpdu(time.Minute); e != reset {
		t.Errorf("iWARP: %v", e)
	}
	p := &fcEnd{c: &resetConn{}}
	if _, e := p.next(time.Minute); e != reset {
		t.Errorf("Fibre Channel: %v", e)
	}
}
