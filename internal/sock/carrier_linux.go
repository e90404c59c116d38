package sock

import (
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A carrier moves the bytes of a stream: by the kernel through a TCP socket, or through shared
// memory. There is at most one reader at any time, who may call the methods marked [reader], and
// one writer, for the methods marked [writer]. No method waits.
//
// The support for shared memory costs a plain socket a nil check in each method, whereas calls
// through an interface could not be inlined.
type carrier struct {
	fd    int    // readable when something has arrived: the TCP socket, or the bell of rings
	rings *rings // nil: the bytes go through fd
}

const (
	// manyPlaces is the least number of places in a ReadV meant for several long frames.
	manyPlaces = 4

	// mostVecs is the greatest number of places in a system call (UIO_MAXIOV).
	mostVecs = 1024
)

// FD returns the descriptor that is readable when something has arrived. It is valid until Close.
func (c *carrier) FD() int { return c.fd }

// ByKernel reports whether the kernel moves the bytes. The kernel reports unmapped memory by
// EFAULT. Otherwise this process moves the bytes itself, and an access to unmapped memory is a
// fault.
func (c *carrier) ByKernel() bool { return c.rings == nil }

// Polls reports whether a check for arrivals takes no system call.
func (c *carrier) Polls() bool { return c.rings != nil }

// Read reads like recv(2). n == 0 without an error is the end of the stream. The error is
// ErrWouldBlock if nothing has arrived. [reader]
func (c *carrier) Read(p []byte) (n int, err error) {
	if r := c.rings; r != nil {
		return r.read(p)
	}
	return read(c.fd, p)
}

// ReadV is Read into several places, in order. scratch is working memory, the same for all calls of
// a caller. [reader]
func (c *carrier) ReadV(places [][]byte, scratch *[]Vec) (int, error) {
	if r := c.rings; r != nil {
		return r.result(r.in.ReadV(places))
	}
	v := (*scratch)[:0]
	for _, p := range places {
		if len(p) > 0 {
			v = append(v, unix.Iovec{Base: unsafe.SliceData(p), Len: uint64(len(p))})
		}
	}
	*scratch = v[:0]
	defer clear(v)
	flags := unix.MSG_DONTWAIT
	if len(v) >= manyPlaces && c.Pending() > 0 {
		// Bytes have arrived and nobody else reads, so the call does not wait with either flag.
		// Without MSG_DONTWAIT the call also takes bytes arriving during the copy.
		flags = 0
	}
	for {
		n, _, e := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(c.fd),
			uintptr(unsafe.Pointer(&unix.Msghdr{Iov: unsafe.SliceData(v), Iovlen: uint64(min(len(v), mostVecs))})),
			uintptr(flags))
		switch e {
		case 0:
			raceAcquire(c.fd)
			return int(n), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, ErrWouldBlock
		default:
			return 0, os.NewSyscallError("recvmsg", e)
		}
	}
}

// Taken returns the number of bytes read so far. The difference of two results is the number of
// bytes a read took before a fault ended it. Only for shared memory. [reader]
func (c *carrier) Taken() uint64 { return c.rings.in.Taken() }

// Apart reports whether the next bytes have arrived but are in the peer's memory, outside the ring.
// A Read that has taken bytes of the ring stops before the bytes outside. Apart is false on TCP.
// [reader]
func (c *carrier) Apart() bool { return c.rings != nil && c.rings.in.Apart() }

// Peek is Read, but leaves the bytes unread. [reader]
func (c *carrier) Peek(p []byte) (n int, err error) {
	if r := c.rings; r != nil {
		return r.peekAt(r.front, p)
	}
	return peek(c.fd, p)
}

// PeekAt is Peek at the bytes after the first off bytes. Later calls of Peek begin there too, until
// PeekFront. Linux before 6.9 returns an error. [reader]
func (c *carrier) PeekAt(off int, p []byte) (int, error) {
	if r := c.rings; r != nil {
		r.front = off
		return r.peekAt(off, p)
	}
	if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, off); err != nil {
		process.noOffset.Store(true)
		return 0, os.NewSyscallError("setsockopt", err)
	}
	return peek(c.fd, p)
}

// PeekFront ends the effect of PeekAt: later calls of Peek begin at the next unread byte. [reader]
func (c *carrier) PeekFront() {
	if r := c.rings; r != nil {
		r.front = 0
		return
	}
	_ = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, -1)
}

// Readable reports whether there is a byte to read. False without an error is the end of the
// stream. [reader]
func (c *carrier) Readable() (bool, error) {
	if r := c.rings; r != nil {
		return r.readable()
	}
	var b [1]byte
	n, err := peek(c.fd, b[:])
	return n > 0, err
}

// Unread reports whether a read would return something: bytes, the end of the stream, or an error.
// It does not consume the error. [reader]
func (c *carrier) Unread() bool {
	if r := c.rings; r != nil {
		_, err := r.readable()
		return err != ErrWouldBlock
	}
	fds := [1]unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN | unix.POLLRDHUP}}
	n, err := Poll(fds[:], 0)
	return n > 0 || err != nil
}

// Pending returns the number of readable bytes, and 0 after an error. [reader]
func (c *carrier) Pending() int {
	if r := c.rings; r != nil {
		n, _ := r.in.Available()
		return n
	}
	n, err := unix.IoctlGetInt(c.fd, unix.SIOCINQ)
	if err != nil {
		return 0
	}
	return n
}

// Ask is for callers watching FD without Arm and Sleep. True means: the next arrival makes FD
// readable, but earlier arrivals need not, and the caller reads until nothing is left. False means:
// every arrival makes FD readable. [reader]
func (c *carrier) Ask() bool {
	if c.rings == nil {
		return false
	}
	c.rings.ask()
	return true
}

// Pair returns the pair of the connection and the slot there, or nil if the connection has none, or
// if the pair has ended.
func (c *carrier) Pair() (*Pair, int) {
	if r := c.rings; r != nil && r.seat != nil {
		if p := r.seat.pair; p != nil && !p.ended.Load() {
			return p, r.seat.slot
		}
	}
	return nil, 0
}

// AskPair is Ask, but the next arrival is reported by the pair. [reader]
func (c *carrier) AskPair() { c.rings.in.AskPair() }

// Write writes like send(2), and returns the number of bytes taken, possibly less than len(p). The
// error is ErrWouldBlock if there is no room. [writer]
func (c *carrier) Write(p []byte) (int, error) {
	if r := c.rings; r != nil {
		raceRelease(r.tcp)
		return r.write(r.out.Write(p))
	}
	raceRelease(c.fd)
	return send(c.fd, p)
}

// WriteV is Write of several pieces. It writes at most as many pieces as scratch has capacity for.
// The error is io.ErrShortWrite if the call takes no byte of a non-empty write. [writer]
func (c *carrier) WriteV(pieces [][]byte, scratch []Vec) (int, error) {
	if r := c.rings; r != nil {
		raceRelease(r.tcp)
		return r.write(r.out.WriteV(pieces))
	}
	if len(pieces) == 1 {
		n, err := c.Write(pieces[0])
		if n == 0 && err == nil {
			err = io.ErrShortWrite
		}
		return n, err
	}
	v := scratch[:0]
	for _, p := range pieces {
		if len(v) == cap(v) {
			break
		}
		v = append(v, unix.Iovec{Base: unsafe.SliceData(p), Len: uint64(len(p))})
	}
	raceRelease(c.fd)
	for {
		n, _, e := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(c.fd),
			uintptr(unsafe.Pointer(&unix.Msghdr{Iov: unsafe.SliceData(v), Iovlen: uint64(len(v))})),
			unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch {
		case e == 0 && n == 0:
			return 0, io.ErrShortWrite
		case e == 0:
			return int(n), nil
		case e == unix.EINTR:
		case e == unix.EAGAIN:
			return 0, ErrWouldBlock
		default:
			return 0, os.NewSyscallError("sendmsg", e)
		}
	}
}

// Reserve returns n bytes of memory for the caller to fill; Commit then writes all n bytes. Reserve
// returns nil if the kernel moves the bytes, or if there may be no room for n bytes. The peer can
// read and change the memory. [writer]
func (c *carrier) Reserve(n int) []byte {
	if r := c.rings; r != nil {
		return r.out.Reserve(n)
	}
	return nil
}

// Commit writes the n bytes returned by the last Reserve. [writer]
func (c *carrier) Commit(n int) {
	r := c.rings
	raceRelease(r.tcp)
	r.out.Commit(n)
}

// Roomy reports whether a write would return without ErrWouldBlock. Only for shared memory.
// [writer]
func (c *carrier) Roomy() bool { return c.rings.out.Roomy() || c.rings.gone.Load() }

// Owes reports whether a write has taken bytes without reporting them, because the peer has yet to
// copy them from the writer's memory. [writer]
func (c *carrier) Owes() bool { return c.rings != nil && c.rings.out.Owed() > 0 }

// Detach makes the stream independent of the caller's memory, if the peer still has to copy bytes
// from there, not yet reported as written. On TCP, Detach does nothing. [writer]
func (c *carrier) Detach() {
	if r := c.rings; r != nil {
		r.out.Detach()
	}
}
