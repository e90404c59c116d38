package viplconf

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"

	"viaduct/vi"
)

// These patterns match the names of NICs in programs of 1998 to 2004. All but loop end with a
// number. [VIA 6.4.1]
var (
	numbered = regexp.MustCompile(`^(?i:(?:/dev/)?(?:clanvi|clan|vinic|nic|vi|via|via_eth|via_|vitcp))([0-9]*)$`)
	windows  = regexp.MustCompile(`^\\\\\.\\VI([1-9][0-9]*)$`) // counts from 1
	ethernet = regexp.MustCompile(`^/dev/via_([a-z]+[0-9]+)$`)
	loop     = regexp.MustCompile(`^(?:/[a-z]+/)?via_lo$`) // some programs have /etc instead of /dev
)

// Find returns the settings of the NIC called name: the settings of the line with this name, else
// of the line with *, else VI/TCP on the interface meant by the name:
//
//	/dev/via_lo, via_lo, lo    loopback
//	/dev/via_IF, IF            the interface IF, if there is one
//	an IP address              that address
//	/dev/via_ethN, /dev/clanviN, VINICN, nicN, vitcpN, \\.\VI(N+1)
//	                           the Nth interface besides loopback, N counting from 0 and 0 if absent;
//	                           on a host without any, 0 is loopback
//	fcvi0                      FC-VI on all addresses
//
// The error for any other name is [vi.ErrInvalidParameter]. The error also applies to an N beyond
// the host's interfaces, because programs search for NICs by counting until a name fails.
// [VIA 6.4.1]
func (c *Config) Find(name string) (NIC, error) {
	for _, wanted := range [...]string{name, "*"} {
		for _, d := range c.NICs {
			if d.Name == wanted {
				d.Name = name
				return d, nil
			}
		}
	}
	d := NIC{Name: name, Provider: "vitcp", MaxTransfer: DefaultTransfer}
	if name == "fcvi0" || name == "fcvi" {
		d.Provider = "fcvi"
		return d, nil
	}
	ifs, err := interfaces()
	if err != nil {
		return d, fmt.Errorf("%w: %w", vi.ErrResource, err)
	}
	d.Address, err = ifs.address(name)
	return d, err
}

// A netif is an interface that is up and has an address.
type netif struct {
	name     string
	addr     netip.Addr
	loopback bool
}

type netifs []netif // loopback last, else in the order of the system

func interfaces() (netifs, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var ifs netifs
	for _, i := range all {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		if a := firstAddress(i); a.IsValid() {
			ifs = append(ifs, netif{i.Name, a, i.Flags&net.FlagLoopback != 0})
		}
	}
	slices.SortStableFunc(ifs, func(a, b netif) int {
		return cmp.Compare(map[bool]int{true: 1}[a.loopback], map[bool]int{true: 1}[b.loopback])
	})
	return ifs, nil
}

// firstAddress returns the first IPv4 address of an interface, else the first IPv6 address except
// link-local addresses.
func firstAddress(i net.Interface) (found netip.Addr) {
	as, _ := i.Addrs()
	for _, a := range as {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		ip := p.Addr().Unmap()
		if ip.Is4() {
			return ip
		}
		if !found.IsValid() && !ip.IsLinkLocalUnicast() {
			found = ip
		}
	}
	return found
}

// address returns the address a name means. For the first interface, address returns "", because a
// NIC of such a name listens on all addresses of the host. The error is vi.ErrInvalidParameter for
// a name without meaning, or without an interface.
func (ifs netifs) address(name string) (string, error) {
	if ip, err := netip.ParseAddr(name); err == nil {
		return ip.Unmap().String(), nil
	}
	if loop.MatchString(name) {
		name = "lo"
	}
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	named := name
	if m := ethernet.FindStringSubmatch(name); m != nil {
		named = m[1]
	}
	for i, d := range ifs {
		if d.name == named || d.loopback && name == "lo" {
			return ifs.at(i), nil
		}
	}
	if name == "lo" {
		return loopback.String(), nil
	}
	n := 0
	if m := windows.FindStringSubmatch(name); m != nil {
		n, _ = strconv.Atoi(m[1])
		n--
	} else if m := numbered.FindStringSubmatch(name); m == nil {
		return "", fmt.Errorf("%w: no NIC is called %q", vi.ErrInvalidParameter, name)
	} else if m[1] != "" {
		n, _ = strconv.Atoi(m[1])
	}
	if n == 0 && (len(ifs) == 0 || ifs[0].loopback) {
		return loopback.String(), nil
	}
	if n >= len(ifs) || ifs[n].loopback {
		return "", fmt.Errorf("%w: %q: the host has no such interface", vi.ErrInvalidParameter, name)
	}
	return ifs.at(n), nil
}

func (ifs netifs) at(i int) string {
	if i == 0 && !ifs[0].loopback {
		return ""
	}
	return ifs[i].addr.String()
}
