package viplconf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"viaduct/vi"
)

// TestSharing: several processes of a host, which an Opener each stands for, wait at one
// address and port, and a caller finds each by its discriminator.
func TestSharing(t *testing.T) {
	if !sharesPorts {
		t.Skip("SKIPPED: this system has no abstract namespace of sockets")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Parse(fmt.Appendf(nil, "nic0 -> vitcp grace 1ms listen 127.0.0.1:%d\n", l.Addr().(*net.TCPAddr).Port))
	l.Close()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	open := func() *vi.NIC {
		n, _, err := New(c).Open("nic0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		return n
	}
	at := vi.Address{Host: vi.IPAddress(l.Addr().(*net.TCPAddr).AddrPort(), "").Host}
	newVI := func(n *vi.NIC) *vi.VI {
		v, err := n.CreateVI(vi.Attributes{Reliability: vi.ReliableDelivery}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	// answer waits and accepts, and tells what came of it.
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
			default: // not yet
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
