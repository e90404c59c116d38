//go:build !linux

package frameio

import (
	"net"
	"syscall"
)

type iovec struct{}

// A socket stands for the fast path, which this system does not have.
type socket struct {
	fd int
	in edge
}

type lobby struct{}

func (c *Conn) sit() bool    { return false }
func (c *Conn) vacate() bool { return false }
func (c *Conn) retire() bool { return false }

type edge struct{ raw syscall.RawConn }

func takeSocket(net.Conn) *socket { return nil }

type handle struct {
	net.Conn
	s *socket
}

func (handle) control(func(uintptr)) error { panic("frameio: no fast path") }

// The fast path's methods are never reached without a socket.

func (*socket) close(bool)    {}
func (*socket) closeWrite()   {}
func (*socket) waitWritable() {}
func (*edge) arm(int) bool    { return false }
func (*edge) disarm(int)      {}
func (*socket) startle() bool { return false }
func (*socket) openIn() bool  { return false }
func (*edge) calm()           {}

func sysRead(int, []byte) (int, error)              { panic("frameio: no fast path") }
func sysPeek(int) (bool, error)                     { panic("frameio: no fast path") }
func sysLookAhead(int, int, []byte) (int, error)    { panic("frameio: no fast path") }
func sysLookBack(int)                               { panic("frameio: no fast path") }
func sysPending(int) int                            { panic("frameio: no fast path") }
func (c *Conn) sysReadv(int, [][]byte) (int, error) { panic("frameio: no fast path") }
func (c *Conn) writeBatch(int) error                { panic("frameio: no fast path") }
