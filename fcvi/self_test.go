package fcvi

import (
	"context"
	"errors"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/vi"
)

// TestSelf: two VIs of a NIC connect to each other, as in programs that are client and server at
// once. A Fibre Channel port logs in only to other ports. [VIA 6.6]
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
	selfConnect(t, ctx, n)
}

// selfConnect connects two VIs of n.
func selfConnect(t *testing.T, ctx context.Context, n *vi.NIC) {
	t.Helper()
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

// TestSelfPeers: a peer request to the NIC's own address waits for its peer and finds it, even if
// the NIC has a second port at the fabric. The peer is another VI of the NIC, or a VI of a NIC at
// the same IP address. [VIA 6.4.6]
func TestSelfPeers(t *testing.T) {
	open := func() *vi.NIC {
		p, err := New(Config{Listen: ":0", Logger: testLogger})
		if err != nil {
			t.Fatal(err)
		}
		n, err := vi.Open(p, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		return n
	}
	newVI := func(n *vi.NIC) *vi.VI {
		v, err := n.CreateVI(vi.Attributes{Reliability: vi.ReliableDelivery}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	at := func(n *vi.NIC, disc string) vi.Address {
		return vi.Address{Host: n.Query().LocalAddress, Discriminator: []byte(disc)}
	}
	ask := func(v *vi.VI, local, remote vi.Address, limit time.Duration) {
		t.Helper()
		if err := v.ConnectPeerRequest(local, remote, limit); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	var nics [2]*vi.NIC
	for i := range nics {
		nics[i] = open()
		selfConnect(t, ctx, nics[i]) // so that it has a second port
	}

	lone := newVI(nics[0])
	ask(lone, at(nics[0], "b"), at(nics[0], "a"), 500*time.Millisecond)
	if _, err := lone.ConnectPeerWait(ctx); !errors.Is(err, vi.ErrTimeout) {
		t.Errorf("a peer that never asks: %v, expected %v", err, vi.ErrTimeout)
	}

	for _, c := range []struct {
		name        string
		first, then int // NICs
		here, there string
	}{
		{"one NIC", 0, 0, "x", "y"}, {"one NIC, the other first", 0, 0, "y", "x"}, {"one NIC, same discriminators", 0, 0, "z", "z"},
		{"two NICs", 0, 1, "x", "y"}, {"two NICs, the other first", 1, 0, "x", "y"}, {"two NICs, same discriminators", 1, 0, "z", "z"},
	} {
		for range 2 {
			v, w := newVI(nics[c.first]), newVI(nics[c.then])
			here, there := at(nics[c.first], c.here), at(nics[c.then], c.there)
			ask(v, here, there, testkit.Patience)
			ask(w, there, here, testkit.Patience)
			for _, v := range []*vi.VI{v, w} {
				if _, err := v.ConnectPeerWait(ctx); err != nil {
					t.Fatalf("%s: %v", c.name, err)
				}
			}
			v.Disconnect()
			w.Disconnect()
		}
	}
}
