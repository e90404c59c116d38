package vitcp

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// offered calls n, and returns the caller and the arrived request.
func offered(t *testing.T, n *nicUnderTest) (*probe, *vi.ConnRequest) {
	t.Helper()
	got := make(chan *vi.ConnRequest, 1)
	go func() {
		req, _ := n.ConnectWait(testContext(t), n.addr("vi"))
		got <- req
	}()
	p := dialProbe(t, n)
	p.greet(vitcpwire.ConnectRequest, vitcpwire.Header{}, ceOf(reliableAll, "probe", "vi"), nil)
	return p, <-got
}

// A request ends in the same way with and without a watched caller, whichever side ends the
// request, and only once. An accepted request keeps the connection. [VIT-4.3-5] [VIT-4.3-6]
func TestWatch(t *testing.T) {
	for _, v := range []struct {
		name string
		wait time.Duration
	}{{"at once", 0}, {"watched", 5 * watchAfter}} {
		t.Run(v.name, func(t *testing.T) {
			n := openNIC(t, openProvider(t, Config{Grace: patience}))
			p, req := offered(t, n)
			time.Sleep(v.wait)
			must(t, req.Reject())
			if x := p.recv(); x.h.Type != vitcpwire.ConnectReject {
				t.Errorf("rejected: %v", x.h)
			}
			p.wantEnd(io.EOF)

			p, req = offered(t, n)
			time.Sleep(v.wait)
			must(t, req.Accept(testContext(t), newVI(t, n, reliableAll)))
			if x := p.recv(); x.h.Type != vitcpwire.ConnectAccept {
				t.Errorf("accepted: %v", x.h)
			}
			time.Sleep(2 * watchAfter)
			p.message(vitcpwire.Write, &vitcpwire.RDMA{}, nil)
			p.wantAck(1)
			p.nc.Close()

			p, req = offered(t, n)
			time.Sleep(v.wait)
			p.nop() // no time limit has passed yet
			if segs := p.wantEndAny(); len(segs) != 0 {
				t.Errorf("answered %v", segs)
			}
			if err := req.Accept(testContext(t), newVI(t, n, reliableAll)); !errors.Is(err, vi.ErrTimeout) {
				t.Errorf("accept of a caller that went on: %v", err)
			}

			p, req = offered(t, n)
			time.Sleep(v.wait)
			w := newVI(t, n, reliableAll)
			both := make(chan error, 1)
			go func() { both <- req.Accept(testContext(t), w) }()
			time.AfterFunc(20*time.Millisecond, func() { p.nc.Close() })
			must(t, n.Close())
			<-both
		})
	}
	t.Run("forgotten", func(t *testing.T) {
		// The consumer decides late. If the caller ends the sending direction meanwhile, the
		// request is dropped.
		n := openNIC(t, openProvider(t, Config{Grace: patience}))
		p, req := offered(t, n)
		if err := p.nc.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if segs := p.wantEndAny(); len(segs) != 0 {
			t.Errorf("answered %v", segs)
		}
		if err := req.Accept(testContext(t), newVI(t, n, reliableAll)); !errors.Is(err, vi.ErrTimeout) {
			t.Errorf("accept: %v", err)
		}
	})
	t.Run("gone before a wait", func(t *testing.T) {
		// The caller has ended the connection before a wait for the request begins.
		n := openNIC(t, openProvider(t, Config{Grace: patience}))
		d, err := discriminator([]byte("vi"))
		must(t, err)
		var l *listener
		for l = range n.p.listeners {
		}
		w := &wait{got: make(chan *request, 1)}
		l.wait(d, w)
		nc, peer := net.Pipe()
		defer peer.Close()
		r := &request{l: l, nc: nc, tcp: nc, local: l.addr, m: passive{state: passiveDisconnected}}
		r.g.ce.Called = d
		if l.offerWait(r) {
			t.Error("handed over")
		}
		if l.unwait(d, w) != nil {
			t.Error("the wait has it")
		}
	})
}
