package vitcp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// TestVIT_2_2_1 covers section 2.2.1: extensions of the architecture.
func TestVIT_2_2_1(t *testing.T) {
	t.Run("VIT-2.2.1-2", func(t *testing.T) {
		// A Send waits until the peer has posted a receive. [VIT-2.2.1-2] [V-20]
		p := connectPair(t, Config{}, reliableAll)
		ra, ba := register(t, p.na, 100, vi.MemAttributes{})
		rb, bb := register(t, p.nb, 100, vi.MemAttributes{})
		fill(ba, 1)
		must(t, p.a.PostSend(vi.NewSend(segment(ra, 0, 100))))
		testkit.Eventually(t, "the sender waits for a receive", p.a.Link().(*link).flow.blocked.Load)
		if _, err := p.a.SendDone(); !errors.Is(err, vi.ErrNotDone) {
			t.Errorf("completed without a receive: %v", err)
		}
		must(t, p.b.PostRecv(vi.NewRecv(segment(rb, 0, 100))))
		_, err := waitRecv(t, p.b)
		must(t, err)
		_, err = waitSend(t, p.a)
		must(t, err)
		if !bytes.Equal(ba, bb) {
			t.Error("bytes differ")
		}
	})
	t.Run("VIT-2.2.1-3", func(t *testing.T) {
		// Both connect messages carry the consumer's security information. [VIT-2.2.1-3]
		// [VIT-3.2-6] [V-06]
		n := openNIC(t, openProvider(t, Config{}))
		a := reliableAll
		a.Security = []byte("let me in")
		v := newVI(t, n, a)
		c := listenProbe(t)
		done := callVI(t, n, v, c.addr("x"), patience)
		p, req := c.accept()
		if string(req.payload) != "let me in" {
			t.Errorf("security %q", req.payload)
		}
		p.greet(vitcpwire.ConnectAccept, vitcpwire.Header{}, ceOf(reliableAll, "x", "caller"), nil)
		must(t, <-done)

		w := newVI(t, n, a)
		ctx := testContext(t)
		got := make(chan string, 1)
		accepted := make(chan struct{})
		go func() {
			defer close(accepted)
			req, err := n.ConnectWait(ctx, n.addr("y"))
			if err == nil {
				got <- string(req.Security())
				err = req.Accept(ctx, w)
			}
			if err != nil {
				t.Error(err)
			}
		}()
		var answer seg
		for answer.h.Type != vitcpwire.ConnectAccept {
			p = dialProbe(t, n)
			p.greet(vitcpwire.ConnectRequest, vitcpwire.Header{}, ceOf(reliableAll, "p", "y"), []byte("password"))
			answer = p.recv()
		}
		<-accepted
		if s := <-got; s != "password" || string(answer.payload) != "let me in" {
			t.Errorf("offered %q, answered %q", s, answer.payload)
		}
	})
	t.Run("VIT-2.2.1-4", func(t *testing.T) {
		// Reliability and flow control of both sides must be equal; the MTU may differ.
		// [VIT-2.2.1-4] [V-14] [V-15]
		n := openNIC(t, openProvider(t, Config{}))
		for _, bad := range []vitcpwire.Attributes{
			0, vitcpwire.Reliable | vitcpwire.ReliableDelivery | vitcpwire.FlowControl, vitcpwire.Reliable,
			vitcpwire.Reliable | vitcpwire.FlowControl | 0x4000,
		} {
			v := newVI(t, n, reliableAll)
			c := listenProbe(t)
			done := callVI(t, n, v, c.addr("x"), patience)
			p, _ := c.accept()
			ce := ceOf(reliableAll, "x", "caller")
			ce.Attributes = bad
			p.greet(vitcpwire.ConnectAccept, vitcpwire.Header{}, ce, nil)
			err := <-done
			if m, ok := errors.AsType[*MismatchError](err); !ok ||
				!errors.Is(err, vi.ErrInvalidReliability) || m.Remote {
				t.Errorf("accept with %v: %v", bad, err)
			}
			p.wantEnd(io.EOF)
		}
		s := serveProbe(t, sessionOpts{attrs: reliableAll, ce: func(ce *vitcpwire.CE) { ce.MTU = 777 }})
		if _, a, _, _ := s.v.Query(); a.MaxTransferSize != 777 {
			t.Errorf("MTU %d", a.MaxTransferSize)
		}
	})
}

// TestVIT_2_2_2_1 covers section 2.2.2.1: basic components.
func TestVIT_2_2_2_1(t *testing.T) {
	n := openNIC(t, openProvider(t, Config{}))
	v := newVI(t, n, reliableAll)
	r, _ := register(t, n, 100, vi.MemAttributes{})
	c := listenProbe(t)
	t.Run("VIT-2.2.2.1-1", func(t *testing.T) {
		// A descriptor posted before the connection is not sent, neither then nor after the
		// connection. [VIT-2.2.2.1-1] [VIT-2.2.2.1-2]
		must(t, v.PostSend(vi.NewSend(segment(r, 0, 10))))
		d, _ := waitSend(t, v)
		if d.Status()&vi.StatusFlushed == 0 {
			t.Errorf("status %v", d.Status())
		}
		c.none()
		done := callVI(t, n, v, c.addr("x"), patience)
		p, _ := c.accept()
		p.greet(vitcpwire.ConnectAccept, vitcpwire.Header{Posted: 10}, ceOf(reliableAll, "x", "caller"), nil)
		must(t, <-done)
		p.silent()
		// Unregistered memory is refused, and a segment of an RDMA carries the handle.
		// [VIT-2.2.2.1-3]
		must(t, v.PostSend(vi.NewRDMAWrite(vi.RemoteSegment{Address: 0x1234, Handle: 0xfeedface}, segment(r, 0, 10))))
		if s := p.want(vitcpwire.Write); s.rdma != (vitcpwire.RDMA{Address: 0x1234, Handle: 0xfeedface, Length: 10}) {
			t.Errorf("RDMA header %v", s.rdma)
		}
		must(t, v.PostSend(vi.NewSend(vi.Segment{Address: r.Address(), Handle: r.Handle() + 1, Length: 10})))
		p.nop(ack(1))
		_, err := waitSend(t, v)
		must(t, err)
		if d, _ := waitSend(t, v); d.Status()&vi.StatusProtectionError == 0 {
			t.Errorf("status %v", d.Status())
		}
		p.wantEnd(io.EOF)
	})
}

// TestVIT_2_2_2_2_1 covers section 2.2.2.2.1: one port serves several applications, which differ in
// their discriminators.
func TestVIT_2_2_2_2_1(t *testing.T) {
	p := openProvider(t, Config{})
	n := openNIC(t, p)
	ctx := testContext(t)
	// A hundred listeners and callers use one port. [VIT-2.2.2.2.1-1] [VIT-2.2.2.2.1-2]
	const count = 100
	client := openNIC(t, openProvider(t, Config{}))
	r, buf := register(t, n, count, vi.MemAttributes{})
	rc, bc := register(t, client, count, vi.MemAttributes{})
	var wg sync.WaitGroup
	ports := make(chan uint16, count)
	for i := range count {
		name := fmt.Sprintf("app-%d", i)
		wg.Go(func() {
			v, err := n.CreateVI(reliableAll, nil, nil)
			if err != nil {
				t.Error(err)
				return
			}
			v.PostRecv(vi.NewRecv(segment(r, i, 1)))
			req, err := n.ConnectWait(ctx, n.addr(name))
			if err != nil {
				t.Error(err)
				return
			}
			if string(req.Remote().Discriminator) != "from-"+name || string(req.Local().Discriminator) != name {
				t.Errorf("%s is called by %v at %v", name, req.Remote(), req.Local())
			}
			if err := req.Accept(ctx, v); err != nil {
				t.Error(err)
				return
			}
			ports <- addrPort(v.Link().(*link).c.NetConn().RemoteAddr()).Port()
			if _, err := v.RecvWait(ctx); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			v, err := client.CreateVI(reliableAll, nil, nil)
			if err != nil {
				t.Error(err)
				return
			}
			if err := askFor(ctx, v, client.addr("from-"+name), n.addr(name)); err != nil {
				t.Error(err)
				return
			}
			bc[i] = byte(i)
			v.PostSend(vi.NewSend(segment(rc, i, 1)))
			if _, err := v.SendWait(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i, b := range buf {
		if b != byte(i) {
			t.Errorf("application %d got %d", i, b)
		}
	}
	// Each caller has a separate port. [VIT-2.2.2.2.1-3] [VIT-2.2.2.2.2-1]
	close(ports)
	seen := make(map[uint16]bool)
	for port := range ports {
		if seen[port] || port == n.port() {
			t.Errorf("port %d twice, or the listening one", port)
		}
		seen[port] = true
	}
	if s := p.Stats(); s.Connections != count || s.Incoming < count {
		t.Errorf("stats %+v", s)
	}
}

// A caller uses its NIC's address if the target has the same address family. The system chooses the
// port. [VIT-2.2.2.2.1-3] [V-36]
func TestVIT_2_2_2_2_1_Caller(t *testing.T) {
	n := openNIC(t, openProvider(t, Config{}))
	from := netip.MustParseAddr("127.0.0.2")
	c := listenProbe(t)
	seen := make(map[uint16]bool)
	for range 3 {
		v := newVI(t, n, reliableAll)
		done := make(chan error, 1)
		go func() {
			_, err := v.ConnectRequest(testContext(t), vi.IPAddress(netip.AddrPortFrom(from, 0), "caller"), c.addr("x"))
			done <- err
		}()
		p, req := c.accept()
		at := addrPort(p.nc.RemoteAddr())
		if at.Addr() != from || at.Port() == n.port() || seen[at.Port()] {
			t.Errorf("called from %v", at)
		}
		seen[at.Port()] = true
		p.greet(vitcpwire.ConnectNoMatch, vitcpwire.Header{}, req.ce, nil)
		if err := <-done; !errors.Is(err, vi.ErrNoMatch) {
			t.Error(err)
		}
	}
}

// TestVIT_2_2_2_2_2 covers section 2.2.2.2.2: connection management.
func TestVIT_2_2_2_2_2(t *testing.T) {
	t.Run("VIT-2.2.2.2.2-2", func(t *testing.T) {
		// Disconnect ends the sending direction by a FIN. [VIT-2.2.2.2.2-2] [VIT-4.2-6] [V-17]
		s := serveProbe(t, sessionOpts{cfg: Config{DrainTimeout: 50 * time.Millisecond}, attrs: reliableAll})
		must(t, s.v.Disconnect())
		for _, got := range s.wantEnd(io.EOF) {
			if got.h.Type != vitcpwire.NOP {
				t.Errorf("%v at the end", got.h)
			}
		}
		// The FIN has ended one direction. The connection is closed although the peer does not end
		// the other direction.
		for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			if _, err := s.nc.Write([]byte{0}); err != nil {
				break
			}
			if time.Now().After(end) {
				t.Fatal("the TCP connection is half open still")
			}
		}
	})
	t.Run("VIT-2.2.2.2.2-3", func(t *testing.T) {
		// The peer sends FIN while work is outstanding. [VIT-2.2.2.2.2-3] [V-17]
		s := serveProbe(t, sessionOpts{attrs: reliableAll})
		r, _ := register(t, s.n, 10, vi.MemAttributes{})
		must(t, s.v.PostRecv(vi.NewRecv(segment(r, 0, 10))))
		s.nc.Close()
		d, _ := waitRecv(t, s.v)
		if d.Status()&vi.StatusFlushed == 0 {
			t.Errorf("status %v", d.Status())
		}
		s.n.expectAsync(t, vi.ErrorConnLost)
		waitState(t, s.v, vi.Error)
	})
	t.Run("VIT-2.2.2.2.2-6", func(t *testing.T) { testProtection(t) })
	t.Run("VIT-2.2.2.2.2-7", func(t *testing.T) {
		// The caller finds no listener. [VIT-2.2.2.2.2-7] [VIT-4.2-1]
		n := openNIC(t, openProvider(t, Config{}))
		v := newVI(t, n, reliableAll)
		// No socket can listen at the port of a caller while the caller is connected.
		caller, _ := testkit.TCPPair(t)
		to := vi.IPAddress(addrPort(caller.LocalAddr()), "x")
		if err := <-callVI(t, n, v, to, patience); !errors.Is(err, vi.ErrNoMatch) {
			t.Errorf("refused port: %v", err)
		}
		if v.State() != vi.Idle {
			t.Errorf("state %v", v.State())
		}
		// No connection leads to a multicast address, whatever routes and proxies the host has.
		err := <-callVI(t, n, v, vi.IPAddress(netip.MustParseAddrPort("224.0.0.1:3936"), "x"), patience)
		if !errors.Is(err, vi.ErrNotReachable) {
			t.Errorf("no route: %v", err)
		}
	})
}

// testProtection lets the probe use handles, ranges and rights that this side did not give it. No
// byte of the memory changes. At Reliable Reception the error is reported. [VIT-2.2.2.2.2-6]
// [VIT-3.1-ACK-6] [VIT-3.1-ERR-1] [VIT-3.1-ERR-3] [V-13] [V-42]
func testProtection(t *testing.T) {
	type target struct {
		r    *vi.Region
		off  uint64
		n    uint32
		hand uint32 // added to the handle
	}
	for _, level := range levels {
		for _, typ := range []vitcpwire.Type{vitcpwire.Write, vitcpwire.ReadRequest} {
			if level == vi.UnreliableDelivery && typ == vitcpwire.ReadRequest {
				continue
			}
			for _, name := range []string{"handle", "range", "wrap", "before", "rights", "other right", "tag"} {
				t.Run(fmt.Sprintf("%v/%v/%s", level, typ, name), func(t *testing.T) {
					s := serveProbe(t, sessionOpts{attrs: withLevel(reliableAll, level), posted: 5, before: func(s *session) {
						tag, err := s.n.CreatePtag()
						must(t, err)
						_, a, _, _ := s.v.Query()
						a.Ptag = tag
						must(t, s.v.SetAttributes(a))
						s.v.SetUserData(tag)
					}})
					tag := s.v.UserData().(*vi.Ptag)
					rights := allRights
					rights.Ptag = tag
					switch name {
					case "rights":
						rights = vi.MemAttributes{Ptag: tag}
					case "other right":
						rights.EnableRDMAWrite, rights.EnableRDMARead = typ == vitcpwire.ReadRequest,
							typ == vitcpwire.Write
					case "tag":
						other, err := s.n.CreatePtag()
						must(t, err)
						rights.Ptag = other
					}
					r, buf := register(t, s.n, 1000, rights)
					x := target{r: r, n: 100}
					switch name {
					case "handle":
						x.hand = 1
					case "range":
						x.off = 901
					case "wrap":
						x.off, x.n = ^uint64(0)-r.Address()-50, 1000
					case "before":
						x.off = ^uint64(0)
					}
					h := vitcpwire.RDMA{Address: r.Address() + x.off, Handle: uint32(r.Handle()) + x.hand, Length: x.n}
					var payload []byte
					if typ == vitcpwire.Write {
						payload = bytes.Repeat([]byte{0xee}, int(x.n))
					}
					n := s.message(typ, &h, payload)
					if bytes.Contains(buf, []byte{0xee}) {
						t.Error("memory was touched")
					}
					async := vi.ErrorRDMAWProt
					if typ == vitcpwire.ReadRequest {
						async = vi.ErrorRDMARProt
					}
					if level == vi.UnreliableDelivery { // the message is dropped, and the connection continues
						s.n.expectAsync(t, async)
						ok := vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle())}
						s.message(vitcpwire.Write, &ok, nil)
						s.silent()
						if s.v.State() != vi.Connected {
							t.Errorf("state %v", s.v.State())
						}
						return
					}
					s.n.expectAsync(t, async, vi.ErrorConnLost)
					told := false
					for _, e := range s.wantEnd(io.EOF) {
						if e.h.Error.VI() != vitcpwire.NoError {
							told = true
							if e.h.Ack != n || e.h.Error.VI() != vitcpwire.ProtectionError {
								t.Errorf("told %v", e.h)
							}
						}
						if e.h.Type == vitcpwire.ReadResponse &&
							(len(e.payload) != 0 || e.h.Flags&vitcpwire.TransmitError == 0) {
							t.Errorf("response %v with %d bytes", e.h, len(e.payload))
						}
					}
					if told != (level == vi.ReliableReception) { // [VIT-3.1-ERR-5]
						t.Errorf("told: %v", told)
					}
					if bytes.Contains(buf, []byte{0xee}) {
						t.Error("memory was touched")
					}
				})
			}
		}
	}
}

// TestVIT_2_2_2_2_3 covers section 2.2.2.2.3: messages and segments.
func TestVIT_2_2_2_2_3(t *testing.T) {
	t.Run("VIT-2.2.2.2.3-1", func(t *testing.T) {
		// Each descriptor has one message number, offsets rise, and messages do not interleave.
		// [VIT-2.2.2.2.3-1] [VIT-2.2.2.2.3-2] [VIT-2.2.2.2.3-3] [VIT-2.2.2.2.3-5] [VIT-3.1-5]
		// [VIT-3.1-7] [VIT-3.1-8] [VIT-3.1-13] [VIT-3-2] [V-07] [V-08] [V-38]
		s := serveProbe(t, sessionOpts{attrs: reliableAll, posted: 20})
		r, buf := register(t, s.n, 200000, vi.MemAttributes{})
		fill(buf, 1)
		for i, n := range []int{0, 1, 65511, 65512, 200000} {
			must(t, s.v.PostSend(vi.NewSend(segment(r, 0, n/2), segment(r, n/2, n-n/2))))
			var got []byte
			for {
				x := s.want(vitcpwire.Send)
				if x.h.Number != vitcpwire.Number(i+1) || int(x.h.Offset) != len(got) || len(x.payload) > 65511 {
					t.Fatalf("%v with %d bytes so far", x.h, len(got))
				}
				got = append(got, x.payload...)
				if x.h.Flags&vitcpwire.EndOfMessage != 0 {
					break
				}
			}
			if !bytes.Equal(got, buf[:n]) {
				t.Errorf("%d bytes came as %d", n, len(got))
			}
			s.nop(ack(vitcpwire.Number(i + 1)))
			_, err := waitSend(t, s.v)
			must(t, err)
		}
	})
	t.Run("VIT-2.2.2.2.3-4", func(t *testing.T) {
		// With SegmentsMSS no segment is longer than a TCP segment of the path. [VIT-2.2.2.2.3-4]
		// [V-40]
		s := serveProbe(t, sessionOpts{cfg: Config{Segments: SegmentsMSS}, attrs: reliableAll, posted: 20})
		mss := maxSegmentSize(s.v.Link().(*link).c.NetConn())
		if mss == 0 {
			mss = defaultMSS
		}
		r, buf := register(t, s.n, 200000, vi.MemAttributes{})
		fill(buf, 1)
		must(t, s.v.PostSend(vi.NewSend(segment(r, 0, len(buf)))))
		var got []byte
		for {
			x := s.want(vitcpwire.Send)
			if int(x.h.Length) > mss {
				t.Fatalf("segment of %d bytes, TCP's have %d", x.h.Length, mss)
			}
			got = append(got, x.payload...)
			if x.h.Flags&vitcpwire.EndOfMessage != 0 {
				break
			}
		}
		if !bytes.Equal(got, buf) {
			t.Error("bytes differ")
		}
	})
	t.Run("VIT-2.2.2.2.3-4 writes", func(t *testing.T) {
		// Each write passes one segment to TCP, also for short messages. [VIT-2.2.2.2.3-4] [V-40]
		w := new(writes)
		s := serveProbe(t, sessionOpts{cfg: Config{Segments: SegmentsMSS, WrapConn: w.wrap},
			attrs: reliableAll, posted: 20})
		r, _ := register(t, s.n, 20000, vi.MemAttributes{})
		must(t, s.v.PostSend(vi.NewSend(segment(r, 0, 20000))))
		for range 10 {
			must(t, s.v.PostSend(vi.NewSend(segment(r, 0, 10))))
		}
		for ends := 0; ends < 11; {
			if s.want(vitcpwire.Send).h.Flags&vitcpwire.EndOfMessage != 0 {
				ends++
			}
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, b := range w.each[1:] { // the first Write carries the Connect Accept
			h, _, err := s.d.ParseHeader(b)
			if err != nil || int(h.Length) != len(b) {
				t.Errorf("a write of %d bytes with %v, %v", len(b), h, err)
			}
		}
		if len(w.each) < 12 {
			t.Errorf("%d writes", len(w.each))
		}
	})
	t.Run("VIT-2.2.2.2.3-6", func(t *testing.T) {
		// Responses are sent between the segments of a large Send, and are received there.
		// [VIT-2.2.2.2.3-6] [VIT-3.1-12] [V-28]
		s := serveProbe(t, sessionOpts{attrs: reliableAll, posted: 20})
		r, buf := register(t, s.n, 8<<20, allRights)
		fill(buf[:1<<20], 1)
		must(t, s.v.PostSend(vi.NewSend(segment(r, 0, 1<<20))))
		// By now the socket is full, or the Send is complete. In both cases both messages must
		// arrive whole.
		want := vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: 1 << 20}
		n := s.message(vitcpwire.ReadRequest, &want, nil)
		var send, resp []byte
		for len(send) < 1<<20 || len(resp) < 1<<20 {
			x := s.recv()
			switch x.h.Type {
			case vitcpwire.Send:
				if int(x.h.Offset) != len(send) {
					t.Fatalf("%v", x.h)
				}
				send = append(send, x.payload...)
			case vitcpwire.ReadResponse:
				if int(x.h.Offset) != len(resp) || x.h.Number != n || x.rdma != want {
					t.Fatalf("%v %v", x.h, x.rdma)
				}
				resp = append(resp, x.payload...)
			}
		}
		if !bytes.Equal(send, buf[:1<<20]) || !bytes.Equal(resp, buf[:1<<20]) {
			t.Error("bytes differ")
		}

		// Now the probe sends its responses between the segments of a large Send.
		must(t, s.v.PostRecv(vi.NewRecv(segment(r, 1<<20, 1<<20))))
		must(t, s.v.PostSend(vi.NewRDMARead(vi.RemoteSegment{Handle: 1}, segment(r, 2<<20, 100000))))
		req := s.want(vitcpwire.ReadRequest)
		if req.h.Posted != 1 { // the receive was advertised before, or with the request
			t.Errorf("posted %d", req.h.Posted)
		}
		big := make([]byte, 100000)
		fill(big, 9)
		s.last = s.last.Add(1)
		for off := 0; off < len(big); off += 10000 {
			h := vitcpwire.Header{Type: vitcpwire.Send, Number: s.last, Offset: uint32(off)}
			r := vitcpwire.Header{Type: vitcpwire.ReadResponse, Number: req.h.Number, Offset: uint32(off)}
			if off == 90000 {
				h.Flags, r.Flags = vitcpwire.EndOfMessage, vitcpwire.EndOfMessage
			}
			s.send(h, nil, big[off:off+10000])
			s.send(r, &req.rdma, big[off:off+10000])
		}
		_, err := waitRecv(t, s.v)
		must(t, err)
		s.nop(ack(req.h.Number))
		for range 2 {
			_, err = waitSend(t, s.v)
			must(t, err)
		}
		if !bytes.Equal(buf[1<<20:1<<20+100000], big) || !bytes.Equal(buf[2<<20:2<<20+100000], big) {
			t.Error("bytes differ")
		}
	})
}

// If a response and a message of this side both wait, their segments alternate. [VIT-2.2.2.2.3-6]
// [V-28]
func TestVIT_2_2_2_2_3_Turns(t *testing.T) {
	const size, asked = 32 << 20, 1 << 20 // one of the messages is larger than the sockets hold
	s := serveProbe(t, sessionOpts{attrs: reliableAll, posted: 20, ce: func(ce *vitcpwire.CE) { ce.MTU = size }})
	r, _ := register(t, s.n, size, allRights)
	must(t, s.v.PostSend(vi.NewSend(segment(r, 0, size))))
	s.want(vitcpwire.Send)
	s.message(vitcpwire.ReadRequest,
		&vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: asked}, nil)
	s.taken() // while the Send waits for the sockets
	var types []vitcpwire.Type
	for last := (vitcpwire.Header{}); last.Type != vitcpwire.ReadResponse ||
		last.Flags&vitcpwire.EndOfMessage == 0; types = append(types, last.Type) {
		last = s.recv().h
		if last.Type == vitcpwire.Send && last.Flags&vitcpwire.EndOfMessage != 0 {
			t.Fatal("the response waits for the end of the Send")
		}
	}
	first := slices.Index(types, vitcpwire.ReadResponse)
	for i, typ := range types[first:] {
		if want := []vitcpwire.Type{vitcpwire.ReadResponse, vitcpwire.Send}[i%2]; typ != want {
			t.Fatalf("segment %d behind the first of the response is of type %v", i, typ)
		}
	}
}

// TestVIT_2_2_2_2_6 covers section 2.2.2.2.6: outstanding RDMA Reads.
func TestVIT_2_2_2_2_6(t *testing.T) {
	t.Run("VIT-2.2.2.2.6-1", func(t *testing.T) {
		// The source memory of a response stays pinned until the kernel has its bytes.
		// Deregistering the memory in the middle of the response either waits or ends the response
		// as void. No byte of the memory is sent afterwards. [VIT-2.2.2.2.6-1]
		const size = 64 << 20 // more than the sockets hold, so the sender waits in the middle
		s := serveProbe(t, sessionOpts{attrs: reliableAll, ce: func(ce *vitcpwire.CE) { ce.MTU = size }})
		r, buf := register(t, s.n, size, allRights)
		for i := range buf {
			buf[i] = 0x55
		}
		s.message(vitcpwire.ReadRequest,
			&vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: size}, nil)
		s.want(vitcpwire.ReadResponse)
		// When no further segment of the response is built, the sender waits for the socket.
		for l, before := s.v.Link().(*link), uint64(0); ; {
			n := l.count.sentBytes.Load()
			if n > 0 && n == before {
				break
			}
			before = n
			time.Sleep(20 * time.Millisecond)
		}
		must(t, s.n.DeregisterMem(r))
		for i := range buf {
			buf[i] = 0xaa // the test may use the memory again
		}
		var last seg
		got := 0
		for _, last = range s.wantEnd(io.EOF) {
			if bytes.Contains(last.payload, []byte{0xaa}) {
				t.Fatal("memory was read after it was given back")
			}
			got += len(last.payload)
		}
		if last.h.Type != vitcpwire.ReadResponse || last.h.Flags&vitcpwire.TransmitError == 0 || got == 0 {
			t.Errorf("after %d bytes: %v", got, last.h)
		}
	})
	t.Run("refused", func(t *testing.T) {
		// A refused Read is answered after the Reads before it, by a complete segment. A Read of
		// length zero needs no memory. Requests after a refused Read are not answered. [V-30]
		// [V-42] [V-26]
		for _, level := range levels[1:] {
			s := serveProbe(t, sessionOpts{attrs: withLevel(reliableAll, level), before: func(s *session) {
				for range 3 {
					must(t, s.v.PostRecv(vi.NewRecv()))
				}
			}})
			r, _ := register(t, s.n, 10, vi.MemAttributes{EnableRDMARead: true})
			good := vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: 10}
			nothing := vitcpwire.RDMA{Address: 1, Handle: uint32(r.Handle()) + 1}
			foreign := vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()) + 1, Length: 1}
			var burst []byte
			for i, q := range []vitcpwire.RDMA{good, nothing, foreign, good} {
				burst = append(burst, s.bytes(vitcpwire.Header{Type: vitcpwire.ReadRequest, Flags: vitcpwire.EndOfMessage, Number: vitcpwire.Number(i + 1)}, nil, &q, nil)...)
			}
			s.raw(burst)
			for i, q := range []vitcpwire.RDMA{good, nothing} {
				x := s.want(vitcpwire.ReadResponse)
				if x.h.Number != vitcpwire.Number(i+1) || x.h.Flags != vitcpwire.EndOfMessage ||
					x.rdma != q || len(x.payload) != int(q.Length) {
					t.Errorf("response %v %v", x.h, x.rdma)
				}
			}
			x := s.want(vitcpwire.ReadResponse)
			want := vitcpwire.Header{
				Type: vitcpwire.ReadResponse, Flags: vitcpwire.EndOfMessage | vitcpwire.TransmitError,
				Length: vitcpwire.HeaderLen + vitcpwire.RDMALen,
				Number: 3, Ack: 2, Posted: 3,
			}
			if level == vi.ReliableReception {
				want.Ack, want.Error = 3, vitcpwire.MakeRemoteError(vitcpwire.ProtectionError, 0)
			}
			if x.h != want || x.rdma != foreign {
				t.Errorf("refused by %v %v, want %v", x.h, x.rdma, want)
			}
			for _, x := range s.wantEnd(io.EOF) {
				t.Errorf("%v behind the refusal", x.h)
			}
			e := <-s.n.async
			if e.Code != vi.ErrorRDMARProt || e.OpCode != vi.OpRDMARead {
				t.Errorf("asynchronous error %v of %v", e.Code, e.OpCode)
			}
			if n := s.n.p.Stats().ServedReads; n != 2 {
				t.Errorf("%d reads served", n)
			}
		}
	})
	t.Run("VIT-2.2.2.2.6-2", func(t *testing.T) {
		// This side never has more requests outstanding than the peer granted. [VIT-2.2.2.2.6-2]
		// [VIT-2.2.2.2.6-3] [V-26] [V-27]
		s := serveProbe(t, sessionOpts{attrs: reliableAll, posted: 10})
		r, _ := register(t, s.n, 100, vi.MemAttributes{})
		for range 6 {
			must(t, s.v.PostSend(vi.NewRDMARead(vi.RemoteSegment{Handle: 1}, segment(r, 0, 1))))
		}
		must(t, s.v.PostSend(vi.NewSend()))
		var reqs []seg
		for range 4 { // the read window that ceOf grants
			reqs = append(reqs, s.want(vitcpwire.ReadRequest))
		}
		s.silent()
		for i := range 2 {
			s.send(vitcpwire.Header{Type: vitcpwire.ReadResponse, Flags: vitcpwire.EndOfMessage, Number: reqs[i].h.Number}, &reqs[i].rdma, []byte{1})
			reqs = append(reqs, s.want(vitcpwire.ReadRequest))
		}
		s.want(vitcpwire.Send) // messages leave strictly in order
		for _, q := range reqs[2:] {
			s.send(vitcpwire.Header{Type: vitcpwire.ReadResponse, Flags: vitcpwire.EndOfMessage, Number: q.h.Number, Ack: 7}, &q.rdma, []byte{1})
		}
		for range 7 {
			_, err := waitSend(t, s.v)
			must(t, err)
		}
	})
	t.Run("VIT-2.2.2.2.6-3", func(t *testing.T) {
		// The window of the attributes is announced, and a request beyond it is a violation.
		// [VIT-2.2.2.2.6-3] [V-26]
		a := reliableAll
		a.ReadWindow = 2
		n := openNIC(t, openProvider(t, Config{}))
		v := newVI(t, n, a)
		c := listenProbe(t)
		done := callVI(t, n, v, c.addr("x"), patience)
		p, req := c.accept()
		if req.ce.ReadWindow != 2 {
			t.Errorf("window %d", req.ce.ReadWindow)
		}
		p.greet(vitcpwire.ConnectAccept, vitcpwire.Header{}, ceOf(reliableAll, "x", "caller"), nil)
		must(t, <-done)
		r, _ := register(t, n, 1<<20, allRights)
		h := vitcpwire.RDMA{Address: r.Address(), Handle: uint32(r.Handle()), Length: 1 << 20}
		var burst []byte
		for range 3 {
			p.last = p.last.Add(1)
			burst = append(burst, p.bytes(vitcpwire.Header{Type: vitcpwire.ReadRequest, Flags: vitcpwire.EndOfMessage, Number: p.last}, nil, &h, nil)...)
		}
		p.raw(burst)
		p.wantEnd(errReset)
		n.expectAsync(t, vi.ErrorConnLost)
	})
	t.Run("none", func(t *testing.T) {
		// This side sends no Read Request to a peer that serves no Reads. [V-26]
		s := serveProbe(t, sessionOpts{attrs: reliableAll, ce: func(ce *vitcpwire.CE) { ce.ReadWindow = 0 }})
		r, _ := register(t, s.n, 100, vi.MemAttributes{})
		must(t, s.v.PostSend(vi.NewRDMARead(vi.RemoteSegment{Handle: 1}, segment(r, 0, 1))))
		if d, _ := waitSend(t, s.v); d.Status()&vi.StatusRDMAProtection == 0 {
			t.Errorf("status %v", d.Status())
		}
		for _, x := range s.wantEnd(io.EOF) {
			if x.h.Type == vitcpwire.ReadRequest {
				t.Error("it was asked")
			}
		}
	})
}

// wantEndAny reads until the provider ends the connection, by a FIN or a reset.
func (p *probe) wantEndAny() (segs []seg) {
	for {
		s, err := p.tryRecv()
		if err != nil {
			return segs
		}
		segs = append(segs, s)
	}
}

// A writes is a connection that records the bytes of each Write.
type writes struct {
	mu   sync.Mutex
	each [][]byte // guarded by mu
}

type writesConn struct {
	net.Conn
	w *writes
}

func (w *writes) wrap(nc net.Conn) net.Conn { return &writesConn{nc, w} }

func (c *writesConn) Write(b []byte) (int, error) {
	c.w.mu.Lock()
	c.w.each = append(c.w.each, bytes.Clone(b))
	c.w.mu.Unlock()
	return c.Conn.Write(b)
}
