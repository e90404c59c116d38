// Command vi runs a client that sends, writes and reads through a Virtual Interface: once over TCP,
// and once over Fibre Channel in software. Only the providers differ.
package main

import (
	"context"
	"encoding/binary"
	"errors"
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
	// Grace and Linger keep a request that arrives before the server waits for it.
	fmt.Println("VI/TCP")
	talk(ctx,
		must(vitcp.New(vitcp.Config{})),
		must(vitcp.New(vitcp.Config{Listen: "127.0.0.1:0", Grace: time.Minute})))
	fmt.Println("FC-VI")
	talk(ctx,
		must(fcvi.New(fcvi.Config{})), // without Listen, this NIC only calls others
		must(fcvi.New(fcvi.Config{Listen: "127.0.0.1:0", Linger: time.Minute})))
}

// Both sides must use the same reliability level. EnableRDMAWrite and EnableRDMARead
// allow the peer to use our memory; the client's VI sets neither.
var attributes = vi.Attributes{Reliability: vi.ReliableReception}

func talk(ctx context.Context, calling, called vi.Provider) {
	server := must(vi.Open(called, "127.0.0.1", nil))
	defer server.Close()
	address := vi.Address{Host: server.Query().LocalAddress, Discriminator: []byte("notes")}
	served := make(chan error)
	go func() { served <- serve(ctx, server, address) }()

	client := must(vi.Open(calling, "127.0.0.1", nil))
	defer client.Close()
	v := must(client.CreateVI(attributes, nil, nil))

	// The memory of every descriptor must be registered. The receive is posted
	// before the peer can send, because a message that finds no receive breaks
	// the connection.
	told := must(client.RegisterMem(make([]byte, 12), vi.MemAttributes{}))
	text := must(client.RegisterMem([]byte("hello, memory"), vi.MemAttributes{}))
	back := must(client.RegisterMem(make([]byte, 13), vi.MemAttributes{}))
	check(v.PostRecv(vi.NewRecv(told.Segment(0, 12))))
	me := vi.Address{Host: client.Query().LocalAddress, Discriminator: []byte("me")}
	must(v.ConnectRequest(ctx, me, address))
	must(v.RecvWait(ctx))
	place := vi.RemoteSegment{
		Handle:  vi.MemHandle(binary.BigEndian.Uint32(told.Bytes())),
		Address: binary.BigEndian.Uint64(told.Bytes()[4:]),
	}

	// The Write and the Read do not involve the server's program; the Send consumes a posted
	// receive. A single doorbell posts all three. They complete in this order.
	must(v.PostSends([]*vi.Descriptor{
		vi.NewRDMAWrite(place, text.Segment(0, 13)),
		vi.NewRDMARead(place, back.Segment(0, 13)),
		vi.NewSend(text.Segment(0, 5)).WithImmediate(7).WithFence(),
	}))
	for range 3 {
		d := must(v.SendWait(ctx))
		fmt.Printf("  %v, %d bytes\n", d.Status(), d.Length)
	}
	fmt.Printf("  read back: %s\n", back.Bytes())
	check(v.Disconnect())
	check(<-served)
}

func serve(ctx context.Context, nic *vi.NIC, address vi.Address) error {
	r, err := nic.ConnectWait(ctx, address)
	if err != nil {
		return err
	}
	may := attributes
	may.EnableRDMAWrite, may.EnableRDMARead = true, true
	v, err := nic.CreateVI(may, nil, nil)
	if err != nil {
		return err
	}
	shared, err := nic.RegisterMem(make([]byte, 64), vi.MemAttributes{EnableRDMAWrite: true, EnableRDMARead: true})
	if err != nil {
		return err
	}
	note, err := nic.RegisterMem(make([]byte, 64), vi.MemAttributes{})
	if err != nil {
		return err
	}
	// One receive is for the message, and one for the end of the connection.
	for range 2 {
		if err := v.PostRecv(vi.NewRecv(note.Segment(0, 64))); err != nil {
			return err
		}
	}
	if err := r.Accept(ctx, v); err != nil {
		return err
	}

	// The server sends the handle and the address at which the client may write.
	place := shared.Remote(0)
	tell, err := nic.RegisterMem(binary.BigEndian.AppendUint64(
		binary.BigEndian.AppendUint32(nil, uint32(place.Handle)), place.Address), vi.MemAttributes{})
	if err != nil {
		return err
	}
	if err := v.PostSend(vi.NewSend(tell.Segment(0, 12))); err != nil {
		return err
	}
	if _, err := v.SendWait(ctx); err != nil {
		return err
	}
	d, err := v.RecvWait(ctx)
	if err != nil {
		return err
	}
	report := fmt.Sprintf("%q, immediate data %d, and in memory %q", note.Bytes()[:d.Length], d.ImmediateData, shared.Bytes()[:13])

	// The remaining receive completes when the client has disconnected.
	if _, err = v.RecvWait(ctx); !errors.Is(err, vi.ErrDescriptor) {
		return err
	}
	fmt.Printf("  the server got %s\n  and then the end, in order: %v\n", report, v.PeerDisconnected())
	return v.Disconnect()
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
