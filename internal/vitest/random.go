package vitest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"viaduct/vi"
)

// In the traffic model both sides send, write and read at random, and each message is compared with
// a simple model.

const (
	slots    = 16      // outstanding descriptors of each side
	slotSize = 6 << 10 // source bytes of each slot
	bigSlots = 60      // Writes with immediate data, each to an offset of its own
)

// A message is the content that a receive of the other side must get.
type message struct {
	payload   []byte
	immediate bool
	data      uint32
	write     bool
	at        int // offset of a Write in the target region
}

// A direction holds the state of the traffic from side from to the other side.
type direction struct {
	p    *pair
	from int
	rnd  *rand.Rand
	ops  int

	src    *vi.Region // the slots, of slotSize bytes each, at the sender
	shadow []byte     // expected contents of target
	target *vi.Region // at the receiver: written by RDMA Writes
	fixed  *vi.Region // at the receiver: only read by RDMA Reads
	result *vi.Region // at the sender: slots of slotSize for the data of RDMA Reads

	expect  chan message  // messages in the order in which the receives complete
	gone    chan struct{} // closed when the receiver stops
	once    sync.Once
	credits chan struct{} // number of posted receives, for runs without flow control
}

// An outstanding is a posted send with the data for the check at its completion.
type outstanding struct {
	d    *vi.Descriptor
	want []byte // expected data of an RDMA Read
	slot int
}

// testTraffic sends, writes and reads at random in both directions at once. [VIA-4.4-1] [VIA-4.4-2]
// [VIA-4.4-4] [VIA-4.5-3] [VIA-4.5-4]
func testTraffic(e *env) {
	variants := []bool{false}
	if e.FlowControl {
		variants = append(variants, true)
	}
	for _, withFlow := range variants {
		for seed := range uint64(3) {
			e.sub(fmt.Sprintf("flow=%t/seed=%d", withFlow, seed), func(e *env) { e.traffic(withFlow, seed) })
		}
	}
}

func (e *env) traffic(withFlow bool, seed uint64) {
	p := e.connected(func(a *vi.Attributes) { a.FlowControl = withFlow; a.ReadWindow = int(seed) })
	var wg sync.WaitGroup
	var dirs [2]*direction
	for from := range dirs {
		d := &direction{
			p: p, from: from, ops: 250, rnd: rand.New(rand.NewPCG(seed, uint64(from))),
			src: e.region(from, slots*slotSize), result: e.region(from, slots*slotSize),
			target: e.region(1-from, 3*slotSize+bigSlots*slotSize), fixed: e.region(1-from, 3*slotSize),
			expect: make(chan message, 1000), gone: make(chan struct{}),
		}
		if !withFlow {
			d.credits = make(chan struct{}, 1000)
		}
		d.shadow = make([]byte, d.target.Len())
		pattern(d.fixed.Bytes(), seed+uint64(from)+1000)
		dirs[from] = d
	}
	for _, d := range dirs {
		wg.Go(d.receive)
		wg.Go(d.send)
	}
	wg.Wait()
	for from, d := range dirs {
		if !bytes.Equal(d.target.Bytes(), d.shadow) {
			e.wrongf("what side %d wrote is not what the model says", from)
		}
	}
	e.claim(0, p.v[0])
	e.claim(1, p.v[1])
	// The counters of a connection are still available after its end.
	for from, v := range p.v {
		before := v.Traffic()
		e.must(v.Disconnect())
		if after := v.Traffic(); after.SentBytes != before.SentBytes ||
			after.ReceivedBytes != before.ReceivedBytes || after.ServedReads != before.ServedReads ||
			after.Credits != -1 {
			e.wrongf("side %d counted %+v before its disconnect, %+v after it", from, before, after)
		}
	}
}

func (d *direction) length() int {
	switch d.rnd.IntN(4) {
	case 0:
		return d.rnd.IntN(4)
	case 1:
		return slotSize - d.rnd.IntN(3)
	}
	return d.rnd.IntN(slotSize)
}

// cut divides n bytes at offset off of a region into random segments.
func (d *direction) cut(r *vi.Region, off, n int) (segs []vi.Segment) {
	for n > 0 && len(segs) < 5 {
		k := 1 + d.rnd.IntN(n)
		segs = append(segs, r.Segment(off, k))
		off, n = off+k, n-k
	}
	if n > 0 {
		segs = append(segs, r.Segment(off, n))
	}
	return segs
}

// send posts the operations of a direction and then an empty Send. When the empty Send has arrived,
// all operations have arrived.
func (d *direction) send() {
	v := d.p.v[d.from]
	defer close(d.expect)
	var out []outstanding
	big := 0
	fence := false
	for i := range d.ops + 1 {
		slot := i % slots
		if len(out) == slots {
			if !d.reap(v, out[0]) {
				return
			}
			out = out[1:]
		}
		n := d.length()
		off := slot * slotSize
		src := d.src.Bytes()[off : off+n]
		o := outstanding{slot: slot}
		m := message{immediate: d.rnd.IntN(2) == 0, data: d.rnd.Uint32()}
		kind := d.rnd.IntN(10)
		if i == d.ops {
			kind, n, src = 0, 0, nil
		}
		switch {
		case kind < 5: // Send
			pattern(src, d.rnd.Uint64())
			m.payload = bytes.Clone(src)
			o.d = vi.NewSend(d.cut(d.src, off, n)...)
			d.announce(m)
		case kind < 7: // RDMA Write anywhere
			pattern(src, d.rnd.Uint64())
			at := d.rnd.IntN(3*slotSize - n)
			copy(d.shadow[at:], src)
			m.immediate = false
			o.d = vi.NewRDMAWrite(d.target.Remote(at), d.cut(d.src, off, n)...)
		case kind < 8 && big < bigSlots: // RDMA Write with immediate data to an offset of its own
			pattern(src, d.rnd.Uint64())
			m.immediate, m.write, m.at, m.payload = true, true, (3+big)*slotSize, bytes.Clone(src)
			big++
			copy(d.shadow[m.at:], src)
			o.d = vi.NewRDMAWrite(d.target.Remote(m.at), d.cut(d.src, off, n)...)
			d.announce(m)
		case d.p.canRead() && kind == 8: // RDMA Read of constant memory
			at := d.rnd.IntN(3*slotSize - n)
			m.immediate = false
			o.want = d.fixed.Bytes()[at : at+n]
			o.d = vi.NewRDMARead(d.fixed.Remote(at), d.cut(d.result, off, n)...)
		case d.p.canRead(): // RDMA Read of written memory; no write may overtake it
			at := d.rnd.IntN(3*slotSize - n)
			m.immediate = false
			o.want = bytes.Clone(d.shadow[at : at+n])
			o.d = vi.NewRDMARead(d.target.Remote(at), d.cut(d.result, off, n)...)
		default:
			m.immediate = false
			o.d = vi.NewRDMAWrite(d.target.Remote(0))
		}
		if fence || d.rnd.IntN(20) == 0 {
			o.d.WithFence()
		}
		fence = o.want != nil && kind == 9
		if m.immediate {
			o.d.WithImmediate(m.data)
		}
		if err := v.PostSend(o.d); err != nil {
			d.p.Error(err)
			return
		}
		out = append(out, o)
	}
	for _, o := range out {
		if !d.reap(v, o) {
			return
		}
	}
}

// announce gives the next expected message to the receiver, once it has posted a receive for it.
func (d *direction) announce(m message) {
	if d.credits != nil {
		select {
		case <-d.credits:
		case <-d.gone:
		}
	}
	d.expect <- m
}

func (d *direction) reap(v *vi.VI, o outstanding) bool {
	var got *vi.Descriptor
	var err error
	if d.rnd.IntN(2) == 0 {
		ctx, cancel := context.WithTimeout(context.Background(), d.p.patience())
		got, err = v.SendWait(ctx)
		cancel()
	} else {
		err = vi.ErrNotDone
		for end := time.Now().Add(d.p.patience()); errors.Is(err, vi.ErrNotDone) && time.Now().Before(end); {
			if got, err = v.SendDone(); err != nil {
				time.Sleep(10 * time.Microsecond)
			}
		}
	}
	if err != nil || got != o.d {
		d.p.Errorf("side %d: send %v", d.from, err)
		return false
	}
	if have := d.result.Bytes()[o.slot*slotSize:]; o.want != nil && !bytes.Equal(have[:len(o.want)], o.want) {
		d.p.wrongf("side %d: a read of %d bytes brought something else", d.from, len(o.want))
	}
	return true
}

// leave informs the sender that the receiver has stopped.
func (d *direction) leave() { d.once.Do(func() { close(d.gone) }) }

// receive keeps several receives posted and compares the arriving messages with the expected ones.
func (d *direction) receive() {
	side := 1 - d.from
	defer d.leave()
	v := d.p.v[side]
	r := rand.New(rand.NewPCG(77, uint64(d.from)))
	const depth = 8
	mem := d.p.region(side, depth*slotSize)
	post := func(i int) *vi.Descriptor {
		x := &direction{rnd: r}
		rd := vi.NewRecv(x.cut(mem, i*slotSize, slotSize)...)
		if err := v.PostRecv(rd); err != nil {
			d.p.Error(err)
		}
		if d.credits != nil {
			d.credits <- struct{}{}
		}
		return rd
	}
	var posted [depth]*vi.Descriptor
	for i := range posted {
		posted[i] = post(i)
	}
	i := 0
	for m := range d.expect {
		ctx, cancel := context.WithTimeout(context.Background(), d.p.patience())
		got, err := v.RecvWait(ctx)
		cancel()
		want := vi.StatusDone | vi.StatusOpReceive
		have := mem.Bytes()[i*slotSize:]
		if m.write {
			want = vi.StatusDone | vi.StatusOpRemoteRDMAWrite
			have = d.target.Bytes()[m.at:]
		}
		if m.immediate {
			want |= vi.StatusImmediate
		} else {
			m.data = 0
		}
		switch {
		case err != nil:
			d.p.Errorf("side %d: receive: %v", side, err)
		case got != posted[i]:
			d.p.Errorf("side %d: another receive than the next", side)
		case got.Status() != want || int(got.Length) != len(m.payload) || got.ImmediateData != m.data:
			d.p.Errorf("side %d: %v of %d bytes with %#x, want %v of %d with %#x", side,
				got.Status(), got.Length, got.ImmediateData, want, len(m.payload), m.data)
		case !bytes.Equal(have[:len(m.payload)], m.payload):
			d.p.wrongf("side %d: message of %d bytes came wrong", side, len(m.payload))
		default:
			posted[i] = post(i)
			i = (i + 1) % depth
			continue
		}
		// The error of a broken connection may be reported a moment before the end of the
		// connection. A Disconnect in between would hide the break.
		for end := time.Now().Add(time.Second); v.State() == vi.Connected && time.Now().Before(end); {
			time.Sleep(100 * time.Microsecond)
		}
		v.Disconnect() // the Disconnect also ends the other goroutines
		d.leave()
		for range d.expect {
		}
		return
	}
}

// testUnreliable: at unreliable delivery a message arrives at most once and complete, and the
// connection stays. [VIA-4.5-2]
func testUnreliable(e *env) {
	if e.reliable() {
		return
	}
	p := e.connected()
	const n = 200
	size := min(2000, int(p.mtu()))
	for i := range n {
		p.postRecv(1, vi.NewRecv(p.seg(1, i*memSize/2/n, 4), p.seg(1, memSize/2, size)))
	}
	var sends []*vi.Descriptor
	p.fill(0, 0, 2*n+size, 1)
	for i := range n {
		sends = append(sends, p.post(0, vi.NewSend(p.seg(0, 2*i, 4+i%(size-4))).WithImmediate(uint32(i))))
		if i%20 == 19 {
			for _, d := range sends {
				p.wantStatus("send", p.reapSend(p.v[0], d), vi.StatusOpSend)
			}
			sends = sends[:0]
		}
	}
	seen := map[uint32]bool{}
	first := 0
	for range n {
		limit := p.patience()
		if e.Lossy && len(seen) >= n/4 {
			limit = 100 * time.Millisecond // the rest may be lost
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		r, err := p.v[1].RecvWait(ctx)
		cancel()
		if errors.Is(err, vi.ErrTimeout) && e.Lossy {
			break
		}
		if err != nil {
			e.Fatal(err)
		}
		i := int(r.ImmediateData)
		if seen[r.ImmediateData] || i >= n {
			e.wrongf("message %d came twice", i)
		}
		seen[r.ImmediateData] = true
		at := first * memSize / 2 / n
		if int(r.Length) != 4+i%(size-4) || !bytes.Equal(p.mem[1].Bytes()[at:at+4], p.mem[0].Bytes()[2*i:2*i+4]) {
			e.wrongf("message %d of %d bytes came wrong", i, r.Length)
		}
		first++
	}
	if len(seen) < n/4 {
		e.Errorf("only %d messages of %d came", len(seen), n)
	}
	if s := p.v[0].State(); s != vi.Connected {
		e.Errorf("state %v", s)
	}
}
