package decode

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"

	"viaduct/internal/wire/rdmap"
	"viaduct/internal/wire/sdpwire"
	"viaduct/internal/wire/vitcpwire"
)

// maxKept limits the memory of all connections: bytes of incomplete frames, bytes after holes, and
// state for checking later messages. Beyond maxKept, the longest silent connections give up memory.
const maxKept = 32 << 20

// Sizes in bytes of the state of connections.
var (
	mpaSize    = sizeOf[mpaParser]()
	vitcpSize  = sizeOf[vitcpParser]()
	fcipSize   = sizeOf[fcipParser]()
	pieceSize  = 2*sizeOf[piece]() + 16 // a queue may be twice as large as necessary
	fieldSize  = sizeOf[Field]()
	readSize   = sizeOf[rdmap.ReadRequest]()
	numberSize = sizeOf[vitcpwire.Number]()
	sdpSize    = sizeOf[sdpState]()
	viewSize   = sizeOf[sdpView]()
	inboxSize  = sizeOf[sdpwire.Message]()
	advertSize = 2 * (sizeOf[uint32]() + sizeOf[advert]()) // a map may be half empty
	srcSize    = sizeOf[srcOpen]()
	sinkSize   = sizeOf[sinkOpen]()
)

func sizeOf[T any]() int { return int(reflect.TypeFor[T]().Size()) }

func (x *piece) cost() int { return pieceSize + cap(x.b) }

// size returns the memory held by c, in bytes.
func (c *conn) size() int {
	n := 0
	for i := range c.half {
		n += cap(c.half[i].buf) + c.half[i].held
	}
	if c.p != nil {
		n += c.p.size()
	}
	return n
}

func (p *mpaParser) size() int {
	n := mpaSize
	for i := range p.side {
		r := &p.side[i].rdma
		n += cap(r.reads) * readSize
		for j := range r.queue {
			n += cap(r.queue[j].inner) * fieldSize
		}
		for j := range r.tagged {
			n += cap(r.tagged[j].inner) * fieldSize
		}
	}
	if s := p.ulp; s != nil {
		n += sdpSize
		for i := range s.side {
			n += len(s.side[i].adverts) * advertSize
			if v := s.view[i]; v != nil {
				n += viewSize + cap(v.inbox)*inboxSize
				for _, h := range []*sdpHalf{&v.source, &v.sink} {
					n += cap(h.srcs)*srcSize + cap(h.sinks)*sinkSize
				}
			}
		}
	}
	return n
}

func (p *vitcpParser) size() int {
	return vitcpSize + (cap(p.side[0].reads)+cap(p.side[1].reads))*numberSize
}

func (p *fcipParser) size() int { return fcipSize }

// count updates d.kept with the memory of c. If d.kept exceeds maxKept, connections give up their
// memory until a quarter of maxKept is free.
func (d *Decoder) count(c *conn) {
	n := c.size()
	d.kept += n - c.kept
	c.kept = n
	if d.kept <= maxKept {
		return
	}
	list := make([]*conn, 0, len(d.order))
	for _, x := range d.order {
		if x.kept > 0 {
			list = append(list, x)
		}
	}
	slices.SortFunc(list, func(a, b *conn) int { return cmp.Compare(a.at, b.at) })
	for _, x := range list {
		if d.kept <= maxKept*3/4 {
			break
		}
		x.giveUp()
	}
}

// giveUp discards the state of c. The next bytes of c are searched for frames, like the bytes of a
// connection older than the capture.
func (c *conn) giveUp() {
	for i := range c.half {
		c.half[i].bridgeAll()
	}
	for i := range c.half {
		h := &c.half[i]
		if len(h.buf) > 0 {
			m := c.d.message(c, h.back)
			m.Proto, m.Name = "tcp", "given up"
			m.num("tcp.bytes", uint64(len(h.buf)))
			m.Note = fmt.Sprintf("of a frame that is not complete: connections hold more than %d MiB", maxKept>>20)
			c.tell(m)
		}
		h.buf, h.queue, h.lost, h.skip, h.filled = nil, nil, true, 0, 0
	}
	if p, ok := c.p.(*mpaParser); ok {
		if p.ulp != nil || p.isSDP {
			c.name = "sdp"
		}
		c.ignore = c.ignore || p.side[0].dec.Markers || p.side[1].dec.Markers // markers hide later frames
	}
	c.p, c.seen, c.tried = nil, false, 0
	c.d.kept -= c.kept
	c.kept = 0
}
