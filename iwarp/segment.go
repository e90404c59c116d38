package iwarp

import (
	"viaduct/internal/regmem"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// A messageType is how segments of one opcode are taken. A segment that is staged
// whole, one that is read into place in pieces and one that was predicted take the
// same steps.
type messageType struct {
	// begin judges a segment before its first byte is placed. What it refuses has
	// changed nothing that counts, so that a segment whose CRC is to be verified
	// first can be judged again.
	begin func(q *QueuePair, s *segment) refusal

	// target pins where payload from offset off on belongs: the first piece of it, of
	// k bytes, n at most. A type without target has its payload handled by end.
	target func(q *QueuePair, s *segment, off, n uint64) (ref regmem.Ref, k uint64, out regmem.Outcome)

	// end takes a segment all of whose payload is in place.
	end func(q *QueuePair, s *segment)

	// fail ends the stream for memory that is gone since begin.
	fail func(q *QueuePair, s *segment, out regmem.Outcome, err error)
}

// A segment is the DDP segment being taken.
type segment struct {
	op     rdmap.Opcode
	last   bool         // of its message
	long   bool         // it is read into place, and some of its payload, or the trailer, is missing
	tagged ddp.Tagged   // its header, if op is a tagged one
	un     ddp.Untagged // its header otherwise
	u      []byte       // what has come of the ULPDU, its headers at least
	size   int          // of the payload
	placed int          // bytes of it in place
	at     []byte       // its place, if that is in one piece in memory which held pins; for place alone

	// Of one that is read into place:
	trailer int // bytes of pad and CRC that are missing; 0 as long as payload is
	crc     uint32
	hdr     [ddp.UntaggedLen]byte // memory of u
	pins    []regmem.Ref
	dropped []byte // where the rest goes if its place is gone
}

// payload returns what has come of it.
func (s *segment) payload() []byte { return s.u[headerLen(s.op):] }

// missing returns how many bytes of payload are to be read into place.
func (s *segment) missing() int {
	if !s.long {
		return 0
	}
	return s.size - s.placed
}

// trailerLen returns how many bytes of pad and CRC follow the payload.
func (s *segment) trailerLen() int {
	n := headerLen(s.op) + s.size
	return mpa.FPDULen(n) - mpa.LengthLen - n
}

// A refusal is a fault found in a segment by DDP or by RDMAP; the zero value is none.
type refusal struct {
	ddp   ddp.Fault
	rdmap rdmap.Fault
}

func (f refusal) ok() bool { return f == refusal{} }

// parse reads the headers of a ULPDU of n bytes of which u has come. The order of
// checks is version, queue number, RDMAP version and opcode, so that the rest can be
// left to the opcode's messageType. [DDP-4.1-1] [DDP-4.1-2] [DDP-7.1-1] [RDMAP-7.2-1] [I-42] [I-47] [I-48]
func (q *QueuePair) parse(s *segment, u []byte, n int) (f refusal) {
	s.u, s.placed, s.at = u, 0, nil
	var hl int
	if ddp.IsTagged(u[0]) {
		var err error
		if s.tagged, hl, err = ddp.ParseTagged(u); err != nil { // [DDP-4.1-11] [I-44]
			return refusal{ddp: ddp.VersionFault(u[0])}
		}
		s.size, s.last = n-hl, s.tagged.Last
		s.op, f.rdmap = rdmap.CheckTagged(s.tagged.RsvdULP)
		return f
	}
	var err error
	if s.un, hl, err = ddp.ParseUntagged(u); err != nil { // [DDP-4.1-11] [I-44]
		return refusal{ddp: ddp.VersionFault(u[0])}
	}
	s.size, s.last = n-hl, s.un.Last
	f.ddp = rdmap.CheckQueue(s.un.QN, q.ext)                 // [DDP-7.1-1], told before a fault of RDMAP
	s.op, f.rdmap = rdmap.CheckUntagged(s.un, s.size, q.ext) // [RDMAP-7.2-2] [RDMAP-7.2-3] [RDMAP-7.2-6]
	return f
}

// refuse ends the stream because of the segment, and tells both ULPs.
// [DDP-8.3-4] [SEC-6.1.1-6] [RDMAPX-6.1-2] [RDMAPX-8.1-2] [DDP-7.1-14] [DDP-7.1-15] [DDP-7.1-17] [RDMAP-7.1-3] [RDMAP-7.1-4]
func (q *QueuePair) refuse(s *segment, f refusal, cause error) {
	if f.ddp == ddp.MessageTooLong { // a Send: no other length depends on a buffer [RDMAP-5.3-4] [DDP-1.2-1]
		q.completeRecv(StatusLength, 0)
	}
	var t rdmap.Terminate
	if f.ddp != ddp.OK {
		t = rdmap.TerminateDDP(f.ddp, s.u)
	} else {
		t = rdmap.TerminateRDMAP(f.rdmap, s.u)
	}
	t.SegLen = uint16(len(t.DDP) + s.size) // [RDMAP-4.8-6]
	q.fault(t, cause)
}

// take takes a segment that has come whole. swallow says that it is a ready message
// for which no receive is used up.
func (q *QueuePair) take(u []byte, swallow bool) {
	s := &q.rx.seg
	if f := q.parse(s, u, len(u)); !f.ok() {
		if !q.placePostponed() {
			q.refuse(s, f, nil)
		}
		return
	}
	q.count(s)
	if swallow { // [I-08]
		q.rx.queues[rdmap.QueueSend].Placed(s.un, 0)
		return
	}
	if q.dev.far.Load() && q.postpone(s) {
		return
	}
	q.takeOne(s)
}

// takeOne takes a segment that has come whole and was counted.
func (q *QueuePair) takeOne(s *segment) {
	t := &messageTypes[s.op]
	if f := t.begin(q, s); !f.ok() {
		q.refuse(s, f, nil)
		return
	}
	if t.target == nil || q.place(t, s, s.payload()) {
		t.end(q, s)
	}
}

// count moves the counters for a segment.
func (q *QueuePair) count(s *segment) {
	c := &q.stats
	c.recvBytes.Add(uint64(s.size))
	if s.last {
		c.recvMessages.Add(1)
		if s.size == 0 {
			c.empty.Add(1)
		}
	} else if s.size < 64 {
		c.tiny.Add(1)
	}
}

// beginLong takes the beginning of an FPDU if at least so many bytes of its payload
// are missing, and returns how many are: those are read straight into place. That is
// done only while CRCs are off, when the header of an FPDU may be believed at once, or
// where memory is lent for the message. If anything is wrong with it, it is left for
// the usual way to find out. So it is if what follows p was read to at already, if that is
// not nil, and belongs elsewhere: moving it could overwrite what was read behind it, and the
// bytes of payload in p could overwrite at. [I-22] [MPA-4.4-8]
func (q *QueuePair) beginLong(p []byte, least int, at []byte) (missing int) {
	r := &q.rx
	if r.dec.Markers || !r.first || len(p) <= mpa.LengthLen {
		return 0
	}
	ulpdu := r.dec.Foresee(p)
	u := p[mpa.LengthLen:]
	hl := ddp.HeaderLen(u[0])
	if ulpdu-len(u) < least || r.dec.CRC && (q.supply == nil || ddp.IsTagged(u[0])) {
		return 0
	}
	s := &r.seg
	if f := q.parse(s, u, ulpdu); !f.ok() { // or its header is not all there
		return 0
	}
	t := &messageTypes[s.op]
	if t.target == nil || !t.begin(q, s).ok() || q.far(s) {
		return 0
	}
	if at != nil && !q.belongs(t, s, uint64(len(u)-hl), at) {
		return 0
	}
	q.stats.recvFPDUs.Add(1)
	q.count(s)
	s.crc = mpa.CRC(0, p[:mpa.LengthLen+hl])
	s.u = s.hdr[:copy(s.hdr[:], u[:hl])]
	s.long = true
	r.longOp = s.op
	switch {
	case s.last:
	case s.op == rdmap.ReadResponse:
		r.fullResponse = s.size
	case s.op.IsSend() && s.un.MO == 0:
		r.fullSend = s.size
	}
	if !q.place(t, s, u[hl:]) {
		s.long = false
		return 0
	}
	return s.missing()
}

// belongs reports whether payload of a segment from offset off on, the first piece of it at
// least, belongs where at begins.
func (q *QueuePair) belongs(t *messageType, s *segment, off uint64, at []byte) bool {
	ref, _, out := t.target(q, s, off, uint64(len(at)))
	if out != regmem.OK {
		return false
	}
	defer ref.Release()
	return !ref.Far() && &ref.B()[0] == &at[0]
}

// landed notes that n more bytes of a long segment are in place.
func (s *segment) landed(n int) {
	s.pins = regmem.ReleaseAll(s.pins)
	s.placed += n
	if s.placed == s.size {
		s.trailer = s.trailerLen()
	}
}

// endLong takes the trailer of a long segment, and delivers the segment.
func (q *QueuePair) endLong(trailer []byte) bool {
	s := &q.rx.seg
	if err := q.verify(s, trailer); err != nil {
		q.badFPDU(err)
		return false
	}
	s.long, s.trailer = false, 0
	messageTypes[s.op].end(q, s)
	return true
}

// verify checks the CRC of a long segment, if there are any.
func (q *QueuePair) verify(s *segment, trailer []byte) error {
	if !q.rx.dec.CRC {
		return nil
	}
	crc := s.crc
	for off := 0; off < s.size; {
		ref, k, out := q.listTarget(s, uint64(off), uint64(s.size-off))
		if out != regmem.OK {
			break // the CRC is wrong then
		}
		crc = mpa.CRC(crc, ref.B())
		ref.Release()
		off += int(k)
	}
	return q.rx.dec.Verify(crc, headerLen(s.op)+s.size, trailer)
}

// dropLong forgets a long segment because the stream ended.
func (s *segment) drop() {
	s.pins = regmem.ReleaseAll(s.pins)
	s.long, s.trailer = false, 0
}
