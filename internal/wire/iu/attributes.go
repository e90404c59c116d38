package iu

import (
	"encoding/binary"
	"io"
)

// A Reliability is a VI reliability level. Each level has a bit, as in VIPL. [FCVI-7.3-2]
type Reliability uint8

// These are the reliability levels.
const (
	Unreliable        Reliability = 1
	ReliableDelivery  Reliability = 2
	ReliableReception Reliability = 4
)

// Valid reports whether r is exactly one level.
func (r Reliability) Valid() bool {
	return r == Unreliable || r == ReliableDelivery || r == ReliableReception
}

func (r Reliability) String() string {
	switch r {
	case Unreliable:
		return "unreliable delivery"
	case ReliableDelivery:
		return "reliable delivery"
	case ReliableReception:
		return "reliable reception"
	}
	return "reliability(?)"
}

// QoS is FCVI_QOS, the requested quality of service. The zero value means best effort.
type QoS struct {
	Class     uint8 // requested class of service: 2 or 3, or 0 for any class
	CSCtl     uint8
	Flags     uint16 // QoSStrict
	Bandwidth uint32 // kB/s
	Latency   uint32 // microseconds
	Vendor    uint32
}

// Attributes is FCVI_ATTRIBUTES: the features an endpoint offers. [FCVI-7.3-1]
type Attributes struct {
	Reliability Reliability
	Write       bool   // RDMA Write is enabled: the endpoint accepts writes
	Read        bool   // RDMA Read is enabled: the endpoint accepts reads
	InOrder     bool   // the port requires in-order delivery
	Streaming   bool   // the endpoint can parse and send CUM responses
	Class2      bool   // the endpoint requests class 2
	Holds       bool   // the endpoint stores messages until a receive is posted
	Proves      bool   // the endpoint answers every read of zero bytes, however often it is repeated
	MaxTransfer uint32 // size of the largest message in bytes
	MaxReads    uint16 // number of outstanding reads that the endpoint accepts
	MaxUnacked  uint16 // number of unanswered Reliable Reception requests that the endpoint accepts, at least 1
	QoS         QoS
}

// Append appends the AttributesLen bytes of a to b.
func (a *Attributes) Append(b []byte) []byte {
	f := uint32(a.Reliability) & attrReliability
	for _, bit := range [...]struct {
		on  bool
		bit uint32
	}{{a.Write, attrWrite}, {a.Read, attrRead}, {a.InOrder, attrInOrder}, {a.Streaming, attrStreaming}, {a.Class2, attrClass2}, {a.Holds, attrHolds}, {a.Proves, attrProves}} {
		if bit.on {
			f |= bit.bit
		}
	}
	b = binary.BigEndian.AppendUint32(b, f)
	b = binary.BigEndian.AppendUint32(b, a.MaxTransfer)
	b = binary.BigEndian.AppendUint16(b, a.MaxReads)
	b = binary.BigEndian.AppendUint16(b, a.MaxUnacked)
	b = append(b, 0, 0, 0, 0, a.QoS.Class, a.QoS.CSCtl)
	b = binary.BigEndian.AppendUint16(b, a.QoS.Flags)
	b = binary.BigEndian.AppendUint32(b, a.QoS.Bandwidth)
	b = binary.BigEndian.AppendUint32(b, a.QoS.Latency)
	return binary.BigEndian.AppendUint32(b, a.QoS.Vendor)
}

// ParseAttributes decodes the attributes at the front of b. n is their length in bytes.
func ParseAttributes(b []byte) (a Attributes, n int, err error) {
	if len(b) < AttributesLen {
		return a, 0, io.ErrUnexpectedEOF
	}
	f := binary.BigEndian.Uint32(b)
	a = Attributes{
		Reliability: Reliability(f & attrReliability),
		Write:       f&attrWrite != 0, Read: f&attrRead != 0, InOrder: f&attrInOrder != 0,
		Streaming: f&attrStreaming != 0, Class2: f&attrClass2 != 0, Holds: f&attrHolds != 0, Proves: f&attrProves != 0,
		MaxTransfer: binary.BigEndian.Uint32(b[4:]),
		MaxReads:    binary.BigEndian.Uint16(b[8:]), MaxUnacked: binary.BigEndian.Uint16(b[10:]),
		QoS: QoS{Class: b[16], CSCtl: b[17], Flags: binary.BigEndian.Uint16(b[18:]),
			Bandwidth: binary.BigEndian.Uint32(b[20:]), Latency: binary.BigEndian.Uint32(b[24:]),
			Vendor: binary.BigEndian.Uint32(b[28:])},
	}
	return a, AttributesLen, nil
}
