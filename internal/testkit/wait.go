package testkit

import (
	"net"
	"testing"
	"time"
)

// Await receives a value from c and returns it. If no value comes within [Patience], Await ends the
// test with a failure. what names the expected event in the message.
func Await[T any](t testing.TB, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(Patience):
		t.Fatalf("not within %v: %s", Patience, what)
	}
	return v
}

// Eventually waits until ok returns true, and ends the test with a failure after [Patience]. what
// names the expected event in the message.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !ok(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", Patience, what)
		}
	}
}

// TCPPair returns the two ends of a TCP connection over loopback. At the end of t, the ends still
// open are closed.
func TCPPair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			t.Errorf("accept: %v", err)
		}
		accepted <- c
	}()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	if b = <-accepted; b == nil {
		t.FailNow()
	}
	t.Cleanup(func() { b.Close() })
	return a, b
}
