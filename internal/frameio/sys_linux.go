package frameio

import (
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

type iovec = unix.Iovec

const (
	// manyVecs is how many places a read has that is meant for more than one long
	// frame.
	manyVecs = 4

	// mostVecs is how many the kernel takes.
	mostVecs = 1024
)

// The calls below use RawSyscall: none of them waits, and telling the scheduler
// about them would cost more than it saves. The descriptor itself is a blocking
// one, and each call says that it is not to wait.

func sysRead(fd int, p []byte) (int, error) {
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_DONTWAIT, 0, 0)
		switch e {
		case 0:
			raceAcquire(fd)
			return int(n), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, errWouldBlock
		default:
			return 0, os.NewSyscallError("read", e)
		}
	}
}

func sysWrite(fd int, p []byte) (int, error) {
	raceRelease(fd)
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		switch e {
		case 0:
			return int(n), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, errWouldBlock
		default:
			return 0, os.NewSyscallError("write", e)
		}
	}
}

// sysLook is sysRead, but the bytes stay.
func sysLook(fd int, p []byte) (int, error) {
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
		switch e {
		case 0:
			return int(n), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, errWouldBlock
		default:
			return 0, os.NewSyscallError("recv", e)
		}
	}
}

// sysPeek tells whether there is something to be read; neither that nor an
// error means the end of the stream.
func sysPeek(fd int) (bool, error) {
	var b [1]byte
	n, err := sysLook(fd, b[:])
	return n > 0, err
}

// sysLookAhead is sysLook at what follows the first off bytes. Until sysLookBack
// everybody looks from there on.
func sysLookAhead(fd, off int, p []byte) (int, error) {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, off); err != nil {
		blind.Store(true)
		return 0, os.NewSyscallError("setsockopt", err)
	}
	return sysLook(fd, p)
}

func sysLookBack(fd int) { _ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, -1) }

// sysPending returns how much there is to be read.
func sysPending(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.SIOCINQ)
	if err != nil {
		return 0
	}
	return n
}

func (c *Conn) sysReadv(fd int, vs [][]byte) (int, error) {
	v := c.rx.stage.vecs[:0]
	for _, p := range vs {
		if len(p) > 0 {
			v = append(v, unix.Iovec{Base: unsafe.SliceData(p), Len: uint64(len(p))})
		}
	}
	c.rx.stage.vecs = v[:0]
	defer clear(v)
	flags := unix.MSG_DONTWAIT
	if len(v) >= manyVecs && sysPending(fd) > 0 {
		// As something is there and nobody else reads it, the call does not wait
		// either way; but only one that might takes what arrives while it copies.
		flags = 0
	}
	for {
		n, _, e := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&unix.Msghdr{Iov: unsafe.SliceData(v), Iovlen: uint64(min(len(v), mostVecs))})), uintptr(flags))
		switch e {
		case 0:
			raceAcquire(fd)
			return int(n), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, errWouldBlock
		default:
			return 0, os.NewSyscallError("recvmsg", e)
		}
	}
}

// writeBatch writes as much of the batch as the socket takes: nil when all is
// gone, errWouldBlock when the socket is full.
func (c *Conn) writeBatch(fd int) error {
	b := c.tx.batch
	for {
		v := b.iov[:0]
		for _, p := range b.vecs {
			if len(v) == cap(v) {
				break
			}
			v = append(v, unix.Iovec{Base: unsafe.SliceData(p), Len: uint64(len(p))})
		}
		var n uintptr
		var e unix.Errno
		raceRelease(fd)
		if len(v) == 1 {
			n, _, e = unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(v[0].Base)), uintptr(v[0].Len), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		} else {
			n, _, e = unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&unix.Msghdr{Iov: unsafe.SliceData(v), Iovlen: uint64(len(v))})), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		}
		switch e {
		case 0:
			if n == 0 {
				return io.ErrShortWrite
			}
			if b.written(int(n)) {
				return nil
			}
		case unix.EINTR:
		case unix.EAGAIN:
			return errWouldBlock
		default:
			return os.NewSyscallError("sendmsg", e)
		}
	}
}
