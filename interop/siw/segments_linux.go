package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// segmentSize is the MSS of our sockets in bytes. TCP's timestamps take 12 bytes of the MSS, so a
// segment carries 1,448.
const segmentSize = 1460

// segments sets the MSS of a socket before connecting or listening.
func segments(_, _ string, c syscall.RawConn) (err error) {
	e := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, segmentSize) })
	if e != nil {
		return e
	}
	return err
}
