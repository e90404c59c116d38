package transport

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/internal/testkit"
	"viaduct/portmap"
	"viaduct/sdp"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// TestNetConnThroughPortmap: connections whose address came from a Port Mapper on loopback keep the
// contract of net.Conn. SDP is required. One case pins each mode, and another has the smallest
// private buffers. [D-71]
func TestNetConnThroughPortmap(t *testing.T) {
	pinned := func(p sdp.Policy, threshold int) sdp.Options {
		return sdp.Options{SendPolicy: p, RecvPolicy: p, SendThreshold: threshold, RecvThreshold: 1,
			RecvBufferSize: 1024}
	}
	for _, v := range []struct {
		name   string
		opt    sdp.Options
		pmTime portmap.PmTime
	}{
		{"plain", sdp.Options{}, portmap.Once},
		{"remembered", sdp.Options{}, portmap.PmTimeFor(time.Hour)},
		{"buffered", sdp.Options{SendPolicy: sdp.PinBuffered, RecvPolicy: sdp.PinBuffered}, portmap.Once},
		{"combined", pinned(sdp.PinCombined, 100), portmap.Once},
		{"pipelined", pinned(sdp.PinPipelined, 100), portmap.Once},
		{"tiny", sdp.Options{RecvBuffers: tinyBuffers, RecvBufferSize: 37, SendBuffer: 64, ReceiveBuffer: 64}, portmap.Once},
	} {
		t.Run(v.name, func(t *testing.T) {
			if v.name != "plain" && v.name != "tiny" {
				testkit.Long(t, "5 s")
			}
			// There is no listener at the conventional address, so that a successful connection has
			// used the Port Mapper.
			service := netip.MustParseAddrPort("127.0.0.1:9")
			reg := portmap.NewRegistry()
			asked := new(atomic.Int64)
			srv, err := portmap.Listen("127.0.0.1:0", portmap.ServerConfig{Registry: reg, Rate: -1,
				Tap: func(out bool, _, _ netip.AddrPort, _ []byte) {
					if !out {
						asked.Add(1)
					}
				}})
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- srv.Serve() }()
			defer func() {
				srv.Close()
				if err := <-served; err != nil && !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
			}()
			ln, err := sdp.Listen("127.0.0.1:0", &v.opt)
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			if err := reg.Set(service, portmap.Mapping{Targets: []netip.AddrPort{netip.MustParseAddrPort(ln.Addr().String())}, PmTime: v.pmTime}); err != nil {
				t.Fatal(err)
			}
			d := &sdp.Dialer{Options: v.opt, Resolve: sdp.ResolveRequire,
				Resolver: mapper{portmap.NewClient(portmap.ClientConfig{Server: netip.MustParseAddrPort(srv.Addr().String())})}}
			conns := int64(0)
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
				defer cancel()
				accepted := make(chan *sdp.Conn, 1)
				go func() {
					c, err := ln.AcceptConn(ctx)
					if err != nil {
						t.Error(err)
					}
					accepted <- c
				}()
				a, err := d.DialContext(ctx, "tcp", service.String())
				if err != nil {
					cancel()
					<-accepted
					return nil, nil, nil, err
				}
				b := <-accepted
				if p := a.(*sdp.Conn).Path(); p.Remote.String() != ln.Addr().String() {
					t.Errorf("connected to %v, want %v", p.Remote, ln.Addr())
				}
				conns++
				return a, b, func() {
					go a.Close() // waits until the peer has the bytes written, unless the peer closes too
					b.Close()
					for _, c := range []*sdp.Conn{a.(*sdp.Conn), b} {
						<-c.Done()
					}
				}, nil
			})
			// An answer for a single connection costs two messages each time: a request and a
			// PMAck. The last PMAck may still be under way.
			if v.pmTime == portmap.Once {
				testkit.Eventually(t, "two datagrams for each connection", func() bool { return asked.Load() >= 2*conns })
			} else if n := asked.Load(); n >= 2*conns {
				t.Errorf("%d datagrams for %d connections", n, conns)
			}
			if conns < 5 {
				t.Errorf("%d connections", conns)
			}
		})
	}
}

// TestMapperRemembered: the connections of a process share the answer of a Port Mapper, and also
// the result if no Port Mapper answered. [D-64]
func TestMapperRemembered(t *testing.T) {
	ln, err := sdp.Listen("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	defer ln.Close()
	service := netip.MustParseAddrPort(plain.Addr().String())
	for _, l := range []net.Listener{ln, plain} {
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Close()
			}
		}()
	}
	const dials = 5
	dial := func(t *testing.T, at netip.AddrPort, want string) {
		t.Helper()
		o := &Options{Env: shell.NewEnv()}
		u, err := addr.Parse("sdp://" + service.String() + "?portmap=" + at.String())
		if err != nil {
			t.Fatal(err)
		}
		for range dials {
			c, err := dialSDP(t.Context(), u, o)
			if err != nil {
				t.Fatal(err)
			}
			if c.RemoteAddr().String() != want {
				t.Errorf("connected to %v, want %v", c.RemoteAddr(), want)
			}
			c.Close()
		}
	}
	t.Run("answered", func(t *testing.T) {
		reg := portmap.NewRegistry()
		if err := reg.Set(service, portmap.NewMapping(netip.MustParseAddrPort(ln.Addr().String()))); err != nil {
			t.Fatal(err)
		}
		srv, err := portmap.Listen("127.0.0.1:0", portmap.ServerConfig{Registry: reg})
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- srv.Serve() }()
		dial(t, srv.Addr(), ln.Addr().String())
		// A client may repeat its request before a busy server answers.
		if s := srv.Stats(); s.Accepts-s.Duplicates != 1 {
			t.Errorf("asked %d times for %d connections, and %d times again", s.Accepts-s.Duplicates, dials, s.Duplicates)
		}
		srv.Close()
		<-served
	})
	t.Run("silent", func(t *testing.T) {
		pc, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer pc.Close()
		dial(t, netip.MustParseAddrPort(pc.LocalAddr().String()), plain.Addr().String())
		// A question without answer is sent three times. Only the first dial asks. The datagram
		// sent after the questions marks their end, because loopback keeps the order.
		end := []byte("end")
		if _, err := pc.WriteTo(end, pc.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 100)
		n := 0
		for pc.SetReadDeadline(time.Now().Add(testkit.Patience)); ; n++ {
			m, _, err := pc.ReadFrom(b)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Equal(b[:m], end) {
				break
			}
		}
		if n != 3 {
			t.Errorf("%d requests for %d connections, want 3", n, dials)
		}
	})
}
