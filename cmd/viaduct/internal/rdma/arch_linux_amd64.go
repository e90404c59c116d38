package rdma

import (
	"golang.org/x/sys/unix"

	"viaduct/internal/notify"
)

const sysFstatat = unix.SYS_NEWFSTATAT

// legacyPathCalls are the calls with a path unknown to arm64.
func legacyPathCalls() map[int]pathCall {
	stat := func(s *Service, c *notify.Call, p place) { s.statPlace(c, p, c.Args[1]) }
	return map[int]pathCall{
		unix.SYS_OPEN: {cwd, 0, linkRule{arg: 1, flag: unix.O_NOFOLLOW}, func(s *Service, c *notify.Call, p place) {
			s.open(c, p, uint32(c.Args[1]))
		}},
		unix.SYS_STAT:  {cwd, 0, follows, stat},
		unix.SYS_LSTAT: {cwd, 0, itself, stat},
		unix.SYS_ACCESS: {cwd, 0, follows,
			func(s *Service, c *notify.Call, p place) { s.access(c, p, uint32(c.Args[1])) }},
		unix.SYS_READLINK: {cwd, 0, itself,
			func(s *Service, c *notify.Call, p place) { s.readlink(c, p, c.Args[1], c.Args[2]) }},
	}
}

// compatExecs are the numbers of execve and execveat in 32-bit calls. 64-bit programs can make
// 32-bit calls, too.
var compatExecs = []int{11, 358}
