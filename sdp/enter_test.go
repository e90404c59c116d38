package sdp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"viaduct/internal/wire/sdpwire"
	"viaduct/iwarp"
)

// An addressed is a connection that has only a remote address.
type addressed struct {
	net.Conn
	remote string
}

type textAddr string

func (textAddr) Network() string                { return "tcp" }
func (a textAddr) String() string               { return string(a) }
func (a addressed) LocalAddr() net.Addr         { return textAddr("10.0.0.1:1") }
func (a addressed) RemoteAddr() net.Addr        { return textAddr(a.remote) }
func (a addressed) Close() error                { return nil }
func (a addressed) SetDeadline(time.Time) error { return nil }

// A placed is a connection that has only addresses.
type placed struct {
	net.Conn
	local, remote net.Addr
}

func (p placed) LocalAddr() net.Addr  { return p.local }
func (p placed) RemoteAddr() net.Addr { return p.remote }

// TestEnterHere: by default this host may have all set-ups in progress, and another host fewer. A
// configured limit must apply to both.
func TestEnterHere(t *testing.T) { // [D-17] [SDP-15-4]
	here := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}
	for _, test := range []struct{ limit, ofHere, ofAnother int }{{0, 100, 32}, {3, 3, 3}} {
		for _, remote := range []string{"127.0.0.1", "10.0.0.1", "10.0.0.2"} {
			l := &Listener{pending: make(map[netip.Addr]int),
				lc: ListenConfig{MaxPending: 100, MaxPendingPerHost: test.limit}}
			n := 0
			for n < 200 {
				if _, ok := l.enter(placed{local: here, remote: &net.TCPAddr{IP: net.ParseIP(remote), Port: 1000 + n}}); !ok {
					break
				}
				n++
			}
			want := test.ofHere
			if remote == "10.0.0.2" {
				want = test.ofAnother
			}
			if n != want {
				t.Errorf("limit %d: %d set-ups of %s, not %d", test.limit, n, remote, want)
			}
		}
	}
}

// TestEnter: set-ups in progress are limited, in all and from each host, and the filter is called
// first.
func TestEnter(t *testing.T) { // [D-17] [SDP-15-4]
	filtered := 0
	l := &Listener{pending: make(map[netip.Addr]int), lc: ListenConfig{MaxPending: 4, MaxPendingPerHost: 2, Filter: func(local, remote net.Addr) bool {
		if local.String() != "10.0.0.1:1" {
			t.Errorf("filter of %v", local)
		}
		filtered++
		return !strings.HasPrefix(remote.String(), "10.6.")
	}}}
	refused := uint64(0)
	enter := func(remote, host string, want bool) {
		t.Helper()
		h, ok := l.enter(addressed{remote: remote})
		if ok != want || h.IsValid() != (host != "") || host != "" && h != netip.MustParseAddr(host) {
			t.Errorf("%s: %v, %t", remote, h, ok)
		}
		if !want {
			refused++
		}
		if l.Refused() != refused {
			t.Errorf("%s: %d refused, want %d", remote, l.refused, refused)
		}
	}
	enter("10.6.0.1:5", "10.6.0.1", false)
	if l.total != 0 || len(l.pending) != 0 {
		t.Error("what is filtered counts as pending")
	}
	enter("10.0.0.2:5", "10.0.0.2", true)
	enter("[::ffff:10.0.0.2]:6", "10.0.0.2", true)
	enter("10.0.0.2:7", "10.0.0.2", false)
	enter("10.0.0.3:5", "10.0.0.3", true)
	enter("pipe", "", true) // a pipe counts for no host
	enter("10.0.0.4:5", "10.0.0.4", false)
	if l.total != 4 || l.pending[netip.MustParseAddr("10.0.0.2")] != 2 || len(l.pending) != 3 {
		t.Errorf("%d pending, %v", l.total, l.pending)
	}
	l.leave(netip.MustParseAddr("10.0.0.3"))
	if l.total != 3 || len(l.pending) != 2 {
		t.Errorf("%d pending, %v", l.total, l.pending)
	}
	enter("10.0.0.2:7", "10.0.0.2", false)
	enter("10.0.0.4:5", "10.0.0.4", true)
	if filtered != 9 {
		t.Errorf("%d were shown to the filter", filtered)
	}
	l.lc.Filter = nil
	l.leave(netip.MustParseAddr("10.0.0.4"))
	enter("10.6.0.1:5", "10.6.0.1", true)
}

// TestSetUp checks that a failed set-up no longer counts as pending, and is counted as refused or
// failed. A successful set-up must report its path. Other set-ups must not be affected.
func TestSetUp(t *testing.T) { // [SDP-8.1.2-1] [SDP-8.1.2-2]
	idle := func(t *testing.T, l *Listener, refused, failed uint64) {
		t.Helper()
		synctest.Wait()
		if l.total != 0 || len(l.pending) != 0 || l.Refused() != refused || l.Failed() != failed {
			t.Errorf("%d pending, %d refused, %d failed, want 0, %d, %d", l.total, l.Refused(),
				l.Failed(), refused, failed)
		}
	}
	inBubble(t, "SDP-8.1.2-1", func(t *testing.T) {
		var log bytes.Buffer
		l, ml := listenMem(t, ListenConfig{Options: Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}})
		bad := goodHello
		bad.MaxAdverts = 0
		w := &wirePeer{t: t}
		var rej *iwarp.RejectedError
		if _, err := iwarp.Client(t.Context(), ml.dial(), w.config(bad.Append(nil, sdpwire.Figure))); !errors.As(err, &rej) {
			t.Error(err)
		}
		idle(t, l, 1, 0)
		nc := ml.dial()
		nc.Write([]byte("MPA ID"))
		nc.Close()
		idle(t, l, 1, 1)
		nc = ml.dial()
		nc.Write([]byte("GET / HTTP/1.0\r\n\r\n")) // plain text, so the connection is reset
		if _, err := nc.Read(make([]byte, 1)); err == nil {
			t.Error("it was answered")
		}
		idle(t, l, 2, 1)
		nc.Close()
		if strings.Count(log.String(), `msg="set-up failed"`) != 2 || strings.Contains(log.String(), "connection up") {
			t.Errorf("log:\n%s", &log)
		}
		log.Reset()
		w = connectTo(t, ml, goodHello.Append(nil, sdpwire.IBTA))
		w.layout = sdpwire.IBTA
		w.next()
		c, err := l.AcceptConn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p := c.Path()
		if !p.SDP || !p.Accepted || p.Why != "accepted" || p.Layout != IBTA || p.RawHello ||
			!p.CRC || p.Mapped || p.Local == nil || p.Remote == nil || p.TCPWhy == "" {
			t.Errorf("%+v", p)
		}
		idle(t, l, 2, 1)
		if !strings.Contains(log.String(), `msg="connection up"`) || !strings.Contains(log.String(), "crc=true") {
			t.Errorf("log:\n%s", &log)
		}
		read := started(func() (int, error) { return c.Read(make([]byte, 9)) })
		w.send(sdpwire.Message{MID: sdpwire.Data}, "served")
		if r := <-read; r.n != 6 || r.err != nil {
			t.Errorf("%d, %v", r.n, r.err)
		}
		log.Reset()
		c.Abort()
		<-c.Done()
		if !strings.Contains(log.String(), `msg="connection down"`) {
			t.Errorf("log:\n%s", &log)
		}
	})
	// An unaccepted connection ends with the listener.
	inBubble(t, "not taken", func(t *testing.T) {
		l, ml := listenMem(t, ListenConfig{})
		w := connectTo(t, ml, goodHello.Append(nil, sdpwire.Figure))
		w.next()
		synctest.Wait()
		l.Close()
		w.ended()
	})
	inBubble(t, "no call", func(t *testing.T) { // arrivals are handled even if no call ever waits
		l, ml := listenMem(t, ListenConfig{})
		w := connectTo(t, ml, goodHello.Append(nil, sdpwire.Figure))
		w.next()
		c, err := l.AcceptConn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// More messages than Private Buffers: the payload is held, and all messages are
		// acknowledged.
		for range 40 {
			w.send(sdpwire.Message{MID: sdpwire.Data}, "x")
			time.Sleep(time.Second)
		}
		if n := c.Stats().RecvMessages; n != 40 {
			t.Errorf("%d messages of 40", n)
		}
		c.Abort()
		w.close()
		<-c.Done()
	})
}

// TestNewListenerTCP checks that a listener handles TCP connections another listener accepts, even
// if it passes on plain connections or a wrapper sees the bytes.
func TestNewListenerTCP(t *testing.T) { // [SDP-8.1.2-1] [D-69]
	wrapped := 0
	for _, v := range []struct {
		name string
		lc   ListenConfig
	}{
		{"", ListenConfig{}},
		{"plain", ListenConfig{Plain: true}},
		{"wrapped", ListenConfig{Options: Options{WrapConn: func(nc net.Conn) net.Conn {
			if _, ok := nc.(*net.TCPConn); ok { // only TCP connections may get to WrapConn
				wrapped++
			}
			return nc
		}}}},
	} {
		t.Run("SDP-8.1.2-1", func(t *testing.T) {
			tl, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			l, err := v.lc.NewListener(tl)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			a, b := pairOn(t, l, &Dialer{})
			if _, err := a.Write([]byte("through")); err != nil {
				t.Fatal(err)
			}
			if got, err := readN(b, 7); got != "through" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
			shut(t, a, b)
			if v.lc.Plain {
				nc, err := net.Dial("tcp", l.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				nc.Write([]byte("GET"))
				c, err := l.accept(context.Background())
				tc, ok := c.(*TCPConn)
				if !ok || err != nil {
					t.Fatalf("%T, %v", c, err)
				}
				got := make([]byte, 3)
				if _, err := io.ReadFull(tc, got); err != nil || string(got) != "GET" {
					t.Errorf("%q, %v", got, err)
				}
				if p := tc.Path(); p.SDP || !p.Accepted || p.Local == nil || p.Why == "accepted" {
					t.Errorf("%+v", p)
				}
				nc.Close()
				tc.Close()
			}
			if v.name == "wrapped" && wrapped != 1 {
				t.Errorf("%d connections were shown to the wrapper", wrapped)
			}
		})
	}
}
