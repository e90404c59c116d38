package iwarp

import (
	"net"
	"syscall"

	"viaduct/internal/wire/mpa"
)

// Payload in bytes of a TCP segment with timestamps, on a link with an MTU of 1500.
const (
	segmentIPv4 = 1448
	segmentIPv6 = 1428
)

// A controller calls a function with the descriptor of a connection, as [syscall.RawConn] does.
type controller interface {
	Control(func(fd uintptr)) error
}

// segmentSize returns the current payload size in bytes of a TCP segment of c, or the usual size if
// the system reports none. [MPA-5.1-1] [I-27]
func segmentSize(c net.Conn) int {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return usualSegment(c)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return usualSegment(c)
	}
	return segmentSizeBy(raw, c)
}

// segmentSizeBy is segmentSize, without allocation, for a caller with a controller of c.
func segmentSizeBy(by controller, c net.Conn) int {
	switch size := askSegmentSize(by); {
	case size >= mpa.MinMULPDU:
		return size
	case size > 0:
		return mpa.MinMULPDU
	}
	return usualSegment(c)
}

// usualSegment returns the payload size to assume if the connection's is unknown. [MPA-5.1-2]
func usualSegment(c net.Conn) int {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok && a.IP.To4() == nil {
		return segmentIPv6
	}
	return segmentIPv4
}
