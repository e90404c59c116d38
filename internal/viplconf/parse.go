package viplconf

import (
	"bufio"
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"viaduct/samehost"
)

// DefaultFile is the configuration file if no other file is named.
const DefaultFile = "/etc/viaduct/vipl.conf"

// DefaultHosts is the hosts file of NICs that name no hosts file. The file may be absent.
const DefaultHosts = "/etc/vip_hosts"

// DefaultTransfer is MaxTransferSize in bytes unless the configuration sets another size. The
// default is small, because old programs allocate dozens of buffers of MaxTransferSize bytes.
// [VIA 6.6]
const DefaultTransfer = 64 << 10

// A Config holds the parsed lines of a configuration.
type Config struct {
	NICs []NIC

	// Log is the lowest level of events written to the standard error; nil disables the events.
	Log *slog.Level
}

// A NIC holds the settings for opening a NIC.
type NIC struct {
	Name        string
	Provider    string // "vitcp" or "fcvi"
	Listen      string // host:port; empty: the provider's port on Address
	Address     string // IP address of the NIC for peers; empty: one of the host's
	Fabric      string // fcvi: address of the fabric daemon
	MaxTransfer uint32 // bytes
	Hosts       string // file; empty: DefaultHosts, if there is one
	Grace       time.Duration
	StrictPtags bool
	PortAlways  bool            // the host part has a port even if it is the usual one
	EachPost    bool            // sends are never gathered
	Congestion  string          // congestion control; empty: the system's
	SameHost    samehost.Policy // shared memory between processes of one host
}

// Parse reads a configuration. The error names the line. An empty text is a valid configuration.
func Parse(text []byte) (*Config, error) {
	c := new(Config)
	sc := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; sc.Scan(); n++ {
		s, _, _ := strings.Cut(sc.Text(), "#")
		if f := strings.Fields(s); len(f) > 0 {
			if err := c.line(f); err != nil {
				return nil, fmt.Errorf("line %d: %w", n, err)
			}
		}
	}
	return c, sc.Err()
}

func (c *Config) line(f []string) error {
	if f[0] == "log" && len(f) == 2 {
		c.Log = new(slog.Level)
		return c.Log.UnmarshalText([]byte(f[1]))
	}
	if len(f) < 3 || f[1] != "->" || f[2] != "vitcp" && f[2] != "fcvi" {
		return fmt.Errorf("expected NAME -> vitcp or NAME -> fcvi, found %q", strings.Join(f, " "))
	}
	if len(f)%2 == 0 {
		return fmt.Errorf("option %s has no value", f[len(f)-1])
	}
	d := NIC{Name: f[0], Provider: f[2], MaxTransfer: DefaultTransfer}
	for i := 3; i < len(f); i += 2 {
		if err := d.option(f[i], f[i+1]); err != nil {
			return fmt.Errorf("option %s: %w", f[i], err)
		}
	}
	c.NICs = append(c.NICs, d)
	return nil
}

func (d *NIC) option(name, value string) (err error) {
	switch {
	case name == "listen":
		d.Listen = value
		err = checkHostPort(value)
	case name == "address":
		d.Address = value
		_, err = netip.ParseAddr(value)
	case name == "fabric" && d.Provider == "fcvi":
		d.Fabric = value
		err = checkHostPort(value)
	case name == "transfer":
		d.MaxTransfer, err = parseSize(value)
	case name == "hosts":
		d.Hosts = value
	case name == "grace" && d.Provider == "vitcp":
		d.Grace, err = time.ParseDuration(value)
	case name == "ptags" && (value == "strict" || value == "lenient"):
		d.StrictPtags = value == "strict"
	case name == "port" && (value == "always" || value == "unusual"):
		d.PortAlways = value == "always"
	case name == "gather" && (value == "on" || value == "off"):
		d.EachPost = value == "off"
	case name == "congestion":
		d.Congestion = value
	case name == "samehost":
		d.SameHost, err = samehost.Parse(value)
	default:
		err = fmt.Errorf("%s takes no %q", d.Provider, value)
	}
	return err
}

func checkHostPort(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return err
	}
	if host != "" {
		if _, err := netip.ParseAddr(host); err != nil {
			return err
		}
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q is no port", port)
	}
	return nil
}

// parseSize reads a number of bytes of at least 1 and at most 2^31-1. The suffixes K, M and G
// multiply by powers of 1024.
func parseSize(s string) (uint32, error) {
	shift := 0
	if i := strings.IndexByte("KMG", s[len(s)-1]); i >= 0 {
		s, shift = s[:len(s)-1], 10*(i+1)
	}
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, err
	}
	if n <<= shift; n == 0 || n >= 1<<31 {
		return 0, fmt.Errorf("%d bytes, at least 1 and less than 2 GiB", n)
	}
	return uint32(n), nil
}
