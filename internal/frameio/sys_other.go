//go:build !linux

package frameio

import (
	"net"
	"syscall"
)

type iovec struct{}

// rawConn tells that there is no fast path on this system.
func rawConn(net.Conn) (syscall.RawConn, int) { return nil, -1 }

// The fast path's calls are never reached without a rawConn.

func sysRead(uintptr, []byte) (int, error)              { panic("frameio: no fast path") }
func (c *Conn) sysReadv(uintptr, [][]byte) (int, error) { panic("frameio: no fast path") }
func (c *Conn) writeBatch(uintptr) error                { panic("frameio: no fast path") }
