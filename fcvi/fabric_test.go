package fcvi

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fabricd"
	"viaduct/internal/fc/fcip"
	"viaduct/internal/testkit"
	"viaduct/samehost"
	"viaduct/vi"
)

// TestFabricDaemon: two NICs connect over a fabric of two daemons on different domains. Each NIC
// reaches a daemon over FCIP. [FCFS-3.2-4]
func TestFabricDaemon(t *testing.T) {
	var addr [2]string
	var ds [2]*fabricd.Daemon
	for i := range ds {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr[i] = ln.Addr().String()
		ds[i] = fabricd.New(fabricd.Config{Name: fc.NodeName(0x020000003001 + uint64(i)),
			Domain: uint8(i + 1), Logger: testLogger})
		go ds[i].Serve(testkit.Shortage(ln, 2)) // a shortage of descriptors passes
		t.Cleanup(func() { ds[i].Close() })
	}
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	if err := ds[1].Join(ctx, addr[0]); err != nil {
		t.Fatal(err)
	}
	open := func(i int, host string) *vi.NIC {
		return openNamed(t, Config{Fabric: addr[i], Logger: testLogger}, host)
	}
	a, b := open(0, "192.0.2.1"), open(1, "192.0.2.2")
	v, w, mem := connectNICs(t, a, b, vi.ReliableDelivery)
	want := pattern(40000, 3)
	copy(mem[0].Bytes(), want)
	if err := w.PostRecv(vi.NewRecv()); err != nil {
		t.Fatal(err)
	}
	if err := v.PostSend(vi.NewRDMAWrite(mem[1].Remote(0), mem[0].Segment(0, len(want))).WithImmediate(5)); err != nil {
		t.Fatal(err)
	}
	if d, err := w.RecvWait(ctx); err != nil || d.ImmediateData != 5 || !bytes.Equal(mem[1].Bytes()[:len(want)], want) {
		t.Errorf("write: %v", err)
	}
	if n := ds[0].Logins() + ds[1].Logins(); n != 2 {
		t.Errorf("%d logins", n)
	}
	if s := ds[0].Stats(); s.Forwarded == 0 || s.NoRoute != 0 {
		t.Errorf("%+v", s)
	}
	// Closing a daemon logs out the daemon's ports. The ports of the other daemon are notified.
	ds[1].Close()
	for v.State() == vi.Connected {
		if ctx.Err() != nil {
			t.Fatal("the connection outlives its fabric")
		}
		time.Sleep(time.Millisecond)
	}
}

// TestOneFabricManyClients: many NICs, as of several processes, attach to the fabric of a single
// server at the same time.
func TestOneFabricManyClients(t *testing.T) {
	server := openNIC(t, Config{Listen: "127.0.0.1:0"})
	for range 5 {
		client := openNIC(t, Config{})
		v, w, mem := connectNICs(t, client, server, vi.ReliableReception)
		copy(mem[1].Bytes(), "hello")
		if err := v.PostSend(vi.NewRDMARead(mem[1].Remote(0), mem[0].Segment(0, 5))); err != nil {
			t.Fatal(err)
		}
		if d, err := v.SendWait(context.Background()); err != nil || string(mem[0].Bytes()[:5]) != "hello" {
			t.Errorf("read: %v, %v", d, err)
		}
		_ = w
	}
}

// dialled returns the FCIP links that n has dialled.
func dialled(n *vi.NIC) (links []*fcip.Link) {
	d := n.Device().(*device)
	d.mu.Lock()
	away := slices.Collect(maps.Values(d.away))
	d.mu.Unlock()
	for _, x := range away {
		<-x.done
		links = append(links, x.s.out.(*linkOutlet).l)
	}
	return links
}

// TestCutLink: if the TCP connection breaks, both sides detect the loss at once.
func TestCutLink(t *testing.T) {
	server := openNIC(t, Config{Listen: "127.0.0.1:0"})
	client := openNIC(t, Config{})
	v, w, _ := connectNICs(t, client, server, vi.ReliableDelivery)
	for _, l := range dialled(client) {
		l.Abort(net.ErrClosed)
	}
	end := time.Now().Add(testkit.Patience)
	for v.State() == vi.Connected || w.State() == vi.Connected {
		if time.Now().After(end) {
			t.Fatalf("states %v, %v", v.State(), w.State())
		}
		time.Sleep(time.Millisecond)
	}
}

// A slowProvider calls a function between accepting a request and passing the link to vi.
type slowProvider struct {
	*Provider
	meanwhile func()
}

func (p slowProvider) Open(name string, nic *vi.NIC) (vi.Device, error) {
	d, err := p.Provider.Open(name, nic)
	return slowDevice{d, p.meanwhile}, err
}

type slowDevice struct {
	vi.Device
	meanwhile func()
}

func (d slowDevice) Wait(ctx context.Context, local vi.Address) (vi.Request, error) {
	r, err := d.Device.Wait(ctx, local)
	return slowRequest{r, d.meanwhile}, err
}

type slowRequest struct {
	vi.Request
	meanwhile func()
}

func (r slowRequest) Accept(ctx context.Context, ep *vi.Endpoint) (vi.Link, vi.Agreement, error) {
	l, a, err := r.Request.Accept(ctx, ep)
	r.meanwhile()
	return l, a, err
}

// TestCutBeforeStart: a connection that breaks between set-up and hand-over to the VI is broken at
// the VI too.
func TestCutBeforeStart(t *testing.T) {
	client := openNIC(t, Config{})
	var server *vi.NIC
	p, err := New(Config{Listen: "127.0.0.1:0", Linger: testkit.Patience})
	if err != nil {
		t.Fatal(err)
	}
	server, err = vi.Open(slowProvider{p, func() {
		for _, l := range dialled(client) {
			l.Abort(net.ErrClosed)
		}
		s := server.Device().(slowDevice).Device.(*device).home
		for end := time.Now().Add(testkit.Patience); ; time.Sleep(time.Millisecond) {
			s.enter()
			left := len(s.p.handles.all())
			s.leave()
			if left == 0 {
				return
			}
			if time.Now().After(end) {
				t.Error("the endpoint is not gone")
				return
			}
		}
	}}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	var vis [2]*vi.VI
	for i, n := range []*vi.NIC{client, server} {
		if vis[i], err = n.CreateVI(vi.Attributes{Reliability: vi.ReliableReception}, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	w := vis[1]
	at := vi.Address{Host: server.Query().LocalAddress, Discriminator: []byte("x")}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	called := make(chan struct{})
	go func() { // the request fails if the disconnect arrives before the last answer
		defer close(called)
		vis[0].ConnectRequest(ctx, vi.Address{Discriminator: []byte("me")}, at)
	}()
	r, err := server.ConnectWait(ctx, at)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Accept(ctx, w); err != nil {
		t.Fatal(err)
	}
	<-called
	for end := time.Now().Add(testkit.Patience); w.State() == vi.Connected; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the VI is still connected")
		}
	}
}

// TestNoAllocation: in steady state neither a frame nor a message causes an allocation.
func TestNoAllocation(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	const n = 1 << 18
	end := time.Now().Add(testkit.Patience)
	for _, level := range []vi.Reliability{vi.ReliableDelivery, vi.ReliableReception} {
		// in shared memory a message would fill the ring, and waiting for room starts a goroutine
		v, w, src, dst := benchPair(t, level, Config{SameHost: samehost.Off})
		recv := vi.NewRecv(dst.Segment(0, n))
		for _, c := range []struct {
			name string
			d    *vi.Descriptor
			recv bool
		}{
			{name: "write", d: vi.NewRDMAWrite(dst.Remote(0), src.Segment(0, n))},
			{name: "read", d: vi.NewRDMARead(dst.Remote(0), src.Segment(0, n))},
			{name: "send", d: vi.NewSend(src.Segment(0, n)), recv: true},
		} {
			one := func() {
				if c.recv {
					if err := w.PostRecv(recv); err != nil {
						t.Fatal(err)
					}
				}
				if err := v.PostSend(c.d); err != nil {
					t.Fatal(err)
				}
				poll(t, v.SendDone)
				if c.recv {
					poll(t, w.RecvDone)
				}
			}
			for range 20 {
				one()
			}
			a := allocsPer(20, one)
			for a >= 1 && time.Now().Before(end) { // repeated, because a full socket starts a goroutine that waits
				a = allocsPer(20, one)
			}
			if a >= 1 {
				t.Errorf("%v: %.2f allocations for a %s of %d frames", level, a, c.name, n/2080)
			}
		}
	}
}

// allocsPer is testing.AllocsPerRun without rounding down, and with all processors. AllocsPerRun
// uses a single processor, on which a poller would wait until the scheduler runs it again.
func allocsPer(runs int, f func()) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range runs {
		f()
	}
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / float64(runs)
}

// poll calls done until done returns a descriptor, and fails the test after a time limit.
func poll(t *testing.T, done func() (*vi.Descriptor, error)) {
	t.Helper()
	for end := time.Now().Add(testkit.Patience); ; {
		d, err := done()
		switch {
		case err == nil && d.Status().Err() == nil:
			return
		case err == nil:
			t.Fatal(d.Status().Err())
		case !errors.Is(err, vi.ErrNotDone) || time.Now().After(end):
			t.Fatal(err)
		}
	}
}

// A door is a listening socket whose server may be replaced. While no server is there, a door ends
// each connection at once. No other process can take the port meanwhile.
type door struct {
	net.Listener
	server atomic.Pointer[doorway]
}

func openDoor(t *testing.T) *door {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &door{Listener: ln}
	d.enter().Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			w := d.server.Load()
			select {
			case w.conns <- nc:
			case <-w.closed:
				nc.Close()
			}
		}
	}()
	t.Cleanup(func() {
		d.server.Load().Close()
		ln.Close()
		<-done
	})
	return d
}

// enter returns the listener of a new server.
func (d *door) enter() net.Listener {
	w := &doorway{door: d, conns: make(chan net.Conn), closed: make(chan struct{})}
	d.server.Store(w)
	return w
}

// A doorway is the listener of a server behind a door.
type doorway struct {
	*door
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (w *doorway) Accept() (net.Conn, error) {
	select {
	case nc := <-w.conns:
		return nc, nil
	case <-w.closed:
		return nil, net.ErrClosed
	}
}

func (w *doorway) Close() error {
	w.once.Do(func() { close(w.closed) })
	return nil
}

// TestFabricRestart: the members of a restarted fabric join the fabric again, and pending waits for
// requests continue. TestRedialer of package fcip checks the pauses between the attempts.
// [FCFS-3.2-5]
func TestFabricRestart(t *testing.T) {
	front := openDoor(t)
	serve := func() *fabricd.Daemon {
		d := fabricd.New(fabricd.Config{Name: fc.NodeName(0x020000003101), Logger: testLogger})
		t.Cleanup(func() { d.Close() })
		ln := front.enter()
		go d.Serve(ln)
		return d
	}
	d := serve()
	var warned [2]atomic.Int32
	open := func(i int, host string) *vi.NIC {
		log := slog.New(&warnings{Handler: slog.DiscardHandler, text: "link to fabric lost", n: &warned[i]})
		return openNamed(t, Config{Fabric: front.Addr().String(), Logger: log}, host)
	}
	client, server := open(0, "192.0.2.1"), open(1, "192.0.2.2")
	v, w, _ := connectNICs(t, client, server, vi.ReliableReception)

	// A consumer waits from before the loss on, and a second request is made during the loss.
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	at := vi.Address{Host: server.Query().LocalAddress, Discriminator: []byte("later")}
	newVI := func(n *vi.NIC) *vi.VI {
		v, err := n.CreateVI(vi.Attributes{Reliability: vi.ReliableReception}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	accepted, asked := make(chan error, 1), make(chan error, 1)
	x, y := newVI(client), newVI(server)
	go func() {
		r, err := server.ConnectWait(ctx, at)
		if err == nil {
			err = r.Accept(ctx, y)
		}
		accepted <- err
	}()
	d.Close()
	for v.State() == vi.Connected || w.State() == vi.Connected || warned[0].Load() == 0 || warned[1].Load() == 0 {
		if ctx.Err() != nil {
			t.Fatalf("states %v, %v; %d and %d warnings", v.State(), w.State(), warned[0].Load(), warned[1].Load())
		}
		time.Sleep(time.Millisecond)
	}
	var restarted atomic.Bool
	go func() {
		for {
			_, err := x.ConnectRequest(ctx, vi.Address{Discriminator: []byte("me")}, at)
			if errors.Is(err, vi.ErrNotReachable) && restarted.Load() && ctx.Err() == nil {
				continue // the server joins much later than the client
			}
			asked <- err
			return
		}
	}()
	// After this wait the pauses between dials have reached their limit.
	select {
	case err := <-asked:
		t.Fatalf("a request without a fabric ended: %v", err)
	case <-time.After(2 * time.Second):
	}
	restarted.Store(true)
	serve()
	for _, c := range []chan error{asked, accepted} {
		if err := <-c; err != nil {
			t.Fatal(err)
		}
	}
	for i := range warned {
		if n := warned[i].Load(); n != 1 {
			t.Errorf("%d warnings of one loss", n)
		}
	}
}

// A warnings counts the logged warnings containing a text.
type warnings struct {
	slog.Handler
	text string
	n    *atomic.Int32
}

func (*warnings) Enabled(context.Context, slog.Level) bool { return true }

func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn && r.Message == w.text {
		w.n.Add(1)
	}
	return nil
}
