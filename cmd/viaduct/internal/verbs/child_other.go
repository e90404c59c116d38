//go:build !linux

package verbs

import "syscall"

func withParent() *syscall.SysProcAttr { return nil }
