package transport

import (
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/vi"
	"viaduct/vitcp"
)

// TestEmptyVI: EmptyVI reaps posted descriptors. EmptyVI returns at once if the NIC was closed
// first, as by a server ending while a connection breaks.
func TestEmptyVI(t *testing.T) {
	for _, closed := range []bool{false, true} {
		p, err := vitcp.New(vitcp.Config{})
		if err != nil {
			t.Fatal(err)
		}
		nic, err := vi.Open(p, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer nic.Close()
		r, err := nic.RegisterMem(make([]byte, 64), vi.MemAttributes{})
		if err != nil {
			t.Fatal(err)
		}
		v, err := nic.CreateVI(vi.Attributes{Reliability: vi.ReliableDelivery}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := v.PostRecv(vi.NewRecv(r.Segment(0, 64))); err != nil {
			t.Fatal(err)
		}
		if v.Disconnect(); closed {
			nic.Close()
		}
		done := make(chan struct{})
		go func() { defer close(done); EmptyVI(v) }()
		select {
		case <-done:
		case <-time.After(testkit.Patience):
			t.Fatalf("closed %t: does not end", closed)
		}
		if err := v.Destroy(); !closed && err != nil {
			t.Errorf("destroy: %v", err)
		}
	}
}
