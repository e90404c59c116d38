package sdpcore

import "viaduct/internal/wire/sdpwire"

// A sinkAvail is an unfinished SinkAvail of the peer that is not stale.
type sinkAvail struct {
	size, filled int
	stag         uint32
	to           uint64
}

// sinkRoom are the SinkAvails of the peer, oldest first: Write Zcopy at the Data Source. This end
// writes into their memory. Only the oldest is partly written. [SDP 9.3]
type sinkRoom struct {
	deque[sinkAvail]
	*common
	snd  *sender
	ws   *writes
	advs *srcAvails
	mode *sendMode
	hint *recvMode // the other half, whose preference an RdmaWrCompl carries

	count   serial // PotentialNonDiscards [SDP-9.5.1-7]
	count0  serial // PotentialNonDiscards when the ModeChange to Combined was sent [D-26]
	ackOwed bool   // a SinkCancelAck must be sent [SDP-9.5.5-9]
}

// sentPayload records that a message carried payload, which may make one SinkAvail stale.
// [SDP-9.5.1-8]
func (r *sinkRoom) sentPayload() {
	// The message consumes a SinkAvail that is not stale, instead of incrementing the counter; the
	// sum is the same. [D-23]
	if r.len() > 0 { // [SDP-9.5.2.2-2]
		r.pop()
	} else {
		r.count++ // [SDP-9.5.1-8] [D-25]
	}
}

// writable reports whether the next bytes of the stream go into the oldest SinkAvail, which must
// exist. [SDP-11.3-11] Small writes go there only if no write follows, or if they share the
// RdmaWrCompl of others; otherwise Data is cheaper. [D-22] [SDP-9.5.2.2-1] [SDP-9.3-6]
func (r *sinkRoom) writable() bool {
	if r.life != lifeOpen || r.mode.leavingPipelined() || r.ws.forced > 0 {
		return false
	}
	k, w := r.at(0), r.ws.plain()
	if w == nil || w.urgent || w.forced || k.filled == k.size || r.ws.advertised > 0 {
		return false
	}
	if w.n-w.off > r.mode.threshold || k.filled > 0 {
		return true
	}
	return r.ws.covered() == r.ws.len()-1
}

// write writes bytes of one write into the oldest SinkAvail, after the bytes that the SinkAvail
// already contains. [SDP-6.3.3.3-1] [SDP-6.3.3.2-2] The SinkAvail of a Transaction is filled in the
// same way. [SDP-9.4-3] [SDP-9.4-4] [SDP-9.4-5] [SDP-9.3-1] [SDP-9.3-5] [SDP-11.3-11]
func (r *sinkRoom) write() {
	k, w := r.at(0), r.ws.plain()
	n := min(k.size-k.filled, w.n-w.off)
	r.do(Action{Op: OpRDMAWrite, ID: w.id, Off: w.off, N: n, STag: k.stag, TO: k.to + uint64(k.filled)})
	k.filled += n
	r.stats.SentBytesWrite += uint64(n)
	r.ws.advance(r.ws.covered(), n)
}

// answer sends an RdmaWrCompl or a SinkCancelAck that is due. It reports whether it did.
func (r *sinkRoom) answer() bool {
	switch {
	case r.len() > 0 && r.complDue():
		r.complete(r.hint.preference())
	case r.ackOwed:
		r.acknowledge()
	default:
		return false
	}
	return true
}

// complDue reports whether to report the oldest SinkAvail, which must exist, as written: it is full,
// or no more bytes are written to it now. A partly filled SinkAvail is never kept. [D-37]
func (r *sinkRoom) complDue() bool {
	return r.at(0).filled > 0 && !r.writable()
}

// complete reports the bytes written to the oldest SinkAvail, whether it is full or not. flags has
// the preferred mode of this end. [SDP-9.3-7] [SDP-9.3-12] [SDP-6.3.6.1-1] [SDP-6.3.6.1-2]
func (r *sinkRoom) complete(flags sdpwire.Flags) {
	k := r.pop()
	a := r.snd.send(sdpwire.RdmaWrCompl, flags)
	r.out[a].Msg.Size = uint32(k.filled)
	if !r.p.NoInvalidate { // [SDP-9.3-8] [SDP-9.3-9]
		r.out[a].Invalidate, r.out[a].STag = true, k.stag
	}
}

// add adds the SinkAvail of msg, unless it is stale. open is the number of the peer's open
// SrcAvails.
func (r *sinkRoom) add(msg *inbound, open int) error {
	nd := serial(msg.NonDiscards)
	if r.mode.current != sdpwire.Pipelined {
		if !r.mode.leaving {
			return violation("SDP-12-10", msg.MID, "in %v Mode", r.mode.current)
		}
		return r.late(nd, msg)
	}
	if r.count.less(nd) { // [D-24]
		return violation("D-24", msg.MID, "NonDiscards %d, but only %d messages carried payload", nd, r.count)
	}
	// A message with payload has crossed the SinkAvail. [SDP-9.5.1-3] [SDP-9.5.1-9] This is checked
	// before all else. [SDP-11.3-10]
	if nd != r.count {
		r.count--
		r.stats.StaleSinkAvails++
		return nil
	}
	if r.len()+open >= r.p.MaxAdverts { // [SDP-6.2.1.3-1] [D-15]
		return violation("SDP-11.3-18", msg.MID, "more than %d advertisements open", r.p.MaxAdverts)
	}
	r.push(sinkAvail{size: int(msg.Size), stag: msg.STag, to: msg.VA})
	// The peer has discarded the open SrcAvails [SDP-11.3-12]; bytes that do not fit into the
	// SinkAvail are advertised again. [SDP-11.3-13]
	r.advs.override()
	return nil
}

// late handles a SinkAvail that the peer sent before it received our ModeChange to Combined.
// [SDP-12.4-7] [D-26]
func (r *sinkRoom) late(nd serial, msg *inbound) error {
	switch {
	case r.count0.less(nd):
		return violation("D-24", msg.MID, "NonDiscards %d, but only %d messages carried payload", nd, r.count0)
	case nd != r.count0: // the SinkAvail was stale before the change
		r.count0--
		r.count--
		r.stats.StaleSinkAvails++
	default:
		// The peer has discarded earlier advertisements, so this SinkAvail is not stale.
		// [SDP-12.4-6]
		r.advs.reissue()
	}
	return nil
}

// leave discards the incomplete SinkAvails, because a ModeChange to Combined was sent. [SDP-12.4-6]
func (r *sinkRoom) leave() {
	r.count0 = r.count
	r.clear()
}

// endSinkAvailCancel makes all SinkAvails void that were not written to. [SDP-9.5.5-2] A partly written
// SinkAvail ends by RdmaWrCompl, which is sent before the SinkCancelAck. [SDP-9.5.5-3]
// [SDP-9.5.5-5] [SDP-9.5.5-6]
func (r *sinkRoom) endSinkAvailCancel() error {
	keep := 0
	if r.len() > 0 {
		k := r.at(0)
		if k.filled > 0 {
			keep = 1
			if k.filled < k.size { // the free room of the SinkAvail is given up [SDP-9.5.5-8] [D-35]
				r.ackOwed = true
				k.size = k.filled
			}
		}
	}
	for r.len() > keep {
		r.remove(r.len() - 1)
		// An answer is due, because there was a SinkAvail to cancel. [SDP-9.5.5-9] [SDP-9.5.5-4]
		// [D-36]
		r.ackOwed = true
	}
	return nil
}

// acknowledge sends a SinkCancelAck, after the RdmaWrCompl of the In-Process SinkAvail.
// [SDP-9.5.5-7] [SDP-6.3.11-1]
func (r *sinkRoom) acknowledge() {
	r.ackOwed = false
	r.snd.send(sdpwire.SinkCancelAck, 0)
}
