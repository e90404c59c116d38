package vi

import "fmt"

// [VIA 4.5]

// A Reliability is a reliability level, or in NIC attributes a set of levels. The bits are VIPL's.
type Reliability uint16

// A level says what a completed send means for the message.
const (
	UnreliableDelivery Reliability = 1 << iota // the message was sent; it arrives at most once
	ReliableDelivery                           // the message was sent, and will arrive unless the connection breaks
	ReliableReception                          // the message is in the peer's memory

	allLevels = UnreliableDelivery | ReliableDelivery | ReliableReception
)

// String returns the name of the level, or the names of the levels of a set.
func (r Reliability) String() string {
	names := [...]string{"unreliable delivery", "reliable delivery", "reliable reception"}
	s := ""
	for i, n := range names {
		if r&(1<<i) != 0 {
			if s != "" {
				s += "|"
			}
			s += n
		}
	}
	if rest := r &^ allLevels; rest != 0 || s == "" {
		s += fmt.Sprintf("%#x", uint16(rest))
	}
	return s
}

// one reports whether r is exactly one known level.
func (r Reliability) one() bool {
	return r == UnreliableDelivery || r == ReliableDelivery || r == ReliableReception
}

// reliable reports whether an error at this level breaks the connection. [VIA 4.6]
func (r Reliability) reliable() bool { return r != UnreliableDelivery }

// NICAttributes describe a NIC. They do not change while the NIC is open. Lengths are in bytes.
type NICAttributes struct { // [VIA 6.2]
	Name                   string // name given to Open
	HardwareVersion        uint32
	ProviderVersion        uint32
	LocalAddress           []byte // host part of the NIC's own address; must not be modified
	ThreadSafe             bool   // methods may be called concurrently
	MaxDiscriminatorLen    int
	MaxRegisterBytes       uint64 // limit for all regions together
	MaxRegisterRegions     int
	MaxRegisterBlockBytes  uint64 // limit for one region
	MaxVI                  int
	MaxDescriptorsPerQueue int // limit for descriptors that are posted and not yet dequeued
	MaxSegmentsPerDesc     int // limit for the segments of one descriptor, with the address segment of an RDMA
	MaxCQ                  int
	MaxCQEntries           int    // limit for one completion queue
	MaxTransferSize        uint32 // limit for one descriptor
	NativeMTU              uint32 // size of the provider's unit of transfer
	MaxPtags               int
	ReliabilityLevels      Reliability // supported levels
	RDMAReadSupport        Reliability // levels at which RDMA Read works
}

// Attributes are the attributes of a VI.
type Attributes struct { // [VIA 6.2]
	// Reliability is exactly one level.
	Reliability Reliability

	// MaxTransferSize is the maximum length of a message in bytes. 0 means the NIC's maximum. While
	// the VI is connected, MaxTransferSize is the value both sides agreed on.
	MaxTransferSize uint32

	// QoS is stored and not interpreted.
	QoS uintptr

	// Ptag is the protection tag. nil matches every region of the NIC, but is invalid if
	// Config.StrictPtags is set.
	Ptag *Ptag

	// EnableRDMAWrite and EnableRDMARead allow the remote side to access memory through the VI.
	// They do not limit the local consumer.
	EnableRDMAWrite bool
	EnableRDMARead  bool

	// FlowControl requests Descriptor Flow Control: the provider sends a message only when the
	// remote side has posted the receive the message consumes. Both sides must request it.
	FlowControl bool

	// ReadWindow is the number of RDMA Reads of the peer a VI serves at once. 0 means the
	// provider's default.
	ReadWindow int

	// Security is sent with a connection request or an acceptance, and the other side bases a
	// decision on the information. nil sends nothing.
	Security []byte

	// Ptag [VIA 6.6], FlowControl [VIT 2.2.1], ReadWindow [V-26], Security [VIT 3.2].
}

// MemAttributes are the attributes of a region.
type MemAttributes struct { // [VIA 6.2]
	// Ptag is the protection tag. nil matches every VI of the NIC, but is invalid if
	// Config.StrictPtags is set.
	Ptag *Ptag

	// EnableRDMAWrite and EnableRDMARead let the remote side of a VI with
	// the same tag write or read the region.
	EnableRDMAWrite bool
	EnableRDMARead  bool

	// Guarded declares that the memory is a mapped file another process may truncate. A memory
	// fault then fails the transfer and not the program.
	Guarded bool

	// FaultBreaks, together with Guarded, allows the kernel to access the memory directly, so that
	// the engine need not copy the bytes first. A fault in the middle of a transfer then ends the
	// connection. Set FaultBreaks for memory that faults only by a mistake of the program, such as
	// unmapping registered memory. There is no effect at Unreliable Delivery.
	FaultBreaks bool
}
