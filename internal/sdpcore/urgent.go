package sdpcore

import "viaduct/internal/wire/sdpwire"

// urgentDistance is the largest number of bytes between the announcement of an urgent byte and the
// byte. [SDP-9.5.3-6]
const urgentDistance = 65535

// urgent announces the urgent bytes of the writes, and receives those of the peer. [SDP 9.5.3]
type urgent struct {
	*common
	cr        *credits
	snd       *sender
	ws        *writes
	announced int // number of OOB_PEND flags received without their byte [D-29]
}

// announce returns the flag for the next message of any type [SDP-6.1.2-7] [SDP-9.5.3-2]: OOB_PEND
// once for each urgent byte [SDP-9.5.3-4], at the latest in the message that carries the byte.
// [SDP-9.5.3-5]
func (u *urgent) announce() sdpwire.Flags {
	w := u.next()
	if w == nil {
		return 0
	}
	w.pended = true
	u.ws.urgents--
	return sdpwire.OOBPend
}

// step announces an urgent byte in a separate message, which may use a reserved credit.
// [SDP-9.5.3-3] [SDP-9.5.3-7]
func (u *urgent) step() bool {
	if !u.cr.mayControl() || u.next() == nil {
		return false
	}
	u.snd.send(sdpwire.Data, 0)
	return true
}

// any reports whether there are urgent bytes that were not announced.
func (u *urgent) any() bool { return u.ws.urgents > 0 }

// next returns the urgent write to announce, or nil if there is none. It also returns nil while more
// than urgentDistance bytes would lie between the announcement and its byte, by any mechanism.
// [SDP-9.5.3-6] [D-30]
func (u *urgent) next() *write {
	between := -1
	for i := range u.ws.len() {
		w := u.ws.at(i)
		between += w.n - w.off
		if w.urgent && !w.pended {
			if between <= urgentDistance {
				return w
			}
			return nil
		}
	}
	return nil
}

// within looks for an urgent byte in the next limit bytes of the writes before end, which one
// message could carry. It returns the write of the urgent byte and the number of bytes before the
// byte, or nil.
func (u *urgent) within(end, limit int) (w *write, between int) {
	for i := range min(end, maxParts) {
		w := u.ws.at(i)
		if i > 0 && u.ws.zcopy(w) {
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

// pending handles OOB_PEND, which may be in a message of any type, before the urgent byte's message
// or in it. [SDP-6.1.2-7] [SDP-6.1.2-8] [D-74]
func (u *urgent) pending() {
	u.announced++
	u.do(Action{Op: OpUrgentPending}) // [SDP-9.5.3-9]
}

// arrived handles the urgent byte at stream position pos. apart means that the byte is not part of
// the stream.
func (u *urgent) arrived(pos uint64, apart bool) {
	if u.announced > 0 {
		u.announced--
	} else {
		u.do(Action{Op: OpUrgentPending}) // the byte needs no earlier announcement [D-29]
	}
	u.stats.UrgentRecv++
	u.do(Action{Op: OpUrgent, Pos: pos, Local: apart})
}

// restart begins again on a new connection, where each urgent byte is announced again.
func (u *urgent) restart() {
	u.announced, u.ws.urgents = 0, 0
	for i := range u.ws.len() {
		if w := u.ws.at(i); w.urgent {
			w.pended = false
			u.ws.urgents++
		}
	}
}
