package sdp

import (
	"bytes"
	"syscall"
	"testing"
	"time"

	"viaduct/internal/sock"
	"viaduct/internal/testkit"
)

// TestStraight: a write that nothing is in the way of is in TCP's hands without a
// place in any queue, whatever its length up to a few messages; one that finds
// the socket full waits, and what is behind it stays behind it. [SDP-4.1-1]
func TestStraight(t *testing.T) {
	a, b := pair(t, Options{}, Options{})
	defer shut(t, a, b)
	var want []byte
	write := func(n int) (queued bool) {
		t.Helper()
		p := bytes.Repeat([]byte{byte(len(want))}, n)
		a.mu.Lock()
		before := a.nextID
		a.mu.Unlock()
		if k, err := a.Write(p); k != n || err != nil {
			t.Fatalf("%d, %v", k, err)
		}
		want = append(want, p...)
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.nextID != before
	}
	read := make(chan error, 1)
	long := 600 << 10
	if sock.SharesByDefault {
		long = 150 << 10 // a ring has less room than a socket
	}
	for _, n := range []int{1, 200, 5000, 64 << 10, long} {
		if write(n) {
			t.Errorf("%d bytes were queued", n)
		}
	}
	got := make([]byte, len(want))
	if _, err := b.ReadFull(got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v, or other bytes", err)
	}
	want = want[:0]
	if err := setSendBuffer(a, 128<<10); err != nil {
		t.Fatal(err)
	}
	queued := false
	whole := make([]byte, 40*300<<10)
	for end := time.Now().Add(testkit.Patience); !queued && time.Now().Before(end); want = want[:0] { // the reader may be as fast as the writer
		go func() {
			_, err := b.ReadFull(whole)
			read <- err
		}()
		for len(want) < len(whole) {
			queued = write(300<<10) || queued
		}
		if err := <-read; err != nil || !bytes.Equal(whole, want) {
			t.Errorf("%v, or other bytes", err)
		}
	}
	if !queued {
		t.Error("nothing was queued although the socket was full")
	}
}

// setSendBuffer makes the socket of c hold less.
func setSendBuffer(c *Conn, n int) error {
	rc, err := c.qp.SyscallConn()
	if err != nil {
		return err
	}
	if e := rc.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, n) }); e != nil {
		return e
	}
	return err
}
