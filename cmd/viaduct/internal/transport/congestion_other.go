//go:build !linux

package transport

import (
	"errors"
	"syscall"
)

func congestionControl(name string) func(network, address string, c syscall.RawConn) error {
	if name == "" {
		return nil
	}
	return func(_, _ string, _ syscall.RawConn) error {
		return errors.New("congestion control can be chosen on Linux only")
	}
}
