//go:build linux && (amd64 || arm64)

package rdma

import (
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"viaduct/internal/notify"
)

// A pathCall is a system call with a path. Every access to a file of RDMA begins with a pathCall.
type pathCall struct {
	dir, name int // indexes of the arguments with the directory and the path; dir is cwd if the call takes none
	link      linkRule
	serve     func(s *Service, c *notify.Call, p place)
}

const cwd = -1

// A linkRule determines whether a call concerns a symbolic link itself or the target.
type linkRule struct {
	arg  int
	flag uint64 // of that argument; 0: always the target
	not  bool   // the flag has the opposite meaning
}

var (
	follows = linkRule{}
	itself  = linkRule{not: true}
)

// statFlag returns the rule for calls with AT_SYMLINK_NOFOLLOW in an argument.
func statFlag(arg int) linkRule { return linkRule{arg: arg, flag: unix.AT_SYMLINK_NOFOLLOW} }

func (r linkRule) itself(c *notify.Call) bool { return (c.Args[r.arg]&r.flag != 0) != r.not }

// pathCalls returns the calls by number. Calls of a single processor are in arch_linux_*.go.
func pathCalls() map[int]pathCall {
	m := map[int]pathCall{
		unix.SYS_OPENAT: {0, 1, linkRule{arg: 2, flag: unix.O_NOFOLLOW}, func(s *Service, c *notify.Call, p place) {
			s.open(c, p, uint32(c.Args[2]))
		}},
		unix.SYS_OPENAT2: {0, 1, follows, (*Service).openHow},
		sysFstatat: {0, 1, statFlag(3),
			func(s *Service, c *notify.Call, p place) { s.statPlace(c, p, c.Args[2]) }},
		unix.SYS_STATX: {0, 1, statFlag(2), (*Service).statx},
		unix.SYS_FACCESSAT: {0, 1, follows, func(s *Service, c *notify.Call, p place) {
			s.access(c, p, uint32(c.Args[2]))
		}},
		unix.SYS_FACCESSAT2: {0, 1, statFlag(3), func(s *Service, c *notify.Call, p place) {
			s.access(c, p, uint32(c.Args[2]))
		}},
		unix.SYS_READLINKAT: {0, 1, itself,
			func(s *Service, c *notify.Call, p place) { s.readlink(c, p, c.Args[2], c.Args[3]) }},
		unix.SYS_CHDIR:  {cwd, 0, follows, (*Service).chdir},
		unix.SYS_STATFS: {cwd, 0, follows, (*Service).statfs},
		unix.SYS_INOTIFY_ADD_WATCH: {cwd, 1, linkRule{arg: 2, flag: unix.IN_DONT_FOLLOW},
			(*Service).watch},
		// ls reads access lists and labels.
		unix.SYS_GETXATTR:   {cwd, 0, follows, noAttribute},
		unix.SYS_LGETXATTR:  {cwd, 0, itself, noAttribute},
		unix.SYS_LISTXATTR:  {cwd, 0, follows, noAttributes},
		unix.SYS_LLISTXATTR: {cwd, 0, itself, noAttributes},
	}
	maps.Copy(m, legacyPathCalls())
	return m
}

// pathRules returns the rules to notify the calls with a path, and getcwd.
func (s *Service) pathRules() (rules []notify.Rule) {
	for _, nr := range slices.Sorted(maps.Keys(s.paths)) {
		// Most calls with AT_EMPTY_PATH are an fstat. For descriptors other than stand-ins, the
		// kernel can answer the calls.
		if arg, ok := map[int]int{sysFstatat: 3, unix.SYS_STATX: 2}[nr]; ok {
			fstat := notify.Cond{Arg: arg, Mask: unix.AT_EMPTY_PATH, Low: unix.AT_EMPTY_PATH, High: unix.AT_EMPTY_PATH}
			for _, ours := range s.numbers.conds(0) {
				rules = append(rules, notify.Rule{Nr: nr, If: []notify.Cond{fstat, ours}, Do: notify.Notify})
			}
			rules = append(rules, notify.Rule{Nr: nr, If: []notify.Cond{fstat, {Arg: 0, High: 1<<31 - 1}},
				Do: notify.Allow})
		}
		rules = append(rules, notify.Rule{Nr: nr, Do: notify.Notify})
	}
	return append(rules, notify.Rule{Nr: unix.SYS_GETCWD, Do: notify.Notify})
}

// path serves a call with a path if the file is a file of RDMA. All others are left to the kernel.
func (s *Service) path(c *notify.Call, pc pathCall) {
	name, ok := s.name(c, c.Args[pc.name])
	if !ok {
		c.Continue()
		return
	}
	dir := unix.AT_FDCWD
	if pc.dir != cwd {
		dir = int(int32(c.Args[pc.dir]))
	}
	itself := pc.link.itself(c)
	if !s.mayLead(c.TID, dir, name, itself) {
		c.Continue()
		return
	}
	p, ok := s.resolve(c.TID, dir, string(name), itself)
	if !ok || !c.Valid() {
		c.Continue()
		return
	}
	pc.serve(s, c, p)
}
