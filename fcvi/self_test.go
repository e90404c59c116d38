package fcvi

import (
	"context"
	"errors"
	"testing"

	"viaduct/internal/testkit"
	"viaduct/vi"
)

// TestSelf: two VIs of one NIC are connected with each other, as programs do
// that have client and server in one. A Fibre Channel port logs in to others
// only. [VIA 6.6]
func TestSelf(t *testing.T) {
	p, err := New(Config{Listen: "127.0.0.1:0", Logger: testLogger})
	if err != nil {
		t.Fatal(err)
	}
	n, err := vi.Open(p, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	a := vi.Attributes{Reliability: vi.ReliableDelivery}
	client, err := n.CreateVI(a, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	server, err := n.CreateVI(a, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	addr := vi.Address{Host: n.Query().LocalAddress, Discriminator: []byte("self")}
	accepted := make(chan error, 1)
	go func() {
		r, err := n.ConnectWait(ctx, addr)
		if err == nil {
			err = r.Accept(ctx, server)
		}
		accepted <- err
	}()
	for {
		_, err = client.ConnectRequest(ctx, vi.Address{}, addr)
		if !errors.Is(err, vi.ErrNoMatch) {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
}
