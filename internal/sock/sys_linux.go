package sock

import (
	"errors"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrWouldBlock means that a read or write would have to wait. Only engines see this error; callers
// of an engine never do.
var ErrWouldBlock = errors.New("sock: would block")

// A Vec is a piece of memory of a scattered read or gathered write.
type Vec = unix.Iovec

const (
	// manyPlaces is the least number of places in a ReadV meant for several long frames.
	manyPlaces = 4

	// mostVecs is the greatest number of places in a system call (UIO_MAXIOV).
	mostVecs = 1024
)

// The calls below use RawSyscall, because no call waits: informing the scheduler would cost more
// than the call may save. The descriptor itself is in blocking mode (see ReadV), so each call
// passes MSG_DONTWAIT.

// Read reads like recv(2). n == 0 without an error is the end of the stream. The error is
// ErrWouldBlock if nothing has arrived. [reader]
func (s *Socket) Read(p []byte) (n int, err error) {
	if r := s.rings; r != nil {
		return r.read(p)
	}
	return read(s.fd, p)
}

// Peek is Read, but leaves the bytes unread. [reader]
func (s *Socket) Peek(p []byte) (n int, err error) {
	if r := s.rings; r != nil {
		return r.peekAt(r.front, p)
	}
	return peek(s.fd, p)
}

// Readable reports whether there is a byte to read. False without an error is the end of the
// stream. [reader]
func (s *Socket) Readable() (bool, error) {
	if r := s.rings; r != nil {
		return r.readable()
	}
	var b [1]byte
	n, err := peek(s.fd, b[:])
	return n > 0, err
}

// Unread reports whether a read would return something: bytes, the end of the stream, or an error.
// It does not consume the error. [reader]
func (s *Socket) Unread() bool {
	if r := s.rings; r != nil {
		_, err := r.readable()
		return err != ErrWouldBlock
	}
	fds := [1]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN | unix.POLLRDHUP}}
	n, err := Poll(fds[:], 0)
	return n > 0 || err != nil
}

// Pending returns the number of readable bytes, and 0 after an error. [reader]
func (s *Socket) Pending() int {
	if r := s.rings; r != nil {
		n, _ := r.in.Available()
		return n
	}
	n, err := unix.IoctlGetInt(s.fd, unix.SIOCINQ)
	if err != nil {
		return 0
	}
	return n
}

// noOffset is set when the system has refused to peek past the next bytes, as Linux before 6.9
// does.
var noOffset atomic.Bool

// PeeksAhead reports whether the system supports PeekAt: true until a PeekAt was refused.
func PeeksAhead() bool { return !noOffset.Load() }

// PeekAt is Peek at the bytes after the first off bytes. Later calls of Peek begin there too, until
// PeekFront. Linux before 6.9 returns an error. [reader]
func (s *Socket) PeekAt(off int, p []byte) (int, error) {
	if r := s.rings; r != nil {
		r.front = off
		return r.peekAt(off, p)
	}
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, off); err != nil {
		noOffset.Store(true)
		return 0, os.NewSyscallError("setsockopt", err)
	}
	return peek(s.fd, p)
}

// PeekFront ends the effect of PeekAt: later calls of Peek begin at the next unread byte. [reader]
func (s *Socket) PeekFront() {
	if r := s.rings; r != nil {
		r.front = 0
		return
	}
	_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, -1)
}

func read(fd int, p []byte) (int, error) { return recv(fd, p, unix.MSG_DONTWAIT) }
func peek(fd int, p []byte) (int, error) { return recv(fd, p, unix.MSG_DONTWAIT|unix.MSG_PEEK) }

func recv(fd int, p []byte, flags uintptr) (int, error) {
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd),
			uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), flags, 0, 0)
		switch e {
		case 0:
			raceAcquire(fd)
			return int(n), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, ErrWouldBlock
		default:
			return 0, os.NewSyscallError("recv", e)
		}
	}
}

// recvRights is recv of a message with up to most descriptors; most is at most 3. The caller owns
// files. If the message has more descriptors, or the process has no room for all, recvRights closes
// all of the descriptors and returns nil.
func recvRights(fd int, p []byte, most int) (n int, files []int, err error) {
	var oob [unix.SizeofCmsghdr + 4*4]byte
	v := unix.Iovec{Base: unsafe.SliceData(p), Len: uint64(len(p))}
	for {
		m := unix.Msghdr{Iov: &v, Iovlen: 1, Control: &oob[0], Controllen: uint64(unix.CmsgSpace(4 * most))}
		n, _, e := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&m)),
			unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		switch e {
		case 0:
			raceAcquire(fd)
			if m.Controllen > 0 {
				files = parseRights(oob[:m.Controllen], m.Flags&unix.MSG_CTRUNC != 0, most)
			}
			return int(n), files, nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, nil, ErrWouldBlock
		default:
			return 0, nil, os.NewSyscallError("recvmsg", e)
		}
	}
}

func parseRights(oob []byte, cut bool, most int) (files []int) {
	msgs, _ := unix.ParseSocketControlMessage(slices.Clone(oob))
	for i := range msgs {
		if fds, err := unix.ParseUnixRights(&msgs[i]); err == nil {
			files = append(files, fds...)
		}
	}
	if cut || len(files) > most {
		for _, fd := range files {
			unix.Close(fd)
		}
		return nil
	}
	return files
}

// ReadV is Read into several places, in order. scratch is working memory, the same for all calls of
// a caller. [reader]
func (s *Socket) ReadV(places [][]byte, scratch *[]Vec) (int, error) {
	if r := s.rings; r != nil {
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
	if len(v) >= manyPlaces && s.Pending() > 0 {
		// Bytes have arrived and nobody else reads, so the call does not wait with either flag.
		// Without MSG_DONTWAIT the call also takes bytes arriving during the copy.
		flags = 0
	}
	for {
		n, _, e := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(s.fd),
			uintptr(unsafe.Pointer(&unix.Msghdr{Iov: unsafe.SliceData(v), Iovlen: uint64(min(len(v), mostVecs))})),
			uintptr(flags))
		switch e {
		case 0:
			raceAcquire(s.fd)
			return int(n), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, ErrWouldBlock
		default:
			return 0, os.NewSyscallError("recvmsg", e)
		}
	}
}

// Write writes like send(2), and returns the number of bytes taken, possibly less than len(p). The
// error is ErrWouldBlock if there is no room. [writer]
func (s *Socket) Write(p []byte) (int, error) {
	if r := s.rings; r != nil {
		raceRelease(r.tcp)
		return r.write(r.out.Write(p))
	}
	raceRelease(s.fd)
	return send(s.fd, p)
}

func send(fd int, p []byte) (int, error) {
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))),
			uintptr(len(p)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		switch e {
		case 0:
			return int(n), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, ErrWouldBlock
		default:
			return 0, os.NewSyscallError("send", e)
		}
	}
}

// Reserve returns n bytes of memory for the caller to fill; Commit then writes all n bytes. Reserve
// returns nil if the kernel moves the bytes, or if there may be no room for n bytes. The peer can
// read and change the memory. [writer]
func (s *Socket) Reserve(n int) []byte {
	if r := s.rings; r != nil {
		return r.out.Reserve(n)
	}
	return nil
}

// Commit writes the n bytes returned by the last Reserve. [writer]
func (s *Socket) Commit(n int) {
	r := s.rings
	raceRelease(r.tcp)
	r.out.Commit(n)
}

// WriteV is Write of several pieces. It writes at most as many pieces as scratch has capacity for.
// The error is io.ErrShortWrite if the call takes no byte of a non-empty write. [writer]
func (s *Socket) WriteV(pieces [][]byte, scratch []Vec) (int, error) {
	if r := s.rings; r != nil {
		raceRelease(r.tcp)
		return r.write(r.out.WriteV(pieces))
	}
	if len(pieces) == 1 {
		n, err := s.Write(pieces[0])
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
	raceRelease(s.fd)
	for {
		n, _, e := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(s.fd),
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
