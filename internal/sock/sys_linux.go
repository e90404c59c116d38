package sock

import (
	"errors"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrWouldBlock means that a read or write would have to wait. Only engines see this error; callers
// of an engine never do.
var ErrWouldBlock = errors.New("sock: would block")

// A Vec is a piece of memory of a scattered read or gathered write.
type Vec = unix.Iovec

// The calls below use RawSyscall, because no call waits: informing the scheduler would cost more
// than the call may save. The descriptor itself is in blocking mode (see ReadV), so each call
// passes MSG_DONTWAIT.

// PeeksAhead reports whether the system supports PeekAt: true until a PeekAt was refused.
func PeeksAhead() bool { return !process.noOffset.Load() }

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
