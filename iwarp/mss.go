package iwarp

import (
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"viaduct/internal/wire/mpa"
)

// mssBytes and mssAge limit the use of a TCP segment size: after mssBytes bytes, or at age mssAge,
// the size is read again. [I-27]
const (
	mssBytes = 4 << 20
	mssAge   = time.Second
)

// An mss is the size of sent FPDUs, which follows the size of TCP segments.
type mss struct {
	mulpdu atomic.Int32
	fixed  bool          // Interop.FPDUSize is set
	asked  time.Duration // time when the segment size was last read; 0 for never
	since  int           // bytes sent since asked
}

// refresh fits the MULPDU to the current size of TCP segments. now is the age of the stream.
// [MPA-4.5-6] [MPA-4.5-3] [DDP-3-1] [DDP-3-2] [I-27]
func (m *mss) refresh(now time.Duration, l *link, markers bool) {
	if m.asked != 0 && m.since < mssBytes && now-m.asked < mssAge {
		return
	}
	m.since, m.asked = 0, max(now, 1)
	var size int
	if l.fc != nil {
		size = segmentSizeBy(l.fc, l.conn)
	} else {
		size = segmentSize(l.conn)
	}
	m.mulpdu.Store(int32(mpa.MULPDU(size, markers)))
}

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
