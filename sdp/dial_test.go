package sdp

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"viaduct/internal/testkit"
)

// TestUnknownNetworks: only TCP networks are accepted.
func TestUnknownNetworks(t *testing.T) {
	t.Run("SDP-4.1-1", func(t *testing.T) {
		pc, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer pc.Close()
		at := pc.LocalAddr().String()
		for _, network := range []string{"udp", "udp4", "unix", "unixpacket", "ip", "tcp5", "sdp", ""} {
			unknown := func(what string, err error) {
				var oe *net.OpError
				var u net.UnknownNetworkError
				if !errors.As(err, &oe) || !errors.As(err, &u) || string(u) != network {
					t.Errorf("%s over %q: %v", what, network, err)
				}
			}
			for _, m := range []ResolveMode{ResolveOff, ResolvePrefer, ResolveRequire} {
				_, err := (&Dialer{Resolve: m}).DialContext(context.Background(), network, at)
				unknown("dial", err)
			}
			var lc ListenConfig
			_, err := lc.Listen(context.Background(), network, "127.0.0.1:0")
			unknown("listen", err)
			_, err = lc.ListenBoth(context.Background(), network, "127.0.0.1:0", "127.0.0.1:0")
			unknown("listen for both", err)
		}
		// A datagram sent by the dials would arrive first, because loopback keeps the order.
		if _, err := pc.WriteTo([]byte("end"), pc.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 100)
		pc.SetReadDeadline(time.Now().Add(testkit.Patience))
		if n, _, err := pc.ReadFrom(b); err != nil || string(b[:n]) != "end" {
			t.Errorf("a datagram of %d bytes was sent, %v", n, err)
		}
	})
}

// TestDialErrors: a failed dial returns a *net.OpError with the cause, and the set-up takes no more
// time than the dialer allows.
func TestDialErrors(t *testing.T) { // [SDP-7-1] [SDP-4.1-2] [D-71] [SDP-7.5.1-7] [SDP-7.5.1-8]
	silent, err := net.Listen("tcp", "127.0.0.1:0") // nothing accepts its connections
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	nothing := testkit.ClosedPort(t)
	l, err := Listen("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := silent.Addr().String()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	denied := &fakeMapper{err: errors.New("denied by the test")}
	for _, v := range []struct {
		what    string
		d       Dialer
		ctx     context.Context
		network string
		address string
		kinds   string // OpError.Net, or several separated by "|"
		is      func(error) bool
	}{
		{"a network", Dialer{}, nil, "udp", at, "sdp", func(err error) bool {
			var u net.UnknownNetworkError
			return errors.As(err, &u)
		}},
		{"an option", Dialer{Options: Options{RecvBuffers: 2}}, nil, "tcp", at, "", func(err error) bool {
			return err.Error() == "sdp: RecvBuffers is 2, must be 3 to 1000"
		}},
		{"no listener", Dialer{}, nil, "tcp", nothing, "tcp", func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }},
		// The time may be over before the connection is made. TCP reports the end then.
		{"no time", Dialer{Net: net.Dialer{Timeout: 50 * time.Millisecond}}, nil, "tcp", at, "tcp|sdp", func(err error) bool {
			var ne net.Error
			return errors.As(err, &ne) && ne.Timeout()
		}},
		{"a context", Dialer{}, ended, "tcp", at, "tcp", func(err error) bool { return true }},
		{"no resolver", Dialer{Resolve: ResolvePrefer}, nil, "tcp", at, "sdp", func(err error) bool {
			return strings.Contains(err.Error(), "has no resolver")
		}},
		{"no port", Dialer{Resolve: ResolveRequire, Resolver: denied}, nil, "tcp", "127.0.0.1", "sdp", func(err error) bool {
			var ae *net.AddrError
			return errors.As(err, &ae)
		}},
		{"denied", Dialer{Resolve: ResolveRequire, Resolver: denied}, nil, "tcp", at, "sdp", func(err error) bool { return errors.Is(err, denied.err) }},
		{"not there", Dialer{Resolve: ResolveRequire, Resolver: &fakeMapper{table: map[netip.AddrPort]netip.AddrPort{
			netip.MustParseAddrPort(at): netip.MustParseAddrPort(nothing)}}}, nil, "tcp", at,
			"tcp", func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }},
	} {
		ctx := v.ctx
		if ctx == nil {
			ctx = context.Background()
		}
		begun := time.Now()
		c, err := v.d.DialContext(ctx, v.network, v.address)
		if err == nil || c != nil {
			t.Errorf("%s: %v, %v", v.what, c, err)
			continue
		}
		oe, ok := err.(*net.OpError)
		if !v.is(err) || ok != (v.kinds != "") ||
			ok && (oe.Op != "dial" || !slices.Contains(strings.Split(v.kinds, "|"), oe.Net)) {
			t.Errorf("%s: %v (%T)", v.what, err, err)
		}
		if d := time.Since(begun); d >= defaultSetupTimeout {
			t.Errorf("%s: after %v", v.what, d)
		}
	}
	c, s := pairOn(t, l, &Dialer{})
	if p := c.Path(); p.Mapped || p.Why != "dialled as an SDP address" || p.Accepted || !p.CRC {
		t.Errorf("%+v", p)
	}
	shut(t, c, s)
}

// twoAddresses connects to a name server in memory, with two addresses for each name.
func twoAddresses(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	go func() {
		defer server.Close()
		var size [2]byte
		if _, err := io.ReadFull(server, size[:]); err != nil {
			return
		}
		q := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(server, q); err != nil {
			return
		}
		end := 12 // end of the header; the loop finds the end of the name that follows
		for q[end] != 0 {
			end += 1 + int(q[end])
		}
		end += 5
		b := append([]byte{0, 0}, q[:end]...)
		r := b[2:]
		copy(r[2:], []byte{0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}) // a response without error
		if r[end-3] == 1 {                                      // a question of type A
			r[7] = 2
			for i := range 2 { // the requested name, type, class, lifetime, address
				b = append(b, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, byte(1+i))
			}
		}
		binary.BigEndian.PutUint16(b, uint16(len(b)-2))
		server.Write(b)
	}()
	return client, nil
}

// TestDialResolvedAll: all addresses of a name are tried in turn, while there is time.
func TestDialResolvedAll(t *testing.T) { // [D-71] [SDP-7-1]
	old := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: twoAddresses}
	defer func() { net.DefaultResolver = old }()
	l, err := Listen("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m := &tellingMapper{at: netip.MustParseAddrPort(l.Addr().String())}
	d := &Dialer{Resolve: ResolveRequire, Resolver: m}
	if c, err := d.DialContext(t.Context(), "tcp", "two.example.:80"); err == nil ||
		len(m.asked) != 2 || m.asked[0] == m.asked[1] {
		t.Fatalf("%v, %v, asked for %v", c, err, m.asked)
	}
	m.known, m.asked = m.asked[1], nil
	c, err := d.DialContext(t.Context(), "tcp", "two.example.:80")
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.AcceptConn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	shut(t, c.(*Conn), s)
	if len(m.asked) != 2 || m.asked[1] != m.known {
		t.Errorf("asked for %v", m.asked)
	}
	ctx, cancel := context.WithCancel(t.Context())
	m.asked, m.told = nil, cancel
	if c, err := d.DialContext(ctx, "tcp", "two.example.:80"); err == nil || len(m.asked) != 1 {
		t.Errorf("%v, %v, asked for %v behind the end of the context", c, err, m.asked)
	}
}

// A tellingMapper is a Resolver with a single service, and calls told for each query.
type tellingMapper struct {
	known, at netip.AddrPort
	asked     []netip.AddrPort
	told      func()
}

func (m *tellingMapper) Resolve(_ context.Context, _, service netip.AddrPort) (netip.AddrPort, error) {
	m.asked = append(m.asked, service)
	if m.told != nil {
		m.told()
	}
	if service == m.known {
		return m.at, nil
	}
	return netip.AddrPort{}, errors.New("not known")
}

func (m *tellingMapper) Forget(netip.AddrPort) {}
