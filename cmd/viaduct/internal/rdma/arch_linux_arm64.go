package rdma

import "golang.org/x/sys/unix"

const (
	sysFstatat = unix.SYS_FSTATAT
	sysOpen    = -1 // not on this processor
	sysStat    = -2
)

var legacyPaths []int
