package fabricd

import (
	"slices"
	"sync"
	"sync/atomic"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fabric"
	"viaduct/internal/fc/fcip"
	"viaduct/internal/perturb"
)

// A LocalDevice is an N_Port of this process. The daemon calls Enter before a series of calls of
// the other methods, and Leave afterwards. A device with a lock takes the lock in Enter.
type LocalDevice interface {
	fabric.Device
	Enter()
	Leave()
}

// A Local attaches an N_Port of this process to the switch, and is its fc.Sender. Frames for links
// are sent at once. Frames to and from the switch or other local ports go through a queue, so that
// no port is called during a call of another port.
type Local struct {
	d   *Daemon
	sp  *fabric.SwitchPort
	dev LocalDevice
	now func() fc.Time

	way   atomic.Pointer[way]
	mu    perturb.Mutex
	in    []queued // guarded by mu: frames from the switch and local ports to this port
	out   []queued // guarded by mu: frames from this port to the switch
	touch []flusher
	free  [][]byte
	kick  chan struct{}
	stop  chan struct{}
	gone  sync.WaitGroup
}

type queued struct {
	f   fc.Frame
	buf []byte
}

// maxQueue is the maximum number of frames waiting for a local port. Further frames are lost, as on
// any link.
const maxQueue = 65536

// Attach connects an N_Port of this process. dev creates the device, and the device sends through
// out. now is the device's clock. The link is up when Attach returns. The error is ErrFull if the
// switch has no free port or the daemon is closed.
func (d *Daemon) Attach(now func() fc.Time, dev func(out fc.Sender) LocalDevice) (*Local, error) {
	l := &Local{d: d, now: now, kick: make(chan struct{}, 1), stop: make(chan struct{})}
	d.mu.Lock()
	if !d.closed {
		l.sp = d.sw.NewPort((*inbox)(l))
	}
	if l.sp == nil {
		d.mu.Unlock()
		return nil, ErrFull
	}
	d.gen.Add(1)
	l.sp.LinkUp(d.now(), fc.LinkInfo{})
	d.mu.Unlock()
	l.dev = dev(l)
	d.mu.Lock()
	d.locals = append(slices.Clip(d.locals), l)
	d.mu.Unlock()
	l.gone.Go(l.serve)
	l.enter()
	l.dev.LinkUp(l.now(), fc.LinkInfo{})
	l.leave()
	return l, nil
}

func (l *Local) enter() { l.dev.Enter() }
func (l *Local) leave() { l.dev.Leave() }

// An inbox is the switch's Sender to a Local.
type inbox Local

// Send queues a frame for the port. The caller may hold the switch's lock.
func (i *inbox) Send(f *fc.Frame) {
	l := (*Local)(i)
	l.mu.Lock()
	if len(l.in) < maxQueue {
		l.in = append(l.in, l.copyLocked(f))
	}
	l.mu.Unlock()
	l.wake()
}

func (l *Local) copyLocked(f *fc.Frame) (q queued) {
	if n := len(l.free); n > 0 {
		q.buf, l.free = l.free[n-1], l.free[:n-1]
	}
	q.buf = f.CloneTo(&q.f, q.buf)
	return q
}

func (l *Local) wake() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// Send sends a frame of the port. It drops the frame if the queue is full. The caller may hold the
// port's lock.
func (l *Local) Send(f *fc.Frame) {
	link := l.route(f.DID)
	if link != nil && f.SOF.Class() != fc.ClassF {
		link.Send(f)
		l.touched(link)
		return
	}
	l.mu.Lock()
	if len(l.out) < maxQueue {
		l.out = append(l.out, l.copyLocked(f))
	}
	l.mu.Unlock()
	l.wake()
}

// SendRun implements fc.RunSender.
func (l *Local) SendRun(f *fc.Frame, size int, data []byte) {
	if link := l.route(f.DID); link != nil {
		link.SendRun(f, size, data)
		l.touched(link)
		return
	}
	for ; len(data) > 0; data = data[size:] {
		f.Payload = data[:size]
		l.Send(f)
		f.Next(size)
	}
}

// touched records that link has frames to be written.
func (l *Local) touched(link *fcip.Link) {
	l.mu.Lock()
	if len(l.touch) == 0 || l.touch[len(l.touch)-1] != link {
		l.touch = append(l.touch, link)
	}
	l.mu.Unlock()
}

// Link returns the FCIP link leading to dst, or nil if there is none.
func (l *Local) Link(dst fc.Addr) *fcip.Link { return l.route(dst) }

// A way is a cached route, valid while gen equals the daemon's gen. link is nil if no FCIP link
// leads to dst.
type way struct {
	dst  fc.Addr
	link *fcip.Link
	gen  uint64
}

func (l *Local) route(dst fc.Addr) *fcip.Link {
	if w := l.way.Load(); w != nil && w.dst == dst && w.gen == l.d.gen.Load() {
		return w.link
	}
	if dst.WellKnown() {
		return nil
	}
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	link, _ := l.sp.Route(dst).(*fcip.Link)
	l.way.Store(&way{dst, link, l.d.gen.Load()})
	return link
}

// maxOut is the maximum number of data frames waiting for the switch.
const maxOut = 256

// Room returns a lower bound of the number of data frames the path to dst can take. If it is 0, a
// fabric.Stalled device is notified when there is room again.
func (l *Local) Room(dst fc.Addr) int {
	if link := l.Link(dst); link != nil {
		return link.Room()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(0, maxOut-len(l.out))
}

// room notifies the device that a link has room again.
func (l *Local) room() {
	if s, ok := l.dev.(fabric.Stalled); ok {
		l.enter()
		s.LinkRoom(l.now())
		l.leave()
	}
}

// Flush writes the frames queued on links by Send. The caller must not hold the lock of the port.
func (l *Local) Flush() {
	for {
		l.mu.Lock()
		if len(l.touch) == 0 {
			l.mu.Unlock()
			return
		}
		x := l.touch[0]
		l.touch = append(l.touch[:0], l.touch[1:]...)
		l.mu.Unlock()
		x.Flush()
	}
}

// serve moves frames from the queues to the switch and to the device, until Close.
func (l *Local) serve() {
	for {
		select {
		case <-l.stop:
			return
		case <-l.kick:
		}
		for l.serveOnce() {
		}
	}
}

func (l *Local) serveOnce() bool {
	l.mu.Lock()
	in, out := l.in, l.out
	l.in, l.out = nil, nil
	l.mu.Unlock()
	if len(in)+len(out) == 0 {
		return false
	}
	for i := range out {
		f := &out[i].f
		l.d.mu.Lock()
		l.d.gen.Add(1)
		l.sp.Receive(l.d.now(), f)
		l.d.mu.Unlock()
	}
	if len(out) > 0 {
		l.d.flushAll()
	}
	if len(in) > 0 {
		l.enter()
		for i := range in {
			l.dev.Receive(l.now(), &in[i].f)
		}
		l.leave()
	}
	if len(out) > 0 {
		l.room()
	}
	l.mu.Lock()
	for _, q := range [2][]queued{in, out} {
		for i := range q {
			if len(l.free) < 1024 {
				l.free = append(l.free, q[i].buf)
			}
		}
	}
	l.mu.Unlock()
	return true
}

// Close removes the port from the switch. After Close has returned, the device is not called any
// more. A method of the device must not call Close, because Close waits for running methods.
func (l *Local) Close() {
	l.d.mu.Lock()
	l.d.gen.Add(1)
	l.sp.Remove(l.d.now())
	l.d.locals = slices.DeleteFunc(slices.Clone(l.d.locals), func(o *Local) bool { return o == l })
	l.d.mu.Unlock()
	close(l.stop)
	l.gone.Wait()
	l.d.flushAll()
}
