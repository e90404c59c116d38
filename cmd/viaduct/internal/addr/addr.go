// Package addr reads and writes the addresses of the viaduct command.
//
//	vitcp://HOST[:PORT]/DISCRIMINATOR[/PATH]
//	iwarp://HOST:PORT[/PATH]
//	sdp://HOST:PORT[/PATH][?portmap=HOST[:PORT]]
//	fcvi://HOST[:PORT]/DISCRIMINATOR[/PATH]
//	tcp://HOST:PORT[/PATH]
package addr

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A Scheme describes the addresses of one transport.
type Scheme struct {
	Name        string
	DefaultPort uint16 // 0: the port must be given
	HasDisc     bool   // a discriminator follows the host
	Params      []Param
	About       string // what the transport carries
}

// MaxDiscriminator is the length in bytes of the longest discriminator.
const MaxDiscriminator = 16

// A URL is an address taken apart.
type URL struct {
	Scheme string
	Host   string // without brackets; empty means every address, in a listening URL
	Port   uint16 // 0 in a listening URL means that the system picks one
	Disc   []byte // 1 to 16 bytes where the scheme has a discriminator, else nil
	Path   string // cleaned of the leading slash; empty if there is none
	Query  url.Values
}

// Parse parses an address. The error names the mistake and shows the expected form.
func Parse(s string) (*URL, error) {
	missing := fmt.Errorf("address %q: it must start with vitcp://, iwarp://, sdp://, fcvi:// or tcp://", s)
	if !strings.Contains(s, "://") {
		return nil, missing
	}
	u, err := url.Parse(s)
	if err != nil {
		if ue, ok := errors.AsType[*url.Error](err); ok {
			err = ue.Err
		}
		return nil, fmt.Errorf("address %q: %w", s, err)
	}
	i := slices.IndexFunc(Schemes, func(c Scheme) bool { return c.Name == u.Scheme })
	if i < 0 || u.Opaque != "" {
		return nil, missing
	}
	sc := Schemes[i]
	if u.User != nil || u.Fragment != "" {
		return nil, fmt.Errorf("address %q: neither a user name nor a # part belongs here", s)
	}
	r := &URL{Scheme: sc.Name, Host: u.Hostname(), Port: sc.DefaultPort}
	if err := checkHost(r.Host); err != nil {
		return nil, fmt.Errorf("address %q: %w", s, err)
	}
	switch p := u.Port(); {
	case p != "":
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("address %q: port %s is not between 0 and 65535", s, p)
		}
		r.Port = uint16(n)
	case strings.HasSuffix(u.Host, ":") || sc.DefaultPort == 0:
		return nil, fmt.Errorf("address %q: the port is missing (%s://HOST:PORT)", s, sc.Name)
	}
	rest := strings.TrimPrefix(u.EscapedPath(), "/")
	if sc.HasDisc {
		var first string
		first, rest, _ = strings.Cut(rest, "/")
		if r.Disc, err = parseDisc(first); err != nil {
			return nil, fmt.Errorf("address %q: %w", s, err)
		}
	}
	if r.Path, err = url.PathUnescape(rest); err != nil {
		return nil, fmt.Errorf("address %q: %w", s, err)
	}
	if r.Query, err = url.ParseQuery(u.RawQuery); err != nil {
		return nil, fmt.Errorf("address %q: %w", s, err)
	}
	if err := sc.checkQuery(r.Query); err != nil {
		return nil, fmt.Errorf("address %q: %w", s, err)
	}
	return r, nil
}

// checkHost accepts an IP address or a possible host name.
func checkHost(h string) error {
	if strings.Contains(h, ":") {
		if a, err := netip.ParseAddr(h); err != nil || !a.Is6() {
			return fmt.Errorf("host %q is no IPv6 address (write it in brackets, the port after them)", h)
		}
		return nil
	}
	if strings.ContainsFunc(h, func(r rune) bool {
		return r <= ' ' || r == 0x7f || strings.ContainsRune("/?#%@[]\\<>\"", r)
	}) {
		return fmt.Errorf("host %q is neither a name nor an IP address", h)
	}
	return nil
}

// parseDisc reads a discriminator of 1 to 16 bytes: text with % escapes, or 0x and hex digits.
func parseDisc(s string) ([]byte, error) {
	if s == "" {
		return nil, errors.New("the discriminator is missing (//HOST:PORT/DISCRIMINATOR)")
	}
	var d []byte
	if h, ok := strings.CutPrefix(s, "0x"); ok {
		b, err := hex.DecodeString(h)
		if err != nil {
			return nil, fmt.Errorf("discriminator %q is not hex after 0x", s)
		}
		d = b
	} else {
		t, err := url.PathUnescape(s)
		if err != nil {
			return nil, fmt.Errorf("discriminator: %w", err)
		}
		d = []byte(t)
	}
	if len(d) == 0 || len(d) > MaxDiscriminator {
		return nil, fmt.Errorf("discriminator %q has %d bytes, it must have 1 to %d", s, len(d), MaxDiscriminator)
	}
	return d, nil
}

// DefaultPort returns the default port of a scheme, or 0 if the port is mandatory.
func DefaultPort(scheme string) uint16 {
	for _, s := range Schemes {
		if s.Name == scheme {
			return s.DefaultPort
		}
	}
	return 0
}

// HostPort returns the address for net.Dial or net.Listen.
func (u *URL) HostPort() string {
	return net.JoinHostPort(u.Host, strconv.Itoa(int(u.Port)))
}

// WithPort returns a copy of u with the port of a. If u names no host, the copy also has the host
// of a. The result is the address of a listener.
func (u *URL) WithPort(a net.Addr) *URL {
	v := *u
	host, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return &v
	}
	if n, err := strconv.ParseUint(port, 10, 16); err == nil {
		v.Port = uint16(n)
	}
	if v.Host == "" {
		v.Host = host
	}
	return &v
}

// WithPath returns a copy of u with the path p of a file.
func (u *URL) WithPath(p string) *URL {
	v := *u
	v.Path = p
	return &v
}

// String returns the address in the form Parse reads.
func (u *URL) String() string {
	var b strings.Builder
	b.WriteString(u.Scheme)
	b.WriteString("://")
	b.WriteString(strings.ReplaceAll(u.HostPort(), "%", "%25"))
	if u.Disc != nil {
		b.WriteString("/" + DiscString(u.Disc))
	}
	if u.Path != "" {
		b.WriteString("/" + (&url.URL{Path: u.Path}).EscapedPath())
	}
	if len(u.Query) > 0 {
		b.WriteString("?" + u.Query.Encode())
	}
	return b.String()
}

// DiscString returns a discriminator as part of an address: as text if the text is readable and
// parses to the same bytes, otherwise as hex.
func DiscString(d []byte) string {
	s := string(d)
	plain := utf8.ValidString(s) && !strings.HasPrefix(s, "0x") &&
		!strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("/?#%", r) })
	if plain && s != "." && s != ".." {
		return s
	}
	return "0x" + hex.EncodeToString(d)
}

// ParseSize reads a number of bytes: digits with an optional K, M, G or T, and an optional iB or B.
// K is 1024, and each larger unit is 1024 of the unit before.
func ParseSize(s string) (uint64, error) {
	t := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(s), "IB"), "B")
	shift := 0
	for i, suffix := range []string{"K", "M", "G", "T"} {
		if v, ok := strings.CutSuffix(t, suffix); ok {
			t, shift = v, 10*(i+1)
			break
		}
	}
	n, err := strconv.ParseUint(t, 10, 64)
	if err != nil || n > 1<<63>>shift {
		return 0, fmt.Errorf("%q is not a size (digits, then K, M, G or T)", s)
	}
	return n << shift, nil
}
