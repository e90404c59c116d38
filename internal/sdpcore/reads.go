package sdpcore

import (
	"io"
	"time"
)

// Read posts read id with room for n bytes, at least one. If all is set, the read ends only when it
// is full, at the end of the stream, or when cancelled; such a read is never advertised.
// [SDP-9.3-15] Reads are served in order. After CloseRead the read ends at once with ErrClosed.
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
	m.noteRead(n)
	return m.end()
}

// CancelRead cancels read id. The read ends by OpReadDone with the exact count. It ends at once, or
// after RDMA into it has ended because an RDMA Read completed or the peer answered the
// SinkAvailCancel. [SDP-9.5.5-1]
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

// endRead ends read i with the bytes it has, and err. If it has bytes, io.EOF becomes nil.
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

// serve passes held bytes to the reads, and starts RDMA Reads for them. A read that is not
// advertised can get the bytes of several messages.
func (m *Machine) serve() {
	s := &m.snk
	for i := 0; i < s.reads.len(); {
		r := s.reads.at(i)
		if r.offered {
			return
		}
		if s.held > 0 { // no RDMA Read into r is in progress then [SDP-9.5.1-6]
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
		// Once later reads may have been served, r gets no more bytes.
		for r.off+r.inflight < r.n && (r.all || !r.fetched) && m.fetch(r) {
		}
		switch {
		case r.inflight > 0:
			if r.off+r.inflight < r.n && r.all {
				return // r gets the next bytes as well
			}
			i++
		case r.off > 0 && !r.all:
			if s.expects && m.life == lifeOpen && !r.cancel {
				return // more bytes for r follow at once
			}
			m.endRead(i, nil)
		case m.drained():
			m.endRead(i, io.EOF) // [SDP-8.2.1-15] [SDP-8.2.1-17]
		default:
			return
		}
	}
}

// drained reports whether all bytes of an ended stream were passed to reads.
func (m *Machine) drained() bool {
	s := &m.snk
	return s.eof && s.held == 0 && s.ops.len() == 0
}

// Expect records whether more messages have arrived than the machine has received. While more is
// true, a read that is not full waits for them. Call Settle when there are no more.
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

// Landing returns the read that would get the next payload, and the offset in it. ok is false if no
// read waits, if other bytes come before that payload, or if a read is advertised.
func (m *Machine) Landing() (id uint64, off int, ok bool) {
	s := &m.snk
	if m.life != lifeOpen || s.reads.len() == 0 || s.held > 0 || s.ops.len() > 0 || s.offers.len() > 0 || s.closed {
		return 0, 0, false
	}
	r := s.reads.at(0)
	return r.id, r.off, !r.cancel && r.inflight == 0
}

// CloseRead records that the ULP stops reading. Later payload then ends the connection abortively,
// as with TCP [D-49]. If discard is set, later payload is dropped instead. Reads in progress end
// with ErrCancelled, and held payload is dropped.
func (m *Machine) CloseRead(now time.Duration, discard bool, out []Action) []Action {
	m.begin(now, out)
	s := &m.snk
	if !s.closed || discard {
		s.closed, s.discard = true, discard
		for i := range s.reads.len() {
			s.reads.at(i).cancel = true
		}
		s.cancelWant = !s.cancelOpen // cancels an open SinkAvail, if there is one
		m.checkSinkCancel()
		m.dropHeld()
		if !discard && s.adverts.len() > 0 {
			m.abort(ErrReadClosed) // the rest of the advertised bytes was not received
		}
		for i := range s.adverts.len() {
			s.adverts.at(i).wantSm = true
		}
	}
	return m.end()
}
