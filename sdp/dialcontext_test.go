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

// TestDialContext dials a host that accepts TCP and sends nothing. The dial must end with the
// context, long before the time limit of the set-up.
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

// A client limits the dial to a minute. The limit does not apply to the connection itself.
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
