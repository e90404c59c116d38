package sdp

import (
	"bytes"
	"syscall"
	"testing"
	"time"

	"viaduct/internal/sock"
	"viaduct/internal/testkit"
)

// TestStraight: a write that nothing delays is handed to TCP without being queued, up to a length
// of a few messages. A write to a full socket must wait, and later writes must be sent afterwards.
// [SDP-4.1-1]
func TestStraight(t *testing.T) {
	// The mode is pinned, because a write that changes the mode is queued. Auto changes the mode
	// after a second with small writes alone.
	opt := Options{SendPolicy: PinCombined, RecvPolicy: PinCombined, SendThreshold: 1 << 30}
	a, b := pair(t, opt, opt)
	defer shut(t, a, b)
	var want []byte
	write := func(n int) (queued bool) {
		t.Helper()
		p := bytes.Repeat([]byte{byte(len(want))}, n)
		a.mu.Lock()
		before := a.calls.lastID
		a.mu.Unlock()
		if k, err := a.Write(p); k != n || err != nil {
			t.Fatalf("%d, %v", k, err)
		}
		want = append(want, p...)
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.calls.lastID != before
	}
	read := make(chan error, 1)
	long := 600 << 10
	if sock.SharesByDefault {
		long = 150 << 10 // shared memory has less room than a socket
	}
	readAll := func() {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := b.ReadFull(got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%v, or other bytes", err)
		}
		want = want[:0]
	}
	for _, n := range []int{1, 200, 5000, 64 << 10, long} {
		if n == 64<<10 {
			readAll() // a ring grows only while it is empty
		}
		if write(n) {
			t.Errorf("%d bytes were queued", n)
		}
	}
	readAll()
	if err := setSendBuffer(a, 128<<10); err != nil {
		t.Fatal(err)
	}
	queued := false
	whole := make([]byte, 40*300<<10)
	// A reader as fast as the writer lets no write wait, so the test repeats the round.
	for end := time.Now().Add(testkit.Patience); !queued && time.Now().Before(end); want = want[:0] {
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

// setSendBuffer sets the size of the send buffer of c's socket.
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
