//go:build linux && (amd64 || arm64)

package rdma

import (
	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// A taken is an entry of a send queue that was taken, and has not been carried out or posted yet.
type taken struct {
	entry abi.SendEntry
	valid bool
	data  []byte    // its payload, if that was read with others'
	buf   *gathered // that data lies in
}

// payload is what of its bytes has been read: all, or nil.
func (t *taken) payload() []byte {
	if t.valid && t.entry.Flags&abi.Inline != 0 {
		return t.entry.Inline[:t.entry.SGE[0].Length]
	}
	return t.data
}

// A gathered is the payload of several requests.
type gathered struct {
	b    []byte
	uses int // requests that the stream has, whose payload is here
}

// gatherEach is how much payload a request may have that is read with others': for more of it one call more does not count.
const gatherEach = 1024

// A gatherer reads the payload of short requests that were taken together with one call. What it does not read,
// since it is long, is not there, may not be read or has to wait for a Read, is dealt with as if
// there were no gatherer: so a request that is wrong has its own end, and those beside it theirs.
type gatherer struct {
	remote []unix.RemoteIovec
	list   []*taken // those that are read
	holds  []*region
	buf    *gathered
	spare  []*gathered

	calls, requests int // that have read payload, and whose it was
}

// gather reads what it can for the requests of a batch.
func (g *gatherer) gather(q *queuePair, batch []taken) {
	g.remote, g.list = g.remote[:0], g.list[:0]
	var from *process
	total := 0
	for i := range batch {
		t := &batch[i]
		if t.valid && t.entry.Op == abi.WROpRead { // which may bring what is behind it
			break
		}
		n, p := g.add(q, t, from)
		if p == nil {
			continue
		}
		from = p
		total += n
	}
	if len(g.list) > 1 { // of a single one the pieces are read as they are
		g.read(from, total)
	}
	for i, r := range g.holds {
		r.letGo()
		g.holds[i] = nil
	}
	g.holds = g.holds[:0]
}

// add adds the payload of a request, n bytes of the memory of p. That is nil if it is not to be read so.
func (g *gatherer) add(q *queuePair, t *taken, from *process) (n int, p *process) {
	e := &t.entry
	switch e.Op {
	case abi.WROpWrite, abi.WROpSend, abi.WROpSendInv:
	default:
		return 0, nil
	}
	if !t.valid || e.Flags&(abi.Inline|abi.ReadFence) != 0 {
		return 0, nil
	}
	for _, s := range e.SGE[:e.NumSGE] {
		if s.Length > gatherEach-uint32(n) {
			return 0, nil
		}
		n += int(s.Length)
	}
	if n == 0 {
		return 0, nil
	}
	pieces := len(g.remote)
	for _, s := range e.SGE[:e.NumSGE] {
		if s.Length == 0 {
			continue
		}
		r := q.region(&s, 0)
		if r == nil || r.mem.by == nil || from != nil && r.mem.by != from || !g.hold(r) {
			g.remote = g.remote[:pieces]
			return 0, nil
		}
		from = r.mem.by
		g.remote = append(g.remote, unix.RemoteIovec{Base: uintptr(s.Addr + r.space.by), Len: int(s.Length)})
	}
	g.list = append(g.list, t)
	return n, from
}

// hold holds a region until the payload was read.
func (g *gatherer) hold(r *region) bool {
	if n := len(g.holds); n > 0 && g.holds[n-1] == r {
		return true
	}
	if !r.hold() {
		return false
	}
	g.holds = append(g.holds, r)
	return true
}

// read reads all pieces, and gives the requests what belongs to them.
func (g *gatherer) read(from *process, total int) {
	b := g.room(total)
	g.calls++
	got := b.b[:from.read(b.b[:total], joined(g.remote))]
	for _, t := range g.list {
		n := 0
		for _, s := range t.entry.SGE[:t.entry.NumSGE] {
			n += int(s.Length)
		}
		if len(got) < n {
			return
		}
		t.data, t.buf = got[:n:n], b
		g.requests++
		got = got[n:]
	}
}

// joined makes one piece of those that lie behind each other.
func joined(ps []unix.RemoteIovec) []unix.RemoteIovec {
	n := 0
	for _, p := range ps[1:] {
		if last := &ps[n]; last.Base+uintptr(last.Len) == p.Base {
			last.Len += p.Len
			continue
		}
		n++
		ps[n] = p
	}
	return ps[:n+1]
}

// room returns a buffer of n bytes that nothing uses any more.
func (g *gatherer) room(n int) *gathered {
	if g.buf == nil || g.buf.uses > 0 {
		g.buf = nil
		if k := len(g.spare); k > 0 {
			g.buf, g.spare = g.spare[k-1], g.spare[:k-1]
		} else {
			g.buf = new(gathered)
		}
	}
	if len(g.buf.b) < n {
		g.buf.b = make([]byte, max(n, 4096))
	}
	return g.buf
}

// done tells that the stream does not need the payload of a request any more.
func (g *gatherer) done(b *gathered) {
	if b == nil {
		return
	}
	if b.uses--; b.uses == 0 && b != g.buf {
		g.spare = append(g.spare, b)
	}
}
