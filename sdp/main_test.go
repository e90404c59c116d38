package sdp

import (
	"context"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"viaduct/internal/perturb"
	"viaduct/internal/testkit"
)

func TestMain(m *testing.M) {
	if os.Getenv(asHolder) != "" {
		os.Exit(holderMain())
	}
	if at := os.Getenv(asWriter); at != "" {
		os.Exit(writerMain(at))
	}
	testkit.Main(m)
}

// pair returns the two ends of a connection over loopback.
func pair(t testing.TB, d Options, l Options) (dialled, accepted *Conn) {
	t.Helper()
	ln, err := Listen("127.0.0.1:0", &l)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return pairOn(t, ln, &Dialer{Options: d})
}

func pairOn(t testing.TB, ln *Listener, d *Dialer) (dialled, accepted *Conn) {
	t.Helper()
	type result struct {
		c   *Conn
		err error
	}
	ch := make(chan result, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		c, err := ln.AcceptConn(ctx)
		ch <- result{c, err}
	}()
	c, err := d.DialContext(context.Background(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	r := <-ch
	if r.err != nil {
		t.Fatal(r.err)
	}
	return c.(*Conn), r.c
}

// shut closes all connections, and waits until their resources are released.
func shut(t testing.TB, cs ...*Conn) {
	t.Helper()
	var wg sync.WaitGroup
	for _, c := range cs { // concurrently, because neither end reads the unsent bytes of the other
		wg.Go(func() { c.Close() })
	}
	wg.Wait()
	for _, c := range cs {
		select {
		case <-c.Done():
		case <-time.After(testkit.Patience):
			t.Error("connection lives on")
			c.Abort()
			<-c.Done()
		}
	}
}

var variants = []struct {
	name string
	opt  Options
}{
	{"plain", Options{}},
	{"buffered", Options{SendPolicy: PinBuffered, RecvPolicy: PinBuffered}},
	{"combined", Options{SendPolicy: PinCombined, RecvPolicy: PinCombined, SendThreshold: 100, RecvThreshold: 1, RecvBufferSize: 1024}},
	{"pipelined", Options{SendPolicy: PinPipelined, RecvPolicy: PinPipelined, SendThreshold: 100, RecvThreshold: 1, RecvBufferSize: 1024}},
	{"tiny", Options{RecvBuffers: tinyBuffers, RecvBufferSize: 37, SendBuffer: 64, ReceiveBuffer: 64}},
	{"tiny pipelined", Options{RecvBuffers: tinyBuffers, RecvBufferSize: 37, SendBuffer: 64, ReceiveBuffer: 64, SendPolicy: PinPipelined, RecvPolicy: PinPipelined, SendThreshold: 50, RecvThreshold: 1}},
}

// TestNetConn runs the contract of net.Conn, with every mode pinned and with the smallest possible
// buffers. [SDP-4.1-1] [SDP-10-5] [D-84]
func TestNetConn(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			if perturb.On && v.opt.RecvBufferSize == 37 {
				t.Skip("8 MiB in messages of 37 bytes, with pauses, take longer than the minute that nettest gives them")
			}
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				a, b := pair(t, v.opt, v.opt)
				return a, b, func() { shut(t, a, b) }, nil
			})
		})
	}
}
