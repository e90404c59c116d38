// Command verbs moves bytes between the memories of a server and a client over iWARP: by Write,
// Read, an atomic operation and Send. The client takes all completions from a single completion
// queue.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"time"

	"viaduct/iwarp"
)

// These numbers identify the client's requests. A completion has the number of the request.
const (
	answer = iota
	write
	read
	add
	question
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l := must(iwarp.Listen("127.0.0.1:0", &iwarp.Config{Atomic: true}))
	defer l.Close()
	served := make(chan error)
	go func() { served <- serve(ctx, l) }()

	// One completion queue serves sends and receives, of one stream or of many.
	device := iwarp.NewDevice(iwarp.DeviceConfig{})
	cq := must(device.NewCQ(2 * iwarp.DefaultDepth)) // room for all requests that can be posted
	domain := device.NewPD()
	text := must(domain.Register([]byte("hello, memory"), iwarp.LocalOnly))
	sink := must(domain.Register(make([]byte, 13), iwarp.LocalOnly))
	said := make([]byte, 64)

	q := must(iwarp.Dial(ctx, l.Addr().String(), &iwarp.Config{
		Device: device, PD: domain, SendCQ: cq, RecvCQ: cq, Atomic: true,
		// A message that finds no receive ends the stream. So Prepare posts receives, because
		// Prepare runs before the peer can send.
		Prepare: func(q *iwarp.QueuePair) error {
			return q.PostRecv(iwarp.RecvWR{ID: answer, SG: []iwarp.SGE{iwarp.Buf(said)}})
		},
	}))
	// The server's answer contains the address of the server's memory.
	place := must(iwarp.ParseRemoteAddr(q.PeerPrivate()))
	counter := place.Add(16)

	// Posting does not wait. Requests start and complete in this order. With Fence, the Send waits
	// for the preceding Read and atomic operation. With Unsignaled, only a failed Send has a
	// completion.
	for _, wr := range []iwarp.SendWR{
		{ID: write, Op: iwarp.OpWrite, SG: []iwarp.SGE{text.SGE(0, 13)}, Remote: place},
		{ID: read, Op: iwarp.OpRead, SG: []iwarp.SGE{sink.SGE(0, 13)}, Remote: place},
		{ID: add, Op: iwarp.OpFetchAdd, Remote: counter, Atomic: iwarp.Atomic{Data: 2}},
		{ID: question, Op: iwarp.OpSend, SG: []iwarp.SGE{iwarp.Buf([]byte("what is there?"))}, Fence: true, Unsignaled: true},
	} {
		check(q.Post(wr))
	}
	for range 4 {
		c := must(cq.Wait(ctx))
		check(c.Err())
		switch c.ID {
		case write:
			fmt.Println("write: with TCP, and its memory is ours again")
		case read:
			fmt.Printf("read: %s\n", sink.Bytes())
		case add:
			fmt.Printf("fetch and add: it was %d\n", c.Value)
		case answer:
			fmt.Printf("received: %s\n", said[:c.Len])
		}
	}

	// The client ends its sending. The server detects the end and closes as well.
	check(q.CloseWrite())
	<-q.Ended()
	fmt.Println("ended in order:", q.Err() == io.EOF)
	check(q.Close())
	check(<-served)
}

func serve(ctx context.Context, l *iwarp.Listener) error {
	r, err := l.AcceptRequest(ctx)
	if err != nil {
		return err
	}
	q := r.QueuePair() // not started yet, so this is the time to register memory and post receives
	defer q.Close()
	shared, err := q.Register(make([]byte, 24), iwarp.RemoteRead|iwarp.RemoteWrite|iwarp.RemoteAtomic)
	if err != nil {
		return err
	}
	binary.NativeEndian.PutUint64(shared.Bytes()[16:], 40)
	asked := make([]byte, 64)
	if err := q.PostRecv(iwarp.RecvWR{SG: []iwarp.SGE{iwarp.Buf(asked)}}); err != nil {
		return err
	}
	if _, err := r.Accept(shared.Remote(0).Append(nil)); err != nil {
		return err
	}
	// When the Send has been received, all earlier Writes are in place.
	if _, err := q.RecvCQ().Wait(ctx); err != nil {
		return err
	}
	say := fmt.Appendf(nil, "%s, and %d", shared.Bytes()[:13], binary.NativeEndian.Uint64(shared.Bytes()[16:]))
	if err := q.Post(iwarp.SendWR{SG: []iwarp.SGE{iwarp.Buf(say)}}); err != nil {
		return err
	}
	select {
	case <-q.PeerClosed(): // the client sends nothing more; posted requests are still sent
	case <-ctx.Done():
		return ctx.Err()
	}
	return q.Close()
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
