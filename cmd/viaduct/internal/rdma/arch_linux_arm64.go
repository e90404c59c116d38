package rdma

import "golang.org/x/sys/unix"

const (
	sysFstatat = unix.SYS_FSTATAT
	sysOpen    = -1 // not on this processor
	sysStat    = -2
)

var legacyPaths []int

var compatExecs []int // no 64-bit program can make such calls
