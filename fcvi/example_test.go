package fcvi_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"viaduct/fcvi"
	"viaduct/vi"
)

// A client sends a message to a server that has its own Fibre Channel fabric. The client joins the
// fabric by an FCIP link, over TCP. With Linger, a request that arrives before the server's
// ConnectWait is held until then.
func Example() {
	ctx := context.Background()
	attrs := vi.Attributes{Reliability: vi.ReliableReception}

	// This part is the server.
	p, err := fcvi.New(fcvi.Config{Listen: "127.0.0.1:0", Linger: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	nic, err := vi.Open(p, "127.0.0.1", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer nic.Close()
	addr := vi.Address{Host: nic.Query().LocalAddress, Discriminator: []byte("example")}
	received := make(chan string)
	go func() {
		server, err := nic.CreateVI(attrs, nil, nil)
		if err != nil {
			log.Fatal(err)
		}
		in, err := nic.RegisterMem(make([]byte, 100), vi.MemAttributes{})
		if err != nil {
			log.Fatal(err)
		}
		// Post the receive before the connection is set up, because a message that finds no receive
		// breaks the connection.
		if err := server.PostRecv(vi.NewRecv(in.Segment(0, 100))); err != nil {
			log.Fatal(err)
		}
		r, err := nic.ConnectWait(ctx, addr)
		if err != nil {
			log.Fatal(err)
		}
		if err := r.Accept(ctx, server); err != nil {
			log.Fatal(err)
		}
		d, err := server.RecvWait(ctx)
		if err != nil {
			log.Fatal(err)
		}
		received <- string(in.Bytes()[:d.Length])
	}()

	// This part is the client. Its provider does not listen.
	q, err := fcvi.New(fcvi.Config{})
	if err != nil {
		log.Fatal(err)
	}
	other, err := vi.Open(q, "127.0.0.1", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer other.Close()
	client, err := other.CreateVI(attrs, nil, nil)
	if err != nil {
		log.Fatal(err)
	}
	me := vi.Address{Host: other.Query().LocalAddress, Discriminator: []byte("me")}
	if _, err := client.ConnectRequest(ctx, me, addr); err != nil {
		log.Fatal(err)
	}
	out, err := other.RegisterMem([]byte("hello, fcvi"), vi.MemAttributes{})
	if err != nil {
		log.Fatal(err)
	}
	if err := client.PostSend(vi.NewSend(out.Segment(0, out.Len()))); err != nil {
		log.Fatal(err)
	}
	if _, err := client.SendWait(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-received)
	// Output: hello, fcvi
}
