//go:build !linux

package iwarp

import "net"

// segmentSize returns the payload in bytes that a TCP segment is likely to
// carry. [MPA-5.1-2] [I-27]
func segmentSize(c net.Conn) int { return usualSegment(c) }
