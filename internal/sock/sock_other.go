//go:build !linux

package sock

import (
	"context"
	"errors"
	"net"
)

// ErrWouldBlock is not returned on this system.
var ErrWouldBlock = errors.New("sock: would block")

// A Vec is not used on this system.
type Vec struct{}

// A Socket does not exist on this system: Take returns nil, and the engines use package net.
type Socket struct{}

// Take returns nil.
func Take(net.Conn) *Socket { return nil }

// Own returns nc.
func Own(nc net.Conn) net.Conn { return nc }

// OwnListener returns l.
func OwnListener(l net.Listener, _ Tuning) (net.Listener, error) { return l, nil }

// Dial is d.DialContext.
func Dial(ctx context.Context, d *net.Dialer, network, address string) (net.Conn, error) {
	return d.DialContext(ctx, network, address)
}

// Handle returns nc.
func Handle(nc net.Conn, _ *Socket) net.Conn { return nc }

// PeeksAhead returns false on this system.
func PeeksAhead() bool { return false }

// The methods below are never called, because there is no Socket.

const absent = "sock: no socket on this system"

func (*Socket) ByKernel() bool                      { panic(absent) }
func (*Socket) Detach()                             { panic(absent) }
func (*Socket) Owes() bool                          { panic(absent) }
func (*Socket) Roomy() bool                         { panic(absent) }
func (*Socket) Apart() bool                         { panic(absent) }
func (*Socket) Taken() uint64                       { panic(absent) }
func (*Socket) FD() int                             { panic(absent) }
func (*Socket) OpenArrivals() bool                  { panic(absent) }
func (*Socket) CloseArrivals()                      { panic(absent) }
func (*Socket) Sleep(func(uintptr) bool) error      { panic(absent) }
func (*Socket) Arm() bool                           { panic(absent) }
func (*Socket) Ask() bool                           { panic(absent) }
func (*Socket) Polls() bool                         { panic(absent) }
func (*Socket) Disarm()                             { panic(absent) }
func (*Socket) Interrupt() bool                     { panic(absent) }
func (*Socket) Interrupted()                        { panic(absent) }
func (*Socket) WaitWritable()                       { panic(absent) }
func (*Socket) Close(bool)                          { panic(absent) }
func (*Socket) CloseWrite()                         { panic(absent) }
func (*Socket) Control(func(uintptr)) error         { panic(absent) }
func (*Socket) Read([]byte) (int, error)            { panic(absent) }
func (*Socket) Peek([]byte) (int, error)            { panic(absent) }
func (*Socket) PeekAt(int, []byte) (int, error)     { panic(absent) }
func (*Socket) PeekFront()                          { panic(absent) }
func (*Socket) Readable() (bool, error)             { panic(absent) }
func (*Socket) Unread() bool                        { panic(absent) }
func (*Socket) Pending() int                        { panic(absent) }
func (*Socket) ReadV([][]byte, *[]Vec) (int, error) { panic(absent) }
func (*Socket) Write([]byte) (int, error)           { panic(absent) }
func (*Socket) Reserve(int) []byte                  { panic(absent) }
func (*Socket) Commit(int)                          { panic(absent) }
func (*Socket) WriteV([][]byte, []Vec) (int, error) { panic(absent) }
