//go:build linux && (amd64 || arm64)

package run

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"viaduct/sdp"
)

// A stream is an end of a relay. An urgent byte keeps the place among the others, and is marked.
type stream interface {
	net.Conn
	CloseWrite() error

	// ReadMarked is Read. It also returns the index of an urgent byte in p[:n], or -1.
	ReadMarked(p []byte) (n, mark int, err error)
	// WriteUrgent writes p, whose last byte is urgent.
	WriteUrgent(p []byte) (int, error)
}

var (
	_ stream = (*sdp.Conn)(nil)
	_ stream = tcpStream{}
)

// streamOf makes a stream of a connection over SDP or TCP.
func streamOf(c net.Conn) (stream, error) {
	switch c := c.(type) {
	case *sdp.Conn:
		return c, nil
	case *net.TCPConn:
		raw, err := c.SyscallConn()
		if err != nil {
			return nil, err
		}
		oerr := raw.Control(func(fd uintptr) {
			boundUnsent(int(fd)) // fd may be the plain connection to the peer
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_OOBINLINE, 1)
		})
		return tcpStream{c, raw}, cmp.Or(oerr, err)
	}
	return nil, fmt.Errorf("run: %T is no stream", c)
}

// A tcpStream is a TCP connection with urgent bytes kept in the stream.
type tcpStream struct {
	*net.TCPConn
	raw syscall.RawConn
}

// ReadMarked implements stream. A read of the kernel ends before an announced urgent byte, and the
// announcement precedes the byte. Therefore the code first waits for a byte and then asks for the
// mark: without any byte, the mark says nothing of the next byte.
func (c tcpStream) ReadMarked(p []byte) (n, mark int, err error) {
	mark = -1
	rerr := c.raw.Read(func(fd uintptr) bool {
		n, _, err = unix.Recvfrom(int(fd), p[:1], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if n > 0 {
			if at, aerr := unix.IoctlGetInt(int(fd), unix.SIOCATMARK); aerr == nil && at != 0 {
				p, mark = p[:1], 0
			}
			n, _, err = unix.Recvfrom(int(fd), p, unix.MSG_DONTWAIT)
		}
		return err != unix.EAGAIN && err != unix.EINTR
	})
	if err = cmp.Or(rerr, err); err != nil {
		return 0, -1, c.opError("read", err)
	}
	if n == 0 {
		return 0, -1, io.EOF
	}
	return n, mark, nil
}

// WriteUrgent implements stream.
func (c tcpStream) WriteUrgent(p []byte) (n int, err error) {
	// If the kernel cuts a send short, the last byte of the rest is marked as urgent. Therefore
	// only a single byte may be sent as urgent.
	if last := len(p) - 1; last > 0 {
		if n, err = c.Write(p[:last]); err != nil {
			return n, err
		}
	}
	werr := c.raw.Write(func(fd uintptr) bool {
		for n < len(p) && err == nil {
			var k int
			if k, err = unix.SendmsgN(int(fd), p[n:], nil, nil, unix.MSG_OOB|unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err == nil {
				n += k
			}
		}
		again := err == unix.EAGAIN || err == unix.EINTR
		if again {
			err = nil
		}
		return !again
	})
	if err = cmp.Or(werr, err); err != nil {
		return n, c.opError("write", err)
	}
	return n, nil
}

func (c tcpStream) opError(op string, err error) error {
	if _, ok := err.(*net.OpError); ok {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

var pumpBuffers = sync.Pool{New: func() any { b := make([]byte, pumpSize); return &b }}

// pump moves bytes from a stream to another until the first ends. Urgent bytes stay urgent. It
// returns nil at the end of the stream.
func pump(to, from stream, bytes *counter) error {
	b := pumpBuffers.Get().(*[]byte)
	defer pumpBuffers.Put(b)
	for {
		n, mark, err := from.ReadMarked(*b)
		if n > 0 {
			k, werr := writeMarked(to, (*b)[:n], mark)
			bytes.Add(int64(k))
			if werr != nil {
				return werr
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// writeMarked writes p. The byte with index mark is urgent; -1 means none.
func writeMarked(to stream, p []byte, mark int) (n int, err error) {
	if mark >= 0 {
		if n, err = to.WriteUrgent(p[:mark+1]); err != nil || n == len(p) {
			return n, err
		}
	}
	k, err := to.Write(p[n:])
	return n + k, err
}
