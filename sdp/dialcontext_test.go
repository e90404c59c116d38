package sdp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"testing"
	"time"

	"viaduct/sdp"
)

// TestDialContext: a dial to a host that accepts TCP and says nothing ends with its context, long
// before the time that the set-up may take.
func TestDialContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	c, err := sdp.DialContext(ctx, l.Addr().String(), &sdp.Options{SetupTimeout: time.Hour})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", c, err)
	}
}

// A client gives the dial a minute; the connection itself has no such bound.
func ExampleDialContext() {
	l, err := sdp.Listen("127.0.0.1:0", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		io.WriteString(c, "hello")
		c.Close()
	}()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := sdp.DialContext(ctx, l.Addr().String(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	fmt.Printf("%s %v\n", b, err)
	// Output: hello <nil>
}
