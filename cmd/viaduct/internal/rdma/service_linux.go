//go:build linux && (amd64 || arm64)

package rdma

import (
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/cmd/viaduct/internal/rdma/rxe"
	"viaduct/internal/notify"
	"viaduct/internal/status"
	"viaduct/samehost"
)

// Options say how devices are served.
type Options struct {
	Devices []Device
	Logger  *slog.Logger
	// WrapConn, if set, is given each TCP connection, and whether it was dialled.
	WrapConn func(nc net.Conn, dialled bool) net.Conn
	// NoCRC leaves MPA's CRCs out if the peer agrees.
	NoCRC bool
	// SameHost says whether connections within this host go through shared memory. With WrapConn they
	// do not.
	SameHost samehost.Policy
	// Status shows the connections; nil shows none.
	Status *status.Server
	// Tell, if set, gets a line for the user where a program's error does not say what to do.
	Tell func(format string, args ...any)
	// Explain, if set, gets one line for each connection and what became of it.
	Explain func(format string, args ...any)
}

// A Service answers the calls of one program and its descendants. Serve is called
// by one goroutine, and by another only if a call holds that one up for a second.
type Service struct {
	opt     Options
	log     *slog.Logger
	devices []*device
	tree    string           // the folder with what stands for /sys and /dev
	nodes   map[string]*node // the device files of the tree, by path
	paths   map[int]pathCall // by number
	done    chan struct{}
	wg      sync.WaitGroup

	cm    cmTable
	ports portTable
	dials turns
	links links
	roce  *rxe.Fabric // of all RoCE devices

	roceCM roceManager
	cmWire *cmWire

	rings     ringQuota
	processes processes
	known     known
	numbers   numbers
	told      sync.Map // subjects of tellOnce

	sweeping sync.Mutex // held by Sweep

	mu    sync.Mutex
	files map[inode]file // guarded by mu; the stand-ins
}

// An inode identifies what a descriptor refers to, whatever its number and
// process.
type inode struct{ dev, ino uint64 }

// A file is what a stand-in stands for.
type file interface {
	// serve serves a write or ioctl. It takes fd over, a copy of the program's descriptor.
	serve(c *notify.Call, fd int)
	stat() unix.Stat_t
	// orphaned reports whether no process has the stand-in any more.
	orphaned() bool
	release()
}

// New makes the devices. Close ends them.
func New(o Options) (*Service, error) {
	s := &Service{opt: o, log: o.Logger, done: make(chan struct{}), files: map[inode]file{}, roce: rxe.NewFabric(), known: known{pid: os.Getpid()}, numbers: newNumbers(descriptorLimit(unix.Getrlimit).Max)}
	s.known.numbers, s.rings.most = s.numbers, ringsMost()
	s.cmWire = newCMWire(s)
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
	s.wg.Go(s.sweep)
	s.watchAddresses()
	return s, nil
}

// Close releases everything, as the end of all processes does.
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
	s.wg.Wait() // listeners and the ends of connections
	s.cmWire.close()
	s.roce.Close()
	s.removeTree()
}

func (s *Service) explain(format string, args ...any) {
	if s.opt.Explain != nil {
		s.opt.Explain(format, args...)
	}
}

// Rules are the calls that Serve is to be given.
func (s *Service) Rules() []notify.Rule {
	rules := []notify.Rule{
		{Nr: unix.SYS_SOCKET, If: []notify.Cond{{Arg: 0, Low: unix.AF_NETLINK, High: unix.AF_NETLINK}, {Arg: 2, Low: unix.NETLINK_RDMA, High: unix.NETLINK_RDMA}}, Do: notify.Notify},
	}
	for _, nr := range []int{unix.SYS_WRITE, unix.SYS_IOCTL, unix.SYS_FSTAT, unix.SYS_SENDMSG, unix.SYS_SENDTO, unix.SYS_DUP} {
		for _, ours := range s.numbers.conds(0) {
			rules = append(rules, notify.Rule{Nr: nr, If: []notify.Cond{ours}, Do: notify.Notify})
		}
	}
	// This number is no other device's, so a duplicate is served wherever it is.
	rules = append(rules, notify.Rule{Nr: unix.SYS_IOCTL, If: []notify.Cond{{Arg: 1, Low: abi.IoctlVerbs, High: abi.IoctlVerbs}}, Do: notify.Notify})
	for _, cmd := range []uint32{unix.F_DUPFD, unix.F_DUPFD_CLOEXEC} {
		for _, ours := range s.numbers.conds(0) {
			rules = append(rules, notify.Rule{Nr: unix.SYS_FCNTL, If: []notify.Cond{ours, {Arg: 1, Low: cmd, High: cmd}}, Do: notify.Notify})
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

// Serve answers a call.
func (s *Service) Serve(c *notify.Call) {
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

// emptyPath reports whether a call is a stat of a descriptor where stand-ins are.
func (s *Service) emptyPath(c *notify.Call) bool {
	switch c.Nr {
	case sysFstatat:
		return c.Args[3]&unix.AT_EMPTY_PATH != 0 && s.numbers.has(int(int32(c.Args[0])))
	case unix.SYS_STATX:
		return c.Args[2]&unix.AT_EMPTY_PATH != 0 && s.numbers.has(int(int32(c.Args[0])))
	}
	return false
}

// descriptor serves a call on a number of the reserved range, or the ioctl of verbs on any.
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
	case fd < 0: // the kernel must not answer: it would write into the rings, for instance
		c.Return(0, unix.ENOMEM)
		return
	}
	switch c.Nr {
	case unix.SYS_WRITE, unix.SYS_IOCTL:
		f.serve(c, fd) // which closes fd
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

// lookup borrows a descriptor and tells what it stands for: nil if it is no
// stand-in, which a program with many files may have at such a number. Without room for
// a descriptor in this process it tells what it stands for only; fd is -1 then.
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

// file is what stands at an inode, nil for none.
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

// sweepEvery is how soon the end of a program is noticed by its peers.
const sweepEvery = 50 * time.Millisecond

// sweep calls Sweep again and again.
func (s *Service) sweep() {
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-t.C:
		}
		s.Sweep()
	}
}

// Sweep releases what no process has any more: a stand-in is closed by close, by
// exec, or by the end of the last process that has it. Its sockets are closed when
// Sweep returns.
func (s *Service) Sweep() {
	s.sweeping.Lock()
	defer s.sweeping.Unlock()
	s.known.drop()
	var gone []file
	s.mu.Lock()
	for id, f := range s.files {
		if c, ok := f.(*cmFile); ok {
			c.settle()
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
