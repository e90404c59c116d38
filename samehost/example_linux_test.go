package samehost_test

import (
	"context"
	"fmt"
	"log"

	"viaduct/iwarp"
	"viaduct/samehost"
)

// If both ends set SameHost and belong to the same user on the same host, the connection uses
// shared memory. All transports have this option.
//
// With Require, the connection fails otherwise. With Auto it uses TCP then, also if the listener is
// late.
func Example() {
	ctx := context.Background()
	cfg := &iwarp.Config{SameHost: samehost.Require}
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

// Long messages sent from memory of Alloc are copied once, directly to the peer's buffer.
func ExampleAlloc() {
	b, err := samehost.Alloc(1 << 20)
	if err != nil {
		log.Fatal(err)
	}
	defer samehost.Free(b)
	fmt.Println(len(b))
	// Output: 1048576
}
