//go:build linux && (amd64 || arm64)

package rdma

import (
	"net/netip"
	"sync"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/samehost"
)

// A link joins two connected queue pairs, both served by this service. It executes requests by
// copying directly between the programs' memories; the stream stays idle. Invalid requests and the
// end of the connection are left to the stream, so that both programs get the same errors as
// between two hosts. The link is then cut, and carries nothing any more.
type link struct {
	ends [2]*queuePair

	mu      sync.RWMutex // read-locked while a request is executed
	started int          // guarded by mu; number of ends with an engine
	over    bool         // guarded by mu; cut was called
}

// start records the engine of an end. The link carries nothing before both ends have an engine. l
// may be nil.
func (l *link) start() {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.started++
	l.mu.Unlock()
}

// cut ends the use of the link, unless l is nil. When cut returns, all requests in progress are
// done.
func (l *link) cut() {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
}

func (l *link) peerOf(q *queuePair) *queuePair {
	if l.ends[0] == q {
		return l.ends[1]
	}
	return l.ends[0]
}

// links finds the connections with both ends served by this service.
type links struct {
	mu    sync.Mutex
	dials map[route]*dialled // guarded by mu
}

// A route is the pair of addresses of a connection, seen from the dialling side.
type route struct{ from, to netip.AddrPort }

// A dialled is a connection dialled here, and not answered yet.
type dialled struct {
	q    *queuePair
	link *link // set when the accepting side is served here, too
}

// linked reports whether connections within this service get a link. There are no links if all
// bytes must be visible on TCP.
func (s *Service) linked() bool { return s.opt.WrapConn == nil && s.opt.SameHost != samehost.Off }

// dial records a connection in set-up for q.
func (ls *links) dial(r route, q *queuePair) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.dials == nil {
		ls.dials = map[route]*dialled{}
	}
	ls.dials[r] = &dialled{q: q}
}

// accept makes the link of a connection accepted for q. It returns nil if the connection was not
// dialled here, or already has a link. It must be called before the answer is sent, because the
// dialling end calls answered as soon as the answer arrives.
func (ls *links) accept(r route, q *queuePair) *link {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	d := ls.dials[r]
	if d == nil || d.link != nil {
		return nil
	}
	d.link = &link{ends: [2]*queuePair{d.q, q}}
	return d.link
}

// answered forgets a dialled connection. It returns the link made by accept for the connection, or
// nil if the peer is not served here.
func (ls *links) answered(r route) *link {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	d := ls.dials[r]
	delete(ls.dials, r)
	if d == nil {
		return nil
	}
	return d.link
}

// A carriage is the result of trying to execute a request over a link.
type carriage uint8

const (
	carried  carriage = iota
	notYet            // the other end has no engine yet, or no receive for the message
	byStream          // the request is left to the stream
)

// A piece is a part of a program's memory. Its region stays registered until the piece is released.
type piece struct {
	region *region
	addr   uint64
	n      int
}

// pieces are the memory at an end of a request: source or destination.
type pieces struct {
	list [abi.MaxSGE]piece
	n    int
	len  int // bytes of all pieces
}

// add pins the memory of a segment; a segment without bytes is ignored. It returns false if the
// region does not exist, or does not give the queue pair the rights in need.
func (ps *pieces) add(q *queuePair, s *abi.SGE, need uint32) bool {
	if s.Length == 0 {
		return true
	}
	r := q.region(s, need)
	if r == nil || !r.hold() {
		return false
	}
	ps.list[ps.n] = piece{r, s.Addr, int(s.Length)}
	ps.n++
	ps.len += int(s.Length)
	return true
}

func (ps *pieces) addAll(q *queuePair, list []abi.SGE, need uint32) bool {
	for i := range list {
		if !ps.add(q, &list[i], need) {
			return false
		}
	}
	return true
}

func (ps *pieces) letGo() {
	for i := range ps.list[:ps.n] {
		ps.list[i].region.letGo()
		ps.list[i].region = nil
	}
	ps.n, ps.len = 0, 0
}

// maxMessage is the longest message, as in the kernel's siw.
const maxMessage = 1 << 31

// carriageLen is how many bytes are copied at a time, few enough for the processor's cache.
const carriageLen = 128 << 10

var carriages = sync.Pool{New: func() any { return new([carriageLen]byte) }}

// A carrier executes the requests of an engine.
type carrier struct {
	from, to pieces
	size     int // bytes of the last request
	recv     abi.RecvEntry
}

// carry executes a request if possible. It calls done when all bytes are in place, and before the
// peer is notified of a message. data is the payload of the request if already read, otherwise nil.
// reads is false if the stream's ORD allows no Reads.
func (c *carrier) carry(l *link, q *queuePair, s *abi.SendEntry, data []byte, reads bool, done func()) carriage {
	l.mu.RLock()
	defer l.mu.RUnlock()
	switch {
	case l.over:
		return byStream
	case l.started < len(l.ends):
		return notYet
	}
	defer c.from.letGo()
	defer c.to.letGo()
	peer := l.peerOf(q)
	switch {
	case s.Flags&abi.Inline != 0 && s.Op == abi.WROpRead:
		return byStream
	case data != nil:
	case s.Op == abi.WROpRead:
		if !reads || !c.to.addAll(q, s.SGE[:s.NumSGE], abi.AccessLocalWrite) {
			return byStream
		}
	default:
		if !c.from.addAll(q, s.SGE[:s.NumSGE], 0) {
			return byStream
		}
	}
	if c.size = len(data) + c.from.len + c.to.len; c.size > maxMessage {
		return byStream
	}
	remote := abi.SGE{Addr: s.RAddr, Length: uint32(c.size), Key: s.RKey}
	ok := false
	switch s.Op {
	case abi.WROpWrite:
		ok = c.to.add(peer, &remote, abi.AccessRemoteWrite)
	case abi.WROpRead:
		ok = c.size > 0 && c.from.add(peer, &remote, abi.AccessRemoteRead)
	case abi.WROpSend:
		return c.send(peer, s, data, done)
	}
	if !ok || !c.move(data) {
		return byStream
	}
	done()
	return carried
}

// write writes to the peer's memory if the rights allow the write. After a failure, a part may have
// been written.
func (c *carrier) write(l *link, q *queuePair, at uint64, key uint32, b []byte) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.over || l.started < len(l.ends) {
		return false
	}
	defer c.to.letGo()
	return c.to.add(l.peerOf(q), &abi.SGE{Addr: at, Length: uint32(len(b)), Key: key}, abi.AccessRemoteWrite) &&
		c.move(b)
}

// send executes a Send. It returns notYet if the peer has posted no receive.
func (c *carrier) send(peer *queuePair, s *abi.SendEntry, inline []byte, done func()) carriage {
	switch there, valid := peer.recv.peek(&c.recv); {
	case !there:
		return notYet
	case !valid, !c.to.addAll(peer, c.recv.SGE[:c.recv.NumSGE], abi.AccessLocalWrite):
		return byStream
	}
	if c.size > c.to.len || !c.move(inline) {
		return byStream
	}
	peer.recv.consume()
	done()
	peer.rcq.push(abi.Completion{ID: c.recv.ID, Op: abi.WROpReceive, Bytes: uint32(c.size),
		QP: peer.num, Solicited: s.Flags&abi.Solicited != 0})
	return carried
}

// move copies the bytes of c.from, or inline if there are any, to the beginning of c.to. It returns
// false if memory is missing; a part may have been copied then.
func (c *carrier) move(inline []byte) bool {
	from, to := c.from.list[:c.from.n], c.to.list[:c.to.n]
	if len(inline) > 0 {
		return scatter(inline, &to)
	}
	if len(from) == 0 {
		return true
	}
	buf := carriages.Get().(*[carriageLen]byte)
	defer carriages.Put(buf)
	for len(from) > 0 {
		n := 0
		for len(from) > 0 && n < len(buf) {
			k := min(from[0].n, len(buf)-n)
			if from[0].region.space.ReadAt(buf[n:n+k], from[0].addr) != nil {
				return false
			}
			n += k
			from = advance(from, k)
		}
		if !scatter(buf[:n], &to) {
			return false
		}
	}
	return true
}

// scatter writes b to the beginning of to, and removes the written part from to. to must have room
// for b. It returns false if memory is missing.
func scatter(b []byte, to *[]piece) bool {
	for len(b) > 0 {
		p := &(*to)[0]
		k := min(p.n, len(b))
		if p.region.space.WriteAt(b[:k], p.addr) != nil {
			return false
		}
		b = b[k:]
		*to = advance(*to, k)
	}
	return true
}

// advance removes n bytes from the first piece.
func advance(ps []piece, n int) []piece {
	p := &ps[0]
	if p.addr, p.n = p.addr+uint64(n), p.n-n; p.n == 0 {
		return ps[1:]
	}
	return ps
}
