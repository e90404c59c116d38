package samehost_test

import (
	"context"
	"fmt"
	"log"

	"viaduct/iwarp"
	"viaduct/samehost"
)

// Both ends ask for it, and are of one user on one host: the bytes of the stream
// go through shared memory. All transports have the option, SDP's and those of
// package vi too.
func Example() {
	ctx := context.Background()
	cfg := &iwarp.Config{SameHost: samehost.Auto} // Require fails where Auto stays with TCP
	l, err := iwarp.Listen("127.0.0.1:0", cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		if q, err := l.Accept(ctx); err == nil {
			q.Close()
		}
	}()
	q, err := iwarp.Dial(ctx, l.Addr().String(), cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close()
	fmt.Println(q.Path())
	// Output: shared memory
}

// Long messages that are sent from such memory are copied once, to where the peer has room
// for them.
func ExampleAlloc() {
	b, err := samehost.Alloc(1 << 20)
	if err != nil {
		log.Fatal(err)
	}
	defer samehost.Free(b)
	fmt.Println(len(b))
	// Output: 1048576
}
