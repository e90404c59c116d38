//go:build !rings || !linux

package sock

import "net"

// AssumeRings is true in builds with the tag rings: there whatever does not say
// anything about shared memory uses it, so that the suites of the transports run
// over rings.
const AssumeRings = false

// Shared returns the two ends of a TCP connection within this process. It is for
// tests; see AssumeRings.
func Shared(a, b net.Conn) (net.Conn, net.Conn) { return a, b }

// Cut is for tests too: it is true if it has broken a connection whose bytes go through
// shared memory.
func Cut(net.Conn) bool { return false }
