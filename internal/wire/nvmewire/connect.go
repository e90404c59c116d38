package nvmewire

import "bytes"

// A Request is the private data of a connection request for a queue.
type Request struct { // [NVME-CM-1]
	RecFmt  uint16
	QID     uint16
	HRQSize uint16 // number of entries of the host's receive queue
	HSQSize uint16 // number of entries of the host's send queue, minus 1
	CntlID  uint16
}

// Lengths in bytes of the private data of a Request, an acceptance and a rejection.
const (
	RequestLen = 32
	ReplyLen   = 32
	RejectLen  = 4
)

// ParseRequest decodes the private data of a Request. The error is ErrShort if b is too short.
func ParseRequest(b []byte) (r Request, err error) {
	if len(b) < RequestLen {
		return r, ErrShort
	}
	return Request{le.Uint16(b), le.Uint16(b[2:]), le.Uint16(b[4:]), le.Uint16(b[6:]), le.Uint16(b[8:])}, nil
}

// Append appends the RequestLen bytes of the request to b.
func (r *Request) Append(b []byte) []byte {
	for _, v := range []uint16{r.RecFmt, r.QID, r.HRQSize, r.HSQSize, r.CntlID} {
		b = le.AppendUint16(b, v)
	}
	return append(b, make([]byte, RequestLen-10)...)
}

// A RejectReason is the reason why a queue is rejected.
type RejectReason uint16

// The reasons.
const ( // [NVME-CM-2]
	RejectLength  RejectReason = 1
	RejectRecFmt  RejectReason = 2
	RejectQID     RejectReason = 3
	RejectHSQSize RejectReason = 4
	RejectHRQSize RejectReason = 5
	RejectFull    RejectReason = 6 // no resources
)

// AppendReply appends the private data of an acceptance, with the depth of the receive queue.
func AppendReply(b []byte, crqsize uint16) []byte {
	b = le.AppendUint16(append(b, 0, 0), crqsize)
	return append(b, make([]byte, ReplyLen-4)...)
}

// AppendReject appends the private data of a rejection.
func AppendReject(b []byte, why RejectReason) []byte {
	return le.AppendUint16(append(b, 0, 0), uint16(why))
}

// A Connect has the fields of the Connect command and of the command's data.
type Connect struct { // [NVME-FAB-1]
	RecFmt  uint16
	QID     uint16
	SQSize  uint16 // number of entries minus 1
	KATO    uint32 // milliseconds
	HostID  [16]byte
	CntlID  uint16
	SubNQN  string
	HostNQN string
}

// Results of Invalid Connect Parameters: offsets in the command, or with bit 16 in its data.
const (
	OffsetQID     = 42
	OffsetSQSize  = 44
	OffsetCntlID  = 1<<16 | 16
	OffsetSubNQN  = 1<<16 | 256
	OffsetHostNQN = 1<<16 | 512
)

// ConnectCommand returns the fields of a Connect in the command, not in the data.
func (s *SQE) ConnectCommand() Connect {
	return Connect{RecFmt: uint16(s.CDW[0]), QID: uint16(s.CDW[0] >> 16), SQSize: uint16(s.CDW[1]), KATO: s.CDW[2]}
}

// SetConnect makes s a Connect command with the fields of c; AppendData encodes the data.
func (s *SQE) SetConnect(c *Connect) {
	s.Opcode, s.FCType = OpFabrics, FCConnect
	s.CDW = [6]uint32{uint32(c.RecFmt) | uint32(c.QID)<<16, uint32(c.SQSize), c.KATO}
}

// ParseData decodes the data of Connect. A name without a NUL becomes "". The error is ErrShort if
// b is too short.
func (c *Connect) ParseData(b []byte) error {
	if len(b) < ConnectLen {
		return ErrShort
	}
	copy(c.HostID[:], b)
	c.CntlID = le.Uint16(b[16:])
	c.SubNQN, c.HostNQN = name(b[256:512]), name(b[512:768])
	return nil
}

// AppendData appends the ConnectLen bytes of data to b. Names longer than 255 bytes are truncated.
func (c *Connect) AppendData(b []byte) []byte {
	n := len(b)
	b = append(b, make([]byte, ConnectLen)...)
	d := b[n:]
	copy(d, c.HostID[:])
	le.PutUint16(d[16:], c.CntlID)
	copy(d[256:511], c.SubNQN)
	copy(d[512:767], c.HostNQN)
	return b
}

func name(b []byte) string {
	n := bytes.IndexByte(b, 0)
	return string(b[:max(n, 0)])
}

// Offsets of properties.
const ( // [NVME-PROP-1]
	PropCAP  = 0x00 // 8 bytes
	PropVS   = 0x08
	PropCC   = 0x14
	PropCSTS = 0x1c
)

// A Property names a property of Property Get or Set, with its value.
type Property struct {
	Offset uint32
	Wide   bool // 8 bytes
	Value  uint64
}

// Property returns the fields of a Property Get or Set.
func (s *SQE) Property() Property {
	return Property{Offset: s.CDW[1], Wide: s.CDW[0]&7 == 1, Value: s.CDW64(2)}
}

// SetProperty sets the fields of the command from p; fctype is FCPropertyGet or FCPropertySet.
func (s *SQE) SetProperty(fctype uint8, p Property) {
	s.Opcode, s.FCType = OpFabrics, fctype
	s.CDW = [6]uint32{0, p.Offset, uint32(p.Value), uint32(p.Value >> 32)}
	if p.Wide {
		s.CDW[0] = 1
	}
}
