package vitcpwire

// Attributes are the properties of a VI announced by the provider during connection set-up.
// [VIT-3.2-2] [V-05]
type Attributes uint16

// These are the attribute bits. Reliable alone means Reliable Reception, because the draft merges
// the two reliable levels. ReliableDelivery is an extension. It distinguishes the levels between
// peers with the extension. [V-10]
const (
	Reliable         Attributes = 0x0001
	RDMAWrite        Attributes = 0x0002 // the peer may write into this side's memory
	RDMARead         Attributes = 0x0004 // the peer may read this side's memory
	FlowControl      Attributes = 0x0008 // descriptor flow control
	PeerToPeer       Attributes = 0x0010 // peer-to-peer establishment
	ReliableDelivery Attributes = 0x0020 // with Reliable: Reliable Delivery [V-10]

	KnownAttributes = Reliable | RDMAWrite | RDMARead | FlowControl | PeerToPeer | ReliableDelivery
)

var attributeNames = [...]string{
	"reliable", "rdma-write", "rdma-read", "flow-control", "peer-to-peer", "reliable-delivery",
}

// String returns the names of the set attributes, and unknown bits in hexadecimal.
func (a Attributes) String() string { return bitNames(uint16(a), attributeNames[:]) }
