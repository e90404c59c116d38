package vitcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// The calling side runs against a probe with every possible answer. [VIT-4.2-2] [VIT-4.2-4]
// [VIT-4.2-5] [VIT-2.2.2.2.2-4] [V-34] [V-46]
func TestVIT_4_2_Caller(t *testing.T) {
	n := openNIC(t, openProvider(t, Config{}))
	answer := func(typ vitcpwire.Type, code uint8) func(*probe) {
		return func(p *probe) {
			ce := ceOf(reliableAll, "x", "caller")
			p.greet(typ, vitcpwire.Header{Error: vitcpwire.MakeRemoteError(0, code)}, ce, nil)
		}
	}
	raw := func(b ...byte) func(*probe) { return func(p *probe) { p.raw(b) } }
	for _, v := range []struct {
		name   string
		answer func(*probe)
		want   error
	}{
		{"accept", answer(vitcpwire.ConnectAccept, 0), nil},
		{"reject", answer(vitcpwire.ConnectReject, 0), vi.ErrReject},
		{"reject, application", answer(vitcpwire.ConnectReject, rejectApplication), vi.ErrReject},
		{"reject, attributes", answer(vitcpwire.ConnectReject, rejectAttributes), vi.ErrReject},
		{"reject, resources", answer(vitcpwire.ConnectReject, rejectResources), vi.ErrResource},
		{"reject, version", answer(vitcpwire.ConnectReject, rejectVersion), vi.ErrReject},
		{"no match", answer(vitcpwire.ConnectNoMatch, 0), vi.ErrNoMatch},
		{"request", answer(vitcpwire.ConnectRequest, 0), vi.ErrNotReachable},
		{"data", func(p *probe) { p.nop() }, vi.ErrNotReachable},
		{"another version", raw(append([]byte{2}, make([]byte, 100)...)...), vi.ErrNotReachable},
		{"garbage", raw([]byte("HTTP/1.1 400 Bad Request\r\n\r\n                 ")...), vi.ErrNotReachable},
		{"torn", func(p *probe) { p.raw([]byte{1, 0x32, 0}); p.nc.Close() }, vi.ErrNotReachable},
		{"MTU 0", func(p *probe) {
			ce := ceOf(reliableAll, "x", "caller")
			ce.MTU = 0
			p.greet(vitcpwire.ConnectAccept, vitcpwire.Header{}, ce, nil)
		}, vi.ErrInvalidMTU},
		{"oversize security", func(p *probe) {
			p.greet(vitcpwire.ConnectAccept, vitcpwire.Header{}, ceOf(reliableAll, "x", "caller"), make([]byte, 5000))
		}, vi.ErrNotReachable},
	} {
		t.Run(v.name, func(t *testing.T) {
			c := listenProbe(t)
			w := newVI(t, n, reliableAll)
			done := callVI(t, n, w, c.addr("x"), patience)
			p, req := c.accept()
			if req.ce.Calling != disc("caller") || req.ce.Called != disc("x") ||
				req.h.Flags != vitcpwire.EndOfMessage ||
				req.ce.Attributes != vitcpwire.Reliable|vitcpwire.RDMAWrite|vitcpwire.RDMARead|vitcpwire.FlowControl {
				t.Errorf("request %v %v", req.h, req.ce)
			}
			p.silent() // the caller sends nothing else before the answer
			v.answer(p)
			err := <-done
			if !errors.Is(err, v.want) || v.want == nil && err != nil {
				t.Errorf("got %v, want %v", err, v.want)
			}
			if v.want == nil {
				if w.State() != vi.Connected {
					t.Errorf("state %v", w.State())
				}
				return
			}
			if w.State() != vi.Idle {
				t.Errorf("state %v", w.State())
			}
			p.wantEndAny()
			c.none()
		})
	}
	t.Run("timeout", func(t *testing.T) {
		c := listenProbe(t)
		w := newVI(t, n, reliableAll)
		ctx := expiring{time.Now().Add(patience), make(chan struct{})}
		done := make(chan error, 1)
		go func() {
			_, err := w.ConnectRequest(ctx, n.addr("a"), c.addr("x"))
			done <- err
		}()
		p, _ := c.accept()
		close(ctx.done)
		if err := <-done; !errors.Is(err, vi.ErrTimeout) {
			t.Errorf("%v", err)
		}
		p.wantEndAny()
	})
	t.Run("cancel", func(t *testing.T) {
		c := listenProbe(t)
		w := newVI(t, n, reliableAll)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			_, err := w.ConnectRequest(ctx, n.addr("a"), c.addr("x"))
			done <- err
		}()
		p, _ := c.accept()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		p.wantEndAny()
	})
	t.Run("VIT-4.2-3", func(t *testing.T) {
		// If TCP closes before any byte of an answer, the caller sets up TCP again. [VIT-4.2-3]
		// [V-34]
		c := listenProbe(t)
		w := newVI(t, n, reliableAll)
		done := callVI(t, n, w, c.addr("x"), patience)
		for range 2 {
			p, _ := c.accept()
			p.nc.Close()
		}
		p, _ := c.accept()
		answer(vitcpwire.ConnectAccept, 0)(p)
		must(t, <-done)
	})
	t.Run("V-45", func(t *testing.T) {
		// Data may follow the Connect Accept in the same TCP segment. [V-45]
		c := listenProbe(t)
		w := newVI(t, n, reliableAll)
		must(t, w.PostRecv(vi.NewRecv()))
		done := callVI(t, n, w, c.addr("x"), patience)
		p, req := c.accept()
		if req.h.Posted != 1 { // the receive is advertised at once [V-20]
			t.Errorf("%v", req.h)
		}
		ce := ceOf(reliableAll, "x", "caller")
		b := p.bytes(vitcpwire.Header{Type: vitcpwire.ConnectAccept, Flags: vitcpwire.EndOfMessage},
			&ce, nil, []byte("security"))
		b = append(b, p.bytes(vitcpwire.Header{Type: vitcpwire.Send, Flags: vitcpwire.EndOfMessage, Number: 1}, nil, nil, nil)...)
		p.raw(b)
		must(t, <-done)
		_, err := waitRecv(t, w)
		must(t, err)
	})
	t.Run("V-16", func(t *testing.T) {
		// The caller accepts an answer with the fields of the request. [V-16]
		c := listenProbe(t)
		w := newVI(t, n, reliableAll)
		done := callVI(t, n, w, c.addr("x"), patience)
		p, req := c.accept()
		p.greet(vitcpwire.ConnectAccept, vitcpwire.Header{}, req.ce, nil)
		must(t, <-done)
		a, _ := w.RemoteAddress()
		if w.State() != vi.Connected {
			t.Errorf("state %v, peer %v", w.State(), a)
		}
	})
}

// An expiring is a context whose deadline passes when the test closes done.
type expiring struct {
	at   time.Time
	done chan struct{}
}

func (c expiring) Deadline() (time.Time, bool) { return c.at, true }
func (c expiring) Done() <-chan struct{}       { return c.done }
func (c expiring) Value(any) any               { return nil }

func (c expiring) Err() error {
	select {
	case <-c.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// The called side runs against a probe calling in every possible way. [VIT-4.3-2] [VIT-4.3-3]
// [VIT-4.3-5] [VIT-4.3-6] [V-01] [V-04] [V-05] [V-14] [V-35]
func TestVIT_4_3_Called(t *testing.T) {
	p, hasty := openProvider(t, Config{RequestTimeout: patience, MaxSecurity: 100}),
		openProvider(t, Config{RequestTimeout: 400 * time.Millisecond})
	n, brief := openNIC(t, p), openNIC(t, hasty)
	ctx := testContext(t)
	request := func(change func(*vitcpwire.CE)) func(*probe) {
		return func(p *probe) {
			ce := ceOf(reliableAll, "probe", "vi")
			change(&ce)
			p.greet(vitcpwire.ConnectRequest, vitcpwire.Header{}, ce, nil)
		}
	}
	for _, v := range []struct {
		name string
		call func(*probe)
		want vitcpwire.Type // type of the answer; 255 means no answer
		code uint8
	}{
		{"no match", request(func(*vitcpwire.CE) {}), vitcpwire.ConnectNoMatch, 0},
		{"discriminator too long", func(p *probe) {
			ce := ceOf(reliableAll, "probe", "vi")
			b := p.bytes(vitcpwire.Header{Type: vitcpwire.ConnectRequest}, &ce, nil, nil)
			b[24+27] = 17
			p.raw(b)
		}, vitcpwire.ConnectNoMatch, 0},
		{"peer-to-peer", request(func(ce *vitcpwire.CE) { ce.Attributes |= vitcpwire.PeerToPeer }), vitcpwire.ConnectNoMatch, 0},
		{"MTU 0", request(func(ce *vitcpwire.CE) { ce.MTU = 0 }), vitcpwire.ConnectReject, rejectAttributes},
		{"unknown attribute", request(func(ce *vitcpwire.CE) { ce.Attributes |= 0x100 }), vitcpwire.ConnectReject, rejectAttributes},
		{"no level", request(func(ce *vitcpwire.CE) { ce.Attributes = vitcpwire.ReliableDelivery }), vitcpwire.ConnectReject, rejectAttributes},
		{"silence", func(*probe) {}, 255, 0},
		{"slow", func(p *probe) { p.raw([]byte{1, 0x2a, 0, 68}) }, 255, 0},
		{"another version", func(p *probe) {
			ce := ceOf(reliableAll, "probe", "vi")
			b := p.bytes(vitcpwire.Header{Type: vitcpwire.ConnectRequest}, &ce, nil, nil)
			b[0] = 2
			p.raw(b)
		}, 255, 0},
		{"data", func(p *probe) { p.nop() }, 255, 0},
		{"accept", func(p *probe) {
			p.greet(vitcpwire.ConnectAccept, vitcpwire.Header{}, ceOf(reliableAll, "probe", "vi"), nil)
		}, 255, 0},
		{"garbage", func(p *probe) { p.raw([]byte("GET / HTTP/1.1\r\nHost: example.com\r\n\r\n")) }, 255, 0},
		{"oversize security", func(p *probe) {
			p.greet(vitcpwire.ConnectRequest, vitcpwire.Header{}, ceOf(reliableAll, "probe", "vi"), make([]byte, 101))
		}, 255, 0},
		{"torn", func(p *probe) {
			ce := ceOf(reliableAll, "probe", "vi")
			p.raw(p.bytes(vitcpwire.Header{Type: vitcpwire.ConnectRequest}, &ce, nil, nil)[:50])
			p.nc.(*net.TCPConn).CloseWrite()
		}, 255, 0},
	} {
		t.Run(v.name, func(t *testing.T) {
			at := n
			if v.name == "silence" || v.name == "slow" {
				at = brief
			}
			p := dialProbe(t, at)
			v.call(p)
			segs := p.wantEndAny()
			if v.want == 255 {
				if len(segs) != 0 {
					t.Errorf("answered %v", segs[0].h)
				}
				return
			}
			if len(segs) != 1 || segs[0].h.Type != v.want || segs[0].h.Error.IS() != v.code {
				t.Errorf("answered %v", segs)
			}
		})
	}
	if s := p.Stats(); s.IncomingTimeouts != 0 || s.IncomingInvalid < 5 || s.NoMatches != 3 || s.Rejects != 3 {
		t.Errorf("stats %+v", s)
	}
	if s := hasty.Stats(); s.IncomingTimeouts != 2 {
		t.Errorf("stats %+v", s)
	}

	t.Run("one byte at a time", func(t *testing.T) {
		p := openNIC(t, openProvider(t, Config{}))
		done := make(chan error, 1)
		go func() {
			req, err := p.ConnectWait(ctx, p.addr("vi"))
			if err == nil {
				err = req.Reject()
			}
			done <- err
		}()
		for {
			q := dialProbe(t, p)
			ce := ceOf(reliableAll, "probe", "vi")
			for _, b := range q.bytes(vitcpwire.Header{Type: vitcpwire.ConnectRequest, Flags: vitcpwire.EndOfMessage}, &ce, nil, []byte("abc")) {
				q.raw([]byte{b})
			}
			x := q.recv()
			if x.h.Type == vitcpwire.ConnectNoMatch {
				q.unmatched()
				continue
			}
			// [VIT-4.3-5] [V-46]
			if x.h.Type != vitcpwire.ConnectReject || x.h.Error.IS() != rejectApplication {
				t.Errorf("answer %v", x.h)
			}
			q.wantEnd(io.EOF)
			break
		}
		must(t, <-done)
		d := p.Device().(*device)
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.pending) != 0 {
			t.Errorf("%d requests are pending still", len(d.pending))
		}
	})
	t.Run("offer", func(t *testing.T) {
		// The application can read the caller's attributes, and the Connect Accept states the
		// agreed attributes. [VIT-4.3-4] [VIT-4.3-6] [VIT-3.2-3] [VIT-3.2-4] [VIT-3.2-5] [V-16]
		n := openNIC(t, openProvider(t, Config{Grace: patience}))
		a := reliableAll
		a.MaxTransferSize, a.ReadWindow, a.EnableRDMAWrite = 5000, 3, false
		v := newVI(t, n, a)
		for range 4 {
			must(t, v.PostRecv(vi.NewRecv()))
		}
		got := make(chan *vi.ConnRequest, 1)
		go func() {
			req, err := n.ConnectWait(ctx, n.addr("vi"))
			if err != nil {
				t.Error(err)
			}
			got <- req
		}()
		p := dialProbe(t, n)
		ce := ceOf(reliableAll, "probe", "vi")
		ce.MTU = 9000
		p.greet(vitcpwire.ConnectRequest, vitcpwire.Header{Number: 41}, ce, nil)
		req := testkit.Await(t, "the request", got)
		ra := req.RemoteAttributes()
		if ra.Reliability != vi.ReliableReception || !ra.EnableRDMAWrite || !ra.EnableRDMARead ||
			!ra.FlowControl || ra.MaxTransferSize != 9000 || ra.ReadWindow != 4 {
			t.Errorf("attributes %+v", ra)
		}
		if string(req.Remote().Discriminator) != "probe" || string(req.Local().Discriminator) != "vi" {
			t.Errorf("%v called %v", req.Remote(), req.Local())
		}
		r := pendingOf(n)
		must(t, req.Accept(ctx, v))
		if r.mu.Lock(); r.m.state != passiveConnected {
			t.Errorf("state %v after Accept", r.m.state)
		}
		r.mu.Unlock()
		x := p.recv()
		if x.h.Type != vitcpwire.ConnectAccept || x.ce.Calling != disc("vi") ||
			x.ce.Called != disc("probe") || x.ce.MTU != 5000 || x.ce.ReadWindow != 3 ||
			x.ce.Attributes != vitcpwire.Reliable|vitcpwire.RDMARead|vitcpwire.FlowControl || x.h.Posted != 4 {
			t.Errorf("accept %v %v", x.h, x.ce)
		}
	})
	t.Run("caller leaves", func(t *testing.T) {
		n := openNIC(t, openProvider(t, Config{Grace: patience}))
		p, req := offered(t, n)
		p.nc.Close()
		heard(t, n)
		if err := req.Accept(ctx, newVI(t, n, reliableAll)); !errors.Is(err, vi.ErrTimeout) {
			t.Errorf("accept: %v", err)
		}
	})
}

// pendingOf returns the only undecided request.
func pendingOf(n *nicUnderTest) (r *request) {
	d := n.Device().(*device)
	d.mu.Lock()
	defer d.mu.Unlock()
	for r = range d.pending {
	}
	return r
}

// heard waits until the only undecided request has received what the caller sent, bytes or the end.
func heard(t testing.TB, n *nicUnderTest) {
	t.Helper()
	r := pendingOf(n)
	testkit.Eventually(t, "the caller is heard", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.m.state != passivePending || r.withdrawn()
	})
}

// A signer is an authenticator whose Sign fails if the test sets an error.
type signer struct{ fail error }

func (s *signer) Sign(_ Call, info []byte) ([]byte, error)   { return info, s.fail }
func (s *signer) Verify(_ Call, info []byte) ([]byte, error) { return info, nil }

// A failed Accept has no lasting effect. The VI is unchanged. The caller gets a Connect Reject or
// finds the connection closed, and the place among the half-open connections is free. The request
// is answered, so that no other VI can accept it. [VIT-4.3-6]
func TestVIT_4_3_AcceptFails(t *testing.T) {
	errSign := errors.New("no signature")
	for name, v := range map[string]struct {
		cfg   Config
		attrs func(*vi.Attributes)
		act   func(*nicUnderTest, *probe)
		want  error
		told  uint8 // reason of the Connect Reject that the caller receives; 0 means none
	}{
		"read window": {attrs: func(a *vi.Attributes) { a.ReadWindow = 65536 }, want: vi.ErrInvalidParameter, told: rejectAttributes},
		"enables":     {cfg: Config{StrictEnables: true}, attrs: func(a *vi.Attributes) { a.EnableRDMARead = false }, want: vi.ErrInvalidReliability, told: rejectAttributes},
		"signature":   {cfg: Config{Security: &signer{errSign}}, want: errSign},
		"impatience":  {act: func(n *nicUnderTest, p *probe) { p.raw([]byte{0}); heard(t, n) }, want: vi.ErrTimeout},
		"withdrawal":  {act: func(n *nicUnderTest, p *probe) { p.nc.(*net.TCPConn).CloseWrite(); heard(t, n) }, want: vi.ErrTimeout},
		"closed":      {act: func(n *nicUnderTest, _ *probe) { n.Device().Close() }, want: vi.ErrClosed, told: rejectResources},
	} {
		t.Run(name, func(t *testing.T) {
			v.cfg.PerPeer, v.cfg.Grace = 1000, patience
			provider := openProvider(t, v.cfg)
			n := openNIC(t, provider)
			a := reliableAll
			if v.attrs != nil {
				v.attrs(&a)
			}
			w := newVI(t, n, a)
			p, req := offered(t, n)
			if v.act != nil {
				v.act(n, p)
			}
			if err := req.Accept(testContext(t), w); !errors.Is(err, v.want) {
				t.Errorf("accept: %v, want %v", err, v.want)
			}
			if err := req.Accept(testContext(t), w); !errors.Is(err, vi.ErrInvalidParameter) {
				t.Errorf("a second accept: %v", err)
			}
			if w.State() != vi.Idle {
				t.Errorf("state %v", w.State())
			}
			var told uint8
			for {
				x, err := p.tryRecv()
				if errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error("the connection is open still")
				}
				if err != nil {
					break
				}
				if x.h.Type != vitcpwire.ConnectReject || x.h.Error.VI() != 0 {
					t.Errorf("answer %v", x.h)
				}
				told = x.h.Error.IS()
			}
			if told != v.told {
				t.Errorf("told reason %d, want %d", told, v.told)
			}
			provider.mu.Lock()
			defer provider.mu.Unlock()
			d := n.Device().(*device)
			d.mu.Lock()
			defer d.mu.Unlock()
			if len(d.pending) > 0 || len(provider.perPeer) > 1 || provider.perPeer[loopback] > 0 ||
				len(provider.links) > 0 {
				t.Errorf("left behind: %v, %d links", provider.perPeer, len(provider.links))
			}
		})
	}
}

// TestVIT_4_3_Listening checks when the port is opened. [VIT-4.3-1] [V-31]
func TestVIT_4_3_Listening(t *testing.T) {
	open := func(port uint16) bool {
		c, err := net.Dial("tcp", netip.AddrPortFrom(loopback, port).String())
		if err == nil {
			c.Close()
		}
		return err == nil
	}
	for _, implicit := range []bool{false, true} {
		t.Run(fmt.Sprintf("implicit=%v", implicit), func(t *testing.T) {
			port := freePort(t)
			p, err := New(Config{Port: port, ImplicitListen: implicit})
			must(t, err)
			nic, err := vi.Open(p, "127.0.0.1", nil)
			must(t, err)
			defer nic.Close()
			if open(port) != implicit {
				t.Errorf("open before a wait: %v", !implicit)
			}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() {
				nic.ConnectWait(ctx, vi.Address{Discriminator: []byte("x")})
				close(done)
			}()
			for end := time.Now().Add(patience); !open(port); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("never opened")
				}
			}
			cancel()
			<-done
			nic.Close()
			if open(port) {
				t.Error("open after the end")
			}
		})
	}
	t.Run("taken", func(t *testing.T) {
		// If another process holds the port, opening the device fails at once. [VIT-4.3-1]
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		defer l.Close()
		p, err := New(Config{Port: addrPort(l.Addr()).Port(), ImplicitListen: true})
		must(t, err)
		if nic, err := vi.Open(p, "127.0.0.1", nil); !errors.Is(err, vi.ErrResource) {
			t.Errorf("open: %v", err)
			nic.Close()
		}
	})
	t.Run("another port", func(t *testing.T) {
		// The device listens at the port of a local address, or at the device's own port if the
		// address has none. A host part other than an IP address is an error. [VIT-2.2.2.2.1-1]
		// [V-04]
		n := openNIC(t, openProvider(t, Config{}))
		d := n.Device().(*device)
		port := freePort(t)
		for _, v := range []struct {
			local vi.Address
			want  netip.AddrPort
		}{
			{vi.IPAddress(netip.AddrPortFrom(loopback, port), "x"), netip.AddrPortFrom(loopback, port)},
			{vi.IPAddress(netip.AddrPortFrom(loopback, 0), "x"), netip.AddrPortFrom(loopback, n.port())},
			{vi.Address{}, d.addr},
		} {
			if got, err := d.place(v.local); got != v.want || err != nil {
				t.Errorf("%v: %v, %v", v.local, got, err)
			}
		}
		if _, err := n.ConnectWait(context.Background(), vi.Address{Host: []byte{1, 2, 3}, Discriminator: []byte("x")}); !errors.Is(err, vi.ErrInvalidParameter) {
			t.Errorf("no IP address: %v", err)
		}
		long := make([]byte, maxDiscriminator+1)
		if _, err := discriminator(long); !errors.Is(err, vi.ErrInvalidParameter) {
			t.Errorf("a discriminator of %d bytes: %v", len(long), err)
		}
		if got, err := discriminator(long[1:]); err != nil || len(plain(got)) != maxDiscriminator {
			t.Errorf("a discriminator of %d bytes: %v", maxDiscriminator, err)
		}
	})
	t.Run("shared", func(t *testing.T) {
		// Two NICs of a provider share a port. Another provider can't use the port.
		p := openProvider(t, Config{})
		n := openNIC(t, p)
		ap, _ := n.addr("").AddrPort()
		q, err := New(Config{Port: ap.Port()})
		must(t, err)
		m, err := vi.Open(q, "127.0.0.1", nil)
		must(t, err)
		defer m.Close()
		if _, err := m.ConnectWait(context.Background(), vi.Address{Discriminator: []byte("x")}); !errors.Is(err, vi.ErrResource) {
			t.Errorf("second provider: %v", err)
		}
		o, err := vi.Open(p, "127.0.0.1", nil)
		must(t, err)
		defer o.Close()
	})
}

// Peer-to-peer requests connect over real sockets: if either side is first, if both call at once,
// and for every order of the addresses. [VIT-4-1] [VIT-4-2] [V-32] [V-33]
func TestVIT_4_PeerToPeer(t *testing.T) {
	for _, v := range []struct {
		name         string
		ipA, ipB     string
		discA, discB string
		delay        time.Duration // of B
	}{
		{"A lower", "127.0.0.1", "127.0.0.2", "x", "y", 0},
		{"A higher", "127.0.0.2", "127.0.0.1", "x", "y", 0},
		{"equal addresses", "127.0.0.1", "127.0.0.1", "x", "y", 0},
		{"all equal but ports", "127.0.0.1", "127.0.0.1", "x", "x", 0},
		{"A first", "127.0.0.1", "127.0.0.2", "x", "y", 150 * time.Millisecond},
		{"A first, higher", "127.0.0.2", "127.0.0.1", "x", "y", 150 * time.Millisecond},
	} {
		t.Run(v.name, func(t *testing.T) {
			for range 5 {
				na := openNIC(t, openProvider(t, Config{Listen: v.ipA + ":0"}))
				nb := openNIC(t, openProvider(t, Config{Listen: v.ipB + ":0"}))
				a, b := newVI(t, na, reliableAll), newVI(t, nb, reliableAll)
				must(t, b.PostRecv(vi.NewRecv()))
				must(t, a.ConnectPeerRequest(na.addr(v.discA), nb.addr(v.discB), patience))
				time.Sleep(v.delay)
				must(t, b.ConnectPeerRequest(nb.addr(v.discB), na.addr(v.discA), patience))
				for _, w := range []*vi.VI{a, b} {
					_, err := w.ConnectPeerWait(testContext(t))
					must(t, err)
				}
				if st := na.p.Stats(); st.ActiveRequests != 1 || st.ActiveFailures != 0 {
					t.Errorf("stats %+v", st)
				}
				must(t, a.PostSend(vi.NewSend()))
				_, err := waitSend(t, a)
				must(t, err)
				_, err = waitRecv(t, b)
				must(t, err)
				if v.delay > 0 {
					break
				}
			}
		})
	}
	t.Run("one NIC", func(t *testing.T) {
		// Two VIs of a NIC with equal addresses are connected to each other, and not each to
		// itself.
		n := openNIC(t, openProvider(t, Config{}))
		a, b := newVI(t, n, reliableAll), newVI(t, n, reliableAll)
		must(t, a.ConnectPeerRequest(n.addr("x"), n.addr("x"), patience))
		must(t, b.ConnectPeerRequest(n.addr("x"), n.addr("x"), patience))
		for _, w := range []*vi.VI{a, b} {
			_, err := w.ConnectPeerWait(testContext(t))
			must(t, err)
		}
		if a.Link().(*link).c.NetConn().LocalAddr().String() != b.Link().(*link).c.NetConn().RemoteAddr().String() {
			t.Error("not with each other")
		}
	})
	t.Run("one address", func(t *testing.T) {
		// Three providers stand for three processes at one address and port. Only one process can
		// wait there, and the requests of the others find the waiting process. When the first
		// process has closed, another waits there.
		port := freePort(t)
		first := openNIC(t, openProvider(t, Config{Listen: fmt.Sprint("127.0.0.1:", port)}))
		other := func() *nicUnderTest { return openNIC(t, openProvider(t, Config{Port: port})) }
		at := func(d string) vi.Address { return first.addr(d) }
		meet := func(na, nb *nicUnderTest, x, y string) {
			t.Helper()
			a, b := newVI(t, na, reliableAll), newVI(t, nb, reliableAll)
			must(t, a.ConnectPeerRequest(at(x), at(y), patience))
			must(t, b.ConnectPeerRequest(at(y), at(x), patience))
			for _, w := range []*vi.VI{a, b} {
				_, err := w.ConnectPeerWait(testContext(t))
				must(t, err)
			}
		}
		second, third := other(), other()
		meet(first, second, "x", "y")
		meet(second, first, "x", "y")
		meet(first, third, "x", "x")

		a, b := newVI(t, second, reliableAll), newVI(t, third, reliableAll)
		must(t, a.ConnectPeerRequest(at("x"), at("y"), patience))
		must(t, b.ConnectPeerRequest(at("y"), at("x"), patience))
		first.Close()
		for _, w := range []*vi.VI{a, b} {
			_, err := w.ConnectPeerWait(testContext(t))
			must(t, err)
		}
	})
	t.Run("mismatch", func(t *testing.T) {
		na, nb := openNIC(t, openProvider(t, Config{})), openNIC(t, openProvider(t, Config{}))
		a, b := newVI(t, na, reliableAll), newVI(t, nb, withLevel(reliableAll, vi.ReliableDelivery))
		must(t, a.ConnectPeerRequest(na.addr("x"), nb.addr("y"), patience))
		must(t, b.ConnectPeerRequest(nb.addr("y"), na.addr("x"), patience))
		for _, w := range []*vi.VI{a, b} {
			if _, err := w.ConnectPeerWait(testContext(t)); err == nil {
				t.Error("connected")
			} else if _, ok := errors.AsType[*MismatchError](err); !ok {
				t.Errorf("%v", err)
			}
		}
	})
	t.Run("VIT-4-2", func(t *testing.T) {
		// After a No Match a request is repeated with growing pauses until the deadline. [VIT-4-2]
		// [V-33]
		n := openNIC(t, openProvider(t, Config{}))
		c := listenProbe(t)
		v := newVI(t, n, reliableAll)
		must(t, v.ConnectPeerRequest(n.addr("x"), c.addr("y"), patience))
		var at []time.Time
		for range 2 {
			p, req := c.accept()
			at = append(at, time.Now())
			if req.ce.Attributes&vitcpwire.PeerToPeer == 0 {
				t.Errorf("attributes %v", req.ce.Attributes)
			}
			p.greet(vitcpwire.ConnectNoMatch, vitcpwire.Header{}, req.ce, nil)
		}
		if d := at[1].Sub(at[0]); d < 90*time.Millisecond {
			t.Errorf("tried again after %v", d)
		}
		must(t, v.Disconnect())
		c.answers(vitcpwire.ConnectNoMatch)
		must(t, v.ConnectPeerRequest(n.addr("x"), c.addr("y"), 150*time.Millisecond))
		if _, err := v.ConnectPeerWait(testContext(t)); !errors.Is(err, vi.ErrTimeout) {
			t.Errorf("%v", err)
		}
		if v.State() != vi.Idle {
			t.Errorf("state %v", v.State())
		}
	})
	t.Run("VIT-4-2 refused", func(t *testing.T) {
		// At the deadline the call returns the refusal, here without a reason. [VIT-4-2] [V-33]
		n := openNIC(t, openProvider(t, Config{}))
		c := listenProbe(t)
		v := newVI(t, n, reliableAll)
		c.answers(vitcpwire.ConnectReject)
		for limit := 50 * time.Millisecond; ; limit *= 4 {
			must(t, v.ConnectPeerRequest(n.addr("x"), c.addr("y"), limit))
			_, err := v.ConnectPeerWait(testContext(t))
			if errors.Is(err, vi.ErrReject) {
				break
			}
			if !errors.Is(err, vi.ErrTimeout) || limit > patience { // the refusal may come too late
				t.Fatal(err)
			}
		}
	})
	t.Run("impossible", func(t *testing.T) {
		// An impossible request fails at once, without a connection attempt. [V-33]
		n := openNIC(t, openProvider(t, Config{}))
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		defer taken.Close()
		c := listenProbe(t)
		nowhere := vi.Address{Host: []byte{1, 2, 3}, Discriminator: []byte("x")}
		for _, v := range []struct {
			local, remote vi.Address
			window        int
			want          error
		}{
			{n.addr("x"), nowhere, 0, vi.ErrInvalidParameter},
			{nowhere, c.addr("y"), 0, vi.ErrInvalidParameter},
			{vi.IPAddress(addrPort(taken.Addr()), "x"), c.addr("y"), 0, vi.ErrResource},
			{n.addr("x"), c.addr("y"), 65536, vi.ErrInvalidParameter},
		} {
			a := reliableAll
			a.ReadWindow = v.window
			w := newVI(t, n, a)
			must(t, w.ConnectPeerRequest(v.local, v.remote, patience))
			if _, err := w.ConnectPeerWait(testContext(t)); !errors.Is(err, v.want) {
				t.Errorf("from %v to %v: %v, want %v", v.local, v.remote, err, v.want)
			}
			if w.State() != vi.Idle {
				t.Errorf("state %v", w.State())
			}
		}
		closed := openNIC(t, openProvider(t, Config{}))
		closed.Device().Close()
		x := newVI(t, closed, reliableAll)
		must(t, x.ConnectPeerRequest(closed.addr("x"), c.addr("y"), patience))
		if _, err := x.ConnectPeerWait(testContext(t)); !errors.Is(err, vi.ErrClosed) {
			t.Errorf("of a closed device: %v", err)
		}
		c.none()
		for _, p := range []*Provider{n.p, closed.p} {
			if st := p.Stats(); st.ActiveRequests != 0 || st.ActiveFailures != 0 {
				t.Errorf("stats %+v", st)
			}
		}
		// A tried request is counted.
		w := newVI(t, n, reliableAll)
		must(t, w.ConnectPeerRequest(n.addr("x"), c.addr("y"), 20*time.Millisecond))
		if _, err := w.ConnectPeerWait(testContext(t)); !errors.Is(err, vi.ErrTimeout) {
			t.Errorf("no answer: %v", err)
		}
		if st := n.p.Stats(); st.ActiveRequests != 1 || st.ActiveFailures != 1 {
			t.Errorf("stats %+v", st)
		}
	})
	t.Run("crossed", func(t *testing.T) {
		// The probe's request crosses the VI's request. Both ends have the address 127.0.0.1, so
		// the discriminators decide. [VIT-4-1] [V-32]
		for _, higher := range []bool{false, true} {
			n := openNIC(t, openProvider(t, Config{}))
			c := listenProbe(t)
			v := newVI(t, n, reliableAll)
			ours, theirs := "a", "b"
			if higher {
				ours, theirs = "b", "a"
			}
			must(t, v.ConnectPeerRequest(n.addr(ours), c.addr(theirs), patience))
			out, _ := c.accept()
			in := dialProbe(t, n)
			ce := ceOf(reliableAll, theirs, ours)
			ce.Attributes |= vitcpwire.PeerToPeer
			in.greet(vitcpwire.ConnectRequest, vitcpwire.Header{}, ce, nil)
			x := in.recv()
			if higher {
				if x.h.Type != vitcpwire.ConnectReject {
					t.Errorf("higher answers %v", x.h)
				}
				out.greet(vitcpwire.ConnectAccept, vitcpwire.Header{}, ce, nil)
			} else {
				if x.h.Type != vitcpwire.ConnectAccept {
					t.Errorf("lower answers %v", x.h)
				}
				out.wantEndAny()
			}
			_, err := v.ConnectPeerWait(testContext(t))
			must(t, err)
		}
	})
	t.Run("cancel", func(t *testing.T) {
		n := openNIC(t, openProvider(t, Config{}))
		c := listenProbe(t)
		v := newVI(t, n, reliableAll)
		must(t, v.ConnectPeerRequest(n.addr("x"), c.addr("y"), patience))
		p, _ := c.accept()
		must(t, v.Disconnect())
		if _, err := v.ConnectPeerWait(testContext(t)); !errors.Is(err, vi.ErrInvalidState) {
			t.Errorf("%v", err)
		}
		p.wantEndAny()
	})
}
