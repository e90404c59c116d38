package rdma

import "golang.org/x/sys/unix"

const (
	sysFstatat = unix.SYS_NEWFSTATAT
	sysOpen    = unix.SYS_OPEN
	sysStat    = unix.SYS_STAT
)

var legacyPaths = []int{sysOpen, sysStat}

// compatExecs are the numbers by which 32-bit calls execute a program: those of a 64-bit program too.
var compatExecs = []int{11, 358}
