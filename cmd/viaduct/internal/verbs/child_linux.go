package verbs

import "syscall"

// withParent ends the child when its parent is killed.
func withParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
