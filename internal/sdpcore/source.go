package sdpcore

import (
	"time"

	"viaduct/internal/wire/sdpwire"
)

// A write is a part of the outgoing stream in one buffer of the driver.
type write struct {
	id       uint64
	n        int  // bytes
	off      int  // bytes sent, written, or acknowledged as read; never repeated [D-83]
	urgent   bool // the last byte of the write is urgent
	pended   bool // the urgent byte was announced by OOB_PEND
	bcopy    bool // must not be advertised, or not any more
	forced   bool // a SendSm has asked for the rest by Data [SDP-9.2-25]
	cancel   bool // cancelled by the driver
	detached bool // the caller has returned with the full count [D-32]
}

// A srcAdv is an open SrcAvail.
type srcAdv struct {
	key    uint64
	size   int // bytes advertised
	left   int // bytes neither in the payload of the SrcAvail nor acknowledged
	stag   uint32
	seq    serial        // MSeq of the SrcAvail
	at     time.Duration // when the SrcAvail was sent, or when bytes were last acknowledged
	zeroes int           // number of RdmaRdCompls without bytes in a row [D-19]
}

// A sinkOffer is an unfinished SinkAvail of the peer that is not stale.
type sinkOffer struct {
	size, filled int
	stag         uint32
	to           uint64
}

// source is the half-connection with this end as the Data Source.
//
// SendSms have forced the oldest writes to Bcopy. Open SrcAvails [SDP-11.3-17] cover the writes
// after them, one each, in order. All later writes are plain: none of their bytes from off on was
// sent.
type source struct {
	mode   sdpwire.Mode
	writes deque[write]
	queued int // bytes of unfinished writes

	nforced int // number of oldest writes whose rest must be sent by Data
	advs    deque[srcAdv]
	count   serial           // PotentialNonDiscards [SDP-9.5.1-7]
	avail   deque[sinkOffer] // SinkAvails of the peer, oldest first; only the oldest is partly written

	ackOwed bool // a SinkCancelAck must be sent [SDP-9.5.5-9]

	cancelWant bool          // a SrcAvailCancel must be sent
	cancelOpen bool          // a SrcAvailCancel was sent and is not Processed
	cancelSeq  serial        // MSeq of the SrcAvailCancel
	cancelAt   time.Duration // when the SrcAvailCancel was sent

	// These fields are for the change from Pipelined to Combined. [SDP 12.4]
	leaving  bool          // the ModeChange is not acknowledged [SDP-12.4-3]
	leaveSeq serial        // MSeq of the ModeChange
	count0   serial        // PotentialNonDiscards when the ModeChange was sent [D-26]
	leaveAt  time.Duration // when the ModeChange was sent
	nudgeAck bool          // an empty Data has asked for the acknowledgement [D-45]

	urgents int // number of urgent writes that were not announced

	closing   bool // no more writes are accepted; DisConn must be sent [SDP-8.2.1-2]
	disSent   bool
	threshold int // current zero-copy threshold [D-39]

	stalled   bool // payload is waiting for credit
	stalledAt time.Duration

	pol srcPolicy
}

// covered returns the number of writes that are forced or advertised.
func (s *source) covered() int { return s.nforced + s.advs.len() }

// plain returns the oldest write that is neither forced nor advertised, or nil.
func (s *source) plain() *write {
	if i := s.covered(); i < s.writes.len() {
		return s.writes.at(i)
	}
	return nil
}

// written returns the write that the oldest open SrcAvail covers.
func (s *source) written() *write { return s.writes.at(s.nforced) }

// zcopy reports whether to send w by zero copy in the current mode. [SDP-11-1] [SDP-11.2-1]
// [SDP-11.2-2] [SDP-11.3-1] [SDP-11.3-2]
func (s *source) zcopy(w *write) bool {
	// A SrcAvail of one byte would consist only of payload. [D-18]
	return s.mode != sdpwire.Buffered && !w.bcopy && !w.urgent && w.n-w.off > max(s.threshold, 1)
}

// Write queues write id of n bytes, at least one. If urgent is set, the last byte is urgent data.
// [SDP-9.5.3-1] id must not be in use. After CloseWrite, or on a dead connection, the write ends at
// once with an error. [SDP-8.2.1-2] [SDP-8.2.1-20]
func (m *Machine) Write(now time.Duration, id uint64, n int, urgent bool, out []Action) []Action {
	m.begin(now, out)
	if n <= 0 {
		panic("sdpcore: write of nothing")
	}
	s := &m.src
	switch {
	case m.life == lifeDead:
		m.do(Action{Op: OpWriteDone, ID: id, Err: m.werr})
		return m.end()
	case s.closing:
		m.do(Action{Op: OpWriteDone, ID: id, Err: ErrWriteClosed})
		return m.end()
	}
	s.writes.push(write{id: id, n: n, urgent: urgent})
	s.queued += n
	if urgent {
		s.urgents++
	}
	m.noteWrite(n)
	return m.end()
}

// Exchange queues write wid of wn bytes, and posts read rid with room for rn bytes for the answer.
// If the modes allow it, one message then carries both the bytes and the SinkAvail. Otherwise
// Exchange equals Write and Read. [SDP-9.4-1]
func (m *Machine) Exchange(now Time, wid uint64, wn int, rid uint64, rn int, out []Action) []Action {
	m.begin(now, out)
	s := &m.src
	if wn <= 0 || rn <= 0 || s.closing || m.life == lifeDead || m.snk.closed {
		return m.Read(now, rid, rn, false, m.Write(now, wid, wn, false, out))
	}
	s.writes.push(write{id: wid, n: wn})
	s.queued += wn
	m.noteWrite(wn)
	m.snk.reads.push(read{id: rid, n: rn})
	m.noteRead(rn)
	return m.end()
}

// Extend makes the newest write n bytes longer if its id is id and the write still waits to be
// sent. Otherwise it returns false and changes nothing. A driver gathers small writes with Extend.
func (m *Machine) Extend(id uint64, n int) bool {
	s := &m.src
	if s.closing || m.life == lifeDead || s.writes.len() == 0 || s.covered() == s.writes.len() {
		return false
	}
	w := s.writes.at(s.writes.len() - 1)
	if w.id != id || w.urgent || w.cancel {
		return false
	}
	w.n += n
	s.queued += n
	return true
}

// KeepByCopy marks write id as one whose bytes are in the driver's own memory, so that it is never
// advertised. An unknown id is ignored.
func (m *Machine) KeepByCopy(id uint64) {
	for i := m.src.writes.len() - 1; i >= 0; i-- {
		if w := m.src.writes.at(i); w.id == id {
			w.bcopy = true
			return
		}
	}
}

// CancelWrite cancels write id. The write ends by OpWriteDone with the exact count. It ends at once
// if none of its bytes is advertised, otherwise after the peer has answered the SrcAvailCancel.
// [SDP-9.5.4-1] [D-32] If the rest must still be sent to the peer, the machine returns OpDetach
// instead.
func (m *Machine) CancelWrite(now time.Duration, id uint64, out []Action) []Action {
	m.begin(now, out)
	s := &m.src
	for i := range s.writes.len() {
		w := s.writes.at(i)
		if w.id != id {
			continue
		}
		switch {
		case w.detached:
		case w.forced || w.pended:
			w.detached = true
			m.do(Action{Op: OpDetach, ID: id, Off: w.off, N: w.n})
		case i < s.covered():
			w.cancel, s.cancelWant = true, !s.cancelOpen
		default:
			m.dropWrite(i, ErrCancelled)
		}
		break
	}
	return m.end()
}

// dropWrite ends write i with err before all of it was sent.
func (m *Machine) dropWrite(i int, err error) {
	s := &m.src
	w := s.writes.remove(i)
	s.queued -= w.n - w.off
	if w.urgent && !w.pended {
		s.urgents--
	}
	m.do(Action{Op: OpWriteDone, ID: w.id, N: w.off, Err: err})
}

// advance counts n more bytes of write i as finished, and ends the write after its last byte.
func (m *Machine) advance(i, n int) {
	s := &m.src
	w := s.writes.at(i)
	w.off += n
	s.queued -= n
	if w.off == w.n {
		m.do(Action{Op: OpWriteDone, ID: w.id, N: w.n})
		if s.writes.remove(i).forced {
			s.nforced--
		}
	}
}

// data is Bcopy: it sends one Data message [SDP-9-2] [SDP-11.1-1] with the rest of the forced
// write, or with as many plain bytes as fit, possibly from several writes. [SDP-9.1-1] [SDP-10-4]
func (m *Machine) data() {
	s := &m.src
	end := s.writes.len()
	if s.advs.len() > 0 {
		end = s.nforced // only the forced write is sent [SDP-11.3-6] [SDP-9.2-25] [SDP-9.5.2.1-2]
	}
	flags := sdpwire.Flags(0)
	limit := m.p.PeerSize - sdpwire.BSDHLen
	if w, between := m.urgentWithin(end, limit); between > urgentDistance { // [SDP-9.5.3-5] [SDP-9.5.3-6]
		// A message with all bytes would carry the urgent byte, which may not be announced so
		// early. The next message announces and carries the urgent byte.
		limit = between - urgentDistance
	} else if w != nil {
		flags = sdpwire.OOBPres // [SDP-6.1.2-4] [SDP-9.5.3-8]
		m.stats.UrgentSent++
	}
	a := m.send(sdpwire.Data, flags)
	n := m.payload(a, 0, end, limit)
	m.stats.SentBytesBcopy += uint64(n)
}

// urgentWithin looks for an urgent byte in the next limit bytes of the writes before end, which one
// message could carry. It returns the write of the urgent byte and the number of bytes before the
// byte, or nil.
func (m *Machine) urgentWithin(end, limit int) (w *write, between int) {
	s := &m.src
	for i := range min(end, maxParts) {
		w := s.writes.at(i)
		if i > 0 && s.zcopy(w) {
			return nil, 0
		}
		between += w.n - w.off
		if between > limit {
			return nil, 0
		}
		if w.urgent {
			return w, between - 1
		}
	}
	return nil, 0
}

// maxParts is the largest number of pieces of one message.
const maxParts = 32

// page is the unit for the lengths of the pieces of a long write.
const page = 4 << 10

// piece returns the number of the next n bytes of a write to send in a message with room for limit
// bytes. The pieces of a long write have equal lengths, except for the last one.
func piece(n, limit int) int {
	if n <= limit {
		return n
	}
	if limit >= 16*page {
		limit -= limit % page
	}
	return limit
}

// payload adds up to limit bytes of the writes at to end-1 to the message of the action at index a,
// counts them as sent, and returns their number. It stops after an urgent byte, which must be the
// last byte of the message [SDP-6.1.2-4], and before a write for zero copy. Every message with
// payload may make one SinkAvail stale. [SDP-9.5.1-8]
func (m *Machine) payload(a, at, end, limit int) (total int) {
	s := &m.src
	parts := 0
	for end > at && limit > 0 && parts < maxParts {
		w := s.writes.at(at)
		if parts > 0 && s.zcopy(w) {
			break
		}
		n := piece(w.n-w.off, limit)
		if parts == 0 {
			m.out[a].ID, m.out[a].Off, m.out[a].N = w.id, w.off, n
		} else {
			// Insert the part before the OpWriteDone of earlier parts, because the parts of one
			// message must be adjacent.
			m.insertPart(a+parts-1, Action{Op: OpPart, ID: w.id, Off: w.off, N: n})
		}
		parts++
		total += n
		limit -= n
		last := w.urgent || w.off+n < w.n
		m.advance(at, n)
		if last {
			break
		}
		end--
	}
	m.out[a].Parts = parts - 1
	m.out[a].Msg.Len += uint32(total)
	// This message consumes a SinkAvail that is not stale, instead of incrementing the counter; the
	// sum is the same. [D-23]
	if s.avail.len() > 0 { // [SDP-9.5.2.2-2]
		s.avail.pop()
	} else {
		s.count++ // [SDP-9.5.1-8]
	}
	m.sentPayload()
	return total
}

func (m *Machine) insertPart(after int, p Action) {
	m.out = append(m.out, Action{})
	copy(m.out[after+2:], m.out[after+1:])
	m.out[after+1] = p
}

// srcAvail begins a Read Zcopy: it advertises the rest of the oldest plain write, at any address,
// including the bytes in the payload. [SDP-9.2-1] [SDP-9-3] [SDP-6.3.2.1-1] [SDP-6.3.2.2-1]
// [SDP-6.3.2.2-2] In Combined Mode the message carries the first bytes [SDP-9.2-2] [SDP-11.2-6], in
// Pipelined Mode none [SDP-9.2-3] [SDP-11.3-4]; in both modes it describes the whole buffer
// [SDP-9.2-4].
func (m *Machine) srcAvail() {
	s := &m.src
	i := s.covered()
	w := s.writes.at(i)
	size := min(w.n-w.off, sdpwire.MaxSize)
	prefix := 0
	if s.mode == sdpwire.Combined {
		prefix = 1 // [D-82]
		if room := m.p.PeerSize - sdpwire.SrcAvailLen; m.p.BigPrefix {
			prefix = min(room, size-1) // the prefix is never all of the buffer [D-18]
		}
	}
	m.keys++
	a := m.send(sdpwire.SrcAvail, 0)
	act := &m.out[a]
	act.Adv, act.ID, act.Off, act.N = m.keys, w.id, w.off, prefix
	act.Msg.Size = uint32(size)
	act.Msg.Len += uint32(prefix)
	if prefix > 0 {
		w.off += prefix
		s.queued -= prefix
		s.count++ // [SDP-9.5.1-8] [D-25]
		m.sentPayload()
	}
	s.advs.push(srcAdv{key: m.keys, size: size, left: size - prefix, seq: m.cr.next - 1, at: m.now}) // [SDP-12.4-6]
	m.stats.SentSrcAvails++
	m.stats.SentBytesPrefix += uint64(prefix)
}

// Bind records the STag the driver has assigned to advertisement adv. It does nothing if that
// advertisement has ended.
func (m *Machine) Bind(adv uint64, stag uint32) {
	for i := m.src.advs.len() - 1; i >= 0; i-- {
		if a := m.src.advs.at(i); a.key == adv {
			a.stag = stag
			return
		}
	}
	for i := m.snk.offers.len() - 1; i >= 0; i-- {
		if o := m.snk.offers.at(i); o.key == adv {
			o.stag = stag
			return
		}
	}
}

// rdmaWrite writes bytes of one write into the oldest SinkAvail of the peer, after the bytes that
// the SinkAvail already contains. [SDP-6.3.3.3-1] [SDP-6.3.3.2-2] The SinkAvail of a Transaction is
// filled in the same way. [SDP-9.4-3] [SDP-9.4-4] [SDP-9.4-5] [SDP-9.3-1] [SDP-9.3-5] [SDP-11.3-11]
func (m *Machine) rdmaWrite() {
	s := &m.src
	k, w := s.avail.at(0), s.writes.at(s.covered())
	n := min(k.size-k.filled, w.n-w.off)
	m.do(Action{Op: OpRDMAWrite, ID: w.id, Off: w.off, N: n, STag: k.stag, TO: k.to + uint64(k.filled)})
	k.filled += n
	m.stats.SentBytesWrite += uint64(n)
	m.advance(s.covered(), n)
}

// wrCompl reports the bytes written to the oldest SinkAvail, whether it is full or not. [SDP-9.3-7]
// [SDP-9.3-12] [SDP-6.3.6.1-1] [SDP-6.3.6.1-2]
func (m *Machine) wrCompl() {
	k := m.src.avail.pop()
	a := m.send(sdpwire.RdmaWrCompl, m.preference())
	m.out[a].Msg.Size = uint32(k.filled)
	if !m.p.NoInvalidate { // [SDP-9.3-8] [SDP-9.3-9]
		m.out[a].Invalidate, m.out[a].STag = true, k.stag
	}
}

// revokeAdvs ends all open SrcAvails without separate answers. Their writes become plain again,
// from the first undelivered byte on. [D-83]
func (m *Machine) revokeAdvs() {
	s := &m.src
	for s.advs.len() > 0 {
		m.do(Action{Op: OpRevoke, Adv: s.advs.pop().key})
	}
}

// settleCancel ends the cancelled writes that no SrcAvail covers any more.
func (m *Machine) settleCancel() {
	s := &m.src
	s.cancelOpen, s.cancelWant = false, false
	for i := s.covered(); i < s.writes.len(); {
		if w := s.writes.at(i); w.cancel {
			m.dropWrite(i, ErrCancelled)
		} else {
			i++
		}
	}
}

// checkCancel ends the SrcAvailCancel if no SrcAvail is open any more. [SDP-9.5.4-11]
func (m *Machine) checkCancel() {
	if m.src.advs.len() == 0 {
		m.settleCancel()
	}
}

// beginRdmaRdCompl checks an RdmaRdCompl, which refers to the oldest open SrcAvail.
func (m *Machine) beginRdmaRdCompl(msg *inbound) error {
	s := &m.src
	switch {
	case s.advs.len() == 0:
		return violation("SDP-9.2-13", msg.MID, "no SrcAvail is open")
	case s.nforced > 0:
		return violation("SDP-9.2-27", msg.MID, "bytes of an earlier SrcAvail are still owed by Data")
	}
	a := s.advs.at(0)
	// The peer acknowledges any part of the rest, in any number of rounds. [SDP-9.2-14] [SDP-9.2-15]
	n := int(msg.Size)
	switch { // [SDP-9.2-17]
	case n > a.left:
		return violation("SDP-9.2-17", msg.MID, "%d bytes of the %d that were left", n, a.left)
	case n == 0 && a.zeroes == 16: // [D-19]
		return violation("D-19", msg.MID, "no progress %d times", a.zeroes+1)
	case msg.invalidated && (n != a.left || msg.inv != a.stag): // [SDP-9.2-22] [D-41]
		return violation("SDP-9.2-22", msg.MID, "invalidates an STag that is not the finished SrcAvail's")
	}
	return nil
}

// endRdmaRdCompl counts bytes of the oldest open SrcAvail that the peer has read.
func (m *Machine) endRdmaRdCompl(msg *inbound) error {
	s := &m.src
	a, n := s.advs.at(0), int(msg.Size)
	final := n == a.left
	if a.zeroes++; n > 0 || final {
		a.zeroes = 0
	}
	m.stats.SentBytesRead += uint64(n)
	a.left -= n
	// After the final RdmaRdCompl the peer does not read the bytes any more. [SDP-9.2-19] After any
	// other RdmaRdCompl, another answer must follow. [SDP-9.2-18]
	if final {
		key := s.advs.at(0).key
		i := s.nforced
		s.advs.pop()
		m.do(Action{Op: OpRevoke, Adv: key, Remote: msg.invalidated}) // [SDP-9.2-23]
		m.advance(i, n)
	} else {
		w := s.written()
		w.off += n
		s.queued -= n
		a.at = m.now
	}
	s.pol.sendSms = 0
	m.checkCancel()
	m.noteHint(msg.Flags) // only RdmaRdCompl and RdmaWrCompl carry the hint [SDP-6.1.2-12]
	return nil
}

// beginSendSm checks a SendSm, which refers to the oldest open SrcAvail.
func (m *Machine) beginSendSm(msg *inbound) error {
	m.stats.RecvSendSms++
	if m.src.advs.len() == 0 { // [SDP-9.2-16]
		return violation("SDP-9.2-16", msg.MID, "no SrcAvail is open")
	}
	return nil
}

// endSendSm forces the rest of the oldest open SrcAvail to Data, as the peer wants [SDP-9.2-24]
// [SDP-9.5.2.1-5]. If the SendSm answers a cancel, it ends all SrcAvails instead.
func (m *Machine) endSendSm(msg *inbound) error {
	s := &m.src
	if s.cancelOpen && !serial(msg.MSeqAck).less(s.cancelSeq) { // [SDP-9.5.4-11]
		m.revokeAdvs()
		m.settleCancel()
		return nil
	}
	// A SendSm from before the cancel ends its SrcAvail in the normal way. [D-31]
	w := s.written()
	m.do(Action{Op: OpRevoke, Adv: s.advs.pop().key})
	w.forced, w.bcopy = true, true
	s.nforced++
	if w.cancel {
		w.cancel, w.detached = false, true
		m.do(Action{Op: OpDetach, ID: w.id, Off: w.off, N: w.n})
	}
	m.noteSendSm() // [D-39]
	m.checkCancel()
	return nil
}

// endSinkAvail handles the advertisement of a SinkAvail, which may be stale. The payload of the
// SinkAvail was accepted before, and counts even if the advertisement is stale. [SDP-9.5.1-10]
func (m *Machine) endSinkAvail(msg *inbound) error {
	s := &m.src
	m.stats.RecvBytesTransact += uint64(msg.n)
	if msg.VA+uint64(msg.Size) < msg.VA {
		return violation("SDP-6.3.3.1-1", msg.MID, "buffer beyond the address space")
	}
	m.stats.RecvSinkAvails++
	if s.disSent { // our DisConn makes the SinkAvail void, which the peer knows [SDP-8.2.1-15]
		return nil
	}
	nd := serial(msg.NonDiscards)
	if s.mode != sdpwire.Pipelined {
		if !s.leaving {
			return violation("SDP-12-10", msg.MID, "in %v Mode", s.mode)
		}
		return m.lateSinkAvail(nd, msg)
	}
	if s.count.less(nd) { // [D-24]
		return violation("D-24", msg.MID, "NonDiscards %d, but only %d messages carried payload", nd, s.count)
	}
	// A message with payload has crossed the SinkAvail. [SDP-9.5.1-3] [SDP-9.5.1-9] This is checked
	// before all else. [SDP-11.3-10]
	if nd != s.count {
		s.count--
		m.stats.StaleSinkAvails++
		return nil
	}
	if s.avail.len()+m.snk.adverts.len() >= m.p.MaxAdverts { // [SDP-6.2.1.3-1] [D-15]
		return violation("SDP-11.3-18", msg.MID, "more than %d advertisements open", m.p.MaxAdverts)
	}
	s.avail.push(sinkOffer{size: int(msg.Size), stag: msg.STag, to: msg.VA})
	// The peer has discarded the open SrcAvails [SDP-11.3-12]; bytes that do not fit into the
	// SinkAvail are advertised again. [SDP-11.3-13]
	m.stats.Overrides += uint64(s.advs.len())
	m.revokeAdvs()
	m.checkCancel()
	return nil
}

// lateSinkAvail handles a SinkAvail that the peer sent before it received our ModeChange to
// Combined. [SDP-12.4-7] [D-26]
func (m *Machine) lateSinkAvail(nd serial, msg *inbound) error {
	s := &m.src
	switch {
	case s.count0.less(nd):
		return violation("D-24", msg.MID, "NonDiscards %d, but only %d messages carried payload", nd, s.count0)
	case nd != s.count0: // the SinkAvail was stale before the change
		s.count0--
		s.count--
		m.stats.StaleSinkAvails++
	default:
		// The peer has discarded earlier advertisements, so this SinkAvail is not stale.
		// [SDP-12.4-6]
		m.reissue()
	}
	return nil
}

// reissue returns the writes of all SrcAvails sent before the ModeChange to the queue, because the
// peer has discarded these SrcAvails. [SDP-12.4-6] [SDP-12.4-8] SrcAvails sent after the ModeChange
// remain valid. [D-26]
func (m *Machine) reissue() {
	s := &m.src
	if s.advs.len() > 0 && s.advs.at(0).seq.less(s.leaveSeq) {
		m.stats.Overrides += uint64(s.advs.len())
		m.revokeAdvs()
		m.checkCancel()
	}
}

// endSinkAvailCancel makes all SinkAvails void that were not written to. [SDP-9.5.5-2] A partly
// written SinkAvail ends by RdmaWrCompl, which pump sends before the SinkCancelAck. [SDP-9.5.5-3]
// [SDP-9.5.5-5] [SDP-9.5.5-6]
func (m *Machine) endSinkAvailCancel(*inbound) error {
	s := &m.src
	keep := 0
	if s.avail.len() > 0 {
		k := s.avail.at(0)
		if k.filled > 0 {
			keep = 1
			if k.filled < k.size { // the free room of the SinkAvail is given up [SDP-9.5.5-8] [D-35]
				s.ackOwed = true
				k.size = k.filled
			}
		}
	}
	for s.avail.len() > keep {
		s.avail.remove(s.avail.len() - 1)
		// An answer is due, because there was a SinkAvail to cancel. [SDP-9.5.5-9] [SDP-9.5.5-4]
		// [D-36]
		s.ackOwed = true
	}
	return nil
}
