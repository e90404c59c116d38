package sdpcore

import "viaduct/internal/wire/sdpwire"

// resize is the state of changes to the sizes of Private Buffers. [SDP 10.6]
type resize struct {
	// These fields are the state of the requesting end.
	want   int  // size to request from the peer, or 0
	sent   bool // a ChRcvBuf is unacknowledged [SDP-10.6-19]
	asked  int  // size in the last ChRcvBuf sent
	actual int  // peer's size as last announced; we may use less [D-47]
	noMore bool // an increase was answered with the old size [SDP-10.6-17]
	noLess bool // a decrease was answered with the old size [SDP-10.6-18]

	// These fields are the state of the end that gets a request.
	ackOwed bool
	ready   bool // the buffers have their new size
	size    int  // the new size
}

// RequestPeerSize asks the peer to give each of its receive Private Buffers n bytes. [SDP-10.6-1]
// ok is false, and no request is sent, while another request is open, if the size is n already, or
// if the peer has refused to change in that direction.
func (m *Machine) RequestPeerSize(now Time, n int, out []Action) (acts []Action, ok bool) {
	m.begin(now, out)
	z := &m.rsz
	n = min(max(n, sdpwire.MinBufferSize), sdpwire.MaxSize)
	switch {
	case m.life != lifeOpen || z.sent || z.want != 0 || n == z.actual:
	case n > z.actual && z.noMore, n < z.actual && z.noLess:
	default:
		z.want, ok = n, true
	}
	return m.end(), ok
}

// Resized reports that the receive Private Buffers have the size of OpResize, and that none of the
// old size is posted. [SDP-10.6-13] [D-46]
func (m *Machine) Resized(now Time, out []Action) []Action {
	m.begin(now, out)
	m.rsz.ready = m.rsz.ackOwed
	return m.end()
}

// resizeStep sends a ChRcvBuf or ChRcvBufAck that is due. It reports whether it did.
func (m *Machine) resizeStep() bool {
	z := &m.rsz
	switch {
	case z.ackOwed && z.ready && m.offersExceed(z.size):
		// From here on the new size applies. [SDP-10.6-11] [SDP-6.4.2.1-1] [SDP-10.6-16]
		m.p.RecvSize = z.size
		m.p.RecvThreshold = max(m.p.RecvThreshold, z.size)
		z.ackOwed = false
		a := m.send(sdpwire.ChRcvBufAck, 0)
		m.out[a].Msg.Size = uint32(z.size)
		return true
	case z.want != 0 && !z.ackOwed: // an end that owes an acknowledgement does not ask [D-47]
		z.sent, z.asked, z.want = true, z.want, 0
		a := m.send(sdpwire.ChRcvBuf, 0)
		m.out[a].Msg.Size = uint32(z.asked) // [SDP-6.4.1-3]
		if z.asked < z.actual {
			m.setPeerSize(z.asked) // a larger size applies only when acknowledged [SDP-10.6-2] [SDP-10.6-3]
		}
		return true
	}
	return false
}

// offersExceed reports whether every SinkAvail is for a buffer larger than n, so that a message of
// n bytes still fits. [SDP-9.5.1-1]
func (m *Machine) offersExceed(n int) bool {
	for i := range m.snk.offers.len() {
		if m.snk.offers.at(i).size <= n {
			return false
		}
	}
	return true
}

// setPeerSize limits the size of sent messages to n. The driver chooses the size of its sending
// memory itself. [SDP-10-7]
func (m *Machine) setPeerSize(n int) {
	m.p.PeerSize = n
	m.do(Action{Op: OpPeerSize, N: n})
}

// beginChRcvBuf checks a ChRcvBuf: only one may be open at a time.
func (m *Machine) beginChRcvBuf(msg *inbound) error {
	if m.rsz.ackOwed {
		return violation("SDP-10.6-19", msg.MID, "before the last one was acknowledged")
	}
	return nil
}

// endChRcvBuf handles the peer's request for another buffer size. The peer always gets an answer
// [SDP-10.6-11], unless both ends have sent a request and this end is the Accepting Peer.
// [SDP-10.6.1-1]
func (m *Machine) endChRcvBuf(msg *inbound) error {
	z := &m.rsz
	if z.sent {
		if m.p.Role == Accepting {
			return nil // [SDP-10.6.1-1]
		}
		// The peer's request replaces ours; the driver may repeat ours. [SDP-10.6.1-3]
		// [SDP-10.6.1-2] [D-47]
		z.sent = false
	}
	old, want := m.p.RecvSize, int(min(msg.Size, sdpwire.MaxSize))
	// The size is as close to the request as possible, perhaps larger. [SDP-10.6-6] [SDP-10.6-5]
	// [SDP-10.6-7]
	size := min(max(want, m.p.MinRecvSize), m.p.MaxRecvSize)
	switch {
	case m.p.NoResize: // [SDP-10.6-14] [SDP-6.4.2.1-2]
		size = old
	case want < old:
		// The size does not grow [SDP-10.6-8]; because of the maximum above it is never less than
		// requested. [SDP-10.6-9]
		size = min(size, old)
		size = max(size, want)
	default:
		size = max(size, old) // [SDP-10.6-10]
	}
	z.ackOwed, z.size, z.ready = true, size, size <= old // [SDP-10.6-12] [SDP-10.6-13]
	if size == old {
		return nil
	}
	m.stats.Resizes++
	if size < old {
		m.p.RecvSize = size // the peer already observes its own request
	}
	m.do(Action{Op: OpResize, N: size}) // new buffers are posted at once [SDP-10.6.2-1] [SDP-10.6.2-2]
	return nil
}

// beginChRcvBufAck checks a ChRcvBufAck: its size must be between the old and the requested size.
// After a request for more, it may also exceed the requested size. [D-47]
func (m *Machine) beginChRcvBufAck(msg *inbound) error {
	z, act := &m.rsz, int(msg.Size)
	up := z.asked > z.actual
	switch {
	case !z.sent:
		return violation("D-47", msg.MID, "nothing was asked")
	case act > sdpwire.MaxSize, up && act < z.actual, !up && (act > z.actual || act < z.asked):
		return violation("D-47", msg.MID, "%d bytes when asked to go from %d to %d", act, z.actual, z.asked)
	}
	return nil
}

// endChRcvBufAck records the peer's answer. If the size has not changed, this end never asks for a
// change in that direction again.
func (m *Machine) endChRcvBufAck(msg *inbound) error {
	z, act := &m.rsz, int(msg.Size)
	up := z.asked > z.actual
	z.sent = false
	if act == z.actual { // this end never asks for that direction again
		z.noMore = z.noMore || up
		z.noLess = z.noLess || !up
	}
	z.actual = act
	m.setPeerSize(act) // [SDP-10.6-4]
	return nil
}
