//go:build linux && (amd64 || arm64)

package rdma

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/notify"
)

const (
	devFolder = "/dev/infiniband/"
	maxPath   = 512 // longer ones are none of ours
)

// sysFolders are the parts of /sys that are rendered.
var sysFolders = []string{"/sys/class/infiniband", "/sys/class/infiniband_verbs", "/sys/class/misc/rdma_cm"}

func procFD(tid, fd int) string {
	return "/proc/" + strconv.Itoa(tid) + "/fd/" + strconv.Itoa(fd)
}

func errnoOf(err error) unix.Errno {
	if e, ok := errors.AsType[unix.Errno](err); ok {
		return e
	}
	return unix.EIO
}

// path reads a path argument if it is one of ours.
func (s *Service) path(c *notify.Call, addr uint64) (string, bool) {
	var head [8]byte
	if _, err := c.ReadMem(addr, head[:]); err != nil {
		return "", false
	}
	// Nearly all calls end here.
	if h := string(head[:5]); h != "/sys/" && h != "/dev/" {
		return "", false
	}
	b := make([]byte, maxPath)
	n, _ := c.ReadMem(addr, b) // the end of the mapping may come first
	if n == 0 {
		// Near the end of a page the whole read fails: read up to the boundary.
		n, _ = c.ReadMem(addr, b[:min(maxPath, 4096-int(addr%4096))])
	}
	p, _, ok := bytes.Cut(b[:n], []byte{0})
	if !ok {
		return "", false
	}
	path := filepath.Clean(string(p))
	if strings.HasPrefix(path, devFolder) {
		return path, true
	}
	for _, f := range sysFolders {
		if path == f || strings.HasPrefix(path, f+"/") {
			return path, true
		}
	}
	return "", false
}

// open answers the opening of a file of ours; all others are the kernel's.
func (s *Service) open(c *notify.Call, addr uint64, flags uint32) {
	path, ok := s.path(c, addr)
	if !ok {
		c.Continue()
		return
	}
	if name, ok := strings.CutPrefix(path, devFolder); ok {
		s.openDevice(c, name, int(flags))
		return
	}
	fd, err := unix.Open(s.tree+path, unix.O_RDONLY|unix.O_CLOEXEC|int(flags)&unix.O_DIRECTORY, 0)
	if err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY {
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

func (s *Service) openDevice(c *notify.Call, name string, flags int) {
	var err error
	switch d := s.deviceOf(name); {
	case d != nil:
		err = s.openUverbs(c, d, flags)
	case name == "rdma_cm":
		err = s.openCM(c, flags)
	default:
		err = unix.ENOENT
	}
	if err != nil {
		c.Return(0, errnoOf(err))
	}
}

// deviceOf returns the device of uverbsN.
func (s *Service) deviceOf(name string) *device {
	for _, d := range s.devices {
		if d.found.Uverbs == name {
			return d
		}
	}
	return nil
}

// statPath answers stat of a file of ours.
func (s *Service) statPath(c *notify.Call, addr, to uint64) {
	path, ok := s.path(c, addr)
	if !ok {
		c.Continue()
		return
	}
	if name, ok := strings.CutPrefix(path, devFolder); ok {
		switch d := s.deviceOf(name); {
		case d != nil:
			s.writeStat(c, to, charStat(d.found.UverbsDev))
		case name == "rdma_cm":
			s.writeStat(c, to, charStat(abi.CMDev))
		default:
			c.Return(0, unix.ENOENT)
		}
		return
	}
	var st unix.Stat_t
	if err := unix.Stat(s.tree+path, &st); err != nil {
		c.Return(0, errnoOf(err))
		return
	}
	s.writeStat(c, to, func(to *unix.Stat_t) { *to = st })
}

// fstat answers for a descriptor.
func (s *Service) fstat(c *notify.Call, number int, to uint64) {
	fd, f := s.lookup(c, number)
	if fd >= 0 {
		unix.Close(fd)
	}
	if f == nil {
		c.Continue()
		return
	}
	s.writeStat(c, to, f.stat)
}

func (s *Service) writeStat(c *notify.Call, addr uint64, fill func(*unix.Stat_t)) {
	var st unix.Stat_t
	fill(&st)
	if _, err := c.WriteMem(addr, unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st))); err != nil {
		c.Return(0, unix.EFAULT)
		return
	}
	c.Return(0, 0)
}

// charStat describes a character device that every user may open.
func charStat(dev uint64) func(*unix.Stat_t) {
	return func(st *unix.Stat_t) {
		*st = unix.Stat_t{Ino: dev, Mode: unix.S_IFCHR | 0o666, Rdev: dev, Nlink: 1, Blksize: 4096}
	}
}

// renderTree writes what stands for the files of sysfs.
func renderTree(devices []*device) (dir string, err error) {
	if dir, err = os.MkdirTemp("", "viaduct-rdma-"); err != nil {
		return "", err
	}
	files := map[string]string{
		"/sys/class/misc/rdma_cm/abi_version":     "4",
		"/sys/class/misc/rdma_cm/dev":             "10:121",
		"/sys/class/infiniband_verbs/abi_version": "6",
	}
	for i, d := range devices {
		ib := "/sys/class/infiniband/" + d.found.Name + "/"
		uv := "/sys/class/infiniband_verbs/" + d.found.Uverbs + "/"
		for _, f := range d.sysFiles() {
			files[ib+f.name] = f.text
		}
		files[uv+"ibdev"] = d.found.Name
		files[uv+"abi_version"] = strconv.FormatUint(d.is.driver.ABI, 10)
		files[uv+"dev"] = fmt.Sprintf("%d:%d", uverbsMajor, uverbsMinor+i)
		files[uv+"device/numa_node"] = "-1"
	}
	for path, text := range files {
		path = dir + path
		if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
			err = os.WriteFile(path, []byte(text+"\n"), 0o444)
		}
		if err != nil {
			os.RemoveAll(dir)
			return "", err
		}
	}
	return dir, nil
}
