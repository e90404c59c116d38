package iu

import (
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
)

// These are the lengths in bytes of the two forms of the Device_Header.
const (
	ShortLen = 16
	LongLen  = 32
)

// A Header is the FC-VI Device_Header. The last three fields exist in the 32-byte form only; in the
// 16-byte form they are zero. [FCVI-5.9.1-1]
//
//	byte   0        1        2        3
//	  0 |            FCVI_HANDLE            |
//	  4 | OPCODE | FLAGS  |    reserved     |
//	  8 |            FCVI_MSG_ID            |
//	 12 |           FCVI_PARAMETER          |
//	 16 |            FCVI_RMT_VA            |
//	 20 |                                   |
//	 24 |         FCVI_RMT_VA_HANDLE        |
//	 28 | FCVI_TOT_LEN or FCVI_CONNECTION_ID|
type Header struct {
	Handle    uint32 // handle of the destination endpoint, 0 if unknown
	Op        Opcode
	Flags     Flags
	MsgID     MsgID
	Param     uint32
	RmtVA     uint64
	RmtHandle uint32
	Total     uint32 // FCVI_TOT_LEN, or FCVI_CONNECTION_ID in connect and disconnect IUs
}

// Append appends h in the form required by the opcode, in big-endian order. [FCVI-5.9.1-3]
// [FCVI-5.9.5-1]
func (h *Header) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, h.Handle)
	b = append(b, byte(h.Op), byte(h.Flags), 0, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(h.MsgID))
	b = binary.BigEndian.AppendUint32(b, h.Param)
	if h.Op.HeaderLen() == ShortLen {
		return b
	}
	b = binary.BigEndian.AppendUint64(b, h.RmtVA)
	b = binary.BigEndian.AppendUint32(b, h.RmtHandle)
	return binary.BigEndian.AppendUint32(b, h.Total)
}

// ParseHeader decodes the Device_Header at the front of b and returns its length. For an unknown
// opcode ParseHeader decodes only the short form. The error is io.ErrUnexpectedEOF if b is too
// short.
func ParseHeader(b []byte) (h Header, n int, err error) {
	n, err = h.Parse(b)
	return h, n, err
}

// Parse is ParseHeader into an existing value. Fields missing in the IU become zero.
func (h *Header) Parse(b []byte) (n int, err error) {
	if len(b) < ShortLen {
		*h = Header{}
		return 0, io.ErrUnexpectedEOF
	}
	h.Handle = binary.BigEndian.Uint32(b[offHandle:])
	h.Op, h.Flags = Opcode(b[offOpcode]), Flags(b[offFlags])
	h.MsgID = MsgID(binary.BigEndian.Uint32(b[offMsgID:]))
	h.Param = binary.BigEndian.Uint32(b[offParam:])
	long := h.Op.Valid() && h.Op.HeaderLen() == LongLen
	if !long || len(b) < LongLen {
		h.RmtVA, h.RmtHandle, h.Total = 0, 0, 0
		if long {
			return 0, io.ErrUnexpectedEOF
		}
		return ShortLen, nil
	}
	h.RmtVA = binary.BigEndian.Uint64(b[offRmtVA:])
	h.RmtHandle = binary.BigEndian.Uint32(b[offRmtHdl:])
	h.Total = binary.BigEndian.Uint32(b[offTotalID:])
	return LongLen, nil
}

// Status decodes FCVI_PARAMETER as the CONN_STS of a response or a disconnect.
func (h *Header) Status() Status { return ParseStatus(h.Param) }

func (h Header) String() string {
	s := fmt.Sprintf("%v handle=%08x flags=%02x msg=%d param=%08x", h.Op, h.Handle, uint8(h.Flags), h.MsgID, h.Param)
	if h.Op.Valid() && h.Op.HeaderLen() == LongLen {
		s += fmt.Sprintf(" va=%016x rmt=%08x total/id=%08x", h.RmtVA, h.RmtHandle, h.Total)
	}
	return s
}

// LogValue describes h for structured logs. Memory handles are left out, because they are keys.
func (h Header) LogValue() slog.Value {
	return slog.GroupValue(slog.String("opcode", h.Op.String()), slog.Int("flags", int(h.Flags)),
		slog.Uint64("msg_id", uint64(h.MsgID)))
}
