//go:build linux && (amd64 || arm64)

package rdma

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/notify"
)

func procFD(tid, fd int) string {
	return "/proc/" + strconv.Itoa(tid) + "/fd/" + strconv.Itoa(fd)
}

func errnoOf(err error) unix.Errno {
	if e, ok := errors.AsType[unix.Errno](err); ok {
		return e
	}
	return unix.EIO
}

// open answers a call to open the place p.
func (s *Service) open(c *notify.Call, p place, flags uint32) {
	if p.node != nil && flags&(unix.O_PATH|unix.O_DIRECTORY) == 0 {
		if err := p.node.open(c, int(flags)); err != nil {
			c.Return(0, errnoOf(err))
		}
		return
	}
	if flags&unix.O_CREAT != 0 { // /sys is read-only, and elsewhere the mode is unknown here
		c.Return(0, unix.EACCES)
		return
	}
	fd, err := unix.Open(p.host, int(flags)|unix.O_CLOEXEC, 0)
	// Root could open a read-only file of the tree for writing.
	if err == nil && p.ours && flags&unix.O_ACCMODE != unix.O_RDONLY && flags&unix.O_PATH == 0 {
		unix.Close(fd)
		err = unix.EACCES
	}
	if err != nil {
		c.Return(0, errnoOf(err))
		return
	}
	defer unix.Close(fd)
	if err := c.Inject(fd, int(flags)&unix.O_CLOEXEC); err != nil && !errors.Is(err, notify.ErrGone) {
		c.Return(0, errnoOf(err))
	}
}

// openHow answers openat2. The kernel answers if a flag of the call restricts the resolution of the
// path.
func (s *Service) openHow(c *notify.Call, p place) {
	how := make(abi.Body, 24)
	if _, err := c.ReadMem(c.Args[2], how); err != nil || c.Args[3] < 24 {
		c.Continue() // the kernel returns the right error
		return
	}
	const free = unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS
	if how.U64(16)&^free != 0 { // confined to a directory outside of the tree, or without links
		c.Continue()
		return
	}
	s.open(c, p, uint32(how.U64(0)))
}

// access answers whether a place may be read, written or executed. Everybody may read all places of
// the tree and use the devices. For other places, the kernel decides.
func (s *Service) access(c *notify.Call, p place, mode uint32) {
	if !p.ours {
		c.Return(0, errnoOf(unix.Faccessat(unix.AT_FDCWD, p.host, mode, 0)))
		return
	}
	var st unix.Stat_t
	if err := unix.Lstat(p.host, &st); err != nil {
		c.Return(0, errnoOf(err))
		return
	}
	allowed := uint32(unix.R_OK)
	switch {
	case mode&^(unix.R_OK|unix.W_OK|unix.X_OK) != 0:
		c.Return(0, unix.EINVAL)
		return
	case p.node != nil:
		allowed |= unix.W_OK
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		allowed |= unix.X_OK
	}
	if mode&^allowed != 0 {
		c.Return(0, unix.EACCES)
		return
	}
	c.Return(0, 0)
}

// readlink answers with the target of a symbolic link.
func (s *Service) readlink(c *notify.Call, p place, to, room uint64) {
	b := make([]byte, min(room, maxPath))
	if len(b) == 0 {
		c.Return(0, unix.EINVAL)
		return
	}
	n, err := unix.Readlink(p.host, b)
	if err != nil {
		c.Return(0, errnoOf(err))
		return
	}
	s.give(c, to, b[:n], int64(n))
}

// give writes b to the program's memory at to, and answers with value.
func (s *Service) give(c *notify.Call, to uint64, b []byte, value int64) {
	if _, err := c.WriteMem(to, b); err != nil {
		c.Return(0, unix.EFAULT)
		return
	}
	c.Return(value, 0)
}

// chdir makes a directory the thread's working directory. Only the thread itself can change the
// directory, with a descriptor from this process.
func (s *Service) chdir(c *notify.Call, p place) {
	fd, err := unix.Open(p.host, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		c.Return(0, errnoOf(err))
		return
	}
	s.wg.Go(func() {
		defer unix.Close(fd)
		n, err := c.Add(fd, unix.O_CLOEXEC)
		if err == nil {
			err = c.Perform(notify.Native{Nr: unix.SYS_FCHDIR, Args: [6]uint64{uint64(n)}},
				notify.Native{Nr: unix.SYS_CLOSE, Args: [6]uint64{uint64(n)}})
		}
		if err != nil && !errors.Is(err, notify.ErrGone) { // for example, a debugger traces it
			c.Return(0, errnoOf(err))
		}
	})
}

// getcwd answers with the program's path of a working directory in the tree. All others are left to
// the kernel.
func (s *Service) getcwd(c *notify.Call) {
	path, ok := strings.CutPrefix(s.folder(c.TID, unix.AT_FDCWD), s.tree)
	if !ok || !c.Valid() {
		c.Continue()
		return
	}
	b := append([]byte(path), 0)
	if uint64(len(b)) > c.Args[1] {
		c.Return(0, unix.ERANGE)
		return
	}
	s.give(c, c.Args[0], b, int64(len(b)))
}

// watch answers inotify_add_watch. The instance belongs to the program, and the kernel sends the
// events.
func (s *Service) watch(c *notify.Call, p place) {
	fd, err := c.Borrow(int(int32(c.Args[0])))
	if err != nil {
		c.Return(0, errnoOf(err))
		return
	}
	defer unix.Close(fd)
	wd, err := unix.InotifyAddWatch(fd, p.host, uint32(c.Args[2]))
	if err != nil {
		c.Return(0, errnoOf(err))
		return
	}
	c.Return(int64(wd), 0)
}

// noAttribute answers a query for an extended attribute: there are none.
func noAttribute(_ *Service, c *notify.Call, p place) {
	_, err := os.Lstat(p.host)
	if err == nil {
		err = unix.ENODATA
	}
	c.Return(0, errnoOf(err))
}

// noAttributes answers a query for all extended attributes.
func noAttributes(_ *Service, c *notify.Call, p place) {
	if _, err := os.Lstat(p.host); err != nil {
		c.Return(0, errnoOf(err))
		return
	}
	c.Return(0, 0)
}
