package addr

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A Kind is the type of a parameter's values.
type Kind uint8

const (
	Number    Kind = iota // digits, from Lo to Hi
	Size                  // bytes: digits with an optional K, M, G or T, from Lo to Hi
	Choice                // one of Words
	HostPort              // HOST or HOST:PORT
	IP                    // an IP address
	WWN                   // eight bytes in hex, with or without colons
	Directory             // an absolute path
)

// A Param is one query parameter of a transport. Parse, "viaduct help urls", the guide and the
// completion of shells all use the same table of parameters.
type Param struct {
	Name    string
	Kind    Kind
	Words   []string // words of a Choice
	Default string   // in the form of an address, or a remark in parentheses
	Lo, Hi  uint64   // limits of a Number or a Size
	Dialer  bool     // only for the side that connects
	About   string   // one sentence
}

// Schemes lists the transports an address can name. A verb may accept fewer.
var Schemes = []Scheme{
	{Name: "vitcp", DefaultPort: 3936, HasDisc: true, Params: slices.Concat(viParams, sameHostParams), About: "a VI over TCP"},
	{Name: "iwarp", Params: slices.Concat(iwarpParams, sameHostParams), About: "an RDMAP Stream (MPA, DDP, RDMAP)"},
	{Name: "sdp", Params: slices.Concat(sdpParams, sameHostParams), About: "a byte stream over SDP"},
	{Name: "fcvi", DefaultPort: 3225, HasDisc: true, Params: slices.Concat(viParams, fcviParams, sameHostParams), About: "a VI over Fibre Channel in an FCIP link"},
	{Name: "tcp", About: "plain TCP, the baseline"},
}

var onOff = []string{"on", "off"}

// sameHostParams are the parameters of transports that can use shared memory.
var sameHostParams = []Param{{Name: "samehost", Kind: Choice, Words: []string{"auto", "off", "require"},
	Default: "auto",
	About:   "Shared memory instead of TCP between processes of one user on one host, unless one side says off; require fails without. Captures (--pcap), and TLS under vitcp and iwarp, go by TCP."},
	{Name: "samehost-dir", Kind: Directory, Default: "(none)",
		About: "A directory in which both sides meet for that if they have network namespaces of their own, as containers have: mounted into both, and writable by their user alone."}}

var viParams = []Param{
	{Name: "reliability", Kind: Choice, Words: []string{"reception", "delivery", "unreliable"}, Default: "reception",
		About: "Reliability level of the VI; both sides must have the same, and unreliable has no RDMA Read."},
	{Name: "flow", Kind: Choice, Words: onOff, Default: "on",
		About: "Descriptor flow control: a message waits until the other side has posted the receive that it needs."},
	{Name: "mtu", Kind: Size, Lo: 1, Hi: math.MaxUint32, Default: "(4294967295 for serve, get and put, else 1M)",
		About: "Longest message that is offered; the lesser of both sides holds."},
	{Name: "window", Kind: Number, Lo: 1, Hi: 65535, Default: "16",
		About: "RDMA Reads of the peer that are served at a time."},
}

var iwarpParams = []Param{
	{Name: "mtu", Kind: Size, Lo: 1, Hi: math.MaxUint32, Default: "(4294967295 for serve, get and put, else 1M)",
		About: "Longest message that is sent or taken; a longer one is a length error."},
	{Name: "window", Kind: Number, Lo: 1, Hi: 16383, Default: "16",
		About: "RDMA Reads that may be outstanding in each direction (IRD and ORD)."},
	{Name: "crc", Kind: Choice, Words: onOff, Default: "on",
		About: "Ask for the CRC of MPA; it is left out only if both sides say off."},
	{Name: "markers", Kind: Choice, Words: onOff, Default: "off",
		About: "Ask the peer for MPA markers in what it sends."},
	{Name: "fpdu", Kind: Size, Lo: 128, Hi: 64766, Default: "(fits TCP's segments)",
		About: "Fixed size of the ULPDUs that are sent."},
	{Name: "mpa", Kind: Choice, Words: []string{"2", "1"}, Default: "2",
		About: "Revision of MPA that the start-up uses; 1 has no read depths and no peer-to-peer model."},
	{Name: "p2p", Kind: Choice, Words: onOff, Default: "on",
		About: "Peer-to-peer model, in which either side may send first; off has the side that connects send first."},
}

var policies = []string{"auto", "buffered", "combined", "pipelined"}

var sdpParams = []Param{
	{Name: "portmap", Kind: HostPort, Default: "(none)", Dialer: true,
		About: "Ask the Port Mapper there (UDP port 3935) for the SDP address of HOST:PORT, and fall back to plain TCP."},
	{Name: "resolve", Kind: Choice, Words: []string{"prefer", "require"}, Default: "prefer", Dialer: true,
		About: "With portmap: require fails where prefer falls back to plain TCP."},
	{Name: "layout", Kind: Choice, Words: []string{"figure", "ibta"}, Default: "figure", Dialer: true,
		About: "Reading of the header figures: that of the draft, or that of InfiniBand."},
	{Name: "hello", Kind: Choice, Words: []string{"private", "raw"}, Default: "private", Dialer: true,
		About: "Where the Hello message travels: as private data of the MPA Request, or ahead of it."},
	{Name: "policy", Kind: Choice, Words: policies, Default: "auto",
		About: "Both of send-policy and recv-policy."},
	{Name: "send-policy", Kind: Choice, Words: policies, Default: "auto",
		About: "Flow control mode that what is sent is steered to."},
	{Name: "recv-policy", Kind: Choice, Words: policies, Default: "auto",
		About: "Flow control mode that what is received is steered to."},
	{Name: "send-threshold", Kind: Size, Hi: 1 << 30, Default: "1M",
		About: "Writes longer than this are moved without copies; 0 means that none is."},
	{Name: "recv-threshold", Kind: Size, Hi: 1 << 30, Default: "1M",
		About: "Reads longer than this are offered for zero copy; never less than recv-buffer-size."},
	{Name: "recv-buffers", Kind: Number, Lo: 3, Hi: 1000, Default: "32",
		About: "Private buffers that messages are received in."},
	{Name: "recv-buffer-size", Kind: Size, Lo: 37, Hi: 1 << 20, Default: "262208",
		About: "Bytes of each private buffer, header included."},
	{Name: "send-buffer", Kind: Size, Hi: 1 << 30, Default: "256K",
		About: "Bytes that may wait to be sent, as SO_SNDBUF."},
	{Name: "receive-buffer", Kind: Size, Hi: 1 << 30, Default: "256K",
		About: "Bytes that may wait to be read, as SO_RCVBUF."},
	{Name: "max-adverts", Kind: Number, Lo: 1, Hi: 65535, Default: "16",
		About: "Advertisements of memory that the peer may have open."},
	{Name: "read-depth", Kind: Number, Lo: 1, Hi: 128, Default: "16",
		About: "RDMA Reads that each side may have outstanding."},
	{Name: "crc", Kind: Choice, Words: onOff, Default: "on",
		About: "Ask for the CRC of MPA; it is left out only if both sides say off."},
}

var fcviParams = []Param{
	{Name: "fabric", Kind: HostPort, Default: "(none: a link to HOST)",
		About: "Join the fabric that a fabric daemon serves there (TCP port 3225), or that has this name in the --registry; HOST is an address inside it then."},
	{Name: "self", Kind: IP, Default: "(HOST of a listener, else made up)",
		About: "Our own host address in the fabric."},
	{Name: "wwpn", Kind: WWN, Default: "(made up)", About: "Our port name."},
	{Name: "wwnn", Kind: WWN, Default: "(made up)", About: "Our node name."},
	{Name: "peer", Kind: WWN, Default: "(asked of the fabric)", About: "Port name of HOST, which must be an IP address then."},
	{Name: "class", Kind: Choice, Words: []string{"3", "2"}, Default: "3",
		About: "Class of service: 2 has every frame acknowledged, if the other side offers it too."},
	{Name: "streaming", Kind: Choice, Words: onOff, Default: "on",
		About: "One response may answer several messages at Reliable Reception; off has each answered."},
}

// SchemeOf returns the description of a transport, or nil for an unknown name.
func SchemeOf(name string) *Scheme {
	if i := slices.IndexFunc(Schemes, func(c Scheme) bool { return c.Name == name }); i >= 0 {
		return &Schemes[i]
	}
	return nil
}

// Param returns a parameter of the transport, or nil for an unknown name.
func (s *Scheme) Param(name string) *Param {
	if i := slices.IndexFunc(s.Params, func(p Param) bool { return p.Name == name }); i >= 0 {
		return &s.Params[i]
	}
	return nil
}

// Form returns the form of the transport's addresses, without parameters.
func (s *Scheme) Form() string {
	switch {
	case s.HasDisc:
		return s.Name + "://HOST[:PORT]/DISCRIMINATOR"
	case s.DefaultPort != 0:
		return s.Name + "://HOST[:PORT]"
	}
	return s.Name + "://HOST:PORT"
}

// Form describes the values of the parameter.
func (p *Param) Form() string {
	switch p.Kind {
	case Choice:
		return strings.Join(p.Words, "|")
	case HostPort:
		return "HOST[:PORT]"
	case IP:
		return "IP"
	case WWN:
		return "WWN"
	case Directory:
		return "DIR"
	case Size:
		return "SIZE"
	}
	return "NUMBER"
}

// Range describes the limits of a number or a size. It returns "" for the other kinds.
func (p *Param) Range() string {
	if p.Kind != Number && p.Kind != Size {
		return ""
	}
	return fmt.Sprintf("%d to %d", p.Lo, p.Hi)
}

// check returns an error if v is not a valid value.
func (p *Param) check(v string) error {
	switch p.Kind {
	case Number, Size:
		n, err := p.number(v)
		if err != nil || n < p.Lo || n > p.Hi {
			return fmt.Errorf("parameter %s=%s must be a number from %d to %d", p.Name, v, p.Lo, p.Hi)
		}
	case Choice:
		if !slices.Contains(p.Words, v) {
			return fmt.Errorf("parameter %s=%s must be one of %s", p.Name, v, strings.Join(p.Words, ", "))
		}
	case HostPort:
		if err := checkHostPort(v); err != nil {
			return fmt.Errorf("parameter %s=%s must be HOST or HOST:PORT: %w", p.Name, v, err)
		}
	case IP:
		if _, err := netip.ParseAddr(v); err != nil {
			return fmt.Errorf("parameter %s=%s is no IP address", p.Name, v)
		}
	case Directory:
		if !filepath.IsAbs(v) {
			return fmt.Errorf("parameter %s=%s must be an absolute path", p.Name, v)
		}
	}
	return nil // a WWN is parsed by the package that uses it
}

func (p *Param) number(v string) (uint64, error) {
	if p.Kind == Size {
		return ParseSize(v)
	}
	return strconv.ParseUint(v, 10, 64)
}

func checkHostPort(v string) error {
	if h, port, err := net.SplitHostPort(v); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("port %q is not between 1 and 65535", port)
		}
		v = h
	} else if !strings.HasPrefix(v, "[") && strings.Count(v, ":") == 1 {
		return err
	}
	v = strings.TrimSuffix(strings.TrimPrefix(v, "["), "]")
	if v == "" {
		return errors.New("the host is missing")
	}
	return checkHost(v)
}

// checkQuery returns an error if the parameters of an address are not valid.
func (s *Scheme) checkQuery(q url.Values) error {
	for k, v := range q {
		p := s.Param(k)
		if p == nil {
			var names []string
			for i := range s.Params {
				names = append(names, s.Params[i].Name)
			}
			if near := nearest(k, names); near != "" {
				return fmt.Errorf("%s has no parameter %q, did you mean %s? (it has: %s)", s.Name,
					k, near, orNone(names))
			}
			return fmt.Errorf("%s has no parameter %q (it has: %s)", s.Name, k, orNone(names))
		}
		if len(v) != 1 || v[0] == "" {
			return fmt.Errorf("parameter %q wants exactly one value", k)
		}
		if err := p.check(v[0]); err != nil {
			return err
		}
	}
	return nil
}

func orNone(p []string) string {
	if len(p) == 0 {
		return "none"
	}
	return strings.Join(p, ", ")
}

// nearest returns the name probably meant by word: at most two edits away, or beginning with word.
// nearest returns "" if no name is near.
func nearest(word string, names []string) string {
	best, at := 3, ""
	for _, n := range names {
		d := distance(word, n)
		if len(word) > 1 && strings.HasPrefix(n, word) {
			d = min(d, 2)
		}
		if d < best && d < len(n) {
			best, at = d, n
		}
	}
	return at
}

// distance returns the least number of letters to insert, delete or change that makes b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// param returns a parameter of the address's transport. param panics for a name missing from the
// table, because such a name is a bug of the caller.
func (u *URL) param(name string) *Param {
	if s := SchemeOf(u.Scheme); s != nil {
		if p := s.Param(name); p != nil {
			return p
		}
	}
	panic("addr: " + u.Scheme + " has no parameter " + name)
}

// Number returns the value of a number or size parameter, or def if the parameter is absent.
func (u *URL) Number(name string, def uint64) uint64 {
	p := u.param(name)
	s := u.Query.Get(name)
	if s == "" {
		return def
	}
	n, err := p.number(s)
	if err != nil {
		panic("addr: unchecked value: " + err.Error()) // Parse rejects these
	}
	return n
}

// Choice returns the value of a parameter with fixed words, or the table's default if the parameter
// is absent.
func (u *URL) Choice(name string) string {
	p := u.param(name)
	if s := u.Query.Get(name); s != "" {
		return s
	}
	return p.Default
}

// Bool reports whether a parameter is on. Its words must be on and off.
func (u *URL) Bool(name string) bool { return u.Choice(name) == "on" }
