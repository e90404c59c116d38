package verbs

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"viaduct/internal/testkit"
)

// The queue holds nothing any more after dropWaiting, and takes new connections.
func TestDropWaiting(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", ":0"} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		var early [3]net.Conn
		for i := range early {
			if early[i], err = net.Dial("tcp", l.Addr().String()); err != nil {
				t.Fatal(err)
			}
			defer early[i].Close()
		}
		if err := dropWaiting(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		for _, c := range early {
			c.SetReadDeadline(time.Now().Add(testkit.Patience))
			if n, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%d bytes, %v instead of the end", n, err)
			}
		}
		late, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer late.Close()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if c.RemoteAddr().String() != late.LocalAddr().String() {
			t.Errorf("the connection of %v, want that of %v", c.RemoteAddr(), late.LocalAddr())
		}
	}
}
