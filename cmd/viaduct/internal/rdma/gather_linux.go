//go:build linux && (amd64 || arm64)

package rdma

import (
	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// A taken is an entry taken from a send queue, and not executed or posted yet.
type taken struct {
	entry abi.SendEntry
	valid bool
	data  []byte    // payload of the entry if it was read together with others, otherwise nil
	buf   *gathered // the buffer that holds data; nil without data
}

// payload returns the payload read already: the whole payload, or nil.
func (t *taken) payload() []byte {
	if t.valid && t.entry.Flags&abi.Inline != 0 {
		return t.entry.Inline[:t.entry.SGE[0].Length]
	}
	return t.data
}

// A gathered is the payload of several requests.
type gathered struct {
	b    []byte
	uses int // requests of the stream whose payload is in the buffer
}

// gatherEach is the longest payload read together with others. For longer payloads, another system
// call does not matter.
const gatherEach = 1024

// A gatherer reads the payload of several short requests with a single system call. Three kinds of
// requests are handled as without a gatherer: long requests, requests with invalid memory or
// rights, and requests after a Read. So an invalid request fails alone, with a separate status.
type gatherer struct {
	remote []unix.RemoteIovec
	list   []*taken // requests whose payload is read
	holds  []*region
	buf    *gathered
	spare  []*gathered

	calls, requests int // numbers of reads, and of the requests read, for Explain
}

// gather reads the payload of the short requests of a batch with a single call. The data of all
// other requests stays nil.
func (g *gatherer) gather(q *queuePair, batch []taken) {
	g.remote, g.list = g.remote[:0], g.list[:0]
	var from *process
	total := 0
	for i := range batch {
		t := &batch[i]
		if t.valid && t.entry.Op == abi.WROpRead { // a Read may change the payload of later requests
			break
		}
		n, p := g.add(q, t, from)
		if p == nil {
			continue
		}
		from = p
		total += n
	}
	if len(g.list) > 1 { // a single request is read as usual
		g.read(from, total)
	}
	for i, r := range g.holds {
		r.letGo()
		g.holds[i] = nil
	}
	g.holds = g.holds[:0]
}

// add adds the payload of a request: n bytes of the memory of p. from is the process of the earlier
// requests, or nil. If the payload must not be gathered, or is of another process, p is nil.
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

// hold keeps a region registered until the payload was read. It returns false if the region is
// closed.
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

// read reads all segments, and assigns the bytes to the requests. If memory is missing, the request
// and the later requests get no data.
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

// joined merges adjacent segments. ps must not be empty.
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

// room returns an unused buffer of at least n bytes.
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

// done records that the stream no longer needs the payload of a request in b. b may be nil.
func (g *gatherer) done(b *gathered) {
	if b == nil {
		return
	}
	if b.uses--; b.uses == 0 && b != g.buf {
		g.spare = append(g.spare, b)
	}
}
