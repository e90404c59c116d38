package iwarp_test

import (
	"context"
	"fmt"
	"log"

	"viaduct/iwarp"
)

// A server exposes memory and tells its place by private data; the client
// writes there, then says so with a Send.
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
		if _, err := r.Accept(fmt.Appendf(nil, "%d %d", mr.STag(), mr.TO())); err != nil {
			log.Fatal(err)
		}
		c, err := q.RecvCQ().Wait(ctx)
		if err != nil {
			log.Fatal(err)
		}
		mr.Close() // revoke before looking
		served <- fmt.Sprintf("%s %s", note[:c.Len], mr.Bytes()[:5])
		q.Close()
	}()

	q, err := iwarp.Dial(ctx, l.Addr().String(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close()
	var at iwarp.RemoteAddr
	fmt.Sscan(string(q.PeerPrivate()), &at.STag, &at.TO)
	q.Post(iwarp.SendWR{Op: iwarp.OpWrite, SG: []iwarp.SGE{iwarp.Buf([]byte("hello"))}, Remote: at, More: true})
	q.Post(iwarp.SendWR{SG: []iwarp.SGE{iwarp.Buf([]byte("written:"))}})
	fmt.Println(<-served)
	// Output: written: hello
}
