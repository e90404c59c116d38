package rxe

import "viaduct/cmd/viaduct/internal/rdma/abi"

// A Path is the route of the packets of a connection or address handle.
type Path struct {
	DGID  GID
	SGID  uint8 // index of the source address in the GID table of the port
	bytes [pathLen]byte
}

const pathLen = 32

func parsePath(b abi.Body) (p Path) {
	copy(p.bytes[:], b.Bytes(0, pathLen))
	copy(p.DGID[:], p.bytes[:])
	p.SGID = b.U8(24)
	return p
}

// usable reports whether packets can take the path. It needs a global header, as all packets on
// Ethernet have, the port 1 (or 0 for any), and a source address of the port.
func (p *Path) usable(port *Port) bool {
	const isGlobalAt, portAt = 30, 31
	return p.bytes[isGlobalAt] != 0 && (p.bytes[portAt] == 1 || p.bytes[portAt] == 0) && port.Has(p.SGID)
}

// Attributes are the attributes of a queue pair set by modify_qp. A value is never changed in
// place.
type Attributes struct {
	State         abi.State
	Path, AltPath Path
	QKey          uint32
	RecvPSN       uint32
	SendPSN       uint32
	DestQP        uint32
	Access        uint32 // rights of the peer
	PKey          uint16
	MTU           uint8
	MaxReads      uint8
	MaxDestReads  uint8
	MinRNR        uint8
	Timeout       uint8
	Retry         uint8
	RNRRetry      uint8
}

// A Change is a request of modify_qp.
type Change struct {
	Mask     Mask
	CurState abi.State
	Attributes
	port uint8
}

// ParseChange decodes the body of modify_qp.
func ParseChange(b abi.Body) Change {
	return Change{
		Mask: Mask(b.U32(68)), CurState: abi.State(b.U8(97)), port: b.U8(104),
		Attributes: Attributes{
			State: abi.State(b.U8(96)), Path: parsePath(b), AltPath: parsePath(b[pathLen:]),
			QKey: b.U32(72), RecvPSN: b.U32(76) & psnMask, SendPSN: b.U32(80) & psnMask, DestQP: b.U32(84) & qpnMask,
			Access: b.U32(88), PKey: b.U16(92), MTU: b.U8(98), MaxReads: b.U8(101), MaxDestReads: b.U8(102),
			MinRNR: b.U8(103), Timeout: b.U8(105), Retry: b.U8(106), RNRRetry: b.U8(107),
		},
	}
}

const (
	psnMask = 1<<24 - 1
	qpnMask = 1<<24 - 1
)

// Limits of attributes.
const (
	maxMTU      = 5 // 4096 bytes
	MaxReads    = 128
	maxTimer    = 31
	maxRetry    = 7
	retryAlways = 7 // value of RNRRetry for no limit
)

// allowed reports whether the device supports all values of the change.
func (c *Change) allowed(port *Port) bool {
	has := func(m Mask) bool { return c.Mask&m != 0 }
	switch {
	case has(MaskPort) && c.port != 1,
		has(MaskPKey) && c.PKey != 0,
		has(MaskMTU) && (c.MTU == 0 || c.MTU > maxMTU),
		has(MaskPath) && !c.Path.usable(port),
		has(MaskAltPath) && !c.AltPath.usable(port),
		has(MaskMaxReads) && c.MaxReads > MaxReads,
		has(MaskMaxDestReads) && c.MaxDestReads > MaxReads,
		has(MaskTimeout) && c.Timeout > maxTimer,
		has(MaskMinRNR) && c.MinRNR > maxTimer,
		has(MaskRetry) && c.Retry > maxRetry,
		has(MaskRNRRetry) && c.RNRRetry > maxRetry:
		return false
	}
	return true
}

// apply returns the attributes a with the values of the change. In the state Reset, all attributes
// are zero.
func (c *Change) apply(a Attributes) Attributes {
	to := &c.Attributes
	for _, f := range [...]struct {
		bit Mask
		set func()
	}{
		{MaskState, func() { a.State = to.State }},
		{MaskAccess, func() { a.Access = to.Access }},
		{MaskPKey, func() { a.PKey = to.PKey }},
		{MaskQKey, func() { a.QKey = to.QKey }},
		{MaskPath, func() { a.Path = to.Path }},
		{MaskMTU, func() { a.MTU = to.MTU }},
		{MaskTimeout, func() { a.Timeout = to.Timeout }},
		{MaskRetry, func() { a.Retry = to.Retry }},
		{MaskRNRRetry, func() { a.RNRRetry = to.RNRRetry }},
		{MaskRecvPSN, func() { a.RecvPSN = to.RecvPSN }},
		{MaskMaxReads, func() { a.MaxReads = to.MaxReads }},
		{MaskAltPath, func() { a.AltPath = to.AltPath }},
		{MaskMinRNR, func() { a.MinRNR = to.MinRNR }},
		{MaskSendPSN, func() { a.SendPSN = to.SendPSN }},
		{MaskMaxDestReads, func() { a.MaxDestReads = to.MaxDestReads }},
		{MaskDestQP, func() { a.DestQP = to.DestQP }},
	} {
		if c.Mask&f.bit != 0 {
			f.set()
		}
	}
	if a.State == abi.Reset {
		return Attributes{}
	}
	return a
}

// Limits are the numbers of entries in a queue pair's queues, of elements in their entries, and of
// bytes of inline data.
type Limits struct{ SendWR, RecvWR, SendSGE, RecvSGE, Inline uint32 }

// put returns the response of query_qp.
func (a *Attributes) put(l Limits, signalAll bool) abi.Body {
	b := make(abi.Body, abi.QueryQPLen)
	copy(b, a.Path.bytes[:])
	copy(b[pathLen:], a.AltPath.bytes[:])
	for i, v := range []uint32{l.SendWR, l.RecvWR, l.SendSGE, l.RecvSGE, l.Inline, a.QKey, a.RecvPSN, a.SendPSN, a.DestQP, a.Access} {
		b.Put32(64+4*i, v)
	}
	b.Put16(104, a.PKey)
	for i, v := range []uint8{uint8(a.State), uint8(a.State), a.MTU} {
		b.Put8(108+i, v)
	}
	for i, v := range []uint8{a.MaxReads, a.MaxDestReads, a.MinRNR, 1, a.Timeout, a.Retry, a.RNRRetry} {
		b.Put8(113+i, v)
	}
	if signalAll {
		b.Put8(122, 1)
	}
	return b
}
