package viplconf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"viaduct/vi"
)

// A sharing lets several processes of a host wait at one address, as programs of VIPL
// do: there a discriminator tells them apart, while a TCP port has one listener. The
// process that finds the port taken waits at another port, and announces it by a socket
// with a name in the abstract namespace, which goes when the process does:
//
//	@viaduct-vipl/1/PORT/OTHER
//
// A caller of this host that was told No Match at PORT tries those behind it. Callers
// of other hosts reach the first process only.
type sharing struct {
	port uint16 // at which all are called

	mu    sync.Mutex
	other uint16       // guarded by mu; where this NIC waits instead, 0: nowhere yet
	name  net.Listener // guarded by mu; the announcement
}

// sharesPorts is where there is an abstract namespace.
const sharesPorts = runtime.GOOS == "linux"

const (
	// maxOthers is how many processes a caller looks behind a port for.
	maxOthers = 256

	// attempts is how often another port is chosen that something else has taken
	// meanwhile.
	attempts = 8
)

func announcement(port uint16) string { return fmt.Sprintf("@viaduct-vipl/1/%d/", port) }

// Wait implements vi.Device.
func (d device) Wait(ctx context.Context, local vi.Address) (vi.Request, error) {
	r, err := d.Device.Wait(ctx, local)
	for n := 0; d.sharing != nil && errors.Is(err, syscall.EADDRINUSE) && n < attempts; n++ {
		var at vi.Address
		if at, err = d.sharing.elsewhere(local, d.attrs.LocalAddress, n > 0); err == nil {
			r, err = d.Device.Wait(ctx, at)
		}
	}
	return r, err
}

// elsewhere returns local with the port at which this NIC waits; another one than
// before if that was taken. own is the host part of an address without one.
func (s *sharing) elsewhere(local vi.Address, own []byte, taken bool) (vi.Address, error) {
	if len(local.Host) == 0 {
		local.Host = own
	}
	ap, ok := local.AddrPort()
	if !ok || ap.Port() != 0 && ap.Port() != s.port {
		return local, fmt.Errorf("%w: %w", vi.ErrResource, syscall.EADDRINUSE) // a port that the consumer has named
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if taken {
		s.closeLocked()
	}
	if s.other == 0 {
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(ap.Addr(), 0)))
		if err != nil {
			return local, fmt.Errorf("%w: %w", vi.ErrResource, err)
		}
		other := l.Addr().(*net.TCPAddr).AddrPort().Port()
		l.Close()
		if s.name, err = net.Listen("unix", announcement(s.port)+strconv.Itoa(int(other))); err != nil {
			return local, fmt.Errorf("%w: %w", vi.ErrResource, err)
		}
		s.other = other
	}
	local.Host = vi.IPAddress(netip.AddrPortFrom(ap.Addr(), s.other), "").Host
	return local, nil
}

func (s *sharing) closeLocked() {
	if s.name != nil {
		s.name.Close()
	}
	s.name, s.other = nil, 0
}

// Connect implements vi.Device.
func (d device) Connect(ctx context.Context, ep *vi.Endpoint, local, remote vi.Address) (vi.Link, vi.Agreement, error) {
	l, g, err := d.Device.Connect(ctx, ep, local, remote)
	ap, ok := remote.AddrPort()
	if d.sharing == nil || !errors.Is(err, vi.ErrNoMatch) || !ok || ap.Port() != 0 && ap.Port() != d.sharing.port || !IsOwn(ap.Addr()) {
		return l, g, err
	}
	for _, port := range d.sharing.others() {
		remote.Host = vi.IPAddress(netip.AddrPortFrom(ap.Addr(), port), "").Host
		l, g, err2 := d.Device.Connect(ctx, ep, local, remote)
		if !errors.Is(err2, vi.ErrNoMatch) {
			return l, g, err2
		}
	}
	return l, g, err
}

// others returns the ports that other processes have announced.
func (s *sharing) others() (ports []uint16) {
	text, _ := os.ReadFile("/proc/net/unix")
	for line := range strings.Lines(string(text)) {
		_, port, ok := strings.Cut(line, announcement(s.port))
		if !ok || len(ports) == maxOthers {
			continue
		}
		if n, err := strconv.ParseUint(strings.TrimSpace(port), 10, 16); err == nil && !slices.Contains(ports, uint16(n)) {
			ports = append(ports, uint16(n))
		}
	}
	return ports
}

// Close implements vi.Device.
func (d device) Close() error {
	if s := d.sharing; s != nil {
		s.mu.Lock()
		s.closeLocked()
		s.mu.Unlock()
	}
	return d.Device.Close()
}

// IsOwn reports whether an address is one of this host.
func IsOwn(ip netip.Addr) bool {
	if ip.IsLoopback() {
		return true
	}
	as, _ := net.InterfaceAddrs()
	return slices.ContainsFunc(as, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr().Unmap() == ip.Unmap()
	})
}
