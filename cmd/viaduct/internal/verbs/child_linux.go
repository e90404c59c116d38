package verbs

import "syscall"

// withParent makes the kernel kill the child when the parent dies.
func withParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
