//go:build linux && (amd64 || arm64)

package run

import (
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"viaduct/internal/testkit"
)

// An arrival no longer in the program's queue is not closed while an accept call may have taken the
// arrival, no matter how long the call takes to claim it.
func TestWatchQueue(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	a := &arrival{near: near.(*net.TCPConn), from: addrPort(near.LocalAddr())}
	var taking atomic.Int64
	taking.Store(1)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() { a.watchQueue(&taking, stop); close(ended) }()
	defer func() { close(stop); <-ended }()
	select {
	case <-ended:
		t.Fatal("given up while an accept call was about to claim it")
	case <-time.After(5 * unseenCheck):
	}
	taking.Store(0)
	select {
	case <-ended:
	case <-time.After(testkit.Patience):
		t.Fatal("not given up although no call can claim it")
	}
	if _, err := near.Read(make([]byte, 1)); !os.IsTimeout(err) {
		t.Errorf("the wait for a claim ends with %v", err)
	}
}
