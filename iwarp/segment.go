package iwarp

import (
	"fmt"

	"viaduct/internal/frameio"
	"viaduct/internal/placer"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// longMin is the threshold for beginning a segment before all of it has arrived: at least longMin
// payload bytes must be missing. For fewer bytes, waiting for them in the staging buffer is cheaper.
const longMin = 8 << 10

// A messageType holds the steps for segments of an opcode. The steps are the same for staged
// segments, segments read into place in pieces, and predicted segments.
type messageType struct {
	// begin checks a segment before the first byte is placed. A refused segment has changed nothing
	// of importance, so the check may be repeated after verifying the CRC.
	begin func(r *receiver, s *segment) refusal

	// target pins the memory for the payload from offset off on, at most n bytes. If target is nil,
	// end reads the payload from the staged segment.
	target func(r *receiver, s *segment, off, n uint64) (regmem.Ref, regmem.Outcome)

	// end handles a segment after all payload was placed.
	end func(r *receiver, s *segment)

	// fail ends the stream because memory became inaccessible after begin.
	fail func(r *receiver, s *segment, out regmem.Outcome, err error)
}

// A segment is the received DDP segment being handled.
type segment struct {
	op     rdmap.Opcode
	last   bool                  // last segment of the message
	hdr    [ddp.UntaggedLen]byte // memory to which u is copied, if the payload is read into place
	un     ddp.Untagged          // header, if op is an untagged opcode
	tagged ddp.Tagged            // header, if op is a tagged opcode
	u      []byte                // arrived part of the ULPDU, at least its headers
	size   int                   // size of the payload in bytes
	at     []byte                // memory of the payload, if it is contiguous and pinned; otherwise nil
	crc    uint32                // CRC of the headers, if the payload is read into place
}

// payload returns the arrived part of the payload.
func (s *segment) payload() []byte { return s.u[headerLen(s.op):] }

// trailerLen returns the number of bytes of pad and CRC after a ULPDU of n bytes.
func trailerLen(n int) int { return mpa.FPDULen(n) - mpa.LengthLen - n }

// A refusal is a fault of DDP or RDMAP in a segment. The zero value means no fault.
type refusal struct {
	ddp   ddp.Fault
	rdmap rdmap.Fault
}

func (f refusal) ok() bool { return f == refusal{} }

// parse reads into s the headers of a ULPDU of n bytes, whose arrived part is u. It checks the
// version, the queue number, the RDMAP version and the opcode, in the given order; the opcode's
// messageType checks the rest. [DDP-4.1-1] [DDP-4.1-2] [DDP-7.1-1] [RDMAP-7.2-1] [I-42] [I-47]
// [I-48]
func (s *segment) parse(u []byte, n int, ext rdmap.Extensions) (f refusal) {
	s.u, s.at = u, nil
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
	// This fault is reported before a fault of RDMAP. [DDP-7.1-1]
	f.ddp = rdmap.CheckQueue(s.un.QN, ext)
	s.op, f.rdmap = rdmap.CheckUntagged(s.un, s.size, ext) // [RDMAP-7.2-2] [RDMAP-7.2-3] [RDMAP-7.2-6]
	return f
}

// refuse ends the stream because of fault f in the segment. Both ULPs get the error. If the message
// was too long, its receive completes with StatusLength. [DDP-8.3-4] [SEC-6.1.1-6] [RDMAPX-6.1-2]
// [RDMAPX-8.1-2] [DDP-7.1-14] [DDP-7.1-15] [DDP-7.1-17] [RDMAP-7.1-3] [RDMAP-7.1-4]
func (r *receiver) refuse(s *segment, f refusal, cause error) {
	// s is a Send, because the length of no other message depends on a buffer. [RDMAP-5.3-4]
	// [DDP-1.2-1]
	if f.ddp == ddp.MessageTooLong {
		r.box.complete(StatusLength, 0)
	}
	var t rdmap.Terminate
	if f.ddp != ddp.OK {
		t = rdmap.TerminateDDP(f.ddp, s.u)
	} else {
		t = rdmap.TerminateRDMAP(f.rdmap, s.u)
	}
	t.SegLen = uint16(len(t.DDP) + s.size) // [RDMAP-4.8-6]
	r.life.fault(t, cause)
}

// Next implements [placer.Wire]. It verifies an FPDU before using any part. With CRCs off, a long
// FPDU may be begun before complete arrival. Bytes after the end of the stream are ignored.
// [DDP-7.1-16] [MPA-8-8]
func (r *receiver) Next(p []byte, early bool, f *placer.Frame) (n int, payload []byte, ok bool, err error) {
	if r.life.Load().ended() {
		return 0, nil, false, nil
	}
	if r.box.recvs.supply != nil && r.full(p, len(p)) {
		return 0, nil, false, frameio.ErrEnough
	}
	u, n, err := r.dec.Next(p)
	switch {
	case err != nil: // [MPA-6-1] [MPA-6-5]
		r.placePostponed() // the postponed segments precede the invalid FPDU
		r.badFPDU(err)
		return 0, nil, false, nil
	case n > 0:
		if !r.dec.Markers {
			r.far.taking(p)
		}
		payload, ok = r.fpdu(u, f) // [DDP-3-4] [DDP-3-8]
	case early && !r.placePostponed():
		if payload, ok = r.beginLong(p, longMin, nil, f); ok { // [I-22]
			n = len(p)
		}
	}
	return n, payload, ok, nil // [MPA-3-8]
}

// fpdu begins a valid FPDU with the ULPDU u. ok is false if fpdu has handled the FPDU completely.
func (r *receiver) fpdu(u []byte, f *placer.Frame) (payload []byte, ok bool) {
	r.active.received.Add(1)
	if len(u) == 0 || len(u) < ddp.HeaderLen(u[0]) { // [I-25]
		r.placePostponed()
		r.life.fault(rdmap.TerminateMPA(uint8(mpa.CodeMarker)), fmt.Errorf("iwarp: ULPDU of %d bytes", len(u)))
		return nil, false
	}
	s := &r.seg
	fault := s.parse(u, len(u), r.ext)
	ready := !r.first && r.firstFPDU(s.rtrKind(fault))
	if !fault.ok() {
		if !r.placePostponed() {
			r.refuse(s, fault, nil)
		}
		return nil, false
	}
	r.stats.received(s)
	if ready { // uses up no receive [I-08]
		r.queues[rdmap.QueueSend].Placed(s.un, 0)
		return nil, false
	}
	if r.far != nil && r.postpone(s) {
		return nil, false
	}
	return r.judge(s, f)
}

// judge begins to place a completely arrived segment. ok is false if the segment was refused, or
// needed no step of the placer: there is no payload, or the memory is known. The shortcut pays
// because most messages are short, and the steps of the placer cost some 20 ns for each message.
func (r *receiver) judge(s *segment, frame *placer.Frame) (payload []byte, ok bool) {
	t := &messageTypes[s.op]
	if f := t.begin(r, s); !f.ok() {
		r.refuse(s, f, nil)
		return nil, false
	}
	if t.target == nil || s.at != nil || s.size == 0 { // no step is left for the placer
		copy(s.at, s.payload())
		s.at = nil // the pin may be released
		t.end(r, s)
		return nil, false
	}
	payload = s.payload()
	frame.Begin(len(payload), 0, nil)
	return payload, true
}

// received adds a received segment to the statistics of the stream.
func (c *counters) received(s *segment) {
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

// beginLong begins an FPDU with at least least missing bytes of payload; the missing bytes will be
// read directly into place. p is the arrived part. beginLong requires CRCs off, so that the header
// can be used at once, or memory lent for the message. On any fault ok is false, and the staged
// path finds and reports the fault. at is the memory into which the payload after p was already
// read, or nil. ok is false too if the payload in at belongs elsewhere, because moving the payload
// could overwrite later payload, and if a Send does not end as predicted, because the bytes read
// after the Send must be taken back before the delivery. [I-22] [MPA-4.4-8]
func (r *receiver) beginLong(p []byte, least int, at []byte, f *placer.Frame) (payload []byte, ok bool) {
	if r.dec.Markers || !r.first || len(p) <= mpa.LengthLen {
		return nil, false
	}
	ulpdu := r.dec.Foresee(p)
	u := p[mpa.LengthLen:]
	hl := ddp.HeaderLen(u[0])
	if ulpdu-len(u) < least || r.dec.CRC && (r.box.recvs.supply == nil || ddp.IsTagged(u[0])) {
		return nil, false
	}
	s := &r.seg
	if f := s.parse(u, ulpdu, r.ext); !f.ok() { // also if the header has not arrived completely
		return nil, false
	}
	if at != nil && r.sendGuess > 0 && (!s.op.IsSend() || s.last && s.un.MO+uint32(s.size) != r.sendGuess) {
		return nil, false
	}
	t := &messageTypes[s.op]
	if t.target == nil || !t.begin(r, s).ok() || !r.direct(t, s, len(u)-hl, at) {
		return nil, false
	}
	r.active.received.Add(1)
	r.stats.received(s)
	s.crc = mpa.CRC(0, p[:mpa.LengthLen+hl])
	s.u = s.hdr[:copy(s.hdr[:], u[:hl])]
	r.begun(s)
	f.Begin(s.size, trailerLen(ulpdu), s.at)
	return u[hl:], true
}

// Predicted implements [placer.Wire]. It begins the predicted segment if the header in p fits the
// prediction; otherwise ok is false and nothing has changed.
func (r *receiver) Predicted(p, place []byte, arrived int, f *placer.Frame) (payload []byte, ok bool, err error) {
	if r.life.Load().ended() {
		return nil, false, nil
	}
	_, ulpdu, err := r.dec.Need(p)
	if err == nil && mpa.LengthLen+ulpdu == len(p)+len(place) && !r.full(p, arrived) {
		payload, ok = r.beginLong(p, 1, place, f)
	}
	return payload, ok, nil
}

// Target implements [placer.Wire]. If the memory is not accessible any more, Target ends the stream
// and returns empty memory, so that the bytes are dropped.
func (r *receiver) Target(off, n int) regmem.Ref {
	if r.life.Load().ended() {
		return regmem.Ref{} // the bytes are read and dropped, so that our Terminate arrives [I-36]
	}
	s := &r.seg
	t := &messageTypes[s.op]
	ref, out := t.target(r, s, uint64(off), uint64(n))
	if out != regmem.OK {
		t.fail(r, s, out, nil)
	}
	return ref
}

// Lost implements [placer.Wire]. It ends the stream, because memory of the current segment faulted.
func (r *receiver) Lost(err error) {
	messageTypes[r.seg.op].fail(r, &r.seg, regmem.NoRegion, err)
}

// End implements [placer.Wire]. It delivers a segment. If the segment was read into place and has a
// CRC, End verifies the CRC first.
func (r *receiver) End(trailer []byte) error {
	s := &r.seg
	if r.life.Load().ended() {
		return nil
	}
	if len(trailer) > 0 && r.dec.CRC {
		if err := r.verify(s, trailer); err != nil {
			r.badFPDU(err)
			return nil
		}
	}
	messageTypes[s.op].end(r, s)
	return nil
}

// verify checks the CRC of a segment read into place.
func (r *receiver) verify(s *segment, trailer []byte) error {
	crc := s.crc
	for off := 0; off < s.size; {
		ref, out := r.listTarget(s, uint64(off), uint64(s.size-off))
		if out != regmem.OK {
			break // the CRC cannot match then
		}
		crc = mpa.CRC(crc, ref.B())
		off += ref.Len()
		ref.Release()
	}
	return r.dec.Verify(crc, headerLen(s.op)+s.size, trailer)
}
