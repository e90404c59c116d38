package abi

// The additional parts of a RoCE connection's events and attributes.

// A UDParam is the part of a datagram event that describes how to reach the other end.
type UDParam struct {
	QP, QKey uint32
	AH       Body // as MakeAH returns it; nil for none
	Private  []byte
}

func (p *UDParam) put(b Body) {
	const ahAt, privateAt, lengthAt, maxLen = 8, 40, 296, 256
	b.Put32(0, p.QP)
	b.Put32(4, p.QKey)
	copy(b[ahAt:ahAt+AHLen], p.AH)
	b.Put8(lengthAt, uint8(copy(b[privateAt:privateAt+maxLen], p.Private)))
}

// AHLen is the length in bytes of the attributes of an address handle in rdma_cm.
const AHLen = 32

// MakeAH returns the attributes of an address handle for a GID, with the port's address at an index
// as the source.
func MakeAH(gid [16]byte, sgidIndex uint8) Body {
	const hops = 64
	b := make(Body, AHLen)
	copy(b, gid[:])
	b.Put8(20, sgidIndex)
	b.Put8(21, hops)
	b.Put8(29, 1) // is_global
	b.Put8(30, 1) // port
	return b
}

// A RoCEAttr is the answer of init_qp_attr for an identifier of RoCE.
type RoCEAttr struct {
	UD                   bool
	DestQP               uint32
	SendPSN, RecvPSN     uint32
	AH                   Body
	IRD, ORD             uint8
	Timeout              uint8
	RetryCount, RNRRetry uint8
	MTU                  uint8 // code of the path MTU
}

// DatagramKey is the queue key of datagrams between programs over rdma_cm.
const DatagramKey = 0x01234567

// Attributes in the answer, as bits of modify_qp.
const (
	qpPKey      = 1 << 4
	qpQKey      = 1 << 6
	qpPathMTU   = 1 << 8
	qpTimeout   = 1 << 9
	qpRetry     = 1 << 10
	qpRNRRetry  = 1 << 11
	qpRecvPSN   = 1 << 12
	qpMaxReads  = 1 << 13
	qpMinRNR    = 1 << 15
	qpSendPSN   = 1 << 16
	qpDestReads = 1 << 17
)

// For returns the response for a state. ok is false if the state cannot be entered.
func (a *RoCEAttr) For(s State) (b Body, ok bool) {
	b = make(Body, QPAttrLen)
	b.Put32(4, uint32(s))
	switch {
	case s == Init:
		mask := uint32(QPState | qpPKey | QPPort)
		if a.UD {
			mask |= qpQKey
			b.Put32(20, DatagramKey)
		} else {
			mask |= QPAccessFlags
			b.Put32(36, AccessRemoteWrite|AccessRemoteRead|AccessRemoteAtomic)
		}
		b.Put32(0, mask)
		b.Put8(133, 1)
	case s == RTR && a.UD:
		b.Put32(0, QPState)
	case s == RTR:
		b.Put32(0, QPState|QPAddress|qpPathMTU|QPDestination|qpRecvPSN|qpDestReads|qpMinRNR)
		b.Put32(12, uint32(a.MTU))
		b.Put32(24, a.RecvPSN)
		b.Put32(32, a.DestQP)
		copy(b[40:40+AHLen], a.AH)
		b.Put8(131, a.IRD)
	case s == RTS && a.UD:
		b.Put32(0, QPState|qpSendPSN)
	case s == RTS:
		b.Put32(0, QPState|qpTimeout|qpRetry|qpRNRRetry|qpSendPSN|qpMaxReads)
		b.Put32(28, a.SendPSN)
		for i, v := range []uint8{a.Timeout, a.RetryCount & 7, a.RNRRetry & 7} {
			b.Put8(134+i, v)
		}
		b.Put8(130, a.ORD)
	default:
		return nil, false
	}
	return b, true
}

// PutPath writes the path record of a resolved route into the response of query_route. A route has
// a single path.
func PutPath(b Body, from, to [16]byte, mtu uint8) {
	const pathAt, hops = 8, 64
	p := b[pathAt:]
	copy(p, to[:])
	copy(p[16:], from[:])
	p.Put32(44, 1) // reversible
	p.Put32(48, uint32(mtu))
	p.Put8(52, 0xff) // the pkey
	p.Put8(53, 0xff)
	p.Put8(54, hops)
	p.Put8(56, 1)
}

// Bytes of private data in each message of the connection manager. The kernel passes all private
// data to the program, used or not.
const (
	PrivateRequest   = 56
	PrivateReply     = 196
	PrivateReject    = 148
	PrivateUDRequest = 180
	PrivateUDReply   = 136
)
