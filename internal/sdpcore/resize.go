package sdpcore

import "viaduct/internal/wire/sdpwire"

// resize is the state of changes to the sizes of Private Buffers. [SDP 10.6]
type resize struct {
	*common
	snd    *sender
	offers *offers

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

// start begins with the sizes of a new connection.
func (z *resize) start() {
	*z = resize{common: z.common, snd: z.snd, offers: z.offers, actual: z.p.PeerSize}
}

// RequestPeerSize asks the peer to give each of its receive Private Buffers n bytes. [SDP-10.6-1]
// ok is false, and no request is sent, while another request is open, if the size is n already, or
// if the peer has refused to change in that direction.
func (m *Machine) RequestPeerSize(now Time, n int, out []Action) (acts []Action, ok bool) {
	m.begin(now, out)
	ok = m.rsz.request(n)
	return m.end(), ok
}

// request makes a ChRcvBuf for n bytes due. It reports whether it did. [SDP-10.6-1]
func (z *resize) request(n int) bool {
	n = min(max(n, sdpwire.MinBufferSize), sdpwire.MaxSize)
	switch {
	case z.life != lifeOpen || z.sent || z.want != 0 || n == z.actual:
	case n > z.actual && z.noMore, n < z.actual && z.noLess:
	default:
		z.want = n
		return true
	}
	return false
}

// Resized reports that the receive Private Buffers have the size of OpResize, and that none of the
// old size is posted. [SDP-10.6-13] [D-46]
func (m *Machine) Resized(now Time, out []Action) []Action {
	m.begin(now, out)
	m.rsz.ready = m.rsz.ackOwed
	return m.end()
}

// step sends a ChRcvBuf or ChRcvBufAck that is due. It reports whether it did.
func (z *resize) step() bool {
	switch {
	case z.ackOwed && z.ready && z.offers.exceed(z.size):
		// From here on the new size applies. [SDP-10.6-11] [SDP-6.4.2.1-1] [SDP-10.6-16]
		z.p.RecvSize = z.size
		z.p.RecvThreshold = max(z.p.RecvThreshold, z.size)
		z.ackOwed = false
		a := z.snd.send(sdpwire.ChRcvBufAck, 0)
		z.out[a].Msg.Size = uint32(z.size)
		return true
	case z.want != 0 && !z.ackOwed: // an end that owes an acknowledgement does not ask [D-47]
		z.sent, z.asked, z.want = true, z.want, 0
		a := z.snd.send(sdpwire.ChRcvBuf, 0)
		z.out[a].Msg.Size = uint32(z.asked) // [SDP-6.4.1-3]
		if z.asked < z.actual {
			z.setPeerSize(z.asked) // a larger size applies only when acknowledged [SDP-10.6-2] [SDP-10.6-3]
		}
		return true
	}
	return false
}

// setPeerSize limits the size of sent messages to n. The driver chooses the size of its sending
// memory itself. [SDP-10-7]
func (z *resize) setPeerSize(n int) {
	z.p.PeerSize = n
	z.do(Action{Op: OpPeerSize, N: n})
}

// beginChRcvBuf checks a ChRcvBuf: only one may be open at a time.
func (z *resize) beginChRcvBuf(msg *inbound) error {
	if z.ackOwed {
		return violation("SDP-10.6-19", msg.MID, "before the last one was acknowledged")
	}
	return nil
}

// endChRcvBuf handles the peer's request for another buffer size. The peer always gets an answer
// [SDP-10.6-11], unless both ends have sent a request and this end is the Accepting Peer.
// [SDP-10.6.1-1]
func (z *resize) endChRcvBuf(msg *inbound) error {
	if z.sent {
		if z.p.Role == Accepting {
			return nil // [SDP-10.6.1-1]
		}
		// The peer's request replaces ours; the driver may repeat ours. [SDP-10.6.1-3]
		// [SDP-10.6.1-2] [D-47]
		z.sent = false
	}
	old, want := z.p.RecvSize, int(min(msg.Size, sdpwire.MaxSize))
	// The size is as close to the request as possible, perhaps larger. [SDP-10.6-6] [SDP-10.6-5]
	// [SDP-10.6-7]
	size := min(max(want, z.p.MinRecvSize), z.p.MaxRecvSize)
	switch {
	case z.p.NoResize: // [SDP-10.6-14] [SDP-6.4.2.1-2]
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
	z.stats.Resizes++
	if size < old {
		z.p.RecvSize = size // the peer already observes its own request
	}
	z.do(Action{Op: OpResize, N: size}) // new buffers are posted at once [SDP-10.6.2-1] [SDP-10.6.2-2]
	return nil
}

// beginChRcvBufAck checks a ChRcvBufAck: its size must be between the old and the requested size.
// After a request for more, it may also exceed the requested size. [D-47]
func (z *resize) beginChRcvBufAck(msg *inbound) error {
	act := int(msg.Size)
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
func (z *resize) endChRcvBufAck(msg *inbound) error {
	act := int(msg.Size)
	up := z.asked > z.actual
	z.sent = false
	if act == z.actual { // this end never asks for that direction again
		z.noMore = z.noMore || up
		z.noLess = z.noLess || !up
	}
	z.actual = act
	z.setPeerSize(act) // [SDP-10.6-4]
	return nil
}
