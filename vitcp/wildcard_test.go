package vitcp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/vi"
)

// hostAddresses returns the addresses of the host that can be called without a zone.
func hostAddresses(t *testing.T) (at []netip.Addr) {
	t.Helper()
	as, err := net.InterfaceAddrs()
	must(t, err)
	for _, a := range as {
		ip, ok := netip.AddrFromSlice(a.(*net.IPNet).IP)
		if ok && !ip.IsLinkLocalUnicast() {
			at = append(at, ip.Unmap())
		}
	}
	return append(at, netip.AddrFrom4([4]byte{127, 0, 0, 2}))
}

// openWildcard opens a NIC listening at every address of the host, at a port the system chooses.
// A request waits for grace until a call waits for it.
func openWildcard(t *testing.T, listen string, grace time.Duration) *vi.NIC {
	t.Helper()
	p, err := New(Config{Listen: listen, Grace: grace, Logger: logger()})
	must(t, err)
	nic, err := vi.Open(p, "", nil)
	must(t, err)
	t.Cleanup(func() { nic.Close() })
	return nic
}

// callWildcard connects a new VI. It calls from the NIC's own address, as programs do.
func callWildcard(ctx context.Context, nic *vi.NIC, to netip.AddrPort, d string) error {
	v, err := nic.CreateVI(reliableAll, nil, nil)
	if err != nil {
		return err
	}
	_, err = v.ConnectRequest(ctx, vi.Address{Host: nic.Query().LocalAddress, Discriminator: []byte("me")},
		vi.IPAddress(to, d))
	return err
}

// TestWildcard: a NIC at a wildcard reports a single address. A wait for the reported address, and
// a wait without a host, accept requests to every address of the host. [V-31]
func TestWildcard(t *testing.T) {
	for _, listen := range []string{":0", "0.0.0.0:0", "[::]:0"} {
		t.Run(listen, func(t *testing.T) {
			host, _, _ := net.SplitHostPort(listen)
			testkit.NeedHost(t, host)
			nic, caller := openWildcard(t, listen, patience), openWildcard(t, ":0", patience)
			own, _ := (vi.Address{Host: nic.Query().LocalAddress}).AddrPort()
			for name, host := range map[string][]byte{"own": nic.Query().LocalAddress, "none": nil} {
				for _, ip := range hostAddresses(t) {
					waited := make(chan error, 1)
					go func() {
						r, err := nic.ConnectWait(testContext(t), vi.Address{Host: host, Discriminator: []byte(name)})
						if err == nil {
							var v *vi.VI
							if v, err = nic.CreateVI(reliableAll, nil, nil); err == nil {
								err = r.Accept(testContext(t), v)
							}
						}
						waited <- err
					}()
					if err := callWildcard(testContext(t), caller, netip.AddrPortFrom(ip, own.Port()), name); err != nil {
						t.Errorf("%s host: at %v: %v", name, ip, err)
						return
					}
					must(t, <-waited)
				}
			}
		})
	}
}

// TestWildcardOneAddress: a wait for another address than the NIC's own accepts only requests to
// the other address. A NIC opened by an address answers only at the same address. [VIT-2.2.2.2.1-1]
func TestWildcardOneAddress(t *testing.T) {
	other := netip.AddrFrom4([4]byte{127, 0, 0, 2})
	nic, caller := openWildcard(t, ":0", time.Second), openWildcard(t, ":0", time.Second)
	own, _ := (vi.Address{Host: nic.Query().LocalAddress}).AddrPort()
	ctx, cancel := context.WithCancel(testContext(t))
	waited := make(chan error, 1)
	go func() {
		r, err := nic.ConnectWait(ctx, vi.IPAddress(netip.AddrPortFrom(other, own.Port()), "x"))
		if err == nil {
			err = r.Reject()
		}
		waited <- err
	}()
	if err := callWildcard(testContext(t), caller, netip.AddrPortFrom(loopback, own.Port()), "x"); !errors.Is(err, vi.ErrNoMatch) {
		t.Errorf("at %v: %v", loopback, err)
	}
	err := vi.ErrNoMatch
	for end := testContext(t); errors.Is(err, vi.ErrNoMatch) && end.Err() == nil; { // until the call waits
		err = callWildcard(testContext(t), caller, netip.AddrPortFrom(other, own.Port()), "x")
	}
	if !errors.Is(err, vi.ErrReject) {
		t.Errorf("at %v: %v, want a reject", other, err)
	}
	cancel()
	must(t, <-waited)
}

// TestWildcardCaller: a NIC at a wildcard calls from the address the system chooses for the target.
// The address may belong to another interface. [V-36]
func TestWildcardCaller(t *testing.T) {
	nic, caller := openNIC(t, openProvider(t, Config{Grace: patience})), openWildcard(t, ":0", patience)
	from := make(chan vi.Address, 1)
	go func() {
		r, err := nic.ConnectWait(testContext(t), nic.addr("x"))
		if err != nil {
			from <- vi.Address{}
			return
		}
		from <- r.Remote()
		r.Reject()
	}()
	callWildcard(testContext(t), caller, netip.AddrPortFrom(loopback, nic.port()), "x")
	if ap, _ := (<-from).AddrPort(); ap.Addr() != loopback {
		t.Errorf("called from %v, want %v", ap.Addr(), loopback)
	}
}

// TestWildcardPeer: the peer of a peer-to-peer request may call a NIC at a wildcard by another
// address than the NIC reports. [V-33]
func TestWildcardPeer(t *testing.T) {
	a, b := openWildcard(t, ":0", patience), openNIC(t, openProvider(t, Config{}))
	own, _ := (vi.Address{Host: a.Query().LocalAddress}).AddrPort()
	va, err := a.CreateVI(reliableAll, nil, nil)
	must(t, err)
	vb := newVI(t, b, reliableAll)
	other := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 2}), own.Port())
	must(t, va.ConnectPeerRequest(vi.Address{Host: a.Query().LocalAddress, Discriminator: []byte("a")},
		b.addr("b"), patience))
	must(t, vb.ConnectPeerRequest(b.addr("b"), vi.IPAddress(other, "a"), patience))
	for _, v := range []*vi.VI{va, vb} {
		if _, err := v.ConnectPeerWait(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
}
