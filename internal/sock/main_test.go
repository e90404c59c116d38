package sock

import (
	"net"
	"testing"

	"viaduct/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// ownedPair returns the two ends of a TCP connection whose descriptors were taken away from the
// runtime.
func ownedPair(t testing.TB) (a, b net.Conn) {
	a, b = testkit.TCPPair(t)
	return Own(a), Own(b)
}

// wrappedPair returns the two ends of a TCP connection, wrapped in types that give no access to the
// descriptors.
func wrappedPair(t testing.TB) (a, b net.Conn) {
	a, b = testkit.TCPPair(t)
	return struct{ net.Conn }{a}, struct{ net.Conn }{b}
}
