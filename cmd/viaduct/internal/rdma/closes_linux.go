//go:build linux && (amd64 || arm64)

package rdma

import (
	"os"

	"golang.org/x/sys/unix"
)

// A closeWatch reports that a stand-in may have been closed by the last process that had it. For a
// memfd, inotify reports each close of an open file description, also of a description held only by
// a mapping. For a pipe, epoll reports the end of the last reader.
type closeWatch struct {
	pipes *os.File // an epoll instance with the pipes and inotify
	files int      // an inotify instance
}

// newCloseWatch makes a watch. It fails if the user has as many inotify instances as the kernel
// allows.
func newCloseWatch() (*closeWatch, error) {
	files, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	pipes, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		if err = unix.EpollCtl(pipes, unix.EPOLL_CTL_ADD, files, &unix.EpollEvent{Events: unix.EPOLLIN}); err == nil {
			err = unix.SetNonblock(pipes, true)
		}
		if err == nil {
			return &closeWatch{os.NewFile(uintptr(pipes), "epoll"), files}, nil
		}
		unix.Close(pipes)
	}
	unix.Close(files)
	return nil, err
}

// stop makes notify return.
func (w *closeWatch) stop() { w.pipes.Close() }

// close closes the inotify instance. It must be called after notify has returned.
func (w *closeWatch) close() { unix.Close(w.files) }

// addFile watches the file of a descriptor until the returned function is called.
func (w *closeWatch) addFile(fd int) (remove func(), err error) {
	wd, err := unix.InotifyAddWatch(w.files, procFD(os.Getpid(), fd), unix.IN_CLOSE)
	if err != nil {
		return nil, err
	}
	return func() { unix.InotifyRmWatch(w.files, uint32(wd)) }, nil
}

// addPipe watches the pipe whose writing end is fd, until fd is closed.
func (w *closeWatch) addPipe(fd int) (err error) {
	c, err := w.pipes.SyscallConn()
	if err != nil {
		return err
	}
	bad := c.Control(func(epoll uintptr) {
		// EPOLLERR is always reported, here once.
		err = unix.EpollCtl(int(epoll), unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLET})
	})
	if bad != nil {
		return bad
	}
	return err
}

// notify calls f after each report of a close. It returns after stop was called.
func (w *closeWatch) notify(f func()) {
	c, err := w.pipes.SyscallConn()
	for err == nil {
		if err = c.Read(w.take); err == nil {
			f()
		}
	}
}

// take removes all pending reports from the kernel, and returns whether there were any. If take
// returns false, Read of the SyscallConn waits for the next report.
func (w *closeWatch) take(epoll uintptr) bool {
	var events [16]unix.EpollEvent
	n, _ := unix.EpollWait(int(epoll), events[:], 0)
	reported := n > 0
	var b [4096]byte
	for { // which file was closed does not matter
		k, err := unix.Read(w.files, b[:])
		if k > 0 { // perhaps after EpollWait
			reported = true
		} else if err != unix.EINTR {
			return reported
		}
	}
}
