package fabric

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/perturb"
)

// A Device is the end of a link: an N_Port or the port of a switch.
type Device interface {
	LinkUp(now fc.Time, info fc.LinkInfo)
	LinkDown(now fc.Time)
	Receive(now fc.Time, f *fc.Frame) // f is valid during the call
}

// A Ticker is a device with its own timers. The Net calls Tick at Deadline.
type Ticker interface {
	Tick(now fc.Time)
	Deadline() fc.Time
}

// A Stalled is a device notified by the Net when the device's link, after Room has returned false,
// has room again.
type Stalled interface {
	LinkRoom(now fc.Time)
}

// DefaultDelay is the transit time of a frame on a link.
const DefaultDelay = 5 * time.Microsecond

// DefaultFrameTime is how long a link is busy with a frame: the time of a full frame at 16 Gbit/s.
const DefaultFrameTime = time.Microsecond

// DefaultCredit is the buffer-to-buffer credit of a link end: the number of frames in transit at
// which End.Room returns false. [FCFS-2.9-1]
const DefaultCredit = 64

// NetStats has the counters of a Net.
type NetStats struct {
	Sent, Delivered       uint64
	Dropped, Duplicated   uint64 // dropped or duplicated by the fault plan
	Delayed, Corrupted    uint64
	Truncated, LinkLosses uint64 // LinkLosses: dropped because a link was down
	BadCRC                uint64 // damaged frames that the receiver detected
}

// A Net is a set of links between devices.
type Net struct {
	mu      perturb.Mutex // guards calls, pending, free, and inFlight and stalled of the ends
	calls   []func()
	pending []*packet
	free    []*packet
	kick    chan struct{}

	// The goroutine running the Net owns the fields below.
	rng    *rand.Rand
	now    fc.Time
	events eventHeap
	seq    uint64
	ends   []*End
	devs   []Device // in order of attachment, without duplicates
	faults []*Fault
	noise  Noise
	stats  NetStats
	tap    func(now fc.Time, from *End, f *fc.Frame)
}

// NewNet returns an empty Net. The seed determines all random decisions.
func NewNet(seed uint64) *Net {
	return &Net{rng: rand.New(rand.NewPCG(seed, 0x5EED)), kick: make(chan struct{}, 1)}
}

// Now returns the time of the Net.
func (n *Net) Now() fc.Time { return n.now }

// Stats returns a copy of the counters. In real time Stats may be called only after Serve has
// returned.
func (n *Net) Stats() NetStats { return n.stats }

// Tap makes the Net call fn for every frame when it is sent, before faults are applied.
func (n *Net) Tap(fn func(now fc.Time, from *End, f *fc.Frame)) { n.tap = fn }

// A packet is a frame in transit, or, if fn is set, another event.
type packet struct {
	at   fc.Time
	seq  uint64
	to   *End
	from *End
	f    fc.Frame
	buf  []byte
	wire []byte // serialised form of a damaged frame
	fn   func(now fc.Time)
}

type eventHeap []*packet

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(*packet)) }
func (h *eventHeap) Pop() any {
	o := *h
	p := o[len(o)-1]
	o[len(o)-1] = nil
	*h = o[:len(o)-1]
	return p
}

// An End is a device's end of a link. It is the device's fc.Sender.
type End struct {
	Name   string
	net    *Net
	dev    Device
	info   fc.LinkInfo
	peers  []*End // the other end of a link, or the other ends of a loop
	loop   bool
	up     bool
	Faulty bool // the fault plan applies to frames that this end sends
	Delay  time.Duration
	Frame  time.Duration // time for which each frame occupies the link
	Credit int

	inFlight int // guarded by net.mu
	stalled  bool
	busy     fc.Time // time at which the link has finished sending
	last     fc.Time // time of the latest delivery; later frames arrive no earlier, so the order is kept
}

// Send puts f on the link.
func (e *End) Send(f *fc.Frame) {
	n := e.net
	n.mu.Lock()
	p := n.get()
	p.from = e
	p.buf = f.CloneTo(&p.f, p.buf)
	e.inFlight++
	n.pending = append(n.pending, p)
	n.mu.Unlock()
	n.wake()
}

// Room reports whether the link can take another frame without exceeding the credit. After false,
// the Net calls LinkRoom of the device when there is room again.
func (e *End) Room() bool {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	if e.inFlight < e.Credit {
		return true
	}
	e.stalled = true
	return false
}

func (n *Net) wake() {
	select {
	case n.kick <- struct{}{}:
	default:
	}
}

func (n *Net) get() *packet {
	if k := len(n.free); k > 0 {
		p := n.free[k-1]
		n.free = n.free[:k-1]
		return p
	}
	return &packet{}
}

func (n *Net) put(p *packet) {
	*p = packet{buf: p.buf, wire: p.wire[:0]}
	if len(n.free) < 4096 {
		n.free = append(n.free, p)
	}
}

// At makes the Net call fn at time at, or at once if that time has passed.
func (n *Net) At(at fc.Time, fn func(now fc.Time)) {
	n.push(&packet{at: max(at, n.now), fn: fn})
}

func (n *Net) push(p *packet) {
	n.seq++
	p.seq = n.seq
	heap.Push(&n.events, p)
}

func (n *Net) end(name string, dev Device) *End {
	e := &End{Name: name, net: n, dev: dev, Delay: DefaultDelay, Frame: DefaultFrameTime, Credit: DefaultCredit}
	n.ends = append(n.ends, e)
	return e
}

func (n *Net) setDev(e *End, d Device) {
	e.dev = d
	_, isSwitch := d.(*SwitchPort)
	e.Faulty = !isSwitch
	for _, o := range n.devs {
		if o == d {
			return
		}
	}
	n.devs = append(n.devs, d)
}

// Connect joins two devices by a link. Each function creates a device that sends through out. The
// link comes up at Start. A link made after Start needs BringUp.
func (n *Net) Connect(a, b func(out fc.Sender) Device) (*End, *End) {
	ea, eb := n.end("a", nil), n.end("b", nil)
	ea.peers, eb.peers = []*End{eb}, []*End{ea}
	n.setDev(ea, a(ea))
	n.setDev(eb, b(eb))
	return ea, eb
}

// Attach joins a device to a new port of sw and returns the device's end.
func (n *Net) Attach(sw *Switch, dev func(out fc.Sender) Device) *End {
	e, _ := n.Connect(dev, func(out fc.Sender) Device { return sw.NewPort(out) })
	return e
}

// JoinSwitches connects two switches by an inter-switch link.
func (n *Net) JoinSwitches(a, b *Switch) (*End, *End) {
	return n.Connect(func(out fc.Sender) Device { return a.NewISL(out) },
		func(out fc.Sender) Device { return b.NewISL(out) })
}

// alpas are AL_PAs in order of priority. Any other list of valid AL_PAs would do.
var alpas = []uint8{0x01, 0x02, 0x04, 0x08, 0x0F, 0x10, 0x17, 0x18, 0x1B, 0x1D, 0x1E, 0x1F, 0x23, 0x25, 0x26, 0x27}

// Loop joins at most 16 devices to an arbitrated loop. The loop is private if sw is nil and public
// otherwise. The ends are returned in the order of devs, followed by the end of the FL_Port of a
// public loop.
func (n *Net) Loop(sw *Switch, devs ...func(out fc.Sender) Device) []*End {
	var ends []*End
	for i := range devs {
		e := n.end("loop", nil)
		e.loop = true
		e.info = fc.LinkInfo{Loop: true, ALPA: alpas[i], FLPort: sw != nil}
		ends = append(ends, e)
	}
	if sw != nil {
		e := n.end("fl", nil)
		e.loop, e.info = true, fc.LinkInfo{Loop: true, FLPort: true}
		ends = append(ends, e)
	}
	for _, e := range ends {
		for _, o := range ends {
			if o != e {
				e.peers = append(e.peers, o)
			}
		}
	}
	for i, d := range devs {
		n.setDev(ends[i], d(ends[i]))
	}
	if sw != nil {
		e := ends[len(ends)-1]
		n.setDev(e, sw.NewPort(e))
	}
	return ends
}

// SetALPA changes the AL_PA assigned to e at the next loop initialisation.
func (e *End) SetALPA(a uint8) { e.info.ALPA = a }

// Start brings all links up. In virtual time Start must be called before Run.
func (n *Net) Start() {
	for _, e := range n.ends {
		n.bringUp(e)
	}
}

func (n *Net) bringUp(e *End) {
	e.up = true
	n.At(n.now, func(now fc.Time) {
		if e.up {
			e.dev.LinkUp(now, e.info)
		}
	})
}

// Do makes the goroutine running the Net call fn soon, and does not wait. Use it to change a Net
// during Serve.
func (n *Net) Do(fn func()) {
	n.mu.Lock()
	n.calls = append(n.calls, fn)
	n.mu.Unlock()
	n.wake()
}

// BringUp brings up a link created after Start.
func (n *Net) BringUp(e *End) {
	for _, o := range append([]*End{e}, e.peers...) {
		n.bringUp(o)
	}
}

// Remove removes a device from its link permanently. The device's methods are not called
// afterwards.
func (n *Net) Remove(e *End) {
	n.purge(e)
	e.up = false
	n.ends = slices.DeleteFunc(n.ends, func(o *End) bool { return o == e })
	n.devs = slices.DeleteFunc(n.devs, func(o Device) bool { return o == e.dev })
	for _, o := range e.peers {
		o.up = false
		if p, ok := o.dev.(*SwitchPort); ok {
			p.Remove(n.now)
			n.ends = slices.DeleteFunc(n.ends, func(x *End) bool { return x == o })
			n.devs = slices.DeleteFunc(n.devs, func(x Device) bool { return x == o.dev })
		}
	}
}

// Initialize repeats the link initialisation (NOS/OLS, LIP) at both ends of e's link, or at all
// ends of its loop. Frames in transit are dropped.
func (n *Net) Initialize(e *End) {
	n.purge(e)
	for _, o := range append([]*End{e}, e.peers...) {
		if o.up {
			n.bringUp(o)
		}
	}
}

// SetLink takes e's link down or brings it up again. On a loop only e leaves or joins, and the
// other ends get a loop initialisation.
func (n *Net) SetLink(e *End, up bool) {
	if e.up == up {
		return
	}
	n.purge(e)
	if e.loop {
		e.up = up
		if !up {
			n.At(n.now, e.dev.LinkDown)
		}
		for _, o := range n.ends {
			if o == e && up || o.up && o != e && contains(e.peers, o) {
				n.bringUp(o)
			}
		}
		return
	}
	for _, o := range []*End{e, e.peers[0]} {
		if up {
			n.bringUp(o)
			continue
		}
		o.up = false
		n.At(n.now, o.dev.LinkDown)
	}
}

func contains(s []*End, e *End) bool {
	for _, o := range s {
		if o == e {
			return true
		}
	}
	return false
}

// purge drops the frames in transit on e's link.
func (n *Net) purge(e *End) {
	n.collect()
	for _, p := range n.events {
		if p.to != nil && (p.to == e || p.from == e) {
			n.stats.LinkLosses++
			n.credit(p.from)
			p.to, p.from = nil, nil
		}
	}
}

// credit returns the credit for a frame that has left the link of from, and may schedule LinkRoom.
// It has no effect if from is nil.
func (n *Net) credit(from *End) {
	if from == nil {
		return
	}
	n.mu.Lock()
	from.inFlight--
	tell := from.stalled && from.inFlight <= from.Credit/2
	if tell {
		from.stalled = false
	}
	n.mu.Unlock()
	if tell {
		if s, ok := from.dev.(Stalled); ok {
			n.push(&packet{at: n.now, fn: s.LinkRoom})
		}
	}
}

// collect moves sent frames into the event queue.
func (n *Net) collect() {
	n.mu.Lock()
	sent, calls := n.pending, n.calls
	n.pending, n.calls = nil, nil
	n.mu.Unlock()
	for _, fn := range calls {
		fn()
	}
	for _, p := range sent {
		n.route(p)
	}
	n.mu.Lock()
	if n.pending == nil {
		n.pending = sent[:0]
	}
	n.mu.Unlock()
}

// route determines the destination port of a frame and the faults on the way.
func (n *Net) route(p *packet) {
	e := p.from
	n.stats.Sent++
	if n.tap != nil {
		n.tap(n.now, e, &p.f)
	}
	var to *End
	switch {
	case !e.up || e.dev == nil:
	case !e.loop:
		if e.peers[0].up {
			to = e.peers[0]
		}
	case p.f.DID == fc.AddrBroadcast:
		for _, o := range e.peers {
			if o.up {
				n.hop(p, o)
			}
		}
		n.drop(p)
		return
	default:
		to = e.onLoop(&p.f)
	}
	if to == nil {
		n.stats.LinkLosses++
		n.drop(p)
		return
	}
	n.hop(p, to)
	n.drop(p)
}

// onLoop returns the end of the loop to which the frame goes: the port with the AL_PA of the
// address, or the fabric port for other addresses. It returns nil if neither is up.
func (e *End) onLoop(f *fc.Frame) *End {
	var fl *End
	for _, o := range e.peers {
		if !o.up {
			continue
		}
		if o.info.ALPA == 0 {
			fl = o
			continue
		}
		local := f.DID>>8 == 0 || f.SID>>8 == f.DID>>8 || e.info.ALPA == 0
		if local && !f.DID.WellKnown() && o.info.ALPA == f.DID.ALPA() {
			return o
		}
	}
	return fl
}

func (n *Net) drop(p *packet) {
	n.credit(p.from)
	n.mu.Lock()
	n.put(p)
	n.mu.Unlock()
}

// copyTo returns a copy of p for another end. The original keeps the credit.
func (n *Net) copyTo(p *packet, to *End) *packet {
	n.mu.Lock()
	c := n.get()
	p.from.inFlight++
	n.mu.Unlock()
	c.from, c.to = p.from, to
	c.buf = p.f.CloneTo(&c.f, c.buf)
	return c
}

// hop schedules the arrival of p at to. The fault plan may drop, duplicate, delay or damage p.
func (n *Net) hop(p *packet, to *End) {
	e := p.from
	e.busy = max(e.busy, n.now) + e.Frame
	what := verdict{copies: 1}
	if e.Faulty {
		what = n.judge(e, &p.f)
	}
	for i := range what.copies {
		c := n.copyTo(p, to)
		c.at = e.busy + e.Delay
		switch {
		case i == 0 && what.delay > 0:
			c.at += what.delay // later frames may overtake it
		case i > 0:
			c.at += what.again
		default:
			c.at = max(c.at, e.last)
			e.last = c.at
		}
		if what.damage != 0 {
			c.wire = c.f.Append(c.wire[:0])
			if what.damage == Truncate {
				c.wire = c.wire[:len(c.wire)/2&^3]
			} else {
				i := n.rng.IntN(len(c.wire) * 8)
				c.wire[i/8] ^= 1 << (i % 8)
			}
		}
		n.push(c)
	}
}

// step runs the next event or timer due by limit, and returns false if there is none.
func (n *Net) step(limit fc.Time) bool {
	n.collect()
	at := fc.Never
	if len(n.events) > 0 {
		at = n.events[0].at
	}
	var tick Ticker
	for _, d := range n.devs {
		if t, ok := d.(Ticker); ok {
			if dl := t.Deadline(); dl < at {
				at, tick = dl, t
			}
		}
	}
	if at > limit {
		return false
	}
	n.now = max(n.now, at)
	if tick != nil {
		tick.Tick(n.now)
		return true
	}
	p := heap.Pop(&n.events).(*packet)
	switch {
	case p.fn != nil:
		p.fn(n.now)
		return true
	case p.to == nil || !p.to.up: // the frame was lost with its link
	case len(p.wire) > 0:
		sof, eof := p.f.SOF, p.f.EOF
		if err := p.f.Parse(p.wire); err != nil {
			n.stats.BadCRC++ // [FCFS-2.1-6]
			break
		}
		p.f.SOF, p.f.EOF = sof, eof
		fallthrough
	default:
		n.stats.Delivered++
		p.to.dev.Receive(n.now, &p.f)
	}
	n.drop(p)
	return true
}

// Run runs the Net in virtual time for d.
func (n *Net) Run(d time.Duration) {
	limit := n.now + d
	for n.step(limit) {
	}
	n.now = limit
}

// RunUntil runs the Net in virtual time until done returns true or limit has passed. It returns the
// last result of done.
func (n *Net) RunUntil(limit time.Duration, done func() bool) bool {
	end := n.now + limit
	for !done() {
		if !n.step(end) {
			n.now = end
			return done()
		}
	}
	return true
}

// Serve runs the Net in real time until ctx ends. Devices do their own locking and run their own
// timers. Frames arrive one at a time, from the calling goroutine.
func (n *Net) Serve(ctx context.Context) {
	start := time.Now().Add(-n.now)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		now := time.Since(start)
		for i := 0; i < 256 && n.step(now); i++ {
			now = max(now, n.now)
		}
		n.now = max(n.now, now)
		n.collect()
		wait := time.Hour
		if len(n.events) > 0 {
			wait = n.events[0].at - time.Since(start)
		}
		for _, d := range n.devs {
			if t, ok := d.(Ticker); ok {
				if dl := t.Deadline(); dl != fc.Never {
					wait = min(wait, dl-time.Since(start))
				}
			}
		}
		if wait <= 0 {
			continue
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-n.kick:
		case <-timer.C:
		}
	}
}
