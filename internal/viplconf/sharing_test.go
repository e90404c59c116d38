package viplconf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/vi"
)

// shared returns the host part of an address, and a function to open a NIC at this address. Each
// NIC has an Opener of its own, as in separate processes.
func shared(t *testing.T) (open func() *vi.NIC, host []byte) {
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: this system has no abstract namespace of sockets")
	}
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(testkit.FreePort(t)))
	c, err := Parse(fmt.Appendf(nil, "nic0 -> vitcp grace 1ms listen %v\n", at))
	if err != nil {
		t.Fatal(err)
	}
	return func() *vi.NIC {
		n, _, err := New(c).Open("nic0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		return n
	}, vi.IPAddress(at, "").Host
}

// TestSharing: several processes of a host, simulated by an Opener each, can wait at the same
// address and port, and a caller reaches each process by the discriminator.
func TestSharing(t *testing.T) {
	open, host := shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	at := vi.Address{Host: host}
	newVI := func(n *vi.NIC) *vi.VI {
		v, err := n.CreateVI(vi.Attributes{Reliability: vi.ReliableDelivery}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	// answer waits for a request and accepts it. The channel gets the result.
	answer := func(n *vi.NIC, disc string) <-chan error {
		done := make(chan error, 1)
		v := newVI(n)
		go func() {
			r, err := n.ConnectWait(ctx, vi.Address{Discriminator: []byte(disc)})
			if err == nil {
				err = r.Accept(ctx, v)
			}
			done <- err
		}()
		return done
	}
	call := func(n *vi.NIC, disc string, answered <-chan error) {
		t.Helper()
		v := newVI(n)
		at.Discriminator = []byte(disc)
		for {
			_, err := v.ConnectRequest(ctx, vi.Address{}, at)
			if err == nil {
				break
			}
			if !errors.Is(err, vi.ErrNoMatch) {
				t.Fatalf("call of %s: %v", disc, err)
			}
			select {
			case err := <-answered:
				t.Fatalf("wait for %s: %v", disc, err)
			default: // the answer has not arrived yet
			}
		}
		if err := <-answered; err != nil {
			t.Fatalf("wait for %s: %v", disc, err)
		}
	}
	first, second, third, caller := open(), open(), open(), open()
	call(caller, "x", answer(first, "x"))
	call(caller, "y", answer(second, "y"))
	call(third, "z", answer(second, "z"))
	call(second, "v", answer(third, "v"))
	call(second, "w", answer(second, "w"))
	call(first, "y", answer(second, "y"))
	at.Discriminator = []byte("nothing")
	if _, err := newVI(caller).ConnectRequest(ctx, vi.Address{}, at); !errors.Is(err, vi.ErrNoMatch) {
		t.Errorf("a discriminator that nothing waits for: %v", err)
	}
	first.Close()
	call(caller, "y", answer(third, "y"))
	call(third, "x", answer(second, "x"))
}

// TestSharingPeers: any two of several processes at the same address can be peers, even with equal
// discriminators, and so can two VIs of a process.
func TestSharingPeers(t *testing.T) {
	open, host := shared(t)
	const processes = 5
	var nics [processes]*vi.NIC
	for i := range nics {
		nics[i] = open()
	}
	type request struct {
		name string
		v    *vi.VI
	}
	var all []request
	ask := func(n *vi.NIC, local, remote string) {
		t.Helper()
		v, err := n.CreateVI(vi.Attributes{Reliability: vi.ReliableDelivery}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		at := func(d string) vi.Address { return vi.Address{Host: host, Discriminator: []byte(d)} }
		if err := v.ConnectPeerRequest(at(local), at(remote), time.Minute); err != nil {
			t.Fatal(err)
		}
		all = append(all, request{local + " to " + remote, v})
	}
	for i := range processes {
		for j := range i + 1 {
			one, two := fmt.Sprintf("%d/%d", i, j), fmt.Sprintf("%d\\%d", j, i)
			if (i+j)%2 == 0 {
				two = one
			}
			ask(nics[i], one, two)
			ask(nics[j], two, one)
		}
	}
	for _, r := range all {
		if _, err := r.v.ConnectPeerWait(t.Context()); err != nil {
			t.Errorf("%s: %v", r.name, err)
		}
	}
	for i := 0; i < len(all); i += 2 {
		one, two := all[i], all[i+1]
		d := vi.NewRecv()
		if err := two.v.PostRecv(d); err != nil {
			t.Fatal(err)
		}
		if err := one.v.PostSend(vi.NewSend().WithImmediate(uint32(i))); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if _, err := two.v.RecvWait(ctx); err != nil || d.ImmediateData != uint32(i) {
			t.Errorf("%s: %v, immediate data %d, want %d", two.name, err, d.ImmediateData, i)
		}
		cancel()
	}
}
