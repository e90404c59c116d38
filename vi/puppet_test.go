package vi_test

import (
	"context"
	"testing"

	"viaduct/internal/vitest/memvi"
	"viaduct/vi"
)

// A puppet is a provider with a single device whose connections a test controls directly. By
// default a connect succeeds at once, without a peer, and no descriptor moves. A test can replace
// parts of the behaviour.
type puppet struct {
	limits   func(*vi.NICAttributes)
	connect  func(context.Context, *puppetLink) error
	wait     func() (vi.Request, error)
	lookup   func(name string) ([][]byte, error)
	closeErr error
	closed   int // how often the device was closed
}

func (p *puppet) Open(name string, n *vi.NIC) (vi.Device, error) {
	d, err := (&memvi.Network{Limits: p.limits}).Open(name, n)
	return puppetDevice{d, p}, err
}

type puppetDevice struct {
	vi.Device
	p *puppet
}

func (d puppetDevice) Connect(ctx context.Context, ep *vi.Endpoint, _, remote vi.Address) (vi.Link, vi.Agreement, error) {
	l := &puppetLink{ep: ep, stopped: make(chan vi.StopReason, 1)}
	if d.p.connect != nil {
		if err := d.p.connect(ctx, l); err != nil {
			return nil, vi.Agreement{}, err
		}
	}
	return l, vi.Agreement{Remote: ep.Attributes(), RemoteAddress: remote, MaxTransferSize: ep.Attributes().MaxTransferSize, ReadWindow: 1}, nil
}

func (d puppetDevice) ConnectPeer(ctx context.Context, ep *vi.Endpoint, local, remote vi.Address) (vi.Link, vi.Agreement, error) {
	return d.Connect(ctx, ep, local, remote)
}

func (d puppetDevice) Wait(context.Context, vi.Address) (vi.Request, error) { return d.p.wait() }

func (d puppetDevice) LookupHost(_ context.Context, name string) ([][]byte, error) {
	return d.p.lookup(name)
}

func (d puppetDevice) Close() error {
	d.p.closed++
	d.Device.Close()
	return d.p.closeErr
}

type puppetLink struct {
	ep      *vi.Endpoint
	poll    func() bool
	traffic func() vi.Traffic
	onStop  func()
	onEnd   func()
	stopped chan vi.StopReason // gets the reason of Stop; has one slot
}

func (l *puppetLink) Start()                               {}
func (l *puppetLink) SendPosted()                          {}
func (l *puppetLink) RecvPosted()                          {}
func (l *puppetLink) Poll() bool                           { return l.poll != nil && l.poll() }
func (l *puppetLink) Unpoll()                              {}
func (l *puppetLink) Wait()                                {}
func (p *puppet) open(t testing.TB) *vi.NIC                { return p.openWith(t, nil) }
func (l *puppetLink) start() started                       { d, seq, bad := l.ep.StartSend(); return started{d, seq, bad} }
func (l *puppetLink) finish(s started, bad vi.Status) bool { return l.ep.FinishSend(s.d, s.seq, bad) }

func (l *puppetLink) Stop(r vi.StopReason) {
	if l.onStop != nil {
		l.onStop()
	}
	l.stopped <- r
}

// End ends the link in the calling goroutine of the engine.
func (l *puppetLink) End(gone func()) {
	if l.onEnd != nil {
		l.onEnd()
	}
	gone()
}

func (l *puppetLink) Traffic() vi.Traffic {
	if l.traffic == nil {
		return vi.Traffic{Credits: -1}
	}
	return l.traffic()
}

// A started is a started send descriptor, with the sequence number and the result of the check.
type started struct {
	d   *vi.Descriptor
	seq uint64
	bad vi.Status
}

func (p *puppet) openWith(t testing.TB, cfg *vi.Config) *vi.NIC {
	t.Helper()
	n, err := vi.Open(p, "", cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

// connected returns a connected VI of a new NIC, and the link of the VI.
func (p *puppet) connected(t testing.TB, a vi.Attributes) (*vi.VI, *puppetLink) {
	t.Helper()
	v := create(t, p.open(t), a)
	here := vi.Address{Host: v.NIC().Query().LocalAddress}
	if _, err := v.ConnectRequest(t.Context(), here, here); err != nil {
		t.Fatal(err)
	}
	return v, v.Link().(*puppetLink)
}

// send posts a descriptor to the send queue.
func send(t testing.TB, v *vi.VI, d *vi.Descriptor) *vi.Descriptor {
	t.Helper()
	if err := v.PostSend(d); err != nil {
		t.Fatal(err)
	}
	return d
}
