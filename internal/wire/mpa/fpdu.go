package mpa

import (
	"encoding/binary"
	"fmt"

	"viaduct/internal/crc"
	"viaduct/internal/fault"
)

// castagnoli computes the CRC32c of iSCSI digests. [MPA-4.4-1] [MPA-4.4-11]
var castagnoli = crc.Castagnoli

// CRC returns the CRC of b and of the bytes before b, whose CRC is crc. crc is 0 at the start of an
// FPDU. On the wire the least significant byte of the CRC comes first. [MPA 4.4]
func CRC(crc uint32, b []byte) uint32 { return castagnoli.Update(crc, b) }

// zeros has the bytes of a pad. It is never written to.
var zeros [3]byte

// TrailerLen is the maximum length of pad and CRC in bytes.
const TrailerLen = 3 + crcLen

// An Encoder frames ULPDUs for a direction of a connection. The zero value adds neither CRCs nor
// markers. It is not safe for concurrent use.
//
//	+--------------+---------------------------+---------+------------+
//	| ULPDU_Length |           ULPDU           |   PAD   |    CRC     |
//	|      2       |            n              |   0-3   |     4      |
//	+--------------+---------------------------+---------+------------+
//
// An FPDU carries exactly one ULPDU. [MPA-3-1] [MPA-4.1-1] [MPA-4.4-10]
type Encoder struct {
	CRC     bool // compute CRCs; if false, the CRC field is zero [MPA-4.4-4] [I-29]
	Markers bool // insert markers every 512 bytes, because the peer asked for them

	pos uint32 // stream position of the next byte, modulo 2^32
}

// AppendLength appends the length field of an FPDU whose ULPDU has n bytes. A sender that gathers
// the ULPDU from several places calls AppendLength and [Encoder.AppendTrailer] instead of Append.
// Both are for encoders without markers.
func (e *Encoder) AppendLength(b []byte, n int) []byte {
	return binary.BigEndian.AppendUint16(b, uint16(n)) // [MPA-4.1-2]
}

// AppendTrailer appends the pad and the CRC of an FPDU whose ULPDU has n bytes. crc is the CRC of
// all bytes before the pad; crc is ignored if e.CRC is false. AppendTrailer is for encoders without
// markers.
func (e *Encoder) AppendTrailer(b []byte, n int, crc uint32) []byte {
	pad := zeros[:PadLen(n)] // [MPA-4.1-3]
	if fault.On("mpa-pad") {
		pad = []byte{1, 2, 3}[:len(pad)]
	}
	b = append(b, pad...)
	if e.CRC { // [MPA-4.1-6]
		crc = CRC(crc, pad)
		if fault.On("mpa-crc-made") {
			crc++
		}
	} else {
		crc = 0
	}
	return binary.LittleEndian.AppendUint32(b, crc)
}

// Append appends the whole FPDU of a ULPDU made of the parts, with markers if e.Markers is set. The
// ULPDU has 0 to MaxULPDU bytes. [MPA-3-6]
//
// The bytes appended must all be sent, in the order of the calls: the Encoder counts them to find
// the positions of markers. It counts from the first byte of full operation, independent of TCP
// sequence numbers, and the count may wrap. [MPA-4.3-4] [MPA-4.3-8] [MPA-4.3-9]
func (e *Encoder) Append(b []byte, parts ...[]byte) []byte {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	start := len(b)
	if e.Markers && e.pos%MarkerInterval == 0 {
		// A marker here belongs to the new FPDU and is covered by the FPDU's CRC. [MPA-4.3-5]
		// [MPA-4.3-11] [MPA-4.4-13] [MPA-7.1.2-19]
		b = e.appendMarker(b, 0)
	}
	fpdu := e.pos
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	e.pos += LengthLen
	for _, p := range parts {
		b = e.appendBody(b, p, fpdu)
	}
	b = e.appendBody(b, zeros[:PadLen(n)], fpdu)
	if e.Markers && e.pos%MarkerInterval == 0 {
		// A marker directly before the CRC belongs to the FPDU and is covered by the CRC.
		// [MPA-4.4-12]
		b = e.appendMarker(b, uint16(e.pos-fpdu))
	}
	var crc uint32
	if e.CRC {
		crc = CRC(0, b[start:])
		if fault.On("mpa-crc-made") {
			crc++
		}
	}
	e.pos += crcLen
	return binary.LittleEndian.AppendUint32(b, crc)
}

// appendBody appends p with markers. Each points back to the ULPDU_Length at stream position fpdu.
// [MPA-4.3-1] [MPA-4.3-2] [MPA-4.3-3] [MPA-4.3-10] [MPA-4.3-11]
func (e *Encoder) appendBody(b, p []byte, fpdu uint32) []byte {
	if !e.Markers { // [MPA-7.1.1-5]
		return append(b, p...)
	}
	for len(p) > 0 {
		if e.pos%MarkerInterval == 0 {
			b = e.appendMarker(b, uint16(e.pos-fpdu)) // [MPA-4.2-4]
		}
		k := min(len(p), int(MarkerInterval-e.pos%MarkerInterval))
		b = append(b, p[:k]...)
		e.pos += uint32(k)
		p = p[k:]
	}
	return b
}

// appendMarker appends a marker: 16 reserved zero bits, then FPDUPTR, whose low two bits are zero
// because positions are on a grid of four. [MPA-4.2-1] [MPA-4.2-2] [MPA-4.2-5]
func (e *Encoder) appendMarker(b []byte, ptr uint16) []byte {
	e.pos += MarkerLen
	return append(b, 0, 0, byte(ptr>>8), byte(ptr))
}

// A Decoder decodes the FPDUs of a direction. The zero value checks neither CRCs nor markers, and
// accepts ULPDUs of any size. It is not safe for concurrent use.
//
// FPDUs are found by ULPDU_Length alone, starting from the first byte of full operation [MPA-5.2-1]
// [MPA-6-2] [MPA-6-4]. After an error the Decoder must not be used: nothing after a bad FPDU is
// ever delivered [MPA-8-8]. The segmentation of TCP does not affect the ULPDUs [MPA-4.3-12]
// [MPA-5.1-5] [MPA-A.4-1].
type Decoder struct {
	CRC     bool // verify CRCs; if false, the CRC field is ignored [MPA-4.1-7] [MPA-7.1.1-10]
	Markers bool // the stream contains markers, because this side asked for them
	Max     int  // maximum accepted length of a ULPDU; 0 means MaxRecvULPDU

	pos uint32
	err error
}

// Need returns the length of the first FPDU in b, including the marker in front, and the length of
// the ULPDU. It returns 0, 0 if b does not contain the length field. It returns an error if the
// length exceeds Max, or if the Decoder has failed before.
func (d *Decoder) Need(b []byte) (fpdu, ulpdu int, err error) {
	if !d.Markers && d.Max == 0 && d.err == nil &&
		len(b) >= LengthLen { // this case is short enough for the compiler to inline
		n := int(b[0])<<8 | int(b[1])
		return FPDULen(n), n, nil
	}
	return d.need(b)
}

func (d *Decoder) need(b []byte) (fpdu, ulpdu int, err error) {
	if d.err != nil {
		return 0, 0, d.err
	}
	lead := d.lead()
	if len(b) < lead+LengthLen {
		return 0, 0, nil
	}
	n := int(binary.BigEndian.Uint16(b[lead:]))
	if d.Max > 0 && n > d.Max { // [I-25]
		d.err = &Error{Code: CodeMarker, Reason: fmt.Sprintf("ULPDU length %d, at most %d", n, d.Max)}
		return 0, 0, d.err
	}
	total := lead + FPDULen(n)
	if d.Markers {
		total += MarkerLen * markers(d.pos+uint32(lead), n)
	}
	return total, n, nil
}

// Foresee returns the length of the ULPDU of the FPDU at the front of b. It returns 0 if Next would
// refuse the FPDU. The FPDU has no markers, and need not be the next. b must contain the length
// field.
func (d *Decoder) Foresee(b []byte) (ulpdu int) {
	n := int(binary.BigEndian.Uint16(b))
	if d.err != nil || d.Max > 0 && n > d.Max { // [I-25]
		return 0
	}
	return n
}

// Verify checks the pad and the CRC of an FPDU without markers, received in pieces. It returns nil
// if d.CRC is false. ulpdu is the length of the ULPDU, and crc the CRC of all bytes before the pad.
// No byte of the FPDU may be delivered before Verify has succeeded. [MPA-4.4-14] [MPA-4.4-15]
func (d *Decoder) Verify(crc uint32, ulpdu int, trailer []byte) error {
	if !d.CRC {
		return nil
	}
	pad := PadLen(ulpdu)
	want := CRC(crc, trailer[:pad])
	if got := binary.LittleEndian.Uint32(trailer[pad:]); got != want && !fault.On("mpa-crc-unchecked") {
		d.err = &Error{Code: CodeCRC, Err: &CRCError{Field: got, Computed: want}}
	}
	return d.err
}

func (d *Decoder) lead() int {
	if d.Markers && d.pos%MarkerInterval == 0 {
		return MarkerLen
	}
	return 0
}

// Next decodes the first FPDU in b. It returns the ULPDU, which aliases b, and the number of used
// bytes of b. If b does not hold the whole FPDU yet, ulpdu is nil, n is 0 and err is nil; Need
// returns the required length. With markers Next modifies b: the markers are removed in place, so
// that the ULPDU has none.
//
// The FPDU is verified before the ULPDU is returned: first the CRC, then the markers [MPA-6-1]
// [MPA-6-3]. The error is an *Error with CodeCRC or CodeMarker.
func (d *Decoder) Next(b []byte) (ulpdu []byte, n int, err error) {
	total, ulen, err := d.Need(b)
	if err != nil || total == 0 || len(b) < total { // [MPA-6-5]
		return nil, 0, err
	}
	lead := d.lead()
	if d.CRC { // [MPA-4.4-14] [MPA-4.4-12] [MPA-4.4-13]
		want := CRC(0, b[:total-crcLen])
		got := binary.LittleEndian.Uint32(b[total-crcLen:])
		if got != want && !fault.On("mpa-crc-unchecked") { // [MPA-4.4-15]
			ce := &CRCError{Field: got, Computed: want}
			if !d.Markers {
				ce.ULPDU = b[LengthLen : LengthLen+ulen]
			}
			d.err = &Error{Code: CodeCRC, Err: ce}
			return nil, 0, d.err
		}
	}
	if !d.Markers { // the pad is ignored [MPA-4.1-4]
		return b[LengthLen : LengthLen+ulen : LengthLen+ulen], total, nil
	}
	ulpdu, err = d.unmark(b[:total], lead, ulen) // [MPA-4.3-13]
	if err != nil {
		d.err = err
		return nil, 0, err
	}
	d.pos += uint32(total)
	return ulpdu, total, nil
}

// unmark checks every marker of the FPDU b and removes the markers from the ULPDU. [MPA-8-3]
// [MPA-5.2-2] [I-24]
func (d *Decoder) unmark(b []byte, lead, ulen int) ([]byte, error) {
	if lead > 0 { // [MPA-4.3-6]
		if err := checkMarker(b, 0); err != nil {
			return nil, err
		}
	}
	to := lead + LengthLen
	from := to
	next := MarkerInterval - int((d.pos+uint32(lead))%MarkerInterval) + lead // offset of the next marker in b
	end := len(b) - crcLen
	for from < end {
		if from == next {
			if err := checkMarker(b[from:], uint16(from-lead)); err != nil {
				return nil, err
			}
			from += MarkerLen
			next += MarkerInterval
			continue
		}
		k := min(next, end) - from
		copy(b[to:], b[from:from+k])
		to += k
		from += k
	}
	ulpdu := b[lead+LengthLen:]
	return ulpdu[:ulen:ulen], nil
}

// checkMarker checks the pointer of a marker. The reserved half and the two low bits are ignored
// [MPA-4.2-3] [MPA-4.2-6]. A wrong pointer is error 3 [MPA-8-4].
func checkMarker(b []byte, want uint16) error {
	if got := binary.BigEndian.Uint16(b[2:]) &^ 3; got != want { // [MPA-4.3-7]
		return &Error{Code: CodeMarker,
			Reason: fmt.Sprintf("marker points %d bytes back, the FPDU began %d bytes back", got, want)}
	}
	return nil
}
