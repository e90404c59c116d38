package sock

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A short listener fails with each of errs before it accepts.
type shortListener struct {
	errs []error
}

func (l *shortListener) accept() (net.Conn, error) {
	if len(l.errs) == 0 {
		c, _ := net.Pipe()
		return c, nil
	}
	err := l.errs[0]
	l.errs = l.errs[1:]
	return nil, err
}

// A shortage of descriptors or memory passes. Other errors end the listener.
func TestAcceptNext(t *testing.T) {
	opError := func(err error) error { return &net.OpError{Op: "accept", Net: "tcp", Err: err} }
	system := func(e syscall.Errno) error { return opError(os.NewSyscallError("accept4", e)) }
	for _, errs := range [][]error{
		{system(syscall.EMFILE), system(syscall.ENFILE), system(syscall.ENOMEM), system(syscall.ENOBUFS)},
		{opError(syscall.EMFILE), system(syscall.ECONNABORTED)},
		{os.NewSyscallError("accept4", syscall.EMFILE)},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, err := AcceptNext((&shortListener{errs}).accept, nil)
			if err != nil {
				t.Fatalf("%v: %v", errs, err)
			}
			c.Close()
		})
	}
	for _, want := range []error{opError(net.ErrClosed), io.EOF, system(syscall.EINVAL)} {
		if _, err := AcceptNext((&shortListener{[]error{want}}).accept, nil); err != want {
			t.Errorf("%v, want %v", err, want)
		}
	}
	synctest.Test(t, func(t *testing.T) { // a shortage that does not pass
		stop, begin := make(chan struct{}), time.Now()
		time.AfterFunc(time.Minute, func() { close(stop) })
		n := 0
		_, err := AcceptNext(func() (net.Conn, error) { n++; return nil, system(syscall.EMFILE) }, stop)
		if d := time.Since(begin); !errors.Is(err, net.ErrClosed) || d != time.Minute || n > 70 {
			t.Errorf("%v after %v and %d tries", err, d, n)
		}
	})
}
