package rdma

import "golang.org/x/sys/unix"

const (
	sysFstatat = unix.SYS_NEWFSTATAT
	sysOpen    = unix.SYS_OPEN
	sysStat    = unix.SYS_STAT
)

var legacyPaths = []int{sysOpen, sysStat}
