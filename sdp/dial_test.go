package sdp

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

// TestUnknownNetworks: there is a stream service over TCP and no other.
func TestUnknownNetworks(t *testing.T) {
	t.Run("SDP-4.1-1", func(t *testing.T) {
		pc, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer pc.Close()
		at := pc.LocalAddr().String()
		for _, network := range []string{"udp", "udp4", "unix", "unixpacket", "ip", "tcp5", "sdp", ""} {
			unknown := func(what string, err error) {
				var oe *net.OpError
				var u net.UnknownNetworkError
				if !errors.As(err, &oe) || !errors.As(err, &u) || string(u) != network {
					t.Errorf("%s over %q: %v", what, network, err)
				}
			}
			for _, m := range []ResolveMode{ResolveOff, ResolvePrefer, ResolveRequire} {
				_, err := (&Dialer{Resolve: m}).DialContext(context.Background(), network, at)
				unknown("dial", err)
			}
			var lc ListenConfig
			_, err := lc.Listen(context.Background(), network, "127.0.0.1:0")
			unknown("listen", err)
			_, err = lc.ListenBoth(context.Background(), network, "127.0.0.1:0", "127.0.0.1:0")
			unknown("listen for both", err)
		}
		pc.SetReadDeadline(time.Now().Add(time.Millisecond))
		if n, _, err := pc.ReadFrom(make([]byte, 100)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a datagram of %d bytes was sent, %v", n, err)
		}
	})
}
