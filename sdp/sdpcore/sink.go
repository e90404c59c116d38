package sdpcore

import (
	"io"
	"time"

	"viaduct/sdp/sdpwire"
)

// A read is a buffer of the ULP that waits for bytes.
type read struct {
	id       uint64
	n        int  // room in bytes
	off      int  // bytes in it
	inflight int  // bytes asked for by RDMA Read behind them
	all      bool // ends only when full [SDP-9.3-15]
	fetched  bool // an RDMA Read was started for it
	offered  bool // advertised by a SinkAvail
	cancel   bool // the driver wants it back
}

// A held is payload that waits for a read.
type held struct {
	n       int
	private bool // lies in a Private Buffer
}

// An inAdv is a SrcAvail of the peer that is Unprocessed, or In-Process once asked
// is not zero. It is Processed, and gone, when its last message is sent. [SDP-5-1]
type inAdv struct {
	key      uint64
	stag     uint32
	to       uint64 // of the first byte not in the payload of the SrcAvail
	size     int    // bytes behind that payload
	asked    int    // bytes asked for by RDMA Read
	done     int    // bytes whose RDMA Read is complete
	reported int    // bytes acknowledged by RdmaRdCompl
	at       time.Duration
	wantSm   bool // to be answered by SendSm
	empty    bool // nothing but payload: to be answered by RdmaRdCompl of 0 [D-18]
}

// A readOp is an RDMA Read in progress.
type readOp struct {
	adv   uint64
	rid   uint64
	n     int
	local bool
}

// A sinkAdv is a SinkAvail of our own that is not resolved.
type sinkAdv struct {
	key  uint64
	rid  uint64
	size int
	stag uint32
}

// sink is the half-connection in which this end is the Data Sink.
//
// The stream comes in this order: held payload, bytes that RDMA Reads in
// progress bring, the rest of a SrcAvail that was answered by SendSm
// (expected), the SrcAvails from oldest to newest.
type sink struct {
	mode  sdpwire.Mode // accept, handleSrcAvail and mayOffer allow what it allows [SDP-11-4] [SDP-11.2-3] [SDP-11.3-3]
	reads deque[read]

	holds     deque[held]
	held      int // bytes
	compacted int // of them, outside Private Buffers

	adverts  deque[inAdv]
	ops      deque[readOp]
	opsLocal int // of them, into local memory
	localN   int // bytes of those
	expected int // bytes still to come by Data after a SendSm [SDP-9.2-27]

	srcCancel bool // a SrcAvailCancel is being answered [SDP-9.5.4-5]

	offers     deque[sinkAdv]
	count      serial // NonDiscards [SDP-6.3.3.4-1], wraps as 32-bit numbers do [SDP-6.3.3.4-4]
	cancelWant bool   // SinkAvailCancel to be sent
	cancelOpen bool   // sent and not Processed
	cancelSent bool   // one was ever sent
	cancelSeq  serial // MSeq of the newest
	cancelAt   time.Duration

	expects   bool // the driver has more messages at hand
	eof       bool // DisConn received
	disSeen   bool // on the present connection [D-52]
	closed    bool // the ULP reads no more
	discard   bool // and wants nothing of what is still held
	announced int  // OOB_PEND received without its byte [D-29]
	pos       uint64

	waitAt time.Duration // since when the oldest SrcAvail has found no reader
	pol    snkPolicy
}

// Read posts read id with room for n bytes, at least one. With all it ends only
// when full, at the end of the stream, or when cancelled; such a read is never
// advertised. [SDP-9.3-15] Reads are served in order.
func (m *Machine) Read(now time.Duration, id uint64, n int, all bool, out []Action) []Action {
	m.begin(now, out)
	if n <= 0 {
		panic("sdpcore: read of nothing")
	}
	s := &m.snk
	if s.closed {
		m.do(Action{Op: OpReadDone, ID: id, Err: ErrClosed})
		return m.end()
	}
	s.reads.push(read{id: id, n: n, all: all})
	m.serve()
	m.noteRead(n)
	return m.end()
}

// CancelRead asks for read id back. It ends by OpReadDone with the exact count:
// at once, or when RDMA into it is over: an RDMA Read has come, or the peer has
// answered the SinkAvailCancel. [SDP-9.5.5-1]
func (m *Machine) CancelRead(now time.Duration, id uint64, out []Action) []Action {
	m.begin(now, out)
	s := &m.snk
	for i := range s.reads.len() {
		r := s.reads.at(i)
		if r.id != id {
			continue
		}
		r.cancel = true
		switch {
		case r.offered:
			s.cancelWant = !s.cancelOpen
		case r.inflight == 0:
			m.endRead(i, ErrCancelled)
		}
		break
	}
	return m.end()
}

// endRead ends read i with what is in it.
func (m *Machine) endRead(i int, err error) {
	r := m.snk.reads.remove(i)
	if err == io.EOF && r.off > 0 {
		err = nil
	}
	m.do(Action{Op: OpReadDone, ID: r.id, N: r.off, Err: err})
}

func (m *Machine) findRead(id uint64) (int, *read) {
	for i := range m.snk.reads.len() {
		if r := m.snk.reads.at(i); r.id == id {
			return i, r
		}
	}
	return -1, nil
}

// take moves n held bytes into read r.
func (m *Machine) take(r *read, n int) {
	m.do(Action{Op: OpCopy, ID: r.id, Off: r.off, N: n})
	r.off += n
	m.consume(n)
}

// consume counts n held bytes as gone and their Private Buffers as posted again.
func (m *Machine) consume(n int) {
	s := &m.snk
	s.held -= n
	for n > 0 {
		h := s.holds.at(0)
		k := min(n, h.n)
		h.n -= k
		n -= k
		if !h.private {
			s.compacted -= k
		}
		if h.n == 0 {
			if h.private {
				m.cr.free++
			}
			s.holds.pop()
		}
	}
}

// serve gives held bytes to the reads, of several messages to one read if that is
// not advertised [SDP-9.5.1-6], and starts RDMA Reads for them.
func (m *Machine) serve() {
	s := &m.snk
	for i := 0; i < s.reads.len(); {
		r := s.reads.at(i)
		if r.offered {
			return
		}
		if r.inflight == 0 && s.held > 0 && s.opsDirect() == 0 {
			m.take(r, min(r.n-r.off, s.held))
		}
		if r.off == r.n {
			m.endRead(i, nil)
			continue
		}
		if m.life == lifeDead {
			if r.off > 0 && !r.all {
				m.endRead(i, nil)
			} else {
				m.endRead(i, m.verdict())
			}
			continue
		}
		// Once the reads behind it may have been served, r gets no more.
		for r.off+r.inflight < r.n && (r.all || !r.fetched) && m.fetch(r) {
		}
		switch {
		case r.inflight > 0:
			if r.off+r.inflight < r.n && r.all {
				return // the next bytes are still its own
			}
			i++
		case r.off > 0 && !r.all:
			if s.expects && m.life == lifeOpen && !r.cancel {
				return // more for it is at hand
			}
			m.endRead(i, nil)
		case m.drained():
			m.endRead(i, io.EOF) // [SDP-8.2.1-15] [SDP-8.2.1-17]
		default:
			return
		}
	}
}

// drained reports whether the end of the stream has been reached.
func (m *Machine) drained() bool {
	s := &m.snk
	return s.eof && s.held == 0 && s.ops.len() == 0
}

// Expect tells whether more messages have come than the machine was told of. A
// read that is not full then waits for them. Call Settle when there are no more.
func (m *Machine) Expect(more bool) { m.snk.expects = more }

// Settle ends reads that waited because of Expect.
func (m *Machine) Settle(now Time, out []Action) []Action {
	m.begin(now, out)
	if m.snk.reads.len() == 0 || m.snk.reads.at(0).off == 0 {
		out, m.out = m.out, nil
		return out
	}
	return m.end()
}

// Landing returns the read that takes payload if that comes next, and the
// offset in it; ok is false if it is not known, or advertised.
func (m *Machine) Landing() (id uint64, off int, ok bool) {
	s := &m.snk
	if m.life != lifeOpen || s.reads.len() == 0 || s.held > 0 || s.ops.len() > 0 || s.offers.len() > 0 || s.closed {
		return 0, 0, false
	}
	r := s.reads.at(0)
	return r.id, r.off, !r.cancel && r.inflight == 0
}

// opsDirect returns the number of RDMA Reads in progress into reads of the ULP.
func (s *sink) opsDirect() int { return s.ops.len() - s.opsLocal }

// fetch carries out the peer's request: it starts an RDMA Read into r [SDP-9-4] from the oldest SrcAvail that has bytes left
// to ask for. [SDP-9.2-7] [SDP-9.5.2.1-3] If r does not suit, that SrcAvail is
// to be answered by SendSm. [SDP-9.2-6] [SDP-6.3.5-1]
func (m *Machine) fetch(r *read) bool {
	s := &m.snk
	i := m.fetchable()
	if i < 0 || s.opsLocal > 0 || s.held > 0 {
		return false
	}
	a := s.adverts.at(i)
	room, left := r.n-r.off-r.inflight, a.size-a.asked
	// [SDP-9.2-5]
	if m.p.NoRead || room < left && room <= m.p.RecvThreshold {
		if i == 0 && r.inflight == 0 && (r.off == 0 || r.all) {
			a.wantSm = true
		}
		return false
	}
	n := min(room, left) // behind the prefix, from the STag named [SDP-9.2-8] [SDP-6.3.2.3-1] [SDP-11.3-15]
	m.do(Action{Op: OpRDMARead, ID: r.id, Off: r.off + r.inflight, N: n, STag: a.stag, TO: a.to + uint64(a.asked)})
	s.ops.push(readOp{adv: a.key, rid: r.id, n: n})
	a.asked += n
	r.inflight += n
	r.fetched = true
	return true
}

// fetchable returns the index of the SrcAvail that the next RDMA Read takes
// bytes from, or -1.
func (m *Machine) fetchable() int {
	s := &m.snk
	if m.life != lifeOpen || s.srcCancel || s.expected > 0 || s.ops.len() >= m.p.ORD { // [SDP-9.5.4-6] [SDP-6.2.1.7-1]
		return -1
	}
	for i := range s.adverts.len() {
		a := s.adverts.at(i)
		if a.wantSm {
			return -1
		}
		if a.asked < a.size {
			return i
		}
	}
	return -1
}

// ReadDone reports that the oldest RDMA Read is complete.
func (m *Machine) ReadDone(now time.Duration, out []Action) []Action {
	m.begin(now, out)
	s := &m.snk
	if s.ops.len() == 0 {
		if m.life == lifeDead {
			return m.end()
		}
		panic("sdpcore: completion of an RDMA Read that was not asked for")
	}
	op := s.ops.pop()
	for i := range s.adverts.len() {
		if a := s.adverts.at(i); a.key == op.adv {
			a.done += op.n
			a.at = m.now
			break
		}
	}
	m.stats.RecvBytesRead += uint64(op.n)
	s.pos += uint64(op.n)
	if op.local {
		s.opsLocal--
		s.localN -= op.n
		s.holds.push(held{n: op.n})
		s.held += op.n
		s.compacted += op.n
	} else if i, r := m.findRead(op.rid); r != nil {
		r.off += op.n
		r.inflight -= op.n
		if r.cancel && r.inflight == 0 {
			m.endRead(i, ErrCancelled)
		}
	}
	if s.discard {
		m.dropHeld()
	}
	m.serve()
	return m.end()
}

// accept takes n bytes of payload of the message just received, of which the
// last is urgent and kept apart if apart is set. It reports whether the rules
// allow payload now.
func (m *Machine) accept(mid sdpwire.MID, n int, apart bool) bool {
	s := &m.snk
	switch {
	case s.eof: // [SDP-8.2.1-8]
		m.violation("SDP-8.2.1-8", mid, "payload after DisConn")
		return false
	case s.adverts.len() > 0 && s.expected == 0:
		row := "SDP-11.2-4"
		if s.mode == sdpwire.Pipelined {
			row = "SDP-11.3-5"
		}
		m.violation(row, mid, "payload while a SrcAvail is open")
		return false
	case s.adverts.len() > 0 && n > s.expected:
		m.violation("SDP-11.3-6", mid, "%d bytes where %d were owed", n, s.expected)
		return false
	case s.closed && !m.snk.discard:
		m.abort(ErrReadClosed) // [D-49]
		return false
	}
	s.expected = max(0, s.expected-n)
	s.pol.bcopied += n
	if s.offers.len() == 0 {
		s.count++ // [SDP-6.3.3.4-3]
		m.hold(n, apart)
		return true
	}
	// The oldest SinkAvail is used up by this message and by no other.
	// [SDP-9.5.1-4] [SDP-9.5.1-5] The peer's counter will tell it so.
	r := m.endOffer(0, false)
	m.hold(n, apart)
	if r != nil && r == s.reads.at(0) && s.held > 0 {
		m.take(r, min(r.n-r.off, s.held))
		m.endRead(0, nil)
	}
	m.checkSinkCancel()
	return true
}

// hold appends n bytes to what waits for reads.
func (m *Machine) hold(n int, apart bool) {
	s := &m.snk
	s.pos += uint64(n)
	if apart {
		n--
	}
	if n == 0 {
		m.cr.free++
		return
	}
	m.do(Action{Op: OpHold, N: n})
	s.holds.push(held{n: n, private: true})
	s.held += n
	if s.discard {
		m.dropHeld()
	}
}

func (m *Machine) dropHeld() {
	if n := m.snk.held; n > 0 {
		m.do(Action{Op: OpDrop, N: n})
		m.consume(n)
	}
}

// compact frees the Private Buffer of the newest payload by having it copied,
// when buffers run low and it fills less than half of one: a buffer with a
// single byte in it must not cost the peer a whole credit. [SDP-9.5.6-1] [D-79]
func (m *Machine) compact() {
	s := &m.snk
	if s.holds.len() == 0 || m.cr.free > m.cr.pool/2 {
		return
	}
	h := s.holds.at(s.holds.len() - 1)
	if !h.private || h.n > m.p.RecvSize/2 || s.compacted+h.n > m.p.RecvBudget {
		return
	}
	m.do(Action{Op: OpCompact, N: h.n})
	m.stats.CompactedBytes += uint64(h.n)
	h.private = false
	s.compacted += h.n
	m.cr.free++
	if s.holds.len() > 1 { // one run is enough to count
		if before := s.holds.at(s.holds.len() - 2); !before.private {
			before.n += h.n
			s.holds.remove(s.holds.len() - 1)
		}
	}
}

// handleSrcAvail takes the advertisement of a SrcAvail with n bytes of payload.
// Each ends by RDMA or by a SendSm. [SDP-9.5.2.1-4]
func (m *Machine) handleSrcAvail(msg *sdpwire.Message, n int) {
	s := &m.snk
	m.stats.RecvSrcAvails++
	switch {
	case s.eof:
		m.violation("SDP-8.2.1-8", msg.MID, "after DisConn")
		return
	case s.mode == sdpwire.Buffered: // [SDP-11.1-1]
		m.violation("SDP-11.1-1", msg.MID, "in Buffered Mode")
		return
	case s.mode == sdpwire.Combined && n == 0:
		m.violation("SDP-9.2-2", msg.MID, "without payload in Combined Mode")
		return
	case s.mode == sdpwire.Combined && s.adverts.len() > 0:
		m.violation("SDP-11.2-4", msg.MID, "another is open in Combined Mode")
		return
	case s.expected > 0 && n > 0:
		m.violation("SDP-11.2-4", msg.MID, "%d bytes are owed by Data", s.expected)
		return
	case s.mode == sdpwire.Pipelined && n > 0:
		m.violation("SDP-9.2-3", msg.MID, "with payload in Pipelined Mode")
		return
	case s.srcCancel:
		m.violation("SDP-9.5.4-10", msg.MID, "before the cancel was answered")
		return
	case uint32(n) > msg.Size:
		m.violation("D-18", msg.MID, "%d bytes of payload from a buffer of %d", n, msg.Size)
		return
	case msg.VA+uint64(msg.Size) < msg.VA:
		m.violation("SDP-6.3.2.1-1", msg.MID, "buffer beyond the address space")
		return
	case s.offers.len() > 0:
		return // Write Zcopy wins [SDP-11.3-9] [SDP-11.3-16]
	case m.src.avail.len()+s.adverts.len() >= m.p.MaxAdverts: // [SDP-6.2.1.3-1] [D-15]
		m.violation("SDP-11.3-18", msg.MID, "more than %d advertisements open", m.p.MaxAdverts)
		return
	}
	if n > 0 && !m.accept(msg.MID, n, false) {
		return
	}
	m.stats.RecvBytesPrefix += uint64(n)
	if s.closed && !s.discard {
		m.abort(ErrReadClosed)
		return
	}
	m.keys++
	a := s.adverts.push(inAdv{key: m.keys, stag: msg.STag, to: msg.VA + uint64(n), size: int(msg.Size) - n, at: m.now})
	a.empty = a.size == 0                            // [D-18]
	a.wantSm = !a.empty && (m.p.NoRead || s.discard) // [SDP-9-5]
	if s.adverts.len() == 1 {
		s.waitAt = m.now
	}
}

// rdComplReady reports whether the oldest SrcAvail has bytes to acknowledge.
func (m *Machine) rdComplReady() bool {
	s := &m.snk
	if s.adverts.len() == 0 || s.expected > 0 { // [SDP-9.2-26]
		return false
	}
	a := s.adverts.at(0)
	// Only what has been read [SDP-9.2-10], and once nothing more of it is in
	// progress, so that each round has one answer.
	return a.empty || a.done > a.reported && a.done == a.asked
}

// rdCompl acknowledges the bytes of the oldest SrcAvail read since the last
// time. [SDP-9.2-9] [SDP-9.2-11] [SDP-9.2-12] [SDP-9.2-13] [SDP-9.2-28]
// [SDP-6.3.7.1-1] [SDP-6.3.7.1-2] [SDP-6.3.7.1-3]
func (m *Machine) rdCompl() {
	s := &m.snk
	a := *s.adverts.at(0)
	n := m.send(sdpwire.RdmaRdCompl, m.preference())
	act := &m.out[n]
	act.Msg.Size = uint32(a.done - a.reported)
	s.adverts.at(0).reported = a.done
	if a.done == a.size {
		if !m.p.NoInvalidate { // the final one [SDP-9.2-20]; others by Send with SE [SDP-9.2-21]
			act.Invalidate, act.STag = true, a.stag
		}
		s.adverts.pop()
		s.waitAt = m.now
		m.endHold()
	}
}

// endHold lets MSeqAck go on when nothing of a SrcAvailCancel is left to do.
// [D-33]
func (m *Machine) endHold() {
	if m.snk.srcCancel && m.snk.adverts.len() == 0 {
		m.snk.srcCancel, m.cr.hold = false, false
	}
}

// sendSmReady reports whether a SendSm is due, in whatever mode [SDP-11-2] [D-21]: for the oldest SrcAvail, whose
// reads are all finished and reported, or for a cancel.
func (m *Machine) sendSmReady() bool {
	s := &m.snk
	if s.adverts.len() == 0 {
		return false
	}
	a := s.adverts.at(0)
	if a.done != a.asked || a.done != a.reported || a.empty {
		return false
	}
	if s.srcCancel {
		return s.ops.len() == 0 // [SDP-9.5.4-7]
	}
	return a.wantSm && s.expected == 0
}

// sendSm forces the rest of the oldest SrcAvail to Bcopy [SDP-9.5.2.1-1], or
// answers a cancel: one message for all SrcAvails, the first to carry the true
// MSeqAck. [SDP-9.5.4-8] [SDP-9.5.4-9] [D-32] [D-33]
func (m *Machine) sendSm() {
	s := &m.snk
	if s.srcCancel {
		s.srcCancel, m.cr.hold = false, false
		m.send(sdpwire.SendSm, 0)
		s.adverts.clear()
		m.stats.SentSendSms++
		return
	}
	m.send(sdpwire.SendSm, 0)
	a := s.adverts.pop()
	s.expected = a.size - a.reported // [SDP-9.2-27]; the SrcAvails behind it stay [SDP-11.3-7]
	s.waitAt = m.now
	m.stats.SentSendSms++
}

// handleSrcAvailCancel drops all SrcAvails that are not finished. [SDP-9.5.4-2]
// [SDP-9.5.4-3] If there is none, nothing happens. [SDP-9.5.4-4]
func (m *Machine) handleSrcAvailCancel(msg *sdpwire.Message) {
	s := &m.snk
	if s.srcCancel {
		m.violation("SDP-9.5.4-10", msg.MID, "another is being answered")
		return
	}
	if s.adverts.len() == 0 {
		return
	}
	s.srcCancel = true
	for i := range s.adverts.len() {
		s.adverts.at(i).wantSm = false
	}
	m.cr.hold, m.cr.holdAt = m.life == lifeOpen, serial(msg.MSeq)-1 // [SDP-9.5.4-5] [D-33]
}

// mayOffer returns the index of the read to advertise by a SinkAvail, or -1.
// [SDP-9.3-2] [SDP-9.5.1-1] [SDP-11.3-8] [SDP-11.3-14]
func (m *Machine) mayOffer() int {
	s := &m.snk
	switch {
	case s.mode != sdpwire.Pipelined || m.p.NoSinkAvail || s.eof || s.closed: // [SDP-9.4-2] [SDP-12-10]
		return -1
	case s.held > 0 || s.ops.len() > 0 || s.expected > 0 || s.adverts.len() > 0: // [SDP-11.3-14]; [D-34] no SinkAvail overtakes a SendSm
		return -1
	case s.cancelWant || s.cancelOpen: // [SDP-9.5.5-10]
		return -1
	case m.rsz.ackOwed: // the buffer size is about to change [SDP-10.6-15]
		return -1
	case s.offers.len()+m.src.advs.len() >= m.p.PeerMaxAdverts: // [SDP-6.2.1.3-1] [SDP-11.3-18]
		return -1
	}
	i := s.offers.len() // the reads before are advertised
	if i >= s.reads.len() {
		return -1
	}
	r := s.reads.at(i)
	if r.offered || r.all || r.cancel || r.off > 0 || r.n <= m.p.RecvSize || r.n <= m.p.RecvThreshold {
		return -1
	}
	return i
}

// sinkAvail advertises read i, the whole of it from its first byte on. [SDP-9.3-3]
// [SDP-6.3.3.1-1] [SDP-6.3.3.2-1] With transact it
// also carries small writes that wait. [SDP-9.4-1] [SDP-6.3.3-3]
func (m *Machine) sinkAvail(i int, transact bool) {
	s := &m.snk
	r := s.reads.at(i)
	size := min(r.n, sdpwire.MaxSize)
	m.keys++
	a := m.send(sdpwire.SinkAvail, 0)
	act := &m.out[a]
	act.Adv, act.RID = m.keys, r.id
	act.Msg.Size, act.Msg.NonDiscards = uint32(size), uint32(s.count) // [SDP-9.3-4] [SDP-6.3.3.4-1]
	r.offered = true
	s.offers.push(sinkAdv{key: m.keys, rid: r.id, size: size})
	m.stats.SentSinkAvails++
	if transact {
		at := m.src.covered()
		end := at
		for end < m.src.writes.len() && !m.src.writes.at(end).urgent && !m.src.zcopy(m.src.writes.at(end)) {
			end++
		}
		n := m.payload(a, at, end, m.p.PeerSize-sdpwire.SinkAvailLen)
		m.stats.SentBytesTransact += uint64(n)
	}
}

// endOffer ends SinkAvail i, which nothing else does: until then the peer may
// write. [SDP-9.3-14] Its read stays where it is.
func (m *Machine) endOffer(i int, remote bool) *read {
	s := &m.snk
	o := s.offers.remove(i)
	m.do(Action{Op: OpRevoke, Adv: o.key, Remote: remote}) // [SDP-9.3-11]
	_, r := m.findRead(o.rid)
	if r != nil {
		r.offered = false
	}
	return r
}

// voidOffers ends all SinkAvails: the peer will not write any more.
func (m *Machine) voidOffers() {
	for m.snk.offers.len() > 0 {
		m.endOffer(0, false)
	}
	m.checkSinkCancel()
}

// checkSinkCancel regards the SinkAvailCancel as Processed when every
// SinkAvail is resolved. [SDP-9.5.5-11] [D-34]
func (m *Machine) checkSinkCancel() {
	s := &m.snk
	if s.offers.len() > 0 {
		return
	}
	s.cancelWant, s.cancelOpen = false, false
	for i := 0; i < s.reads.len(); {
		if r := s.reads.at(i); r.cancel && r.inflight == 0 {
			m.endRead(i, ErrCancelled)
		} else {
			i++
		}
	}
}

// handleRdmaWrCompl: the peer has written into the oldest SinkAvail and is done
// with it. [SDP-9.3-13] [D-20]
func (m *Machine) handleRdmaWrCompl(msg *sdpwire.Message, inv uint32, invalidated bool) {
	s := &m.snk
	switch {
	case s.offers.len() == 0:
		m.violation("SDP-9.3-13", msg.MID, "no SinkAvail is open")
		return
	case int(msg.Size) > s.offers.at(0).size:
		m.violation("D-20", msg.MID, "%d bytes in a buffer of %d", msg.Size, s.offers.at(0).size)
		return
	case invalidated && inv != s.offers.at(0).stag: // [SDP-9.3-10]
		m.violation("SDP-9.3-10", msg.MID, "invalidates an STag that is not the SinkAvail's")
		return
	}
	n := int(msg.Size)
	m.stats.RecvBytesWrite += uint64(n)
	s.pos += uint64(n)
	if r := m.endOffer(0, invalidated); r != nil {
		i, _ := m.findRead(r.id)
		r.off += n
		switch {
		case n > 0:
			m.endRead(i, nil)
		default:
			// No bytes: the read goes on waiting, behind those whose buffers
			// may be being written already. [D-20]
			rr := s.reads.remove(i)
			s.reads.push(rr)
			for j := s.reads.len() - 1; j > i && !s.reads.at(j-1).offered; j-- {
				*s.reads.at(j), *s.reads.at(j - 1) = *s.reads.at(j - 1), *s.reads.at(j)
			}
		}
	}
	m.checkSinkCancel()
}

// handleSinkCancelAck: the peer has dropped all SinkAvails that are still open.
// One without a cancel, or for an earlier cancel, says nothing. [D-34]
func (m *Machine) handleSinkCancelAck(msg *sdpwire.Message) {
	if s := &m.snk; s.cancelOpen && !serial(msg.MSeqAck).less(s.cancelSeq) {
		m.voidOffers()
	}
}

// CloseRead says that the ULP reads no more. Payload that comes afterwards ends
// the connection abortively, as with TCP [D-49], unless discard is set: then it
// is dropped. Reads in progress end.
func (m *Machine) CloseRead(now time.Duration, discard bool, out []Action) []Action {
	m.begin(now, out)
	s := &m.snk
	if !s.closed || discard {
		s.closed, s.discard = true, discard
		for i := range s.reads.len() {
			r := s.reads.at(i)
			r.cancel = true
			if r.offered {
				s.cancelWant = !s.cancelOpen
			}
		}
		if s.offers.len() == 0 {
			m.checkSinkCancel()
		}
		m.dropHeld()
		if !discard && s.adverts.len() > 0 {
			m.abort(ErrReadClosed) // the rest of them is yet to come
		}
		if discard {
			for i := range s.adverts.len() {
				s.adverts.at(i).wantSm = true
			}
		}
	}
	return m.end()
}
