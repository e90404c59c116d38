package iwarp

import (
	"viaduct/internal/attend"
	"viaduct/internal/ulp"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// stream is a QueuePair with a [ulp.Source], as a [ulp.Stream].
type stream QueuePair

var _ ulp.Stream[SendWR] = (*stream)(nil)

// PostNow implements [ulp.Stream].
func (s *stream) PostNow(wr SendWR) (sent bool, err error) {
	q := (*QueuePair)(s)
	if n, ok := q.sendDirect(&wr, false); ok {
		sent = !q.sends.direct.signal(n)
		q.sends.cq.deliver()
		return sent, nil
	}
	seq, err := q.sends.postUnsignaled(&wr)
	if err != nil {
		return false, err
	}
	q.Flush()
	return !q.sends.signal(seq), nil
}

// KeepSends implements [ulp.Stream].
func (s *stream) KeepSends() { s.link.fc.WithSender(s.sends.keep) }

// Undelivered implements [ulp.Stream].
func (s *stream) Undelivered() int {
	if !s.link.ready.Load() {
		return 0
	}
	return undelivered(s.link.fc)
}

// Handle implements [ulp.Stream].
func (s *stream) Handle(f func()) { s.recvs.cq.handle(f) }

// Progress implements [ulp.Stream].
func (s *stream) Progress() attend.SourceSleeper { return (*progress)(s.recvs.cq) }

// Reclaim implements [ulp.Stream].
func (s *stream) Reclaim() { s.link.fc.WithReceiver(s.rx.reclaim) }

func (r *receiver) reclaim() {
	if r.life.Load().ended() || r.box.recv == nil {
		return
	}
	wr, ok := r.box.recvs.supply.Reclaim(r.box.recv.id)
	if !ok {
		return
	}
	n, _ := r.queues[0].Open()
	if r.Open() && r.seg.op.IsSend() {
		n += uint32(r.Placed())
	}
	r.mem.move(wr.SG, r.box.sg(), uint64(n))
	r.box.recv.reset()
	r.box.recv.nsg = copy(r.box.recv.sg[:], wr.SG)
}

// full reports whether Receive should leave the next bytes unread. next holds the unread bytes;
// staged is the number of arrived bytes. full is false inside a message, and if no source is set.
func (r *receiver) full(next []byte, staged int) bool {
	if r.box.recvs.supply == nil || r.box.recv != nil || !r.link.fc.Leaves() {
		return false
	}
	if r.dec.Markers {
		next = nil
	}
	u := r.unread
	u.staged, u.next = staged, next
	full := r.box.recvs.supply.Full(u)
	u.next = nil
	return full
}

// An unread is the [ulp.Pending] during a call of Full.
type unread struct {
	link   *link
	staged int    // bytes read and not handled
	next   []byte // the first of the staged bytes, or nil on streams with markers
}

// IsSend implements [ulp.Pending]. It returns false if the opcode has not arrived, and on streams with
// markers.
func (u *unread) IsSend() bool {
	p := u.next
	if len(p) < mpa.LengthLen+2 || ddp.IsTagged(p[mpa.LengthLen]) {
		return false
	}
	_, op := rdmap.ParseControl(p[mpa.LengthLen+1])
	return op.IsSend()
}

// Has implements [ulp.Pending]. It asks the kernel only if too few bytes are staged.
func (u *unread) Has(n int) bool { return u.staged >= n || u.staged+u.link.fc.Pending() >= n }
