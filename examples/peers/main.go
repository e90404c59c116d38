// Command peers connects two VIs in the peer-to-peer model: both sides call, and neither waits for
// a call. The VIs then exchange a message.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"viaduct/fcvi"
	"viaduct/vi"
	"viaduct/vitcp"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, over := range []struct {
		name string
		p, q vi.Provider
	}{
		{"VI/TCP", must(vitcp.New(vitcp.Config{Listen: "127.0.0.1:0"})), must(vitcp.New(vitcp.Config{Listen: "127.0.0.1:0"}))},
		{"FC-VI", must(fcvi.New(fcvi.Config{Listen: "127.0.0.1:0"})), must(fcvi.New(fcvi.Config{Listen: "127.0.0.1:0"}))},
	} {
		a, b := must(vi.Open(over.p, "127.0.0.1", nil)), must(vi.Open(over.q, "127.0.0.1", nil))
		left := vi.Address{Host: a.Query().LocalAddress, Discriminator: []byte("left")}
		right := vi.Address{Host: b.Query().LocalAddress, Discriminator: []byte("right")}
		heard := make(chan string)
		go func() { heard <- meet(ctx, a, left, right, "from the left") }()
		go func() { heard <- meet(ctx, b, right, left, "from the right") }()
		fmt.Printf("%s: %d bytes in all\n", over.name, len(<-heard)+len(<-heard))
		check(a.Close())
		check(b.Close())
	}
}

// meet runs on both sides with the two addresses exchanged.
func meet(ctx context.Context, nic *vi.NIC, here, there vi.Address, text string) string {
	v := must(nic.CreateVI(vi.Attributes{Reliability: vi.ReliableReception}, nil, nil))
	in := must(nic.RegisterMem(make([]byte, 64), vi.MemAttributes{}))
	out := must(nic.RegisterMem([]byte(text), vi.MemAttributes{}))
	check(v.PostRecv(vi.NewRecv(in.Segment(0, 64))))

	// The call returns at once. The request is repeated for ten seconds at most.
	check(v.ConnectPeerRequest(here, there, 10*time.Second))
	must(v.ConnectPeerWait(ctx))

	check(v.PostSend(vi.NewSend(out.Segment(0, len(text)))))
	got := must(v.RecvWait(ctx))
	must(v.SendWait(ctx))
	return string(in.Bytes()[:got.Length])
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
