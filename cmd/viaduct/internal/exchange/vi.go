package exchange

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"viaduct/fcvi"
	"viaduct/internal/fc"
	"viaduct/internal/fc/fcip"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
	"viaduct/vitcp"
)

// A viEnd is a host of a connection between VIs, with some memory.
type viEnd struct {
	nic *vi.NIC
	v   *vi.VI
	mem *vi.Region
}

// memory is the size of the memory each end registers.
const memory = 8192

var viAttributes = vi.Attributes{Reliability: vi.ReliableReception, MaxTransferSize: 4096,
	EnableRDMAWrite: true, EnableRDMARead: true, FlowControl: true}

func newVIEnd(p vi.Provider, a vi.Attributes) (e *viEnd, err error) {
	e = &viEnd{}
	if e.nic, err = vi.Open(p, "", nil); err != nil {
		return nil, err
	}
	e.nic.ErrorCallback(func(vi.ErrorDescriptor) {}) // without it, the NIC would log the error that the exchange shows
	if e.v, err = e.nic.CreateVI(a, nil, nil); err != nil {
		return nil, err
	}
	e.mem, err = e.nic.RegisterMem(make([]byte, memory), vi.MemAttributes{EnableRDMAWrite: true, EnableRDMARead: true})
	return e, err
}

// connect connects a to b, where b has the discriminator "server".
func connect(ctx context.Context, a, b *viEnd) error {
	at := b.nic.Query().LocalAddress
	served := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		r, err := b.nic.ConnectWait(ctx, vi.Address{Host: at, Discriminator: []byte("server")})
		if err == nil {
			err = r.Accept(ctx, b.v)
		}
		served <- err
	}()
	_, err := a.v.ConnectRequest(ctx, vi.IPAddress(netip.MustParseAddrPort("127.0.0.1:0"), "client"),
		vi.Address{Host: at, Discriminator: []byte("server")})
	if err != nil {
		cancel()
	}
	return errors.Join(err, <-served)
}

// connectSoon is connect for a line whose frames have short time-outs. A time-out is an error
// matching errBusy.
func (l *line) connectSoon(a, b *viEnd) error {
	err := connect(l.ctx, a, b)
	if errors.Is(err, vi.ErrNotReachable) || errors.Is(err, vi.ErrTimeout) {
		err = fmt.Errorf("%w: %w", errBusy, err)
	}
	return err
}

func (e *viEnd) close() {
	e.v.Disconnect()
	for _, done := range []func() (*vi.Descriptor, error){e.v.SendDone, e.v.RecvDone} {
		for d, _ := done(); d != nil; d, _ = done() {
		}
	}
	e.nic.Close()
}

// send posts d and waits for the completion.
func (e *viEnd) send(ctx context.Context, d *vi.Descriptor) error {
	if err := e.v.PostSend(d); err != nil {
		return err
	}
	_, err := e.v.SendWait(ctx)
	return err
}

func vitcpEnds(l *line) (a, b *viEnd, err error) {
	p, err := vitcp.New(vitcp.Config{Listen: "127.0.0.1:0", Grace: time.Second, Disconnect: true})
	if err != nil {
		return nil, nil, err
	}
	if b, err = newVIEnd(p, viAttributes); err != nil {
		return nil, nil, err
	}
	q, err := vitcp.New(vitcp.Config{WrapConn: l.join, Disconnect: true})
	if err != nil {
		return nil, nil, err
	}
	a, err = newVIEnd(q, viAttributes)
	return a, b, err
}

func vitcpConnect(l *line) error {
	a, b, err := vitcpEnds(l)
	if err != nil {
		return err
	}
	defer a.close()
	defer b.close()
	if err := connect(l.ctx, a, b); err != nil {
		return err
	}
	l.step(2)
	err = a.v.Disconnect()
	l.step(4)
	return err
}

func vitcpRDMA(l *line) error {
	a, b, err := vitcpEnds(l)
	if err != nil {
		return err
	}
	defer a.close()
	defer b.close()
	for range 3 {
		if err := b.v.PostRecv(vi.NewRecv(b.mem.Segment(0, 1000))); err != nil {
			return err
		}
	}
	if err := connect(l.ctx, a, b); err != nil {
		return err
	}
	for _, d := range []*vi.Descriptor{
		vi.NewSend(a.mem.Segment(0, 100)),
		vi.NewRDMAWrite(b.mem.Remote(0), a.mem.Segment(0, 3000)),
		vi.NewRDMARead(b.mem.Remote(4000), a.mem.Segment(4000, 2000)),
	} {
		l.step(1)
		if err := a.send(l.ctx, d); err != nil {
			return err
		}
	}
	l.step(3)
	return nil
}

// vitcpPeer makes two hosts connect to each other at the same time. The addresses decide which
// connection is kept.
func vitcpPeer(l *line) error {
	const port = 0
	var ends [2]*viEnd
	var at [2]vi.Address
	listens := map[uint16]bool{}
	var mu sync.Mutex
	for i, ip := range []string{"127.0.0.1", "127.0.0.2"} {
		// Only the opening end puts a connection on the line, because bytes must pass the line
		// once.
		wrap := func(nc net.Conn) net.Conn {
			mu.Lock()
			accepted := listens[addrOf(nc.LocalAddr()).Port()]
			mu.Unlock()
			if accepted {
				return nc
			}
			return l.join(nc)
		}
		p, err := vitcp.New(vitcp.Config{Listen: netip.AddrPortFrom(netip.MustParseAddr(ip), port).String(),
			Grace: time.Second, WrapConn: wrap})
		if err != nil {
			return err
		}
		if ends[i], err = newVIEnd(p, viAttributes); err != nil {
			return err
		}
		defer ends[i].close()
		at[i] = vi.Address{Host: ends[i].nic.Query().LocalAddress, Discriminator: []byte{"AB"[i]}}
		if h := at[i].Host; len(h) > 4 {
			mu.Lock()
			listens[uint16(h[len(h)-2])<<8|uint16(h[len(h)-1])] = true
			mu.Unlock()
		}
	}
	l.step(1)
	l.hold(2)
	var wg sync.WaitGroup
	var errs [2]error
	for i, e := range ends {
		ended := make(chan struct{})
		wg.Go(func() {
			defer close(ended)
			if errs[i] = e.v.ConnectPeerRequest(at[i], at[1-i], Patience); errs[i] == nil {
				_, errs[i] = e.v.ConnectPeerWait(l.ctx)
			}
		})
		l.awaitBegin(ended) // A sends first, so that the picture is the same every time
	}
	wg.Wait()
	l.step(3)
	return errors.Join(errs[:]...)
}

// fcviEnds returns two ports with an FCIP link between them. The line carries Fibre Channel frames
// one by one.
func fcviEnds(l *line, a vi.Attributes) (x, y *viEnd, err error) {
	l.cut = func(b []byte) int {
		if len(b) < 16 {
			return 0
		}
		n, err := fcip.FrameLen(b)
		if err != nil {
			return len(b)
		}
		if len(b) < n {
			return 0
		}
		return n
	}
	timeout := 10 * Delay * time.Duration(l.leisure) // for frames: as short as the line allows
	p, err := fcvi.New(fcvi.Config{Listen: "127.0.0.1:0", EDTOV: timeout, RATOV: 2 * timeout,
		ULPTimeout: 2 * timeout, PortName: fcvi.WWN(fc.PortName(0x02000000000b, 1)),
		NodeName: fcvi.WWN(fc.NodeName(0x02000000000b))})
	if err != nil {
		return nil, nil, err
	}
	if y, err = newVIEnd(p, a); err != nil {
		return nil, nil, err
	}
	q, err := fcvi.New(fcvi.Config{WrapConn: l.join, EDTOV: timeout, RATOV: 2 * timeout,
		ULPTimeout: 2 * timeout, PortName: fcvi.WWN(fc.PortName(0x02000000000a, 1)),
		NodeName: fcvi.WWN(fc.NodeName(0x02000000000a))})
	if err != nil {
		return nil, nil, err
	}
	x, err = newVIEnd(q, a)
	return x, y, err
}

// loseFirst makes the line lose the next Information Unit with the opcode op, and done reports the
// loss.
func (l *line) loseFirst(op iu.Opcode) (done func() bool) {
	var over bool // guarded by l.mu
	var f fc.Frame
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lose = func(b []byte) bool {
		if over {
			return false
		}
		if _, err := fcip.Parse(b, &f); err != nil || f.Type != fc.TypeFCVI || len(f.Opt) < iu.ShortLen {
			return false
		}
		h, _, err := iu.ParseHeader(f.Opt)
		over = err == nil && h.Op == op
		return over
	}
	return func() bool { l.mu.Lock(); defer l.mu.Unlock(); return over }
}

var errNotLost = errors.New("nothing was lost")

func fcviConnect(l *line) error {
	x, y, err := fcviEnds(l, viAttributes)
	if err != nil {
		return err
	}
	defer y.close()
	defer x.close()
	lost := l.loseFirst(iu.ConnectResp2)
	if err := l.connectSoon(x, y); err != nil {
		return err
	}
	if !lost() {
		return errNotLost
	}
	l.step(2)
	err = x.v.Disconnect()
	l.step(4)
	return err
}

func fcviLoss(l *line) error {
	a := viAttributes
	a.Reliability, a.FlowControl = vi.ReliableDelivery, false
	x, y, err := fcviEnds(l, a)
	if err != nil {
		return err
	}
	defer y.close()
	defer x.close()
	for range 2 {
		if err := y.v.PostRecv(vi.NewRecv(y.mem.Segment(0, 1000))); err != nil {
			return err
		}
	}
	if err := l.connectSoon(x, y); err != nil {
		return err
	}
	l.step(1)
	err = x.send(l.ctx, vi.NewSend(x.mem.Segment(0, 100)))
	if err == nil { // the message may still be before the line, which is about to lose the next one
		_, err = y.v.RecvWait(l.ctx)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errBusy, err) // a message that was not lost on purpose
	}
	l.step(1)
	lost := l.loseFirst(iu.SendRqst)
	if err := x.v.PostSend(vi.NewSend(x.mem.Segment(0, 200))); err != nil {
		return err
	}
	for end := time.Now().Add(Patience); x.v.State() == vi.Connected || y.v.State() == vi.Connected; l.step(1) {
		if time.Now().After(end) {
			return errors.New("the loss was not found")
		}
	}
	if !lost() {
		return errNotLost
	}
	l.step(3)
	return nil
}
