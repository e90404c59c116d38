package vitcp

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"viaduct/vi"
)

// TestSharePort: each provider stands for a process. Those that share a port all wait at it, and
// calls and peer requests find each by its discriminator. A provider without SharePort can't wait
// there. A closed provider is not asked any more.
func TestSharePort(t *testing.T) {
	port := freePort(t)
	host := vi.IPAddress(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port), "").Host
	at := func(d string) vi.Address { return vi.Address{Host: host, Discriminator: []byte(d)} }
	ctx := testContext(t)
	open := func(shares bool) *nicUnderTest {
		p, err := New(Config{Port: port, SharePort: shares, Grace: time.Millisecond, Logger: logger()})
		must(t, err)
		return openNIC(t, p)
	}
	waits := func(n *nicUnderTest, d string) <-chan error {
		done := make(chan error, 1)
		v := newVI(t, n, vi.Attributes{Reliability: vi.ReliableDelivery})
		go func() {
			r, err := n.ConnectWait(ctx, at(d))
			if err == nil {
				err = r.Accept(ctx, v)
			}
			done <- err
		}()
		return done
	}
	calls := func(n *nicUnderTest, d string, answered <-chan error) {
		t.Helper()
		v := newVI(t, n, vi.Attributes{Reliability: vi.ReliableDelivery})
		if err := askFor(ctx, v, at("caller"), at(d)); err != nil {
			t.Fatalf("call of %s: %v", d, err)
		}
		if err := <-answered; err != nil {
			t.Fatalf("wait for %s: %v", d, err)
		}
	}
	nics := []*nicUnderTest{open(true), open(true), open(true)}
	for i, n := range nics {
		d := fmt.Sprint("wait ", i)
		calls(nics[(i+1)%3], d, waits(n, d))
	}
	alone := open(false)
	if err := <-waits(alone, "alone"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a wait without SharePort: %v", err)
	}
	v := newVI(t, alone, vi.Attributes{Reliability: vi.ReliableDelivery})
	answered := waits(nics[2], "third")
	for range 20 { // such a call reaches only the first process
		if _, err := v.ConnectRequest(ctx, at("caller"), at("third")); !errors.Is(err, vi.ErrNoMatch) {
			t.Fatalf("a call without SharePort of what waits beside: %v", err)
		}
	}
	calls(nics[0], "third", answered)
	var vs []*vi.VI
	for i := range nics {
		for j := range nics {
			if i != j {
				v := newVI(t, nics[i], vi.Attributes{Reliability: vi.ReliableDelivery})
				must(t, v.ConnectPeerRequest(at(fmt.Sprint(i, j)), at(fmt.Sprint(j, i)), time.Minute))
				vs = append(vs, v)
			}
		}
	}
	for _, v := range vs {
		if _, err := v.ConnectPeerWait(ctx); err != nil {
			t.Error(err)
		}
	}
	target := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
	if n := len(nics[0].p.beside(target)); n != 2 {
		t.Errorf("%d branches, want 2", n)
	}
	nics[2].Close()
	if n := len(nics[0].p.beside(target)); n != 1 {
		t.Errorf("%d branches after one was closed, want 1", n)
	}
}
