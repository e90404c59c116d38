package vitcp

import (
	"fmt"

	faults "viaduct/internal/fault" // because this package has a type fault
	"viaduct/internal/wire/vitcpwire"
)

// A reliability is a level of the VI Architecture.
type reliability uint8

const (
	unreliable reliability = iota // Unreliable Delivery
	delivery                      // Reliable Delivery
	reception                     // Reliable Reception
)

var reliabilityNames = [...]string{"unreliable delivery", "reliable delivery", "reliable reception"}

func (r reliability) String() string { return reliabilityNames[r] }

// habits holds the settings for peers with a different reading of the draft.
type habits struct {
	reliableIsDelivery bool // the draft's single reliable bit means Reliable Delivery [V-10]
	tolerant           bool // unknown attribute bits are ignored [V-05]
	strict             bool // differing RDMA enables are refused [V-15]
}

// attributes returns the attribute bits for level r. ok is false for Reliable Reception with
// reliableIsDelivery, because no bits express it then. [V-10]
func (h habits) attributes(r reliability) (a vitcpwire.Attributes, ok bool) {
	switch r {
	case delivery:
		if h.reliableIsDelivery {
			return vitcpwire.Reliable, true
		}
		return vitcpwire.Reliable | vitcpwire.ReliableDelivery, true
	case reception:
		return vitcpwire.Reliable, !h.reliableIsDelivery
	}
	return 0, true
}

// level returns the reliability level of the bits. ok is false if the extension bit is set without
// the draft's bit.
func (h habits) level(a vitcpwire.Attributes) (r reliability, ok bool) {
	switch a & (vitcpwire.Reliable | vitcpwire.ReliableDelivery) {
	case vitcpwire.Reliable:
		if h.reliableIsDelivery {
			return delivery, true
		}
		return reception, true
	case vitcpwire.Reliable | vitcpwire.ReliableDelivery:
		return delivery, true
	case 0:
		return unreliable, true
	}
	return unreliable, false
}

// A mismatch is the attribute preventing a connection of two VIs.
type mismatch uint8

const (
	matching            mismatch = iota
	mismatchReliability          // the levels differ
	mismatchFlowControl          // one side requires descriptor flow control, the other does not
	mismatchModel                // only one side connects peer-to-peer
	mismatchRDMA                 // the RDMA enables differ, and Config.StrictEnables is set
	mismatchUnknown              // a bit without a known meaning is set
	mismatchMTU                  // the peer offers no MTU, or a larger one
)

var mismatchNames = [...]string{"none", "reliability level", "descriptor flow control", "connection model",
	"RDMA enables", "unknown attribute", "MTU"}

func (m mismatch) String() string { return mismatchNames[m] }

// match compares the attributes of both sides. Reliability, flow control and the connection model
// must be equal. The RDMA enables may differ, because each side states only what it allows the
// other. [VIT-2.2.1-4] [V-05] [V-15]
func (h habits) match(ours, theirs vitcpwire.Attributes) mismatch {
	if theirs&^vitcpwire.KnownAttributes != 0 && !h.tolerant {
		return mismatchUnknown
	}
	a, aok := h.level(ours)
	b, bok := h.level(theirs)
	differ := ours ^ theirs
	switch {
	case !aok || !bok || a != b:
		return mismatchReliability
	case differ&vitcpwire.FlowControl != 0:
		return mismatchFlowControl
	case differ&vitcpwire.PeerToPeer != 0:
		return mismatchModel
	case h.strict && differ&(vitcpwire.RDMAWrite|vitcpwire.RDMARead) != 0:
		return mismatchRDMA
	}
	return matching
}

// agreeMTU returns the called side's answer to a proposed MTU: the smaller of ours and proposed. ok
// is false for a proposal of zero. [VIT-3.2-5] [V-14]
func agreeMTU(ours, proposed uint32) (mtu uint32, ok bool) {
	if faults.On("vitcp-mtu") {
		return ours, proposed != 0
	}
	return min(ours, proposed), proposed != 0
}

// checkMTU reports whether the calling side accepts the MTU agreed to by the peer. The agreed MTU
// must not be zero or exceed the proposed one.
func checkMTU(proposed, agreed uint32) bool { return agreed != 0 && agreed <= proposed }

// A MismatchError names the attribute that prevented the connection of two VIs. If Remote is true,
// the peer found the mismatch; a peer does not report the attribute.
type MismatchError struct {
	Remote    bool   // the peer found the mismatch
	Attribute string // name of the attribute; "" if the peer found the mismatch
	Ours      string // names of the attributes requested at this side
	Theirs    string // names of the peer's attributes; "" if the peer found the mismatch
}

// Error names the attribute.
func (e *MismatchError) Error() string {
	if e.Remote {
		return "vitcp: the peer refused our attributes"
	}
	return fmt.Sprintf("vitcp: attributes do not match: %s (ours %s, the peer's %s)", e.Attribute, e.Ours, e.Theirs)
}
