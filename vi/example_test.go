package vi_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"viaduct/vi"
	"viaduct/vitcp"
)

// Two VIs on a NIC move thirteen bytes from one registered buffer to another by RDMA Write.
func Example() {
	ctx := context.Background()
	provider, err := vitcp.New(vitcp.Config{Listen: "127.0.0.1:0", Grace: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	nic, err := vi.Open(provider, "", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer nic.Close()
	attrs := vi.Attributes{Reliability: vi.ReliableReception, EnableRDMAWrite: true}
	client, err := nic.CreateVI(attrs, nil, nil)
	if err != nil {
		log.Fatal(err)
	}
	server, err := nic.CreateVI(attrs, nil, nil)
	if err != nil {
		log.Fatal(err)
	}

	addr := vi.Address{Host: nic.Query().LocalAddress, Discriminator: []byte("example")}
	accepted := make(chan error)
	go func() {
		r, err := nic.ConnectWait(ctx, addr)
		if err == nil {
			err = r.Accept(ctx, server)
		}
		accepted <- err
	}()
	me := vi.Address{Host: addr.Host, Discriminator: []byte("me")}
	if _, err := client.ConnectRequest(ctx, me, addr); err != nil {
		log.Fatal(err)
	}
	if err := <-accepted; err != nil {
		log.Fatal(err)
	}

	from, err := nic.RegisterMem([]byte("hello, memory"), vi.MemAttributes{})
	if err != nil {
		log.Fatal(err)
	}
	to, err := nic.RegisterMem(make([]byte, 13), vi.MemAttributes{EnableRDMAWrite: true})
	if err != nil {
		log.Fatal(err)
	}
	if err := client.PostSend(vi.NewRDMAWrite(to.Remote(0), from.Segment(0, 13))); err != nil {
		log.Fatal(err)
	}
	d, err := client.SendWait(ctx) // at Reliable Reception a completed send means that the data is in the peer's memory
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%v: %s\n", d.Status(), to.Bytes())
	// Output: rdma-write: done: hello, memory
}

// In the peer-to-peer model both sides call, each with the addresses from its own view. One
// completion queue reports the completions of both VIs.
func ExampleVI_ConnectPeerRequest() {
	ctx := context.Background()
	provider, err := vitcp.New(vitcp.Config{Listen: "127.0.0.1:0"})
	if err != nil {
		log.Fatal(err)
	}
	nic, err := vi.Open(provider, "", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer nic.Close()
	cq, err := nic.CreateCQ(100)
	if err != nil {
		log.Fatal(err)
	}
	attrs := vi.Attributes{Reliability: vi.ReliableDelivery}
	left, err := nic.CreateVI(attrs, cq, cq)
	if err != nil {
		log.Fatal(err)
	}
	right, err := nic.CreateVI(attrs, cq, cq)
	if err != nil {
		log.Fatal(err)
	}
	in, err := nic.RegisterMem(make([]byte, 64), vi.MemAttributes{})
	if err != nil {
		log.Fatal(err)
	}
	if err := right.PostRecv(vi.NewRecv(in.Segment(0, 64))); err != nil {
		log.Fatal(err)
	}

	here := vi.Address{Host: nic.Query().LocalAddress, Discriminator: []byte("left")}
	there := vi.Address{Host: here.Host, Discriminator: []byte("right")}
	if err := left.ConnectPeerRequest(here, there, 10*time.Second); err != nil {
		log.Fatal(err)
	}
	if err := right.ConnectPeerRequest(there, here, 10*time.Second); err != nil {
		log.Fatal(err)
	}
	for _, v := range []*vi.VI{left, right} {
		if _, err := v.ConnectPeerWait(ctx); err != nil {
			log.Fatal(err)
		}
	}

	// A Send without a segment can still carry immediate data.
	if err := left.PostSend(vi.NewSend().WithImmediate(42)); err != nil {
		log.Fatal(err)
	}
	for range 2 { // the completion of the Send and the completion of the Receive
		c, err := cq.Wait(ctx)
		if err != nil {
			log.Fatal(err)
		}
		if !c.Recv {
			c.VI.SendDone()
			continue
		}
		d, err := c.VI.RecvDone()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("received", d.ImmediateData)
	}
	// Output: received 42
}
