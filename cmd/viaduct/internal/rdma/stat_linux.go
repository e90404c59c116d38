//go:build linux && (amd64 || arm64)

package rdma

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"viaduct/internal/notify"
)

// statPlace answers stat and related calls.
func (s *Service) statPlace(c *notify.Call, p place, to uint64) {
	var st unix.Stat_t
	if err := unix.Lstat(p.host, &st); err != nil {
		c.Return(0, errnoOf(err))
		return
	}
	if p.node != nil {
		st = charStat(p.node.dev)
	}
	s.writeStat(c, to, st)
}

// statx answers statx of a place.
func (s *Service) statx(c *notify.Call, p place) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, p.host, int(c.Args[2])&^unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, int(c.Args[3]), &st); err != nil {
		c.Return(0, errnoOf(err))
		return
	}
	if p.node != nil {
		fillStatx(&st, charStat(p.node.dev))
	}
	s.writeStatx(c, &st)
}

// fillStatx sets the fields of st where a device file differs from the file in the tree.
func fillStatx(st *unix.Statx_t, of unix.Stat_t) {
	st.Mask |= unix.STATX_BASIC_STATS
	st.Mode, st.Ino, st.Nlink, st.Blksize, st.Size, st.Blocks = uint16(of.Mode), of.Ino,
		uint32(of.Nlink), uint32(of.Blksize), 0, 0
	st.Rdev_major, st.Rdev_minor = unix.Major(of.Rdev), unix.Minor(of.Rdev)
}

// fstatx answers statx of a descriptor.
func (s *Service) fstatx(c *notify.Call, of unix.Stat_t) {
	var st unix.Statx_t
	fillStatx(&st, of)
	s.writeStatx(c, &st)
}

func (s *Service) writeStatx(c *notify.Call, st *unix.Statx_t) {
	s.give(c, c.Args[4], unsafe.Slice((*byte)(unsafe.Pointer(st)), unsafe.Sizeof(*st)), 0)
}

// statfs answers statfs of a place. For our places, statfs reports the file system types programs
// expect.
func (s *Service) statfs(c *notify.Call, p place) {
	var st unix.Statfs_t
	if err := unix.Statfs(p.host, &st); err != nil {
		c.Return(0, errnoOf(err))
		return
	}
	if p.ours && p.path[:5] == "/sys/" {
		st = unix.Statfs_t{Type: unix.SYSFS_MAGIC, Bsize: pageSize, Frsize: pageSize, Namelen: 255}
	}
	s.give(c, c.Args[1], unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st)), 0)
}

// fstat calls answer with the status of a stand-in. Other descriptors are left to the kernel.
func (s *Service) fstat(c *notify.Call, number int, answer func(st unix.Stat_t)) {
	fd, f := s.lookup(c, number)
	if fd >= 0 {
		unix.Close(fd)
	}
	if f == nil {
		c.Continue()
		return
	}
	answer(f.stat())
}

func (s *Service) writeStat(c *notify.Call, to uint64, st unix.Stat_t) {
	s.give(c, to, unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st)), 0)
}

// charStat describes a character device every user may open.
func charStat(dev uint64) unix.Stat_t {
	return unix.Stat_t{Ino: dev, Mode: unix.S_IFCHR | 0o666, Rdev: dev, Nlink: 1, Blksize: pageSize}
}
