package fabricd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fabric"
	"viaduct/internal/fc/fcip"
	"viaduct/internal/perturb"
	"viaduct/internal/sock"
	"viaduct/samehost"
)

// A Config describes a daemon.
type Config struct {
	Name        fc.WWN // Switch_Name; not zero
	Domain      uint8  // 0 means 1
	EDTOV       time.Duration
	RATOV       time.Duration
	MaxLinks    int // maximum number of FCIP links; 0 means 240
	WrapConn    func(net.Conn) net.Conn
	Congestion  string
	KeepAlive   time.Duration // as in fcip.Config, like all settings here of the same name
	SameHost    samehost.Policy
	SameHostDir string
	Logger      *slog.Logger // nil disables logging
}

// A Daemon is a running fabric.
type Daemon struct {
	cfg   Config
	start time.Time
	acc   *fcip.Acceptor
	wg    sync.WaitGroup

	// mu guards the switch. mu is never held during a call of a device of this process; links and
	// local ports only queue frames.
	mu     perturb.Mutex
	gen    atomic.Uint64 // incremented by every change that may affect a route
	sw     *fabric.Switch
	links  map[*port]struct{}
	locals []*Local // never changed in place: Room reads it without the lock
	lns    map[net.Listener]struct{}
	closed bool
	ctx    context.Context
	cancel context.CancelFunc
}

// New returns a daemon without links.
func New(cfg Config) *Daemon {
	if cfg.Domain == 0 {
		cfg.Domain = 1
	}
	if cfg.MaxLinks == 0 {
		cfg.MaxLinks = 240
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Daemon{cfg: cfg, start: time.Now(), links: map[*port]struct{}{}, lns: map[net.Listener]struct{}{}}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.sw = fabric.NewSwitch(fabric.SwitchConfig{Name: cfg.Name, Domain: cfg.Domain, EDTOV: cfg.EDTOV, RATOV: cfg.RATOV,
		Epoch: uint32(time.Now().Unix()), Logger: cfg.Logger})
	d.acc = fcip.NewAcceptor(d.linkConfig())
	return d
}

func (d *Daemon) linkConfig() fcip.Config {
	return fcip.Config{FabricName: d.cfg.Name, Entity: uint64(d.cfg.Domain), WrapConn: d.cfg.WrapConn,
		Congestion: d.cfg.Congestion, KeepAlive: d.cfg.KeepAlive, SameHost: d.cfg.SameHost,
		SameHostDir: d.cfg.SameHostDir, Logger: d.cfg.Logger}
}

func (d *Daemon) now() fc.Time { return time.Since(d.start) }

// Stats returns the counters of the switch.
func (d *Daemon) Stats() fabric.SwitchStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sw.Stats()
}

// Logins returns the number of N_Ports logged in.
func (d *Daemon) Logins() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sw.Logins()
}

// Listen returns ln, or a replacement for ln with shared memory, if Config.SameHost allows it.
func (d *Daemon) Listen(ln net.Listener) (net.Listener, error) {
	cfg := d.linkConfig()
	return cfg.Listen(ln)
}

// Serve accepts FCIP links on ln until ln or the daemon is closed. It always returns an error,
// which is net.ErrClosed after Close.
func (d *Daemon) Serve(ln net.Listener) error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		ln.Close()
		return net.ErrClosed
	}
	d.lns[ln] = struct{}{}
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		delete(d.lns, ln)
		d.mu.Unlock()
		ln.Close()
	}()
	var half = make(chan struct{}, 64) // limits the connections that have not sent a Special Frame
	for {
		nc, err := sock.AcceptNext(ln.Accept, d.ctx.Done())
		if err != nil {
			if d.ctx.Err() != nil {
				return net.ErrClosed
			}
			return err
		}
		select {
		case half <- struct{}{}:
		default:
			nc.Close()
			continue
		}
		d.mu.Lock()
		if d.closed {
			d.mu.Unlock()
			nc.Close()
			return net.ErrClosed
		}
		d.wg.Go(func() {
			defer func() { <-half }()
			l, err := d.acc.Accept(d.ctx, nc)
			if err != nil {
				if !errors.Is(err, fcip.ErrRefused) {
					d.cfg.Logger.Info("link refused", "remote", nc.RemoteAddr().String(), "err", err)
				}
				return
			}
			if err := d.attach(l, false); err != nil {
				d.cfg.Logger.Info("link refused", "remote", nc.RemoteAddr().String(), "err", err)
			}
		})
		d.mu.Unlock()
	}
}

// Join links this daemon with the daemon at address. If the first attempt fails, Join returns the
// error. Otherwise Join returns nil, and a lost link is made again until the daemon is closed.
func (d *Daemon) Join(ctx context.Context, address string) error {
	l, err := fcip.Dial(ctx, address, d.linkConfig())
	if err != nil {
		return err
	}
	if err := d.attach(l, true); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return net.ErrClosed
	}
	d.wg.Go(func() { d.keep(l, address) })
	return nil
}

// keep dials address again each time the link is lost, until the daemon is closed. [FCFS-3.2-5]
func (d *Daemon) keep(l *fcip.Link, address string) {
	r := fcip.Redialer{Address: address, Config: d.linkConfig()}
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-l.Done():
		}
		if d.ctx.Err() == nil {
			d.cfg.Logger.Warn("link to fabric lost", "remote", address)
		}
		var err error
		if l, err = r.Dial(d.ctx); err != nil {
			return
		}
		if err = d.attach(l, true); err != nil {
			d.cfg.Logger.Warn("link to fabric not restored", "remote", address, "err", err)
		} else {
			d.cfg.Logger.Info("link to fabric restored", "remote", address)
		}
	}
}

// ErrFull means that the daemon has reached the limit of links.
var ErrFull = errors.New("fabricd: no room for another link")

// attach creates a port of the switch for l and starts l. On an error attach has aborted l.
func (d *Daemon) attach(l *fcip.Link, isl bool) error {
	p := &port{d: d, link: l}
	d.mu.Lock()
	full := len(d.links) >= d.cfg.MaxLinks
	if !full && !d.closed {
		if isl {
			p.sp = d.sw.NewISL(l)
		} else {
			p.sp = d.sw.NewPort(l)
		}
	}
	if p.sp == nil {
		d.mu.Unlock()
		l.Abort(ErrFull)
		return ErrFull
	}
	d.links[p] = struct{}{}
	d.gen.Add(1)
	p.sp.LinkUp(d.now(), fc.LinkInfo{})
	d.mu.Unlock()
	l.Start(p)
	l.Flush()
	d.cfg.Logger.Info("link up", "remote", l.NetConn().RemoteAddr().String(), "peer", l.Peer().String())
	return nil
}

// Close ends every link and waits for all goroutines of the daemon.
func (d *Daemon) Close() error {
	d.mu.Lock()
	d.closed = true
	d.cancel()
	for ln := range d.lns {
		ln.Close()
	}
	var links []*port
	for p := range d.links {
		links = append(links, p)
	}
	clear(d.links)
	d.mu.Unlock()
	for _, p := range links {
		p.link.Close()
	}
	d.wg.Wait()
	return nil
}

// A port is the daemon's end of an FCIP link.
type port struct {
	d     *Daemon
	link  *fcip.Link
	sp    *fabric.SwitchPort
	touch map[flusher]struct{} // links to flush after this batch, besides last; owned by the receive role
	last  flusher
	local *Local // local destination of the current run of frames, or nil
	run   bool

	// These fields cache the last route. It is valid while gen equals the daemon's gen.
	sid, did fc.Addr
	out      fc.Sender
	gen      uint64
	at       fc.Time // time of local's clock during a run

	yield func(*fc.Frame) // the method frame, allocated once
}

type flusher interface{ Flush() }

// Frames handles a batch. It forwards frames between two devices without the lock. All other frames
// go to the switch.
func (p *port) Frames(recv func(yield func(f *fc.Frame))) {
	d := p.d
	if p.touch == nil {
		p.touch = map[flusher]struct{}{}
		p.yield = p.frame
	}
	recv(p.yield)
	p.leave()
	if p.run { // the switch may have sent frames on any link
		p.run = false
		d.flushAll()
	}
	if p.last != nil {
		p.last.Flush()
		p.last = nil
	}
	for x := range p.touch {
		x.Flush()
		delete(p.touch, x)
	}
}

// frame handles a frame of a batch.
func (p *port) frame(f *fc.Frame) {
	d := p.d
	out := p.out
	if f.SID != p.sid || f.DID != p.did || p.gen != d.gen.Load() || f.EOF.Invalid() || f.SOF.Class() == fc.ClassF {
		d.mu.Lock()
		if out = p.sp.Lookup(f); out == nil {
			p.out, p.sid, p.did = nil, 0, 0
			d.gen.Add(1)
			p.sp.Receive(d.now(), f)
			d.mu.Unlock()
			p.leave()
			p.note(nil)
			return
		}
		p.sid, p.did, p.out, p.gen = f.SID, f.DID, out, d.gen.Load()
		d.mu.Unlock()
	}
	if i, ok := out.(*inbox); ok {
		l := (*Local)(i)
		if p.local != l {
			p.leave()
			p.local = l
			l.enter()
			p.at = l.now()
		}
		l.dev.Receive(p.at, f)
		return
	}
	l := out.(*fcip.Link)
	if l.Room() == 0 { // waiting makes TCP's flow control stop the sender
		p.leave()
		l.Flush()
		l.WaitRoom()
	}
	l.Send(f)
	p.note(l)
}

// leave ends a run of frames for a local port.
func (p *port) leave() {
	if p.local != nil {
		p.local.leave()
		p.local = nil
	}
}

func (p *port) note(x flusher) {
	switch {
	case x == nil:
		p.run = true
	case p.last == nil || p.last == x:
		p.last = x
	default:
		p.touch[x] = struct{}{}
	}
}

// flushAll writes the frames queued on any link. Local ports deliver their frames themselves.
func (d *Daemon) flushAll() {
	d.mu.Lock()
	links := make([]*port, 0, len(d.links))
	for p := range d.links {
		links = append(links, p)
	}
	d.mu.Unlock()
	for _, p := range links {
		p.link.Flush()
	}
}

// Room is called when the link has room again, and notifies the N_Ports of this process, because
// some may wait for room.
func (p *port) Room() {
	d := p.d
	d.mu.Lock()
	locals := d.locals
	d.mu.Unlock()
	for _, l := range locals {
		l.room()
	}
}

// Down removes the port from the switch.
func (p *port) Down(err error) {
	d := p.d
	d.mu.Lock()
	delete(d.links, p)
	d.gen.Add(1)
	p.sp.Remove(d.now())
	d.mu.Unlock()
	d.cfg.Logger.Info("link down", "peer", p.link.Peer().String(), "err", err)
	d.flushAll()
	d.mu.Lock()
	closed := d.closed
	if !closed {
		d.wg.Go(func() { p.link.Close() })
	}
	d.mu.Unlock()
}

// String returns the name of the daemon for logs.
func (d *Daemon) String() string {
	return fmt.Sprintf("fabric %v domain %d", d.cfg.Name, d.cfg.Domain)
}
