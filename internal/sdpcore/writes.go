package sdpcore

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

// writes is the outgoing stream: the unfinished writes, oldest first.
//
// SendSms have forced the oldest writes to Bcopy. Open SrcAvails [SDP-11.3-17] cover the writes
// after them, one each, in order. All later writes are plain: none of their bytes from off on was
// sent.
type writes struct {
	deque[write]
	*common
	mode *sendMode

	queued     int // bytes of unfinished writes
	forced     int // number of oldest writes whose rest must be sent by Data
	advertised int // number of open SrcAvails
	urgents    int // number of urgent writes that were not announced
}

// covered returns the number of writes that are forced or advertised.
func (s *writes) covered() int { return s.forced + s.advertised }

// plain returns the oldest write that is neither forced nor advertised, or nil.
func (s *writes) plain() *write {
	if i := s.covered(); i < s.len() {
		return s.at(i)
	}
	return nil
}

// zcopy reports whether to send w by zero copy in the current mode.
func (s *writes) zcopy(w *write) bool {
	return !w.bcopy && !w.urgent && s.mode.zcopy(w.n-w.off)
}

// add queues write id of n bytes.
func (s *writes) add(id uint64, n int, urgent bool) {
	s.push(write{id: id, n: n, urgent: urgent})
	s.queued += n
	if urgent {
		s.urgents++
	}
	s.mode.noteWrite(n)
}

// extend makes the newest write n bytes longer if its id is id and it is plain.
func (s *writes) extend(id uint64, n int) bool {
	if s.covered() == s.len() {
		return false
	}
	w := s.at(s.len() - 1)
	if w.id != id || w.urgent || w.cancel {
		return false
	}
	w.n += n
	s.queued += n
	return true
}

// find returns the write with the given id and its index, or nil.
func (s *writes) find(id uint64) (int, *write) {
	for i := s.len() - 1; i >= 0; i-- {
		if w := s.at(i); w.id == id {
			return i, w
		}
	}
	return -1, nil
}

// detachable returns the offset of the first unsent byte of write id, and whether the bytes from
// there on are not advertised.
func (s *writes) detachable(id uint64) (off int, ok bool) {
	i, w := s.find(id)
	if w == nil {
		return 0, false
	}
	return w.off, i < s.forced || i >= s.covered()
}

// big returns the number of queued writes suitable for zero copy, at most two.
func (s *writes) big() (n int) {
	for i := 0; i < s.len() && i < 8 && n < 2; i++ {
		if w := s.at(i); !w.bcopy && !w.urgent && w.n-w.off > s.mode.threshold {
			n++
		}
	}
	return n
}

// detach lets the caller of w return, although the rest must still be sent.
func (s *writes) detach(w *write) {
	w.detached = true
	s.do(Action{Op: OpDetach, ID: w.id, Off: w.off, N: w.n})
}

// drop ends write i with err before all of it was sent.
func (s *writes) drop(i int, err error) {
	w := s.remove(i)
	s.queued -= w.n - w.off
	if w.urgent && !w.pended {
		s.urgents--
	}
	s.do(Action{Op: OpWriteDone, ID: w.id, N: w.off, Err: err})
}

// dropCancelled ends the cancelled writes that are plain.
func (s *writes) dropCancelled() {
	for i := s.covered(); i < s.len(); {
		if s.at(i).cancel {
			s.drop(i, ErrCancelled)
		} else {
			i++
		}
	}
}

// count counts n more bytes of w as sent, without ending w.
func (s *writes) count(w *write, n int) {
	w.off += n
	s.queued -= n
}

// advance counts n more bytes of write i as finished, and ends the write after its last byte.
func (s *writes) advance(i, n int) {
	w := s.at(i)
	s.count(w, n)
	if w.off == w.n {
		s.do(Action{Op: OpWriteDone, ID: w.id, N: w.n})
		if s.remove(i).forced {
			s.forced--
		}
	}
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

// fill adds up to limit bytes of the writes at to end-1 to the message of the action at index a,
// counts them as sent, and returns their number. It stops after an urgent byte, which must be the
// last byte of the message [SDP-6.1.2-4], and before a write for zero copy.
func (s *writes) fill(a, at, end, limit int) (total int) {
	parts := 0
	for end > at && limit > 0 && parts < maxParts {
		w := s.at(at)
		if parts > 0 && s.zcopy(w) {
			break
		}
		n := piece(w.n-w.off, limit)
		if parts == 0 {
			s.out[a].ID, s.out[a].Off, s.out[a].N = w.id, w.off, n
		} else {
			// Insert the part before the OpWriteDone of earlier parts, because the parts of one
			// message must be adjacent.
			s.insertPart(a+parts-1, Action{Op: OpPart, ID: w.id, Off: w.off, N: n})
		}
		parts++
		total += n
		limit -= n
		last := w.urgent || w.off+n < w.n
		s.advance(at, n)
		if last {
			break
		}
		end--
	}
	s.out[a].Parts = parts - 1
	s.out[a].Msg.Len += uint32(total)
	return total
}

func (s *writes) insertPart(after int, p Action) {
	s.out = append(s.out, Action{})
	copy(s.out[after+2:], s.out[after+1:])
	s.out[after+1] = p
}

// unforce makes the forced writes plain, after the SrcAvails were revoked.
func (s *writes) unforce() {
	for i := range s.forced {
		s.at(i).forced = false
	}
	s.forced = 0
}
