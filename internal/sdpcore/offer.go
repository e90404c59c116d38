package sdpcore

import (
	"time"

	"viaduct/internal/wire/sdpwire"
)

// An offer is a SinkAvail of our own that is not resolved.
type offer struct {
	key  uint64
	rid  uint64
	size int
	stag uint32
}

// offers are the open SinkAvails of this end, oldest first: Write Zcopy at the Data Sink. The peer
// writes into the memory of the reads that they advertise. [SDP 9.3]
type offers struct {
	deque[offer]
	*common
	snd   *sender
	reads *reads

	count      serial // NonDiscards [SDP-6.3.3.4-1], wraps as 32-bit numbers do [SDP-6.3.3.4-4]
	cancelWant bool   // a SinkAvailCancel must be sent
	cancelOpen bool   // a SinkAvailCancel was sent and is not Processed
	cancelSeq  serial // MSeq of the last SinkAvailCancel
	cancelAt   time.Duration
}

// next returns the index of the next read to advertise, or -1 if none may be advertised. open is the
// number of this end's open SrcAvails.
func (o *offers) next(open int) int {
	if o.cancelWant || o.cancelOpen {
		// While a SinkAvailCancel is due or open, no read is advertised. Without a SinkAvail, a
		// cancelled read waits only for RDMA Reads into it. [SDP-9.5.5-10]
		return -1
	}
	if o.len()+open >= o.p.PeerMaxAdverts { // [SDP-6.2.1.3-1] [SDP-11.3-18]
		return -1
	}
	i := o.len() // all reads before this one are advertised
	if i >= o.reads.len() {
		return -1
	}
	r := o.reads.at(i)
	// RecvThreshold is at least RecvSize, so the buffer has room for any message.
	if r.offered || r.all || r.off > 0 || r.n <= o.p.RecvThreshold {
		return -1
	}
	return i
}

// send advertises the whole of read i. It returns the index of the OpSend. [SDP-9.3-3]
// [SDP-6.3.3.1-1] [SDP-6.3.3.2-1]
func (o *offers) send(i int) (a int) {
	r := o.reads.at(i)
	size := min(r.n, sdpwire.MaxSize)
	key := o.newKey()
	a = o.snd.send(sdpwire.SinkAvail, 0)
	act := &o.out[a]
	act.Adv, act.RID = key, r.id
	act.Msg.Size, act.Msg.NonDiscards = uint32(size), uint32(o.count) // [SDP-9.3-4] [SDP-6.3.3.4-1]
	r.offered = true
	o.push(offer{key: key, rid: r.id, size: size})
	o.stats.SentSinkAvails++
	return a
}

// bind records the STag of advertisement key, if that is an open SinkAvail.
func (o *offers) bind(key uint64, stag uint32) {
	for i := o.len() - 1; i >= 0; i-- {
		if a := o.at(i); a.key == key {
			a.stag = stag
			return
		}
	}
}

// exceed reports whether every SinkAvail is for a buffer larger than n, so that a message of n bytes
// still fits. [SDP-9.5.1-1]
func (o *offers) exceed(n int) bool {
	for i := range o.len() {
		if o.at(i).size <= n {
			return false
		}
	}
	return true
}

// end ends the oldest SinkAvail, so that the peer can no longer write to the memory of the read. It
// returns the read, which keeps its position in the queue, and its index. remote means that the peer
// has invalidated the STag. [SDP-9.3-14]
func (o *offers) end(remote bool) (int, *read) {
	a := o.pop()
	o.do(Action{Op: OpRevoke, Adv: a.key, Remote: remote}) // [SDP-9.3-11]
	// The read exists, because no read ends while it is advertised.
	i, r := o.reads.find(a.rid)
	r.offered = false
	return i, r
}

// endAll ends all SinkAvails, but not the cancelled reads.
func (o *offers) endAll() {
	for o.len() > 0 {
		o.end(false)
	}
}

// void ends all SinkAvails, because the peer will not write any more.
func (o *offers) void() {
	o.endAll()
	o.checkCancel()
}

// wantCancel makes a SinkAvailCancel due. Only one may be open at a time [SDP-9.5.5-10] [D-34], and
// checkCancel drops it if no SinkAvail is open.
func (o *offers) wantCancel() { o.cancelWant = !o.cancelOpen }

// sendCancel sends the SinkAvailCancel that is due.
func (o *offers) sendCancel() {
	a := o.snd.send(sdpwire.SinkAvailCancel, 0)
	o.cancelWant, o.cancelOpen, o.cancelSeq, o.cancelAt = false, true, serial(o.out[a].Msg.MSeq), o.now
	o.stats.SentSinkCancels++
}

// checkCancel ends the SinkAvailCancel and the cancelled reads, if every SinkAvail is resolved.
// [SDP-9.5.5-11] [D-34]
func (o *offers) checkCancel() {
	if o.len() == 0 {
		o.cancelWant, o.cancelOpen = false, false
		o.reads.endCancelled()
	}
}

// beginRdmaWrCompl checks an RdmaWrCompl, which must fit the oldest SinkAvail.
func (o *offers) beginRdmaWrCompl(msg *inbound) error {
	switch {
	case o.len() == 0:
		return violation("SDP-9.3-13", msg.MID, "no SinkAvail is open")
	case int(msg.Size) > o.at(0).size:
		return violation("D-20", msg.MID, "%d bytes in a buffer of %d", msg.Size, o.at(0).size)
	case msg.invalidated && msg.inv != o.at(0).stag: // [SDP-9.3-10]
		return violation("SDP-9.3-10", msg.MID, "invalidates an STag that is not the SinkAvail's")
	}
	return nil
}

// endRdmaWrCompl ends the oldest SinkAvail, to which the peer has written bytes. [SDP-9.3-13]
// [D-20]
func (o *offers) endRdmaWrCompl(msg *inbound) {
	n := int(msg.Size)
	o.stats.RecvBytesWrite += uint64(n)
	i, r := o.end(msg.invalidated)
	r.off += n
	if n > 0 {
		o.reads.end(i, nil)
	} else {
		o.reads.requeue(i) // the read continues to wait
	}
	o.checkCancel()
}

// endSinkCancelAck ends all SinkAvails that are still open, because the peer has dropped them. A
// SinkCancelAck without a cancel, or for an earlier cancel, is ignored. [D-34]
func (o *offers) endSinkCancelAck(msg *inbound) error {
	if o.cancelOpen && !serial(msg.MSeqAck).less(o.cancelSeq) {
		o.void()
	}
	return nil
}

// cancelExpired reports whether the peer has not answered a SinkAvailCancel in time.
func (o *offers) cancelExpired() bool {
	return o.cancelOpen && o.now >= o.cancelAt+o.p.Timers.Cancel
}

// timers adds the time of an unanswered cancel.
func (o *offers) timers(a *alarm) {
	if o.cancelOpen {
		a.at(o.cancelAt + o.p.Timers.Cancel)
	}
}
