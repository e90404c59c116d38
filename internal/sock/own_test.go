package sock

import (
	"net"
	"testing"

	"viaduct/internal/testkit"
)

// A between is a connection that has addresses and no other method.
type between struct {
	net.Conn
	local, remote net.Addr
}

func (b between) LocalAddr() net.Addr  { return b.local }
func (b between) RemoteAddr() net.Addr { return b.remote }

// TestNear: Near finds the peer on this host if an address of the connection cannot belong to any
// other host.
func TestNear(t *testing.T) {
	tcp := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 7} }
	for _, test := range []struct {
		local, remote net.Addr
		near          bool
	}{
		{tcp("127.0.0.1"), tcp("127.0.0.1"), true},
		{tcp("::1"), tcp("::1"), true},
		{tcp("10.0.0.1"), tcp("::ffff:10.0.0.1"), true},
		{tcp("10.0.0.1"), tcp("127.0.0.2"), true},
		{tcp("10.0.0.1"), tcp("10.0.0.2"), false},
		{nil, nil, false},
		{&net.UnixAddr{Name: "a"}, &net.UnixAddr{Name: "a"}, false},
	} {
		nc := between{local: test.local, remote: test.remote}
		want := perHost
		if test.near {
			want = 256
		}
		if near, n := Near(nc), PendingPerHost(nc, 0, 256); near != test.near || n != want {
			t.Errorf("%v to %v: %t, %d set-ups", test.local, test.remote, near, n)
		}
		if n := PendingPerHost(nc, 5, 256); n != 5 {
			t.Errorf("%v to %v: %d set-ups where 5 were set", test.local, test.remote, n)
		}
	}
	a, b := testkit.TCPPair(t)
	defer a.Close()
	owned := Own(b)
	defer owned.Close()
	if !Near(a) || !Near(owned) {
		t.Error("loopback is not near")
	}
}
