package sdpcore

import (
	"io"

	"viaduct/internal/wire/sdpwire"
)

// sink is the half-connection with this end as the Data Sink. Its parts are the reads, the bytes held
// for them, the mode, and the advertisements of both ends. sink itself passes the bytes to the reads.
//
// The stream continues in this order: held payload, bytes of RDMA Reads in progress, the rest of a
// SrcAvail answered with SendSm (expected), and the SrcAvails from oldest to newest.
type sink struct {
	*common
	cr  *credits
	urg *urgent
	end *ending

	reads reads
	held  held
	fetch fetches
	offer offers
	// accept, beginSrcAvail and the offers depend on the mode. [SDP-11-4] [SDP-11.2-3] [SDP-11.3-3]
	mode recvMode

	expects bool   // the driver has more messages
	eof     bool   // DisConn received
	disSeen bool   // DisConn received on the current connection [D-52]
	closed  bool   // the ULP has stopped reading
	discard bool   // the ULP drops held payload
	pos     uint64 // stream position after the last received byte
}

// readable reports whether bytes are held or advertised, or the stream has ended.
func (k *sink) readable() bool {
	return k.held.n > 0 || k.eof || k.life == lifeDead || k.fetch.adverts.len() > 0
}

// cancel cancels read id, at once or after RDMA into it has ended. [SDP-9.5.5-1]
func (k *sink) cancel(id uint64) {
	i, r := k.reads.find(id)
	if r == nil {
		return
	}
	r.cancel = true
	switch {
	case r.offered:
		k.offer.wantCancel()
	case r.inflight == 0:
		k.reads.end(i, ErrCancelled)
	}
}

// close stops reading. It returns ErrReadClosed if the peer has advertised bytes. [D-49]
func (k *sink) close(discard bool) error {
	if k.closed && !discard {
		return nil
	}
	k.closed, k.discard = true, discard
	for i := range k.reads.len() {
		k.reads.at(i).cancel = true
	}
	k.offer.wantCancel() // cancels an open SinkAvail, if there is one
	k.offer.checkCancel()
	k.held.drop()
	if !discard && k.fetch.adverts.len() > 0 {
		return ErrReadClosed // the rest of the advertised bytes was not received
	}
	k.fetch.refuse()
	return nil
}

// landing returns the read that gets the next payload, and the offset in it. ok is false if no read
// waits, if other bytes come before that payload, or if a read is advertised.
func (k *sink) landing() (id uint64, off int, ok bool) {
	if k.life != lifeOpen || k.reads.len() == 0 || k.held.n > 0 || k.fetch.ops.len() > 0 || k.offer.len() > 0 || k.closed {
		return 0, 0, false
	}
	r := k.reads.at(0)
	return r.id, r.off, !r.cancel && r.inflight == 0
}

// mayOffer returns the index of the read to advertise by a SinkAvail in Pipelined Mode, or -1 if none
// may be advertised now. open is the number of this end's open SrcAvails. resizing is whether the size of
// the Private Buffers is about to change. [SDP-9.3-2] [SDP-9.5.1-1] [SDP-11.3-8] [SDP-11.3-14]
func (k *sink) mayOffer(open int, resizing bool) int {
	switch {
	case k.p.NoSinkAvail:
	case k.held.n > 0 || k.fetch.expected > 0 || k.fetch.adverts.len() > 0: // no SinkAvail overtakes a SendSm [SDP-11.3-14] [D-34]
	case resizing: // [SDP-10.6-15]
	default:
		return k.offer.next(open)
	}
	return -1
}

// takeData accepts the payload of a Data message, whose last byte may be urgent. [SDP-6.1.2-6]
func (k *sink) takeData(msg *inbound) error {
	urgent := msg.Flags&sdpwire.OOBPres != 0
	apart := urgent && k.p.UrgentApart
	if urgent {
		k.urg.arrived(k.pos+uint64(msg.n)-1, apart)
	}
	return k.accept(msg.MID, msg.n, apart)
}

// accept accepts n bytes of payload of the current message. If apart is set, the last byte is
// urgent and kept out of the stream. It fails if the rules allow no payload now.
func (k *sink) accept(mid sdpwire.MID, n int, apart bool) error {
	if k.eof { // [SDP-8.2.1-8]
		return violation("SDP-8.2.1-8", mid, "payload after DisConn")
	}
	if k.fetch.adverts.len() > 0 {
		if err := k.fetch.allow(mid, n, k.mode.current); err != nil {
			return err
		}
	}
	if k.closed && !k.discard {
		return ErrReadClosed // [D-49]
	}
	k.fetch.expected = max(0, k.fetch.expected-n)
	k.mode.pol.bcopied += n
	if k.offer.len() == 0 {
		k.offer.count++ // [SDP-6.3.3.4-3]
		k.hold(n, apart)
		return nil
	}
	// Only this message consumes the oldest SinkAvail. The peer's own counter shows the peer that
	// the SinkAvail was consumed. [SDP-9.5.1-4] [SDP-9.5.1-5]
	i, r := k.offer.end(false)
	k.hold(n, apart)
	if i == 0 && k.held.n > 0 {
		k.held.move(r)
		k.reads.end(0, nil)
	}
	k.offer.checkCancel()
	return nil
}

// hold appends n bytes to the held payload.
func (k *sink) hold(n int, apart bool) {
	k.pos += uint64(n)
	if apart {
		n--
	}
	if n == 0 {
		k.cr.free++
		return
	}
	k.held.add(n)
	if k.discard {
		k.held.drop()
	}
}

// readDone handles the completion of the oldest RDMA Read.
func (k *sink) readDone() {
	op := k.fetch.done()
	k.pos += uint64(op.n)
	if op.local {
		k.held.addLocal(op.n)
	} else {
		k.reads.landed(op.rid, op.n)
	}
	if k.discard {
		k.held.drop()
	}
}

// serve passes held bytes to the reads, and starts RDMA Reads for them. A read that is not
// advertised can get the bytes of several messages.
func (k *sink) serve() {
	for i := 0; i < k.reads.len(); {
		r := k.reads.at(i)
		if r.offered {
			return
		}
		if k.held.n > 0 { // no RDMA Read into r is in progress then [SDP-9.5.1-6]
			k.held.move(r)
		}
		if r.off == r.n {
			k.reads.end(i, nil)
			continue
		}
		if k.life == lifeDead {
			if r.off > 0 && !r.all {
				k.reads.end(i, nil)
			} else {
				k.reads.end(i, k.end.verdict(k.eof))
			}
			continue
		}
		// Once later reads may have been served, r gets no more bytes.
		for r.off+r.inflight < r.n && (r.all || !r.fetched) && k.fetch.start(r) {
		}
		switch {
		case r.inflight > 0:
			if r.off+r.inflight < r.n && r.all {
				return // r gets the next bytes as well
			}
			i++
		case r.off > 0 && !r.all:
			if k.expects && k.life == lifeOpen && !r.cancel {
				return // more bytes for r follow at once
			}
			k.reads.end(i, nil)
		case k.drained():
			k.reads.end(i, io.EOF) // [SDP-8.2.1-15] [SDP-8.2.1-17]
		default:
			return
		}
	}
}

// drained reports whether all bytes of an ended stream were passed to reads.
func (k *sink) drained() bool { return k.eof && k.held.n == 0 && k.fetch.ops.len() == 0 }

// tick handles expired timers. advertising is whether this end has open SrcAvails.
func (k *sink) tick(advertising bool) {
	if k.reads.len() == 0 {
		k.fetch.tick(k.held.compacted, advertising)
	}
}

// timers adds the times of tick and of an unanswered cancel.
func (k *sink) timers(a *alarm, advertising bool) {
	k.offer.timers(a)
	if k.reads.len() == 0 {
		k.fetch.timers(a, k.held.compacted, advertising)
	}
}

// beginSrcAvail checks a SrcAvail, before its payload is accepted. sinkAvails is the number of the
// peer's open SinkAvails.
func (k *sink) beginSrcAvail(msg *inbound, sinkAvails int) error {
	f, n, mode := &k.fetch, msg.n, k.mode.current
	k.stats.RecvSrcAvails++
	switch {
	case k.eof:
		return violation("SDP-8.2.1-8", msg.MID, "after DisConn")
	case mode == sdpwire.Buffered: // [SDP-11.1-1]
		return violation("SDP-11.1-1", msg.MID, "in Buffered Mode")
	case mode == sdpwire.Combined && n == 0:
		return violation("SDP-9.2-2", msg.MID, "without payload in Combined Mode")
	case mode == sdpwire.Combined && f.adverts.len() > 0:
		return violation("SDP-11.2-4", msg.MID, "another is open in Combined Mode")
	case f.expected > 0 && n > 0:
		return violation("SDP-11.2-4", msg.MID, "%d bytes are owed by Data", f.expected)
	case mode == sdpwire.Pipelined && n > 0:
		return violation("SDP-9.2-3", msg.MID, "with payload in Pipelined Mode")
	case f.srcCancel:
		return violation("SDP-9.5.4-10", msg.MID, "before the cancel was answered")
	case uint32(n) > msg.Size:
		return violation("D-18", msg.MID, "%d bytes of payload from a buffer of %d", n, msg.Size)
	case msg.VA+uint64(msg.Size) < msg.VA:
		return violation("SDP-6.3.2.1-1", msg.MID, "buffer beyond the address space")
	case k.offer.len() > 0:
		return errVoid // Write Zcopy takes precedence [SDP-11.3-9] [SDP-11.3-16]
	case sinkAvails+f.adverts.len() >= k.p.MaxAdverts: // [SDP-6.2.1.3-1] [D-15]
		return violation("SDP-11.3-18", msg.MID, "more than %d advertisements open", k.p.MaxAdverts)
	}
	return nil
}

// endSrcAvail records the advertisement of a SrcAvail.
func (k *sink) endSrcAvail(msg *inbound) error {
	k.stats.RecvBytesPrefix += uint64(msg.n)
	if k.closed && !k.discard {
		return ErrReadClosed
	}
	k.fetch.add(msg, msg.n, k.p.NoRead || k.discard) // [SDP-9-5]
	return nil
}

// endRdmaWrCompl ends the oldest SinkAvail, to which the peer has written bytes.
func (k *sink) endRdmaWrCompl(msg *inbound) {
	k.pos += uint64(msg.Size)
	k.offer.endRdmaWrCompl(msg)
}

// beginDisConn checks a DisConn. A DisConn must come once, after all other messages.
func (k *sink) beginDisConn(msg *inbound) error {
	switch {
	case k.disSeen:
		return violation("SDP-8.2.1-6", msg.MID, "a second time")
	case k.fetch.adverts.len() > 0 || k.fetch.expected > 0: // [SDP-8.2.1-4]
		return violation("SDP-8.2.1-4", msg.MID, "before all transfers were complete")
	}
	return nil
}

// endDisConn ends the peer's stream. Our SinkAvails become void and reads end. [SDP-8.2.1-15]
// [SDP-8.2.1-16] [SDP-6.2.3-2]
func (k *sink) endDisConn() {
	k.eof, k.disSeen = true, true
	k.do(Action{Op: OpPeerClosed})
	k.offer.void()
}

// die ends all RDMA. serve then ends the reads.
func (k *sink) die() {
	k.offer.endAll()
	k.fetch.ops.clear()
	k.fetch.adverts.clear()
	for i := range k.reads.len() {
		k.reads.at(i).inflight = 0
	}
}

// quiesce ends all transfers on the current connection. The reads stay queued.
func (k *sink) quiesce() {
	k.fetch.adverts.clear()
	k.fetch.expected, k.fetch.srcCancel = 0, false
	k.offer.void()
}

// start begins in Combined Mode, with the parameters of a new connection. [SDP-6.3.3.4-2]
func (k *sink) start() {
	k.mode.current, k.offer.count = sdpwire.Combined, serial(k.p.FirstSnkCount)
}

// resume continues on a new connection, after start.
func (k *sink) resume() {
	k.mode.pol = snkPolicy{changedAt: k.now}
	k.disSeen = false
	k.held.resume()
}
