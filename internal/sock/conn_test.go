package sock

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"viaduct/internal/testkit"
)

func TestOwnedIsConn(t *testing.T) {
	nettest.TestConn(t, func() (a, b net.Conn, stop func(), err error) {
		a, b = ownedPair(t)
		return a, b, func() { a.Close(); b.Close() }, nil
	})
}

// TestOwnedFull: a writer waits while the socket is full: until there is room, or until its
// deadline.
func TestOwnedFull(t *testing.T) {
	a, b := ownedPair(t)
	defer a.Close()
	defer b.Close()
	big := bytes.Repeat([]byte("0123456789"), 1<<20)
	var n int
	var err error
	for wait := 20 * time.Millisecond; n == 0 && wait < testkit.Patience; wait *= 2 {
		// A busy machine can reach the deadline before the call does.
		a.SetWriteDeadline(time.Now().Add(wait))
		n, err = a.Write(big)
	}
	if n == 0 || n == len(big) || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%d of %d bytes, %v", n, len(big), err)
	}
	a.SetWriteDeadline(time.Time{})
	rest := make(chan error, 1)
	go func() {
		_, err := a.Write(big[n:])
		a.(interface{ CloseWrite() error }).CloseWrite()
		rest <- err
	}()
	got, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(got, big) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := <-rest; err != nil {
		t.Error(err)
	}
}

// TestOwnedPeekAndReset: a peek leaves the bytes unread, and Read returns ECONNRESET after a reset.
func TestOwnedPeekAndReset(t *testing.T) {
	a, b := ownedPair(t)
	defer b.Close()
	if err := Tune(a, Tuning{KeepAlive: time.Minute, Congestion: "reno"}); err != nil &&
		!errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	if err := Tune(a, Tuning{KeepAlive: -1}); err != nil {
		t.Error(err)
	}
	if _, err := a.Write([]byte("abc")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 10)
	for _, read := range []func() (int, error){
		func() (int, error) { n, err, _ := PeekSoon(b, buf, 0); return n, err },
		func() (int, error) { return b.Read(buf) },
	} {
		if n, err := read(); err != nil || string(buf[:n]) != "abc" {
			t.Errorf("%q, %v", buf[:n], err)
		}
	}
	a.(interface{ SetLinger(int) error }).SetLinger(0)
	a.Close()
	if _, err := b.Read(buf); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%v after a reset", err)
	}
	a.Close()
	if _, err := a.Read(buf); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v after Close", err)
	}
}

// TestOwnedLeavesNothing: a connection on which nobody sleeps uses a single descriptor, and Close
// leaves no descriptor open.
func TestOwnedLeavesNothing(t *testing.T) {
	x, y := testkit.TCPPair(t)
	defer y.Close()
	before := testkit.OpenFiles()
	o := Own(x)
	if n := testkit.OpenFiles(); n > before {
		t.Errorf("%d descriptors, %d before", n, before)
	}
	o.Close()
	if n := testkit.OpenFiles(); before > 0 && n >= before {
		t.Errorf("%d descriptors after the end, %d before", n, before)
	}
	y.SetReadDeadline(time.Now().Add(testkit.Patience))
	if _, err := y.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the stream does not end: %v", err)
	}
}
