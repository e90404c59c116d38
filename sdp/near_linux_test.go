package sdp

import (
	"net"
	"testing"
)

// TestNear: a call that waits knows that the peer is on this host, and does not where the
// stream is not a socket's.
func TestNear(t *testing.T) {
	c, s := pair(t, Options{}, Options{})
	if !(*waiting)(c).Near() || !(*waiting)(s).Near() {
		t.Error("loopback is not near")
	}
	shut(t, c, s)
	wrap := func(nc net.Conn) net.Conn { return struct{ net.Conn }{nc} }
	c, s = pair(t, Options{WrapConn: wrap}, Options{})
	if (*waiting)(c).Near() {
		t.Error("a wrapped connection is near")
	}
	shut(t, c, s)
}
