package vi

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"viaduct/internal/perturb"
)

// nameService resolves host names. It searches Config.Hosts first and then asks the system's
// resolver. [VIA 7]
type nameService struct {
	mu    perturb.Mutex
	open  bool        // guarded by mu
	hosts []hostEntry // guarded by mu
}

type hostEntry struct {
	host  []byte
	names []string
}

// NSInit opens the name service. Each call reads Config.Hosts again. It returns ErrNameService if a
// line of the text is invalid.
func (n *NIC) NSInit() error { // [VIA 6.4.9]
	hosts, err := n.parseHosts(n.cfg.Hosts)
	if err != nil {
		return err
	}
	n.names.mu.Lock()
	defer n.names.mu.Unlock()
	n.names.open, n.names.hosts = true, hosts
	return nil
}

func (n *NIC) parseHosts(text []byte) ([]hostEntry, error) {
	var hosts []hostEntry
	sc := bufio.NewScanner(bytes.NewReader(text))
	for line := 1; sc.Scan(); line++ {
		s, _, _ := strings.Cut(sc.Text(), "#")
		f := strings.Fields(s)
		if len(f) == 0 {
			continue
		}
		host, err := n.dev.ParseHost(f[0])
		if err != nil || len(f) < 2 {
			return nil, fmt.Errorf("%w: hosts line %d: %q", ErrNameService, line, sc.Text())
		}
		hosts = append(hosts, hostEntry{host, f[1:]})
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("%w: hosts: %w", ErrNameService, err)
	}
	return hosts, nil
}

// NSShutdown closes the name service. Addresses returned before stay valid.
func (n *NIC) NSShutdown() error {
	n.names.mu.Lock()
	defer n.names.mu.Unlock()
	n.names.open = false
	return nil
}

func (n *NIC) hostsFile() ([]hostEntry, error) {
	n.names.mu.Lock()
	defer n.names.mu.Unlock()
	if !n.names.open {
		return nil, fmt.Errorf("%w: the name service is not initialised", ErrNameService)
	}
	return n.names.hosts, nil
}

// NSGetHostByName returns the host part of the address of a name. index selects one of several
// addresses, counted from 0. The name may also be an address. The error is ErrNameService for an
// unknown name, an index past the end, or a closed name service.
func (n *NIC) NSGetHostByName(ctx context.Context, name string, index int) ([]byte, error) { // [VIA 6.4.9] [VIA-6.4-28] [VIA-8.3-20]
	hosts, err := n.hostsFile()
	if err != nil {
		return nil, err
	}
	var found [][]byte
	for _, h := range hosts {
		if slices.ContainsFunc(h.names, func(s string) bool { return strings.EqualFold(s, name) }) {
			found = append(found, h.host)
		}
	}
	if found == nil {
		if h, err := n.dev.ParseHost(name); err == nil {
			found = [][]byte{h}
		} else if found, err = n.dev.LookupHost(ctx, name); err != nil {
			return nil, fmt.Errorf("%w: %q: %w", ErrNameService, name, err)
		}
	}
	if index < 0 || index >= len(found) {
		return nil, fmt.Errorf("%w: %q has %d addresses, asked for number %d", ErrNameService, name, len(found), index)
	}
	return slices.Clone(found[index]), nil
}

// NSGetHostByAddr returns the name of a host part. The error is ErrNameService if the name is
// unknown or the name service is closed.
func (n *NIC) NSGetHostByAddr(ctx context.Context, host []byte) (string, error) { // [VIA 6.4.9]
	hosts, err := n.hostsFile()
	if err != nil {
		return "", err
	}
	for _, h := range hosts {
		if bytes.Equal(h.host, host) {
			return h.names[0], nil
		}
	}
	name, err := n.dev.LookupAddr(ctx, host)
	if err != nil {
		return "", fmt.Errorf("%w: %x: %w", ErrNameService, host, err)
	}
	return name, nil
}

// KnownHosts returns the host parts in Config.Hosts, as the last NSInit read them. VIPL's
// autodiscovery query returns the same.
func (n *NIC) KnownHosts() [][]byte { // [VIA 6.4.8]
	n.names.mu.Lock()
	defer n.names.mu.Unlock()
	var all [][]byte
	for _, h := range n.names.hosts {
		all = append(all, slices.Clone(h.host))
	}
	return all
}
