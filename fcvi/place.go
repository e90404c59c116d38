package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// placeFrame places the bytes of a frame if m is the next message to deliver. Otherwise the bytes
// are stored, because an earlier Write must not overwrite a later one. Bytes are placed in the
// order of arrival of frames: ascending on a path that keeps order. placeFrame returns false if the
// message does not continue. [VIA-4.2-5]
func (r *receiver) placeFrame(now fc.Time, m *rxMsg, off uint32, b []byte) (bool, *failure) {
	t := &messageTypes[m.h.Op]
	if t.place == nil {
		return true, nil
	}
	if !m.held && m.h.MsgID == r.mexp && !r.waiting {
		if goesOn, fail := t.place(r, now, m, off, b); goesOn || fail != nil || m.taken || !r.waiting {
			return goesOn, fail
		}
	}
	return r.store(now, m, off, b)
}

// store stores bytes of m until m is the next message to deliver. If the stored messages exceed
// maxHold bytes, it rejects m and returns false.
func (r *receiver) store(now fc.Time, m *rxMsg, off uint32, b []byte) (bool, *failure) {
	m.held = true
	need := int(off) + len(b)
	if more := need - len(m.buf); more > 0 {
		if r.hold+more > r.maxHold() {
			r.p.stats.WindowFull++
			return false, r.reject(now, m, iu.PortResources)
		}
		r.hold += more
		if need > cap(m.buf) {
			m.buf = append(make([]byte, 0, max(need, min(2*cap(m.buf), int(r.mts)))), m.buf...)
		}
		m.buf = m.buf[:need]
	}
	copy(m.buf[off:], b)
	return true, nil
}

// takeRecv takes a receive descriptor for the message at mexp. If none is posted, or the descriptor
// is in error, takeRecv returns false: the message waits, is dropped or ends the connection.
// [FCVI-3-8]
func (r *receiver) takeRecv(now fc.Time, m *rxMsg) (bool, *failure) {
	if r.haveRecv { // the descriptor of a message that was discarded [FCVI-B-5]
		return true, nil
	}
	capacity, bad, ok := r.up.takeRecv()
	if !ok {
		if r.holds {
			r.waiting = true // bytes that a Write has placed are not removed [VIA-4.1-3]
			return false, nil
		}
		r.p.stats.NoReceive++                                        // [FCVI-5.2.3-4]
		r.up.async(vi.ErrorRecvQEmpty, messageTypes[m.h.Op].control) // [VIA-4.6-4] [VIA-5.2-4]
		return false, r.reject(now, m, iu.NoRecvDesc)
	}
	r.haveRecv, r.capacity, m.taken = true, capacity, true
	if bad != 0 {
		reason := iu.RecvProt
		if bad&vi.StatusFormatError != 0 {
			reason = iu.RecvFormat
		}
		return false, r.recvError(now, m, bad, reason)
	}
	return true, nil
}

// recvPosted runs when receive descriptors were posted. A message waiting for a descriptor
// continues.
func (r *receiver) recvPosted(now fc.Time) *failure {
	if !r.waiting {
		return nil
	}
	r.waiting = false
	m := r.at(r.mexp)
	if m.stage == complete {
		return r.deliver(now)
	} else if m.stage == partial && r.stallAt == 0 {
		r.stall(now, m)
	}
	return nil
}

// recvError completes the current receive descriptor with an error and handles its message.
func (r *receiver) recvError(now fc.Time, m *rxMsg, st vi.Status, reason iu.Reason) *failure {
	r.haveRecv = false
	r.up.finishRecv(vi.Delivery{Length: 0, Status: st})
	return r.reject(now, m, reason)
}
