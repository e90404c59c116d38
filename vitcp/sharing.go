package vitcp

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"viaduct/internal/sock"
)

// Several processes of a host can share a port. The first process listens at the port itself. Each
// other process listens at a separate port, called a branch. It announces the branch by a named
// socket in the abstract namespace. The name disappears with the process:
//
//	@viaduct-vipl/1/PORT/BRANCH
//
// A caller of the same host asks the branches after a No Match at PORT. [V-31]

// maxBranches is the maximum number of branches of a port a caller asks.
const maxBranches = 256

func signName(port uint16) string { return fmt.Sprintf("@viaduct-vipl/1/%d/", port) }

// shares reports whether several processes may wait at ap.
func (p *Provider) shares(ap netip.AddrPort) bool {
	return p.cfg.SharePort && sharesPorts && ap.Port() == p.cfg.Port
}

// branchLocked opens a branch of ap: a listener for ap at another port. The caller holds p.mu.
func (p *Provider) branchLocked(ap netip.AddrPort) (*listener, error) {
	nl, err := p.socket(netip.AddrPortFrom(ap.Addr(), 0).String())
	if err != nil {
		return nil, err
	}
	sign, err := net.Listen("unix", signName(ap.Port())+strconv.Itoa(int(bound(nl).Port())))
	if err != nil {
		nl.Close()
		return nil, listenError(err)
	}
	return p.startLocked(nl, ap, sign), nil
}

// beside returns the branches of a target on this host. It returns nil for a target on another
// host, or if Config.SharePort is off.
func (p *Provider) beside(target netip.AddrPort) (at []netip.AddrPort) {
	if !p.shares(target) || !sock.IsOwn(target.Addr()) {
		return nil
	}
	for line := range strings.Lines(unixSockets()) {
		_, port, ok := strings.Cut(line, signName(target.Port()))
		if !ok || len(at) == maxBranches {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(port), 10, 16)
		if to := netip.AddrPortFrom(target.Addr(), uint16(n)); err == nil && !slices.Contains(at, to) {
			at = append(at, to)
		}
	}
	return at
}
