//go:build !linux

package main

import "syscall"

// segments does nothing: the guest is run on Linux only.
func segments(_, _ string, _ syscall.RawConn) error { return nil }
