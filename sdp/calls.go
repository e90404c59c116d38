package sdp

import (
	"sync"

	"viaduct/internal/sdpcore"
)

// An op is a read or write in progress.
type op struct {
	id     uint64
	buf    []byte // buffer of a read; for a write, its bytes from offset base on
	base   int
	n      int     // bytes read or written, set when the op ends
	err    error   // error or nil, set when the op ends
	state  opState // set with the half locked
	read   bool
	own    bool // a write whose bytes the connection has copied, so that its call may return early
	waited bool // a call still uses the op although own is set
	cancel bool
	held   int          // bytes of the send buffer that an own write occupies
	after  uint64       // number of the Send that must be complete before the memory of a write is free
	late   sdpcore.Time // when the call of a waiting write may return early; 0 for never
	past   bool         // late has passed
	onDone func()       // called once, when the op leaves opWaits
}

// An opState tells the call of an op whether to wait.
type opState uint8

const (
	opWaits opState = iota
	opLeft          // the call of a write may return, although the machine holds the write
	opDone          // the op has ended
)

// ReadyLocked implements [attend.Condition] for the call of o.
func (o *op) ReadyLocked() (bool, error) { return o.state != opWaits, nil }

// bytes returns n bytes from offset off on.
func (o *op) bytes(off, n int) []byte { return o.buf[off-o.base : off-o.base+n] }

var opPool = sync.Pool{New: func() any { return new(op) }}

func newOp() *op {
	o := opPool.Get().(*op)
	*o = op{}
	return o
}

func freeOp(o *op) {
	o.buf, o.onDone = nil, nil
	opPool.Put(o)
}

// find returns the op with the given number, or nil.
func find(ops []*op, id uint64) *op {
	for _, o := range ops {
		if o.id == id {
			return o
		}
	}
	return nil
}

// bytesOf returns the bytes of the op of a that a moves.
func bytesOf(ops []*op, a *sdpcore.Action) []byte { return find(ops, a.ID).bytes(a.Off, a.N) }

// take removes the op with the given number from ops. It returns nil if there is none.
func take(ops *[]*op, id uint64) *op {
	for i, o := range *ops {
		if o.id == id {
			*ops = append((*ops)[:i], (*ops)[i+1:]...)
			return o
		}
	}
	return nil
}

// The calls are the reads and writes in progress, and the send buffer, which has the copied bytes of
// writes. Conn.mu guards all fields but the halves, which have locks of their own.
type calls struct {
	rd, wd half
	reads  []*op  // reads that the machine holds
	writes []*op  // writes that the machine holds
	ending []*op  // writes that are done, but whose Sends are not complete, oldest first
	lastID uint64 // number of the newest op
	room   int    // size of the send buffer
	held   int    // bytes of the send buffer in use
}

// begin returns a new op for the call of a read or write. The caller puts the op into a list.
func (k *calls) begin(buf []byte, read bool) *op {
	o := newOp()
	k.lastID++
	o.id, o.buf, o.read, o.waited = k.lastID, buf, read, true
	return o
}

// half returns the half whose calls wait for o.
func (k *calls) half(o *op) *half {
	if o.read {
		return &k.rd
	}
	return &k.wd
}

// end ends a read or write that is in no list any more. For an own write, the copied bytes are
// freed.
func (k *calls) end(o *op) {
	k.held -= o.held
	o.held = 0
	if o.own && !o.waited {
		freeOp(o)
		return
	}
	k.leave(o, opDone)
}

// leave lets the call or the transfer of o continue, and gives o the state s.
func (k *calls) leave(o *op, s opState) {
	if o.onDone != nil {
		o.onDone()
		o.onDone = nil
	}
	k.half(o).wake(o, s)
}

// sent ends the writes that wait for the Sends up to number done.
func (k *calls) sent(done uint64) {
	n := 0
	for n < len(k.ending) && k.ending[n].after <= done {
		n++
	}
	for _, o := range k.ending[:n] {
		k.end(o)
	}
	if n > 0 {
		k.ending = append(k.ending[:0], k.ending[n:]...)
	}
}

// free ends the writes that wait for Sends, because no Send refers to memory of calls any more.
func (k *calls) free() {
	for _, o := range k.writes {
		o.after = 0
	}
	for _, o := range k.ending {
		k.end(o)
	}
	clear(k.ending)
	k.ending = k.ending[:0]
}

// detach copies the bytes of write o from offset off on, so that the call can return. lent is the
// number of the last Send that refers to the memory of the call.
func (k *calls) detach(o *op, off int, lent uint64) {
	o.buf = append([]byte(nil), o.buf[off-o.base:]...)
	o.base, o.held, o.own, o.after = off, len(o.buf), true, lent
	k.held += o.held
}

// join appends p to the newest write, if the bytes of the newest write were copied and still wait
// to be sent. Otherwise, or if the copy would become too long, join returns false. [D-78]
func (k *calls) join(m *sdpcore.Machine, p []byte) bool {
	if len(k.writes) == 0 {
		return false
	}
	o := k.writes[len(k.writes)-1]
	if !o.own || k.held+len(p) > k.room || len(p) > 32<<10 || len(o.buf) > 64<<10 || !m.Extend(o.id, len(p)) {
		return false
	}
	o.buf = append(o.buf, p...)
	o.held += len(p)
	k.held += len(p)
	return true
}

// mayLeave reports whether the call of a write can return because the bytes were copied. If the
// send buffer has room, mayLeave copies the bytes. [SDP-9.5.6-2]
func (k *calls) mayLeave(m *sdpcore.Machine, s *sender, o *op) bool {
	if !o.own {
		off, ok := m.Detachable(o.id)
		if !ok || k.held+len(o.buf)+o.base-off > k.room {
			return false
		}
		k.detach(o, off, s.lent)
		m.KeepByCopy(o.id)
	}
	return o.after <= s.done
}

// letLeave lets two kinds of calls return: writes that have waited until their time late and may
// leave, and cancelled transfers whose bytes were copied. Do not call letLeave while actions are
// performed, because the machine already counts the bytes of the actions as sent.
func (k *calls) letLeave(m *sdpcore.Machine, s *sender, now func() sdpcore.Time) {
	for i := 0; i < len(k.writes); i++ {
		o := k.writes[i]
		if o.own && o.onDone != nil && o.after <= s.done {
			k.leave(o, opLeft)
			continue
		}
		if o.late == 0 || o.state != opWaits || now() < o.late {
			continue
		}
		o.past = true // from now on, an event that allows it makes the write return
		if k.mayLeave(m, s, o) {
			k.leave(o, opLeft)
		}
	}
}

// late returns the next time when the call of a write may return early, or 0.
func (k *calls) late() (at sdpcore.Time) {
	for _, o := range k.writes {
		if !o.past {
			at = soonest(at, o.late)
		}
	}
	return at
}
