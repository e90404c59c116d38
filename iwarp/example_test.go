package iwarp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"

	"viaduct/iwarp"
)

// A server exposes memory and sends the address of this memory in private data. The client writes
// to the memory, and then announces the data with a Send.
func Example() {
	ctx := context.Background()
	l, err := iwarp.Listen("127.0.0.1:0", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	served := make(chan string)
	go func() {
		r, err := l.AcceptRequest(ctx)
		if err != nil {
			log.Fatal(err)
		}
		q := r.QueuePair()
		mr, _ := q.Register(make([]byte, 64), iwarp.RemoteWrite)
		note := make([]byte, 16)
		q.PostRecv(iwarp.RecvWR{SG: []iwarp.SGE{iwarp.Buf(note)}})
		if _, err := r.Accept(mr.Remote(0).Append(nil)); err != nil {
			log.Fatal(err)
		}
		c, err := q.RecvCQ().Wait(ctx)
		if err != nil {
			log.Fatal(err)
		}
		mr.Close() // the right is revoked before the memory is read
		served <- fmt.Sprintf("%s %s", note[:c.Len], mr.Bytes()[:5])
		q.Close()
	}()

	q, err := iwarp.Dial(ctx, l.Addr().String(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close()
	at, err := iwarp.ParseRemoteAddr(q.PeerPrivate())
	if err != nil {
		log.Fatal(err)
	}
	q.Post(iwarp.SendWR{Op: iwarp.OpWrite, SG: []iwarp.SGE{iwarp.Buf([]byte("hello"))}, Remote: at, More: true})
	q.Post(iwarp.SendWR{SG: []iwarp.SGE{iwarp.Buf([]byte("written:"))}})
	fmt.Println(<-served)
	// Output: written: hello
}

// A client counts in the memory of a server. The server gets no message and no completion, and only
// waits for the end.
func ExampleQueuePair_Post_atomic() {
	ctx := context.Background()
	l, err := iwarp.Listen("127.0.0.1:0", &iwarp.Config{Atomic: true})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		r, err := l.AcceptRequest(ctx)
		if err != nil {
			log.Fatal(err)
		}
		q := r.QueuePair()
		mr, err := q.Register(make([]byte, 8), iwarp.RemoteAtomic)
		if err != nil {
			log.Fatal(err)
		}
		if _, err := r.Accept(mr.Remote(0).Append(nil)); err != nil {
			log.Fatal(err)
		}
		<-q.PeerClosed() // no more operations will arrive
		q.Close()
	}()

	q, err := iwarp.Dial(ctx, l.Addr().String(), &iwarp.Config{Atomic: true})
	if err != nil {
		log.Fatal(err)
	}
	at, err := iwarp.ParseRemoteAddr(q.PeerPrivate())
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		if err := q.Post(iwarp.SendWR{Op: iwarp.OpFetchAdd, Remote: at, Atomic: iwarp.Atomic{Data: 10}}); err != nil {
			log.Fatal(err)
		}
		c, err := q.SendCQ().Wait(ctx)
		if err != nil || c.Err() != nil {
			log.Fatal(err, c.Err())
		}
		fmt.Println("it was", c.Value)
	}
	q.Close() // an orderly end, so the server sees PeerClosed
	<-served
	// Output:
	// it was 0
	// it was 10
	// it was 20
}

// A server receives messages until the peer closes the stream. The last receive then ends with
// io.EOF.
func ExampleCompletionQueue_All() {
	ctx := context.Background()
	l, err := iwarp.Listen("127.0.0.1:0", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		q, err := iwarp.Dial(ctx, l.Addr().String(), nil)
		if err != nil {
			log.Fatal(err)
		}
		for _, s := range []string{"one", "two"} {
			q.Post(iwarp.SendWR{SG: []iwarp.SGE{iwarp.Buf([]byte(s))}})
		}
		q.Close() // waits until both messages have been sent
	}()

	r, err := l.AcceptRequest(ctx)
	if err != nil {
		log.Fatal(err)
	}
	q := r.QueuePair()
	bufs := make([][8]byte, 3)
	for i := range bufs {
		q.PostRecv(iwarp.RecvWR{ID: uint64(i), SG: []iwarp.SGE{iwarp.Buf(bufs[i][:])}})
	}
	if _, err := r.Accept(nil); err != nil {
		log.Fatal(err)
	}
	for c := range q.RecvCQ().All(ctx) {
		if err := c.Err(); err != nil {
			fmt.Println("end:", errors.Is(err, io.EOF))
			break
		}
		fmt.Printf("%s\n", bufs[c.ID][:c.Len])
	}
	q.Close()
	// Output:
	// one
	// two
	// end: true
}
