package portmap

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/portmapwire"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func startServer(t *testing.T, addr string, cfg ServerConfig) *Server {
	t.Helper()
	s, err := Listen(addr, cfg)
	if err != nil {
		if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
			t.Skipf("SKIPPED: this system has no address for %s: %v", addr, err)
		}
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve() }()
	t.Cleanup(func() {
		s.Close()
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Serve ended with %v", err)
		}
	})
	return s
}

func TestResolve(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		t.Run(host, func(t *testing.T) { // [SDP-7.3.1.3-4]
			reg := NewRegistry()
			reg.Set(ap("0.0.0.0:80"), NewMapping(ap("0.0.0.0:8080")))
			reg.Set(ap("0.0.0.0:81"), Mapping{Targets: []netip.AddrPort{ap("0.0.0.0:8081")}, PmTime: Once})
			var s *Server
			var c *Client
			q := Query{Service: netip.AddrPortFrom(netip.MustParseAddr(host), 80)}
			m, err := Mapped{}, ErrNoAnswer
			for end := time.Now().Add(testkit.Patience); errors.Is(err, ErrNoAnswer) && time.Now().Before(end); { // Serve may begin late
				s = startServer(t, net.JoinHostPort(host, "0"), ServerConfig{Registry: reg})
				c = NewClient(ClientConfig{Server: s.Addr()})
				m, err = c.Resolve(t.Context(), q)
			}
			if err != nil || m.Address != netip.AddrPortFrom(s.Addr().Addr(), 8080) || m.Cached {
				t.Fatalf("%+v, %v", m, err)
			}
			testkit.Eventually(t, "PMAck", func() bool { return s.Stats().Acks == 1 }) // [SDP-7.4-25] [SDP-7.4-26]
			// The client may have repeated the request, but not after the PMAck.
			received := s.Stats().Received
			m, err = c.Resolve(t.Context(), q)
			if err != nil || !m.Cached || s.Stats().Received != received { // [SDP-7.3.1.4-1]
				t.Errorf("second time: %+v, %v, server got %d", m, err, s.Stats().Received-received)
			}
			c.Forget(q.Service) // [SDP-7.5.1-8]
			if m, err = c.Resolve(t.Context(), q); err != nil || m.Cached {
				t.Errorf("after Forget: %+v, %v", m, err)
			}

			var denies uint64
			for i := range 2 { // [SDP-7.3.1.4-4]
				_, err = c.Resolve(t.Context(), Query{Service: netip.AddrPortFrom(s.Addr().Addr(), 82)})
				if !errors.Is(err, ErrDenied) {
					t.Errorf("unmapped service: %v", err)
				}
				m, err = c.Resolve(t.Context(), Query{Service: netip.AddrPortFrom(s.Addr().Addr(), 81)})
				if err != nil || m.Cached {
					t.Errorf("answer for one connection: %+v, %v", m, err)
				}
				// Before this PMAck, the server has received all repetitions of the denied request.
				testkit.Eventually(t, "all PMAcks", func() bool { return s.Stats().Acks == uint64(3+i) })
				st := s.Stats()
				if i == 0 {
					denies = st.Denies
				}
				if denies == 0 || st.Denies != denies || st.Pending != 0 { // the client remembers the denial
					t.Errorf("%+v", st)
				}
			}
		})
	}
}

func TestNobodyListens(t *testing.T) {
	// A connected socket takes the port, and receives nothing from the client.
	taken, err := net.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9})
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	var last lastError
	c := NewClient(ClientConfig{Server: taken.LocalAddr().(*net.UDPAddr).AddrPort(),
		Dial: func(ctx context.Context, d *net.Dialer, network, address string) (net.Conn, error) {
			conn, err := d.DialContext(ctx, network, address)
			last.Conn = conn
			return &last, err
		}})
	begin := time.Now()
	_, err = c.Resolve(t.Context(), Query{Service: ap("127.0.0.1:80")})
	if !errors.Is(err, ErrNoAnswer) {
		t.Errorf("%v", err)
	}
	if d := time.Since(begin); d < unreachableRetry || !nothingListens(last.err) { // [D-63]
		t.Errorf("ended after %v by %v", d, last.err)
	}
}

// A lastError is a connection that remembers the result of the last Read or Write.
type lastError struct {
	net.Conn
	err error
}

func (c *lastError) Read(b []byte) (n int, err error) {
	n, c.err = c.Conn.Read(b)
	return n, c.err
}

func (c *lastError) Write(b []byte) (n int, err error) {
	n, c.err = c.Conn.Write(b)
	return n, c.err
}

func TestResolveCancelled(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	c := NewClient(ClientConfig{Server: silent.LocalAddr().(*net.UDPAddr).AddrPort()})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := c.Resolve(ctx, Query{Service: ap("127.0.0.1:80")}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if _, err := c.Resolve(t.Context(), Query{Service: ap("127.0.0.1:80")}); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("%v", err) // 1.75 s; the cancelled question was not remembered
	}
}

// TestReplySource: on a socket bound to every address, the answer comes from the destination
// address of the request, because a connected client receives nothing else. [SDP-7.4-15]
// [SDP-7.4-34] [D-66]
func TestReplySource(t *testing.T) {
	reg := NewRegistry()
	reg.Set(ap("0.0.0.0:80"), NewMapping(ap("0.0.0.0:8080")))
	for _, v := range []struct{ bind, host, service string }{
		{"0.0.0.0:0", "127.0.0.1", "127.0.0.1:80"}, {"0.0.0.0:0", "127.0.0.5", "127.0.0.5:80"},
		{"[::]:0", "127.0.0.1", "127.0.0.1:80"}, {"[::]:0", "127.0.0.5", "127.0.0.5:80"}, {"[::]:0", "::1", "[::1]:80"},
	} {
		t.Run(v.host+" asked on "+v.bind, func(t *testing.T) {
			testkit.NeedHost(t, v.host)
			host := netip.MustParseAddr(v.host)
			var mu sync.Mutex
			var asked []netip.AddrPort // destinations of the datagrams, and sources of the answers
			s := startServer(t, v.bind, ServerConfig{Registry: reg, Tap: func(out bool, src, dst netip.AddrPort, _ []byte) {
				mu.Lock()
				defer mu.Unlock()
				if out {
					dst = src
				}
				asked = append(asked, dst)
			}})
			server := netip.AddrPortFrom(host, s.Addr().Port())
			local := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 5555)
			if host.Is6() {
				local = netip.AddrPortFrom(host, 5555)
			}
			m, err := Mapped{}, ErrNoAnswer
			for end := time.Now().Add(testkit.Patience); errors.Is(err, ErrNoAnswer) && time.Now().Before(end); { // Serve may begin late
				m, err = NewClient(ClientConfig{Server: server}).Resolve(t.Context(), Query{Service: ap(v.service), Local: local})
			}
			if err != nil || m.Address != netip.AddrPortFrom(host, 8080) {
				t.Errorf("%+v, %v", m, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if len(asked) < 2 || asked[0] != server || asked[1] != server {
				t.Errorf("the server was asked at %v, want %v", asked, server)
			}
		})
	}
}

func TestPortTaken(t *testing.T) {
	s := startServer(t, "127.0.0.1:0", ServerConfig{})
	_, err := Listen(s.Addr().String(), ServerConfig{})
	if err == nil || !strings.Contains(err.Error(), "iwpmd") { // [D-70]
		t.Errorf("%v", err)
	}
}

// TestSDP_7_2_restart replaces the server between PMAccept and PMAck. The client's transaction must
// still succeed, and so must the transaction of the next client. [SDP-7.2-4] [D-72]
func TestSDP_7_2_restart(t *testing.T) {
	first := testMachine(nil)
	tx := newTx(t)
	accept := first.Handle(t0, from, tx.Start(t0), nil)
	ack := tx.Receive(t0, accept)
	second := testMachine(nil)
	if out := second.Handle(t0, from, ack, nil); len(out) != 0 {
		t.Error("unknown PMAck was answered")
	}
	if _, done, err := tx.Done(); !done || err != nil {
		t.Errorf("%v %v", done, err)
	}
	if a, ok := ask(t, second, t0, req(43, "10.0.0.1:80")); !ok || a.Type != portmapwire.Accept {
		t.Error("the new server does not serve")
	}
}

// TestFloodLoopback: a client gets an answer while another address floods the socket. [SDP-7.2-1]
func TestFloodLoopback(t *testing.T) {
	reg := NewRegistry()
	reg.Set(ap("0.0.0.0:80"), NewMapping(ap("0.0.0.0:8080")))
	s := startServer(t, "127.0.0.1:0", ServerConfig{Registry: reg})
	var d net.Dialer
	d.LocalAddr = &net.UDPAddr{IP: net.IPv4(127, 0, 0, 9)}
	flood, err := d.DialContext(t.Context(), "udp", s.Addr().String())
	if err != nil {
		t.Skipf("SKIPPED: no second loopback address: %v", err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := uint64(0); ; i++ {
			// With more datagrams in the socket, the kernel would drop the honest ones too.
			for i > s.Stats().Received+64 {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
			}
			select {
			case <-stop:
				return
			default:
			}
			flood.Write(portmapwire.Message{Type: portmapwire.Request, AssocHandle: i, Cp: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.9"), uint16(i)), Ap: ap("127.0.0.1:80")}.Append(nil))
		}
	})
	defer func() { close(stop); wg.Wait(); flood.Close() }()
	testkit.Eventually(t, "rate limit", func() bool { return s.Stats().RateLimited > 1000 })
	good := 0
	for range 20 {
		c := NewClient(ClientConfig{Server: s.Addr()})
		if _, err := c.Resolve(t.Context(), Query{Service: ap("127.0.0.1:80"), Local: ap("127.0.0.1:7")}); err == nil {
			good++
		} else {
			t.Log(err)
		}
	}
	if good < 18 {
		t.Errorf("%d of 20 honest questions were answered", good)
	}
	if st := s.Stats(); st.Pending > defaultMaxPending {
		t.Errorf("%+v", st)
	}
}

// TestHandles: concurrent questions have different handles. [SDP-7.5.1-6] [SDP-7.4-11]
// [SDP-7.5.1-1] [SDP-7.5.1-5] [SDP-7.3.1.8-1]
func TestHandles(t *testing.T) {
	probe, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer probe.Close()
	c := NewClient(ClientConfig{Server: probe.LocalAddr().(*net.UDPAddr).AddrPort(), SilentFor: -1})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			c.Resolve(ctx, Query{Service: ap("127.0.0.1:80"),
				Local: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(i+1))})
		})
	}
	handles, byPort := map[uint64]bool{}, map[uint16][]byte{}
	buf := make([]byte, 100)
	probe.SetReadDeadline(time.Now().Add(testkit.Patience))
	for len(byPort) < 8 {
		n, _, err := probe.ReadFrom(buf) // [SDP-7.4-3]
		if err != nil {
			t.Fatal(err)
		}
		m, err := portmapwire.Parse(buf[:n])
		if err != nil || m.Type != portmapwire.Request || n != portmapwire.MessageLen { // [SDP-7.4-2] [SDP-7.3-1]
			t.Fatalf("%d bytes, %+v, %v", n, m, err)
		}
		if old := byPort[m.Cp.Port()]; old != nil {
			if string(old) != string(buf[:n]) { // [SDP-7.5.1-4]
				t.Errorf("retransmission differs")
			}
			continue
		}
		byPort[m.Cp.Port()] = append([]byte(nil), buf[:n]...)
		if handles[m.AssocHandle] {
			t.Errorf("handle %#x used twice", m.AssocHandle)
		}
		handles[m.AssocHandle] = true
	}
	cancel()
	wg.Wait()
}

// TestMixedRequestServed: an IPv6 request with only one IPv4-mapped address does not stop the
// server. [SDP-15-1]
func TestMixedRequestServed(t *testing.T) {
	reg := NewRegistry()
	reg.Set(ap("0.0.0.0:80"), NewMapping(ap("0.0.0.0:8080")))
	s := startServer(t, "127.0.0.1:0", ServerConfig{Registry: reg})
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(s.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(testkit.Patience))
	for _, q := range []portmapwire.Message{
		{AssocHandle: 1, Cp: ap("[::ffff:127.0.0.1]:5"), Ap: ap("[::1]:80")},
		{AssocHandle: 2, Cp: ap("[::1]:5"), Ap: ap("[::ffff:127.0.0.1]:80")},
		{AssocHandle: 3, Cp: ap("[::ffff:127.0.0.1]:5"), Ap: ap("[::ffff:127.0.0.1]:80")},
		{AssocHandle: 4, Cp: ap("127.0.0.1:5"), Ap: ap("127.0.0.1:80")},
	} {
		if _, err := conn.Write(q.Append(nil)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 2*portmapwire.MessageLen)
		n, err := conn.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		a, err := portmapwire.Parse(b[:n])
		if err != nil || a.Type != portmapwire.Accept || a.AssocHandle != q.AssocHandle ||
			a.Cp != q.Cp || a.Ap != netip.AddrPortFrom(q.Ap.Addr(), 8080) {
			t.Errorf("answer to %+v: %+v, %v", q, a, err)
		}
	}
}

func TestDefaultPort(t *testing.T) {
	if Port != 3935 { // [SDP-16-1] [SDP-7.4-1]
		t.Error("not the port of the draft")
	}
}
