package sock

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"viaduct/internal/testkit"
)

func ownListener(t testing.TB, address string, tu Tuning) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Skip("SKIPPED: ", err)
	}
	o, err := OwnListener(l, tu)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	return o
}

// dialAccept returns both ends of a new connection to l.
func dialAccept(t testing.TB, l net.Listener) (dialled, accepted net.Conn) {
	t.Helper()
	a, err := Dial(t.Context(), new(net.Dialer), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	b := acceptFrom(t, l, a)
	if b == nil {
		t.FailNow()
	}
	t.Cleanup(func() { b.Close() })
	return a, b
}

// acceptFrom accepts the connection of the given dialer, and closes any other: another program's
// test may dial the port because it expects nobody there.
func acceptFrom(t testing.TB, l net.Listener, dialled net.Conn) net.Conn {
	for {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
			return nil
		}
		if c.RemoteAddr().String() == dialled.LocalAddr().String() {
			return c
		}
		c.Close()
	}
}

func TestDialedIsConn(t *testing.T) {
	l := ownListener(t, "127.0.0.1:0", Tuning{})
	nettest.TestConn(t, func() (a, b net.Conn, stop func(), err error) {
		accepted := make(chan net.Conn, 1)
		go func() {
			c, err := l.Accept()
			if err != nil {
				t.Error(err)
			}
			accepted <- c
		}()
		if a, err = Dial(t.Context(), new(net.Dialer), "tcp", l.Addr().String()); err != nil {
			return nil, nil, nil, err
		}
		b = <-accepted
		return a, b, func() { a.Close(); b.Close() }, nil
	})
}

// TestDialAddresses checks that both ends agree on their addresses, in either family and for any
// address of the listener.
func TestDialAddresses(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", ":0"} {
		t.Run(address, func(t *testing.T) {
			l := ownListener(t, address, Tuning{Congestion: "reno"})
			to := l.Addr().String()
			if address == ":0" {
				_, port, _ := net.SplitHostPort(to)
				to = net.JoinHostPort("127.0.0.1", port)
			}
			accepted := make(chan net.Conn, 1)
			go func() {
				c, _ := l.Accept()
				accepted <- c
			}()
			a, err := Dial(t.Context(), new(net.Dialer), "tcp", to)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			b := testkit.Await(t, "Accept", accepted)
			defer b.Close()
			if a.LocalAddr().String() != b.RemoteAddr().String() ||
				a.RemoteAddr().String() != b.LocalAddr().String() || a.RemoteAddr().String() != to {
				t.Errorf("%v to %v is %v to %v at the other end", a.LocalAddr(), a.RemoteAddr(),
					b.RemoteAddr(), b.LocalAddr())
			}
		})
	}
}

// TestDialErrors: Dial returns the same errors as package net.
func TestDialErrors(t *testing.T) {
	nobody := testkit.ClosedPort(t)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name, network, address string
		ctx                    context.Context
		is                     error
	}{
		{"refused", "tcp", nobody, t.Context(), syscall.ECONNREFUSED},
		{"other family", "tcp6", nobody, t.Context(), nil},
		{"cancelled", "tcp", nobody, done, nil},
		{"no port", "tcp", "127.0.0.1", t.Context(), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			nc, err := Dial(c.ctx, new(net.Dialer), c.network, c.address)
			if err == nil {
				nc.Close()
				t.Fatal("no error")
			}
			_, want := new(net.Dialer).DialContext(c.ctx, c.network, c.address)
			if c.is != nil && !errors.Is(err, c.is) || err.Error() != want.Error() {
				t.Errorf("%v, want %v", err, want)
			}
		})
	}
}

// TestDialHangs: Dial to a listener with a full backlog waits until the context ends or the timeout
// has passed.
func TestDialHangs(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: a full backlog drops SYNs on Linux")
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	sa, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	to := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: sa.(*syscall.SockaddrInet4).Port}).String()
	// On a busy machine the time of a dial may end before the backlog is full, so each kind of end
	// takes as many connections as there is room for.
	ends := func(dial func() (net.Conn, error)) error {
		for range 10 {
			c, err := dial()
			if err != nil {
				return err
			}
			defer c.Close()
		}
		t.Fatal("the backlog takes everything")
		return nil
	}
	err = ends(func() (net.Conn, error) {
		return Dial(t.Context(), &net.Dialer{Timeout: 20 * time.Millisecond}, "tcp", to)
	})
	if ne, ok := errors.AsType[net.Error](err); !ok || !ne.Timeout() {
		t.Errorf("%v is no timeout", err)
	}
	err = ends(func() (net.Conn, error) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(20*time.Millisecond, cancel)
		start := time.Now()
		c, err := Dial(ctx, new(net.Dialer), "tcp", to)
		if time.Since(start) > testkit.Patience/2 {
			t.Errorf("after %v", time.Since(start))
		}
		return c, err
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestOwnListenerClose: Close ends a waiting Accept and does not affect accepted connections.
func TestOwnListenerClose(t *testing.T) {
	l := ownListener(t, "127.0.0.1:0", Tuning{})
	a, b := dialAccept(t, l)
	failed := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		failed <- err
	}()
	time.Sleep(time.Millisecond)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := testkit.Await(t, "Accept ends", failed); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if err := l.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a second Close: %v", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	go a.Write([]byte{7})
	if _, err := io.ReadFull(b, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	if c, err := Dial(t.Context(), new(net.Dialer), "tcp", l.Addr().String()); err == nil {
		c.Close()
		t.Error("the listener is still there")
	}
}
