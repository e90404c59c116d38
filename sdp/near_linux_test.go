package sdp

import (
	"net"
	"testing"
)

// TestNear: Near reports whether the peer of a waiting call is on the same host. Without a socket,
// Near returns false.
func TestNear(t *testing.T) {
	c, s := pair(t, Options{}, Options{})
	if !(*waiting)(&c.driver).Near() || !(*waiting)(&s.driver).Near() {
		t.Error("loopback is not near")
	}
	shut(t, c, s)
	wrap := func(nc net.Conn) net.Conn { return struct{ net.Conn }{nc} }
	c, s = pair(t, Options{WrapConn: wrap}, Options{})
	if (*waiting)(&c.driver).Near() {
		t.Error("a wrapped connection is near")
	}
	shut(t, c, s)
}
