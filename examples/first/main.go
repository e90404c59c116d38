package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"viaduct/vi"
	"viaduct/vitcp"
)

func main() {
	ctx := context.Background()
	provider := must(vitcp.New(vitcp.Config{Listen: "127.0.0.1:0", Grace: time.Minute}))
	nic := must(vi.Open(provider, "", nil))
	attrs := vi.Attributes{Reliability: vi.ReliableReception, EnableRDMAWrite: true}
	client, server := must(nic.CreateVI(attrs, nil, nil)), must(nic.CreateVI(attrs, nil, nil))
	addr := vi.Address{Host: nic.Query().LocalAddress, Discriminator: []byte("first")}
	go func() { check(accept(ctx, nic, addr, server)) }()
	must(client.ConnectRequest(ctx, vi.Address{Host: addr.Host, Discriminator: []byte("me")}, addr))
	from := must(nic.RegisterMem([]byte("hello, memory"), vi.MemAttributes{}))
	to := must(nic.RegisterMem(make([]byte, 13), vi.MemAttributes{EnableRDMAWrite: true}))
	check(client.PostSend(vi.NewRDMAWrite(to.Remote(0), from.Segment(0, 13))))
	must(client.SendWait(ctx))
	fmt.Printf("%s\n", to.Bytes())
}

// accept waits for the request of the client and answers it with v.
func accept(ctx context.Context, nic *vi.NIC, at vi.Address, v *vi.VI) error {
	r, err := nic.ConnectWait(ctx, at)
	if err != nil {
		return err
	}
	return r.Accept(ctx, v)
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
