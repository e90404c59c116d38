package rdmap

import (
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"

	"viaduct/internal/fault"
	"viaduct/internal/wire/ddp"
)

// These are the lengths in bytes of a Terminate header. [RDMAP 4.8]
const (
	TerminateLen    = 4 // the control field, which is always present
	MaxTerminateLen = TerminateLen + 2 + ddp.UntaggedLen + ReadRequestLen
)

const (
	hdrM = 0x80 // DDP Segment Length is valid
	hdrD = 0x40 // DDP header is included
	hdrR = 0x20 // RDMAP header is included
)

// A Terminate is the RDMAP header of a Terminate message: its whole DDP
// payload. [RDMAP 4.8] [RDMAP-4.8-1] [RDMAP-4.8-2]
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------+-------+---------------+-+-+-+-------------------------+
//	| Layer | EType |  Error Code   |M|D|R|        Reserved         |
//	+-------+-------+---------------+-+-+-+-------------------------+
//	|  DDP Segment Length  (if D)   |  terminated DDP header (if D) |
//	+-------------------------------+                               +
//	:                                                               :
//	+---------------------------------------------------------------+
//	:  terminated RDMAP header (if R)                               :
//	+---------------------------------------------------------------+
type Terminate struct {
	Layer  Layer
	Type   uint8 // error type, 0..15
	Code   uint8
	Length bool   // M: SegLen is valid [RDMAP-4.8-6]
	SegLen uint16 // length of the segment in error in bytes, including headers
	// DDP and RDMAP are the headers of the segment in error. An empty header is absent on the wire,
	// and the bit D or R is clear.
	DDP   []byte // TaggedLen or UntaggedLen bytes [RDMAP-4.8-8]
	RDMAP []byte // ReadRequestLen bytes; only for a Read Request [RDMAP-4.8-10] [RDMAP-4.8-11]
	// flags is octet 2 as received.
	flags byte
}

// Append appends the header to b. Reserved bits are zero [RDMAP-4.8-5]. The DDP Segment Length is
// present if the DDP header is, and only then [RDMAP-4.8-7].
func (t Terminate) Append(b []byte) []byte {
	var hdrct byte
	if t.Length {
		hdrct |= hdrM
	}
	if len(t.DDP) > 0 {
		hdrct |= hdrD
	}
	if len(t.RDMAP) > 0 {
		hdrct |= hdrR
	}
	first := byte(t.Layer)<<4 | t.Type&0x0f
	if fault.On("rdmap-terminate-nibbles") {
		first = first<<4 | first>>4
	}
	if fault.On("rdmap-terminate-length") {
		t.SegLen += 2
	}
	b = append(b, first, t.Code, hdrct, 0)
	if len(t.DDP) > 0 {
		b = binary.BigEndian.AppendUint16(b, t.SegLen)
		b = append(b, t.DDP...)
	}
	return append(b, t.RDMAP...)
}

// ParseTerminate decodes the header in b. DDP and RDMAP alias b. The error is io.ErrUnexpectedEOF
// if b is shorter than the control field.
//
// Everything after the control field is optional. A missing announced header counts as absent,
// because some peers announce more than they send. Reserved bits are ignored. [I-40] [RDMAP-4.8-5]
func ParseTerminate(b []byte) (t Terminate, n int, err error) {
	if len(b) < TerminateLen {
		return Terminate{}, 0, io.ErrUnexpectedEOF
	}
	t.Layer = Layer(b[0] >> 4)
	t.Type = b[0] & 0x0f
	t.Code = b[1]
	t.flags = b[2]
	n = TerminateLen
	if t.flags&hdrD != 0 { // the length field precedes the DDP header, valid or not [RDMAP-4.8-7]
		if len(b) < n+2+1 {
			return t, n, nil
		}
		hl := ddp.HeaderLen(b[n+2])
		if len(b) < n+2+hl {
			return t, n, nil
		}
		t.Length = t.flags&hdrM != 0
		t.SegLen = binary.BigEndian.Uint16(b[n:])
		t.DDP = b[n+2 : n+2+hl : n+2+hl]
		n += 2 + hl
	}
	if t.flags&hdrR != 0 && len(b) >= n+ReadRequestLen {
		t.RDMAP = b[n : n+ReadRequestLen : n+ReadRequestLen]
		n += ReadRequestLen
	}
	return t, n, nil
}

// Text returns the meaning of the error.
func (t Terminate) Text() string {
	s, _ := Describe(t.Layer, t.Type, t.Code)
	return s
}

// Swapped returns the message with layer and error type exchanged and the HdrCt bits at the other
// end of their octet. Linux's software iWARP sends the swapped form on little-endian machines. ok
// reports whether the message looks swapped: without a meaning unswapped, or with all HdrCt bits at
// the wrong end. The result is a guess, for display only. [I-40]
func (t Terminate) Swapped() (s Terminate, ok bool) {
	s = t
	s.Layer, s.Type = Layer(t.Type), uint8(t.Layer)
	_, plain := Describe(t.Layer, t.Type, t.Code)
	_, swapped := Describe(s.Layer, s.Type, s.Code)
	wrongEnd := t.flags&(hdrM|hdrD|hdrR) == 0 && t.flags&0x07 != 0
	return s, swapped && (wrongEnd || !plain)
}

// LogValue describes the message.
func (t Terminate) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("layer", t.Layer.String()),
		slog.String("code", fmt.Sprintf("%d/%d/%02x", uint8(t.Layer), t.Type, t.Code)),
		slog.String("text", t.Text()),
		slog.Int("ddp", len(t.DDP)),
		slog.Int("rdmap", len(t.RDMAP)),
	)
}

// The functions below build Terminates. The table shows the headers for each error, as in Figure 10
// of RFC 5040. [RDMAP-4.8-4] [I-39]
//
//	found by   error                      M, D   R
//	any        local catastrophic         no     no
//	RDMAP      protection, Read Request   yes    yes
//	RDMAP      protection, Send           yes    no
//	RDMAP      operation                  yes    no
//	DDP        tagged, untagged           yes    no; nothing if the version is wrong
//	MPA        all                        no     no

// TerminateRDMAP returns the Terminate for a fault found by RDMAP. ulpdu is the segment of the
// message in error: the DDP header with the following bytes. ulpdu is nil if no incoming message
// caused the error. [RDMAP-7.1-2] [RDMAP-7.1-3] [RDMAP-7.1-4]
func TerminateRDMAP(f Fault, ulpdu []byte) Terminate {
	t := Terminate{Layer: LayerRDMAP}
	t.Type, t.Code = f.Code()
	if t.Type == TypeCatastrophic { // [RDMAP-4.8-9]
		return t
	}
	t.enclose(ulpdu)
	if t.Type == TypeProtection && isReadRequest(ulpdu) {
		body := ulpdu[len(t.DDP):] // too short if the DDP header was incomplete
		if len(body) >= ReadRequestLen {
			t.RDMAP = body[:ReadRequestLen:ReadRequestLen]
		}
	}
	return t
}

// TerminateDDP returns the Terminate for a fault found by DDP in the segment ulpdu. [RDMAP-3.1-4]
func TerminateDDP(f ddp.Fault, ulpdu []byte) Terminate {
	typ, code := f.Code()
	t := Terminate{Layer: LayerDDP, Type: uint8(typ), Code: code}
	switch f {
	case ddp.Catastrophic, ddp.TaggedVersion, ddp.UntaggedVersion: // the layout of another version is unknown [I-44]
	default:
		t.enclose(ulpdu)
	}
	return t
}

// TerminateMPA returns the Terminate for an error of MPA. It contains no headers.
func TerminateMPA(code uint8) Terminate { return Terminate{Layer: LayerLLP, Code: code} }

// enclose adds the length and the DDP header of the segment ulpdu to t. It adds nothing if the DDP
// header is incomplete.
func (t *Terminate) enclose(ulpdu []byte) {
	if len(ulpdu) == 0 {
		return
	}
	hl := ddp.HeaderLen(ulpdu[0])
	if len(ulpdu) < hl {
		return
	}
	t.Length = true
	t.SegLen = uint16(len(ulpdu))
	t.DDP = ulpdu[:hl:hl]
}

func isReadRequest(ulpdu []byte) bool {
	if len(ulpdu) < 2 || ddp.IsTagged(ulpdu[0]) {
		return false
	}
	_, o := ParseControl(ulpdu[1])
	return o == ReadRequestOp
}
