//go:build linux && (amd64 || arm64)

package rdma

import (
	"log/slog"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/cmd/viaduct/internal/rdma/rxe"
	"viaduct/internal/notify"
	"viaduct/internal/roceudp"
	"viaduct/internal/status"
	"viaduct/samehost"
)

// Options are the parameters of a Service.
type Options struct {
	Devices []Device
	Logger  *slog.Logger
	// WrapConn, if not nil, is called with each TCP connection, and with whether this side dialled
	// the connection. Its result is used instead of nc.
	WrapConn func(nc net.Conn, dialled bool) net.Conn
	// Tap, if not nil, is called with each packet of RoCEv2.
	Tap roceudp.Tap
	// NoCRC turns MPA's CRCs off if the peer agrees.
	NoCRC bool
	// SameHost determines whether connections within this host use shared memory. With WrapConn,
	// connections do not use shared memory.
	SameHost samehost.Policy
	// Restart, if not nil, makes the calls of a process restart after signals that Restarts selects.
	Restart func(pid int)
	// Status shows the connections in "viaduct ps"; nil shows none.
	Status *status.Server
	// Tell, if not nil, prints a line for the user when a program's error does not show the remedy.
	Tell func(format string, args ...any)
	// Explain, if not nil, prints a line with the path of each connection.
	Explain func(format string, args ...any)
}

// A Service answers the calls of one program and its descendants. A single goroutine calls Serve,
// and another only if a call blocks for a second.
type Service struct {
	opt     Options
	log     *slog.Logger
	devices []*device
	tree    string           // directory with the replacements of /sys and /dev
	nodes   map[string]*node // the device files of the tree, by path
	paths   map[int]pathCall // calls with a path, by number
	done    chan struct{}
	wg      sync.WaitGroup

	cm    cmTable
	ports portTable
	dials turns
	links links
	roce  *rxe.Fabric // shared by all RoCE devices

	roceCM roceManager
	cmWire *cmWire

	rings     ringQuota
	processes processes
	known     known
	numbers   numbers
	told      sync.Map // subjects of tellOnce

	sweeper  *sweeper
	closes   *closeWatch // nil if the kernel gives none
	sweeping sync.Mutex  // held by Sweep

	mu    sync.Mutex
	files map[inode]file // guarded by mu; the stand-ins
}

// An inode identifies the file of a descriptor, whatever its number and process.
type inode struct{ dev, ino uint64 }

// A file is the object a stand-in represents.
type file interface {
	// serve serves a write or ioctl. It owns fd, a copy of the program's descriptor.
	serve(c *notify.Call, fd int)
	stat() unix.Stat_t
	// orphaned reports whether no process has the stand-in any more.
	orphaned() bool
	release()
}

// New creates the devices. Call Close to release the devices.
func New(o Options) (*Service, error) {
	s := &Service{opt: o, log: o.Logger, done: make(chan struct{}), files: map[inode]file{},
		roce: rxe.NewFabric(), known: known{pid: os.Getpid()}, numbers: newNumbers(descriptorLimit(unix.Getrlimit).Max)}
	s.known.numbers, s.rings.most = s.numbers, ringsMost()
	s.cmWire = newCMWire(s)
	if o.Tap != nil {
		s.roce.SetTap(o.Tap)
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	for i, d := range o.Devices {
		s.devices = append(s.devices, newDevice(s, i, d))
	}
	s.nodes, s.paths = s.deviceNodes(), pathCalls()
	if err := s.renderTree(); err != nil {
		return nil, err
	}
	s.startSweeper(newSweeper())
	s.watchAddresses()
	return s, nil
}

// Close releases everything. All processes of the program must have ended.
func (s *Service) Close() {
	close(s.done)
	s.mu.Lock()
	files := s.files
	s.files = nil
	s.mu.Unlock()
	s.known.drop()
	for _, f := range files {
		f.release()
	}
	s.wg.Wait() // wait for listeners and the ends of connections
	if s.closes != nil {
		s.closes.close()
	}
	s.cmWire.close()
	s.roce.Close()
	s.removeTree()
}

func (s *Service) explain(format string, args ...any) {
	if s.opt.Explain != nil {
		s.opt.Explain(format, args...)
	}
}

// Rules returns the rules for the calls that Serve must get.
func (s *Service) Rules() []notify.Rule {
	rules := []notify.Rule{
		{Nr: unix.SYS_SOCKET, If: []notify.Cond{{Arg: 0, Low: unix.AF_NETLINK, High: unix.AF_NETLINK}, {Arg: 2, Low: unix.NETLINK_RDMA, High: unix.NETLINK_RDMA}}, Do: notify.Notify},
	}
	for _, nr := range []int{unix.SYS_WRITE, unix.SYS_IOCTL, unix.SYS_FSTAT, unix.SYS_SENDMSG, unix.SYS_SENDTO, unix.SYS_DUP} {
		for _, ours := range s.numbers.conds(0) {
			rules = append(rules, notify.Rule{Nr: nr, If: []notify.Cond{ours}, Do: notify.Notify})
		}
	}
	// No other kind of file has an ioctl of this number, so that a duplicate of a stand-in is
	// served at any descriptor number.
	rules = append(rules, notify.Rule{Nr: unix.SYS_IOCTL,
		If: []notify.Cond{{Arg: 1, Low: abi.IoctlVerbs, High: abi.IoctlVerbs}}, Do: notify.Notify})
	for _, cmd := range []uint32{unix.F_DUPFD, unix.F_DUPFD_CLOEXEC} {
		for _, ours := range s.numbers.conds(0) {
			rules = append(rules, notify.Rule{Nr: unix.SYS_FCNTL,
				If: []notify.Cond{ours, {Arg: 1, Low: cmd, High: cmd}}, Do: notify.Notify})
		}
	}
	rules = append(rules, s.pathRules()...)
	for _, nr := range []int{unix.SYS_EXECVE, unix.SYS_EXECVEAT} {
		rules = append(rules, notify.Rule{Nr: nr, Do: notify.Notify})
	}
	for _, nr := range compatExecs {
		rules = append(rules, notify.Rule{Nr: nr, Compat: true, Do: notify.Notify})
	}
	return rules
}

// Serve answers a call that Rules selects, or leaves the call to the kernel. Slow commands are
// answered by another goroutine after Serve has returned.
func (s *Service) Serve(c *notify.Call) {
	s.sweeper.note()
	if c.Compat {
		s.exec(c)
		return
	}
	if pc, ok := s.paths[c.Nr]; ok && !s.emptyPath(c) {
		s.path(c, pc)
		return
	}
	switch c.Nr {
	case sysFstatat:
		s.fstat(c, int(int32(c.Args[0])), func(st unix.Stat_t) { s.writeStat(c, c.Args[2], st) })
	case unix.SYS_STATX:
		s.fstat(c, int(int32(c.Args[0])), func(st unix.Stat_t) { s.fstatx(c, st) })
	case unix.SYS_GETCWD:
		s.getcwd(c)
	case unix.SYS_SOCKET:
		s.socket(c)
	case unix.SYS_SENDMSG, unix.SYS_SENDTO:
		s.netlink(c)
	case unix.SYS_EXECVE, unix.SYS_EXECVEAT:
		s.exec(c)
	default:
		s.descriptor(c)
	}
}

// emptyPath reports whether a call is a stat of a descriptor in the range of stand-ins.
func (s *Service) emptyPath(c *notify.Call) bool {
	switch c.Nr {
	case sysFstatat:
		return c.Args[3]&unix.AT_EMPTY_PATH != 0 && s.numbers.has(int(int32(c.Args[0])))
	case unix.SYS_STATX:
		return c.Args[2]&unix.AT_EMPTY_PATH != 0 && s.numbers.has(int(int32(c.Args[0])))
	}
	return false
}

// descriptor serves a call on a number of the reserved range, or a verbs ioctl on any number.
func (s *Service) descriptor(c *notify.Call) {
	number := int(int32(c.Args[0]))
	if c.Nr == unix.SYS_WRITE || c.Nr == unix.SYS_IOCTL {
		if x := s.known.begin(c, number); x != nil {
			defer x.calls.Done()
			x.call(c)
			return
		}
	}
	fd, f := s.lookup(c, number)
	switch {
	case f == nil:
		if fd >= 0 {
			unix.Close(fd)
		}
		c.Continue()
		return
	case fd < 0: // the kernel must not answer: for example, it would write into the rings
		c.Return(0, unix.ENOMEM)
		return
	}
	switch c.Nr {
	case unix.SYS_WRITE, unix.SYS_IOCTL:
		f.serve(c, fd) // serve closes fd
		return
	case unix.SYS_FSTAT:
		s.writeStat(c, c.Args[1], f.stat())
	case unix.SYS_DUP:
		s.place(c, fd, 0)
	case unix.SYS_FCNTL:
		flags := 0
		if c.Args[1] == unix.F_DUPFD_CLOEXEC {
			flags = unix.O_CLOEXEC
		}
		s.place(c, fd, flags)
	}
	unix.Close(fd)
}

// lookup copies a descriptor of the program and returns the file it represents. f is nil for a
// descriptor that is no stand-in, for example a file a program with many files has at such a
// number. If this process has no free descriptor, fd is -1, but f is still returned.
func (s *Service) lookup(c *notify.Call, number int) (fd int, f file) {
	fd, err := c.Borrow(number)
	if err == unix.EMFILE || err == unix.ENFILE {
		var st unix.Stat_t
		if unix.Stat(procFD(c.TID, number), &st) != nil || !c.Valid() {
			return -1, nil
		}
		return -1, s.file(inode{uint64(st.Dev), st.Ino})
	}
	if err != nil {
		return -1, nil
	}
	id, err := inodeOf(fd)
	if err != nil {
		unix.Close(fd)
		return -1, nil
	}
	return fd, s.file(id)
}

// file returns the file with an inode, nil if there is none.
func (s *Service) file(id inode) file {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.files[id]
}

func inodeOf(fd int) (inode, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return inode{}, err
	}
	return inode{uint64(st.Dev), st.Ino}, nil
}

func (s *Service) add(id inode, f file) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[id] = f
}

// Sweep releases the files no process has any more. A stand-in is closed by close, by exec, or by
// the end of the last process with the stand-in open. Listeners are closed when Sweep returns;
// streams may still be closing.
func (s *Service) Sweep() {
	s.sweeping.Lock()
	defer s.sweeping.Unlock()
	s.known.drop()
	var gone []file
	s.mu.Lock()
	for id, f := range s.files {
		if c, ok := f.(*cmFile); ok {
			if !c.settle() {
				s.sweeper.note()
			}
		}
		if f.orphaned() {
			delete(s.files, id)
			gone = append(gone, f)
		}
	}
	s.mu.Unlock()
	for _, f := range gone {
		f.release()
	}
}
