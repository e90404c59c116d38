package sock

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/samehost"
)

// TestSetLater: a dialled connection gets keepalive, no delay and blocking mode while its first
// answer is under way, or earlier: at its second write, or when a caller uses its descriptor or an
// engine takes it.
func TestSetLater(t *testing.T) {
	l := ownListener(t, "127.0.0.1:0", Tuning{})
	for name, use := range map[string]func(a, b net.Conn) error{
		"read": func(a, b net.Conn) error {
			if _, err := b.Write([]byte{1}); err != nil {
				return err
			}
			_, err := a.Read(make([]byte, 1))
			return err
		},
		"second write": func(a, b net.Conn) error {
			_, err := a.Write([]byte{2})
			return err
		},
		"take":    func(a, b net.Conn) error { Take(a); return nil },
		"options": func(a, b net.Conn) error { _, err := a.(*conn).SyscallConn(); return err },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := dialAccept(t, l)
			if err := Tune(a, Tuning{KeepAlive: 7 * time.Second}); err != nil {
				t.Fatal(err)
			}
			if _, err := a.Write([]byte{1}); err != nil {
				t.Fatal(err)
			}
			fd := a.(*conn).s.fd
			get := func() (v [4]int) {
				var err error
				for i, o := range [][2]int{{unix.IPPROTO_TCP, unix.TCP_NODELAY}, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}, {unix.IPPROTO_TCP, unix.TCP_KEEPCNT}} {
					if v[i], err = unix.GetsockoptInt(fd, o[0], o[1]); err != nil {
						t.Fatal(err)
					}
				}
				if v[3], err = unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil {
					t.Fatal(err)
				}
				v[3] &= unix.O_NONBLOCK
				return v
			}
			if v := get(); v[0] != 0 || v[3] == 0 {
				t.Fatalf("set already: %v", v)
			}
			if err := use(a, b); err != nil {
				t.Fatal(err)
			}
			if v, want := get(), [4]int{1, 7, 9, 0}; v != want {
				t.Errorf("TCP_NODELAY, TCP_KEEPIDLE, TCP_KEEPCNT, O_NONBLOCK: %v, want %v", v, want)
			}
		})
	}
}

// TestSetLaterShared: a connection through shared memory, whose TCP socket is silent, gets the
// options of TestSetLater only when a caller uses the TCP socket.
func TestSetLaterShared(t *testing.T) {
	l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto})
	a, b := sharedPair(t, l)
	var p [1]byte
	for _, c := range [][2]net.Conn{{a, b}, {b, a}, {a, b}} {
		if _, err := c[0].Write(p[:]); err != nil {
			t.Fatal(err)
		}
		if _, err := c[1].Read(p[:]); err != nil {
			t.Fatal(err)
		}
	}
	noDelay := func() int {
		v, err := unix.GetsockoptInt(a.(*conn).s.rings.tcp, unix.IPPROTO_TCP, unix.TCP_NODELAY)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if noDelay() != 0 {
		t.Error("set on a socket that no byte has passed")
	}
	if _, err := a.(*conn).SyscallConn(); err != nil || noDelay() != 1 {
		t.Errorf("%v, TCP_NODELAY %d for a caller that asks for the socket", err, noDelay())
	}
}
