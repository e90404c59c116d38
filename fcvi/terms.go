package fcvi

import (
	"time"

	"viaduct/internal/fault"
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// A shared has the fields that the parts of an endpoint have in common. Only conn changes the terms
// and the consumer. The parts read them, count the traffic, and keep their own state elsewhere.
type shared struct {
	p *port
	terms
	up      consumer   // nil while no consumer is attached
	traffic vi.Traffic // guarded by the station's lock
	self    *conn      // owner of the Exchanges and of the place in port.active; newExchange and wake use it
}

// newExchange assigns an OX_ID to an Exchange of the endpoint. It returns false if none is free.
func (s *shared) newExchange() (uint16, bool) { return s.p.oxids.alloc(s.self) }

// wake adds the endpoint to the endpoints with frames to send.
func (s *shared) wake() { s.p.activate(s.self) }

// A terms has the two ends of a connection and the agreed parameters.
type terms struct {
	handle    uint32
	rHandle   uint32
	remote    *fc.Remote
	class     fc.Class
	mode      iu.Mode
	local     iu.NetAddress
	want      iu.NetAddress // the peer's address: at the originator as called, at the responder as announced
	attrs     iu.Attributes // ours
	rattrs    iu.Attributes // the peer's
	mts       uint32        // agreed maximum message size in bytes; 0 before the agreement
	responder bool
	security  []byte // security information in the peer's set-up payload
	sec       []byte // security information in this side's set-up payload
	holds     bool   // arriving messages wait for a receive descriptor instead of failing
}

func (t *terms) reliable() bool { return t.attrs.Reliability != iu.Unreliable }

func (t *terms) rr() bool { return t.attrs.Reliability == iu.ReliableReception }

// recovers reports whether lost frames are recovered. In class 2 at a reliable level recovers
// returns true, because the sender repeats unacknowledged frames. [FCVI 8.4]
func (t *terms) recovers() bool { return t.class == fc.Class2 && t.reliable() }

// probes reports whether both ends support probes.
func (t *terms) probes() bool { return t.attrs.Proves && t.rattrs.Proves && t.reliable() }

// fits reports whether a set-up IU with n bytes of payload and this side's security information
// fits the receive data field of the peer's port. Without security information the IU always fits.
// [FCVI-6.8-4]
func (t *terms) fits(n int) bool {
	return iu.LongLen+n+len(t.sec) <= min(fc.MaxData, t.remote.RxSize)
}

// matches reports whether a peer's request, from theirLocal to theirWant, matches the own one. It
// is false unless the mode is peer-to-peer. [FCVI-5.3.3-4]
func (t *terms) matches(theirWant, theirLocal iu.NetAddress) bool {
	return t.mode == iu.PeerToPeer && t.want.Equal(theirLocal) && sameLocal(t.local, theirWant)
}

// sameLocal reports whether ours, an address of this side, is the called one. If ours has no host
// part, only the discriminators are compared.
func sameLocal(ours, called iu.NetAddress) bool {
	if ours.HostLen == 0 {
		return string(ours.Discriminator) == string(called.Discriminator)
	}
	return ours.Equal(called)
}

// payloadFor returns the largest IU payload fitting into a frame to the peer, the P of the
// standard. [FCVI-5.7-3] [FCVI-5.7-2]
func (t *terms) payloadFor(o iu.Opcode) int {
	return (min(fc.MaxData, t.remote.RxSize) - o.HeaderLen()) &^ 3
}

// capTransfer limits the offered message size to one Sequence of the frames both ports accept, with
// either header size. [FCVI-5.7-4]
func (t *terms) capTransfer() {
	t.attrs.MaxTransfer = uint32(min(int64(t.attrs.MaxTransfer), fc.MaxSeqCount*int64(t.payloadFor(iu.WriteRqst))))
}

// matchAttributes applies the matching rule to the attributes of both ends. It returns the agreed
// maximum message size in bytes, the smaller one, and Accepted. If the attributes do not match, the
// size is 0 and reason says why. [FCVI-7.3-4] to [FCVI-7.3-8]
func matchAttributes(a, b *iu.Attributes) (mts uint32, reason iu.Reason) {
	switch {
	case a.Reliability != b.Reliability || !a.Reliability.Valid():
		return 0, iu.InvalidReliability
	case a.Reliability == iu.ReliableReception && (a.MaxUnacked == 0 || b.MaxUnacked == 0) && !fault.On("fcvi-window-unchecked"): // [FCVI-7.3-3]
		return 0, iu.InvalidReliability
	case a.MaxTransfer == 0 || b.MaxTransfer == 0: // [FCVI-7.3-5]
		return 0, iu.InvalidMTS
	case a.QoS != b.QoS && a.QoS != (iu.QoS{}) && b.QoS != (iu.QoS{}): // [FCVI-7.3-6]
		return 0, iu.InvalidQoS
	case a.Reliability == iu.Unreliable && (a.Read || b.Read):
		return 0, iu.InvalidRDMARead
	}
	return min(a.MaxTransfer, b.MaxTransfer), iu.Accepted
}

// ordered reports whether a missing frame counts as lost as soon as a later frame arrives. That
// holds if the path keeps the order of frames and no frame is repeated.
func (s *shared) ordered() bool { return s.p.np.InOrder() && !s.recovers() }

// gap returns T_GAP, the time for which missing frames may be on the way. On an ordered path the
// next frame shows a loss at once, or a probe does if there is no next frame. Waiting proves no
// loss on such a path, because a link over TCP may be delayed for many seconds and then deliver
// everything. [FCVI-8.4-10] [FCFS-2.10-4]
func (s *shared) gap() time.Duration {
	switch {
	case s.recovers():
		return s.p.np.RecoveryTime()
	case s.ordered():
		return s.p.ulpTimeout()
	}
	return s.p.np.EDTOV()
}

// sendWindow returns how many requests may be unanswered, or in class 2 unacknowledged. [FCVI-E-1]
func (s *shared) sendWindow() int {
	return min(s.p.cfg.maxUnacked, max(1, int(s.rattrs.MaxUnacked)), int(s.recvWindow()))
}

// recvWindow returns the number of messages a receive stream can store, including the expected
// message. [FCVI-8.4-6]
func (s *shared) recvWindow() iu.MsgID {
	if s.ordered() {
		return limitMaxUnacked
	}
	return window
}

// maxHold returns the maximum number of bytes a connection stores because the bytes can't be placed
// yet: on an out-of-order fabric, or while a receive descriptor is missing. A sender leaves at most
// maxHold bytes unanswered.
func (t *terms) maxHold() int {
	return min(64<<20, max(16<<20, 32*int(t.mts)))
}

// beats reports whether our request wins the tie-break against the peer's request with the given
// port name, discriminator and handle.
func (s *shared) beats(name fc.WWN, disc []byte, handle uint32) bool {
	return s.p.cfg.codec.Beats(uint64(s.p.np.Name()), uint64(name), s.local.Discriminator, disc, s.handle, handle)
}
