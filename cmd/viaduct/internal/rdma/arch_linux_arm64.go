package rdma

import "golang.org/x/sys/unix"

const sysFstatat = unix.SYS_FSTATAT

// legacyPathCalls are the calls with a path unknown to arm64: none.
func legacyPathCalls() map[int]pathCall { return nil }

var compatExecs []int // no 64-bit program can make such calls
