package vitcp

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"net/netip"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// An HMAC covers every field it should, and Verify accepts no message twice. [VIT-3.2-6]
func TestHMAC(t *testing.T) {
	now := t0
	clock := func() time.Time { return now }
	key := []byte("0123456789abcdef")
	c := Call{Caller: netip.MustParseAddr("10.0.0.1"), Callee: netip.MustParseAddr("10.0.0.2"),
		Calling: []byte("a"), Called: []byte("b")}
	sign := func() []byte {
		b, err := (&HMAC{Key: key, Now: clock}).Sign(c, []byte("hello"))
		must(t, err)
		return b
	}
	verify := func(h *HMAC, c Call, b []byte) error {
		info, err := h.Verify(c, b)
		if err == nil && string(info) != "hello" {
			t.Errorf("information %q", info)
		}
		return err
	}
	checker := &HMAC{Key: key, Now: clock}
	good := sign()
	must(t, verify(checker, c, good))
	if err := verify(checker, c, good); !errors.Is(err, ErrSecurity) {
		t.Errorf("accepted twice: %v", err)
	}
	for i := range good {
		b := bytes.Clone(sign())
		b[i] ^= 1
		if err := verify(checker, c, b); !errors.Is(err, ErrSecurity) {
			t.Errorf("byte %d changed: %v", i, err)
		}
	}
	for n := range len(good) {
		if err := verify(checker, c, sign()[:n]); !errors.Is(err, ErrSecurity) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	for name, other := range map[string]Call{
		"caller":      {Caller: netip.MustParseAddr("10.0.0.3"), Callee: c.Callee, Calling: c.Calling, Called: c.Called},
		"callee":      {Caller: c.Caller, Callee: netip.MustParseAddr("10.0.0.3"), Calling: c.Calling, Called: c.Called},
		"exchanged":   {Caller: c.Callee, Callee: c.Caller, Calling: c.Calling, Called: c.Called},
		"calling":     {Caller: c.Caller, Callee: c.Callee, Calling: []byte("x"), Called: c.Called},
		"called":      {Caller: c.Caller, Callee: c.Callee, Calling: c.Calling, Called: []byte("x")},
		"moved bytes": {Caller: c.Caller, Callee: c.Callee, Calling: []byte("ab"), Called: nil},
		"an answer":   {Caller: c.Caller, Callee: c.Callee, Calling: c.Calling, Called: c.Called, Request: []byte{}},
	} {
		if err := verify(checker, other, sign()); !errors.Is(err, ErrSecurity) {
			t.Errorf("other %s: %v", name, err)
		}
	}
	if err := verify(&HMAC{Key: []byte("0123456789abcdeF"), Now: clock}, c, sign()); !errors.Is(err, ErrSecurity) {
		t.Errorf("other key: %v", err)
	}
	if _, err := (&HMAC{Key: []byte("short")}).Sign(c, nil); err == nil {
		t.Error("a short key signs")
	}
	for _, d := range []time.Duration{-61 * time.Second, 61 * time.Second} {
		b := sign()
		now = now.Add(d)
		if err := verify(checker, c, b); !errors.Is(err, ErrSecurity) {
			t.Errorf("clock off by %v: %v", d, err)
		}
		now = now.Add(-d)
	}
	far := c
	far.Caller = netip.MustParseAddr("192.0.2.1")
	loose := &HMAC{Key: key, Now: clock, IgnoreAddresses: true}
	b, err := loose.Sign(c, []byte("hello"))
	must(t, err)
	must(t, verify(loose, far, b))
	// The memory for nonces is bounded, and expired nonces are removed.
	for n := range hmacNonces + 10 {
		checker.fresh([16]byte{byte(n), byte(n >> 8), byte(n >> 16)}, now, now.Add(time.Second))
	}
	if len(checker.seen) > hmacNonces {
		t.Errorf("%d nonces", len(checker.seen))
	}
	now = now.Add(time.Hour)
	must(t, verify(checker, c, sign()))
}

// Both sides of a connection check each other. A peer with another key is refused before the
// application learns of it. [VIT-3.2-6]
func TestHMACConnections(t *testing.T) {
	cfg := func(key string) Config { return Config{Security: &HMAC{Key: []byte(key)}} }
	attrs := reliableAll
	attrs.Security = []byte("mine")
	p := connectPairs(t, cfg("0123456789abcdef"), cfg("0123456789abcdef"), attrs, attrs, nil)
	must(t, p.b.PostRecv(vi.NewRecv()))
	must(t, p.a.PostSend(vi.NewSend()))
	_, err := waitSend(t, p.a)
	must(t, err)

	n := openNIC(t, openProvider(t, cfg("another key of 16")))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	done := make(chan error, 1)
	go func() {
		_, err := p.nb.ConnectWait(ctx, p.nb.addr("guarded"))
		done <- err
	}()
	for _, v := range []*nicUnderTest{n, openNIC(t, openProvider(t, Config{}))} {
		w := newVI(t, v, attrs)
		_, err := w.ConnectRequest(ctx, v.addr("x"), p.nb.addr("guarded"))
		if !errors.Is(err, vi.ErrReject) {
			t.Errorf("%v", err)
		}
	}
	if s := p.nb.p.Stats(); s.SecurityRefusals != 2 {
		t.Errorf("stats %+v", s)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the application was asked: %v", err)
	}
	// If the called side has another key, the caller refuses the connection.
	m := openNIC(t, openProvider(t, Config{}))
	go func() {
		if req, err := m.ConnectWait(testContext(t), m.addr("open")); err == nil {
			req.Accept(context.Background(), newVI(t, m, attrs))
		}
	}()
	w := newVI(t, n, attrs)
	err = askFor(testContext(t), w, n.addr("x"), m.addr("open"))
	if !errors.Is(err, ErrSecurity) || !errors.Is(err, vi.ErrReject) {
		t.Errorf("%v", err)
	}
}

// certificate returns a self-signed certificate for loopback.
func certificate(t testing.TB) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "vitcp test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// VI/TCP works over TLS with certificates on both sides. [V-43]
func TestTLS(t *testing.T) {
	cert, pool := certificate(t)
	cfg := Config{
		TLSListen: &tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: pool,
			ClientAuth: tls.RequireAndVerifyClientCert},
		TLSDial: &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: pool},
	}
	p := connectPair(t, cfg, reliableAll)
	const size = 1 << 20
	ra, ba := register(t, p.na, size, allRights)
	rb, bb := register(t, p.nb, size, allRights)
	fill(ba, 1)
	must(t, p.b.PostRecv(vi.NewRecv()))
	must(t, p.a.PostSend(vi.NewRDMAWrite(rb.Remote(0), segment(ra, 0, size)).WithImmediate(1)))
	_, err := waitRecv(t, p.b)
	must(t, err)
	_, err = waitSend(t, p.a)
	must(t, err)
	if !bytes.Equal(ba, bb) {
		t.Error("bytes differ")
	}
	clear(ba)
	must(t, p.a.PostSend(vi.NewRDMARead(rb.Remote(0), segment(ra, 0, size))))
	_, err = waitSend(t, p.a)
	must(t, err)
	if !bytes.Equal(ba, bb) {
		t.Error("bytes differ")
	}
	must(t, p.a.Disconnect())
	p.nb.expectAsync(t, vi.ErrorConnLost)

	// A peer without a certificate, or without TLS, is refused.
	for _, c := range []Config{{}, {TLSDial: &tls.Config{RootCAs: pool}}, {TLSDial: &tls.Config{}}} {
		n := openNIC(t, openProvider(t, c))
		w := newVI(t, n, reliableAll)
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		if _, err := w.ConnectRequest(ctx, n.addr("x"), p.nb.addr("server")); err == nil ||
			errors.Is(err, vi.ErrNoMatch) {
			t.Errorf("%+v: %v", c.TLSDial, err)
		}
		cancel()
	}
}

// IPv6 works as IPv4 does. [V-36]
func TestIPv6(t *testing.T) {
	testkit.NeedHost(t, "::1")
	p := connectPair(t, Config{Listen: "[::1]:0"}, reliableAll)
	a, _ := p.a.RemoteAddress()
	ap, ok := a.AddrPort()
	if !ok || ap.Addr() != netip.IPv6Loopback() {
		t.Errorf("peer %v", a)
	}
	must(t, p.b.PostRecv(vi.NewRecv()))
	must(t, p.a.PostSend(vi.NewSend()))
	_, err := waitSend(t, p.a)
	must(t, err)
	x, y := newVI(t, p.na, reliableAll), newVI(t, p.nb, reliableAll)
	must(t, x.ConnectPeerRequest(p.na.addr("x"), p.nb.addr("y"), patience))
	must(t, y.ConnectPeerRequest(p.nb.addr("y"), p.na.addr("x"), patience))
	for _, v := range []*vi.VI{x, y} {
		_, err := v.ConnectPeerWait(testContext(t))
		must(t, err)
	}
}

// The limits of half-open connections, of connections per host, and of the hosts that may connect
// are enforced. [V-35] [V-43]
func TestLimits(t *testing.T) {
	t.Run("half-open", func(t *testing.T) {
		n := openNIC(t, openProvider(t, Config{HalfOpen: 3}))
		var ps []*probe
		for range 3 {
			ps = append(ps, dialProbe(t, n))
		}
		for end := time.Now().Add(patience); n.p.Stats().Incoming < 3 &&
			time.Now().Before(end); time.Sleep(time.Millisecond) {
		}
		dialProbe(t, n).wantEndAny()
		ps[0].nc.Close() // frees one place
		for end := time.Now().Add(patience); ; {
			p := dialProbe(t, n)
			p.greet(vitcpwire.ConnectRequest, vitcpwire.Header{}, ceOf(reliableAll, "a", "b"), nil)
			if segs := p.wantEndAny(); len(segs) == 1 && segs[0].h.Type == vitcpwire.ConnectNoMatch {
				break
			}
			if time.Now().After(end) {
				t.Fatal("never room again")
			}
		}
		if s := n.p.Stats(); s.IncomingLimited == 0 {
			t.Errorf("stats %+v", s)
		}
	})
	t.Run("per peer", func(t *testing.T) {
		n := openNIC(t, openProvider(t, Config{PerPeer: 2}))
		for range 3 { // the end of a connection frees its place
			a, b := dialProbe(t, n), dialProbe(t, n)
			for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
				n.p.mu.Lock()
				count := n.p.perPeer[loopback]
				n.p.mu.Unlock()
				if count == 2 {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("%d counted", count)
				}
			}
			dialProbe(t, n).wantEndAny()
			a.nc.Close()
			b.nc.Close()
			for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
				n.p.mu.Lock()
				count := n.p.perPeer[loopback]
				n.p.mu.Unlock()
				if count == 0 {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("%d left", count)
				}
			}
		}
	})
	t.Run("allow", func(t *testing.T) {
		n := openNIC(t, openProvider(t, Config{Allow: func(a netip.Addr) bool { return a != loopback }}))
		p := dialProbe(t, n)
		if segs := p.wantEndAny(); len(segs) != 0 {
			t.Error("answered")
		}
	})
	t.Run("config", func(t *testing.T) {
		for _, c := range []Config{
			{ReadWindow: 65536}, {ReadWindow: -1}, {MaxSecurity: 70000}, {CreditThreshold: 40000}, {Segments: 9},
			{Dialect: Dialect{TypeOffset: 23}},
		} {
			if _, err := New(c); err == nil {
				t.Errorf("%+v accepted", c)
			}
		}
	})
}

// With Grace a request that arrives early waits for a call of ConnectWait. [VIA 6.4.5]
func TestGrace(t *testing.T) {
	n := openNIC(t, openProvider(t, Config{Grace: patience}))
	m := openNIC(t, openProvider(t, Config{}))
	v, w := newVI(t, n, reliableAll), newVI(t, m, reliableAll)
	done := callVI(t, m, w, n.addr("late"), patience)
	for end := time.Now().Add(patience); n.p.Stats().Incoming == 0 &&
		time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	req, err := n.ConnectWait(testContext(t), n.addr("late"))
	must(t, err)
	must(t, req.Accept(testContext(t), v))
	must(t, <-done)

	// A request that no call waits for is answered when its grace period has ended, or when the
	// device closes.
	n = openNIC(t, openProvider(t, Config{Grace: 20 * time.Millisecond}))
	x := newVI(t, m, reliableAll)
	if err := <-callVI(t, m, x, n.addr("never"), patience); !errors.Is(err, vi.ErrNoMatch) {
		t.Errorf("%v", err)
	}
}

// The Disconnect message is sent only if both sides agreed on it. It then distinguishes an orderly
// end from a lost connection. [V-17]
func TestDisconnectMessage(t *testing.T) {
	cause := make(chan error, 20)
	cfg := Config{Disconnect: true, Broken: func(_ *vi.VI, err error) { cause <- err }}
	p := connectPair(t, cfg, reliableAll)
	must(t, p.b.PostRecv(vi.NewRecv()))
	must(t, p.a.Disconnect())
	d, _ := waitRecv(t, p.b)
	if d.Status()&vi.StatusFlushed == 0 {
		t.Errorf("%v", d.Status())
	}
	if err := <-cause; !errors.Is(err, errPeerDisconnected) {
		t.Errorf("cause %v", err)
	}
	for _, offers := range []bool{false, true} {
		n := openNIC(t, openProvider(t, cfg))
		attrs := reliableAll
		attrs.Security = []byte("consumer's")
		v := newVI(t, n, attrs)
		c := listenProbe(t)
		done := callVI(t, n, v, c.addr("x"), patience)
		q, req := c.accept()
		if bits, rest := cutExtensions(req.payload); bits != extensionDisconnect || string(rest) != "consumer's" {
			t.Errorf("security %q", req.payload)
		}
		var security []byte
		if offers {
			security = appendExtensions(nil, extensionDisconnect)
		}
		q.greet(vitcpwire.ConnectAccept, vitcpwire.Header{}, ceOf(reliableAll, "x", "caller"), security)
		must(t, <-done)
		if offers {
			// If TCP ends without a Disconnect message, the connection counts as lost.
			w := newVI(t, n, reliableAll)
			done := callVI(t, n, w, c.addr("x"), patience)
			q, _ := c.accept()
			q.greet(vitcpwire.ConnectAccept, vitcpwire.Header{}, ceOf(reliableAll, "x", "caller"), security)
			must(t, <-done)
			q.nc.Close()
			if err := <-cause; !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("cause %v", err)
			}
			// If the engine breaks the connection, no Disconnect message is sent.
			w = newVI(t, n, reliableAll)
			done = callVI(t, n, w, c.addr("x"), patience)
			q, _ = c.accept()
			q.greet(vitcpwire.ConnectAccept, vitcpwire.Header{}, ceOf(reliableAll, "x", "caller"), security)
			must(t, <-done)
			w.Link().(*link).ep.Break(false)
			for _, x := range q.wantEnd(io.EOF) {
				if x.h.Type == vitcpwire.Disconnect {
					t.Errorf("broken, said %v", x.h)
				}
			}
		}
		must(t, v.Disconnect())
		said := false
		for _, x := range q.wantEnd(io.EOF) {
			said = said || x.h.Type == vitcpwire.Disconnect
		}
		if said != offers {
			t.Errorf("offered %v, said %v", offers, said)
		}
	}
	for _, b := range []string{"", "VIT", "VITX", "VITX\x00\x01\x00\x07....", "VITX\x00\x01\x01\x00....", "password"} {
		if bits, rest := cutExtensions([]byte(b)); bits != 0 || string(rest) != b {
			t.Errorf("%q is taken for a block", b)
		}
	}
}

// The data of sends that completed at Reliable Delivery arrives although the VI was disconnected at
// once. [V-18] [VIT-2.2.2.2.5-1]
func TestDisconnectDelivers(t *testing.T) {
	for _, portable := range []bool{false, true} {
		cfg := Config{DrainTimeout: patience}
		if portable {
			cfg.WrapConn = hideDescriptor
		}
		attrs := withLevel(reliableAll, vi.ReliableDelivery)
		p := connectPairs(t, cfg, cfg, attrs, attrs, nil)
		const size, count = 60000, 30
		ra, ba := register(t, p.na, size, vi.MemAttributes{})
		rb, bb := register(t, p.nb, size*count, vi.MemAttributes{})
		for i := range count {
			must(t, p.b.PostRecv(vi.NewRecv(segment(rb, i*size, size))))
		}
		fill(ba, 7)
		want := bytes.Clone(ba)
		for range count {
			must(t, p.a.PostSend(vi.NewSend(segment(ra, 0, size))))
		}
		for range count {
			_, err := waitSend(t, p.a)
			must(t, err)
		}
		must(t, p.a.Disconnect())
		clear(ba) // the test may use the memory again
		for i := range count {
			if _, err := waitRecv(t, p.b); err != nil {
				t.Fatalf("message %d: %v", i, err)
			}
			if !bytes.Equal(bb[i*size:(i+1)*size], want) {
				t.Fatalf("message %d differs", i)
			}
		}
	}
}

// TolerantAttributes accepts unknown attribute bits, and StrictEnables refuses RDMA enables that
// differ. [V-05] [V-15]
func TestAttributeSettings(t *testing.T) {
	n := openNIC(t, openProvider(t, Config{StrictEnables: true, TolerantAttributes: true}))
	for _, v := range []struct {
		change func(*vitcpwire.CE)
		want   vitcpwire.Type
	}{
		{func(ce *vitcpwire.CE) { ce.Attributes |= 0x4000 }, vitcpwire.ConnectAccept},
		{func(ce *vitcpwire.CE) { ce.Attributes &^= vitcpwire.RDMAWrite }, vitcpwire.ConnectReject},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		done := make(chan struct{})
		w := newVI(t, n, reliableAll)
		go func() {
			defer close(done)
			if req, err := n.ConnectWait(ctx, n.addr("vi")); err == nil {
				req.Accept(ctx, w)
			}
		}()
		var x seg
		for x.h.Type == 0 || x.h.Type == vitcpwire.ConnectNoMatch {
			p := dialProbe(t, n)
			ce := ceOf(reliableAll, "probe", "vi")
			v.change(&ce)
			p.greet(vitcpwire.ConnectRequest, vitcpwire.Header{}, ce, nil)
			if x = p.recv(); x.h.Type == vitcpwire.ConnectNoMatch {
				p.unmatched()
			}
		}
		if x.h.Type != v.want || v.want == vitcpwire.ConnectReject && x.h.Error.IS() != rejectAttributes {
			t.Errorf("answer %v", x.h)
		}
		<-done
		cancel()
	}
}
