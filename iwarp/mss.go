package iwarp

import "net"

// Payload of a TCP segment with timestamps on a link with an MTU of 1500.
const (
	segmentIPv4 = 1448
	segmentIPv6 = 1428
)

// usualSegment is the size to assume if the connection does not tell.
// [MPA-5.1-2]
func usualSegment(c net.Conn) int {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok && a.IP.To4() == nil {
		return segmentIPv6
	}
	return segmentIPv4
}
