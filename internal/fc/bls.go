package fc

import (
	"encoding/binary"
	"io"
)

// BAAccLen is the length in bytes of a BA_ACC payload.
const BAAccLen = 12

// A BAAcc is the payload of BA_ACC, the acceptance of an ABTS. [FCFS-2.8-2]
type BAAcc struct {
	SeqIDValid bool  // SeqID names the last deliverable Sequence
	SeqID      uint8 //
	OXID, RXID uint16
	LowCnt     uint16 // LowCnt to HighCnt is the SEQ_CNT range of the Recovery Qualifier,
	HighCnt    uint16 // 0x0000 to 0xFFFF for a whole Exchange
}

// Append appends the BAAccLen bytes of a to b.
func (a BAAcc) Append(b []byte) []byte {
	var v byte
	if a.SeqIDValid {
		v = 0x80
	}
	b = append(b, v, a.SeqID, 0, 0)
	b = binary.BigEndian.AppendUint16(b, a.OXID)
	b = binary.BigEndian.AppendUint16(b, a.RXID)
	b = binary.BigEndian.AppendUint16(b, a.LowCnt)
	return binary.BigEndian.AppendUint16(b, a.HighCnt)
}

// ParseBAAcc decodes a BA_ACC payload.
func ParseBAAcc(b []byte) (a BAAcc, n int, err error) {
	if len(b) < BAAccLen {
		return a, 0, io.ErrUnexpectedEOF
	}
	return BAAcc{
		SeqIDValid: b[0]&0x80 != 0, SeqID: b[1],
		OXID: binary.BigEndian.Uint16(b[4:]), RXID: binary.BigEndian.Uint16(b[6:]),
		LowCnt: binary.BigEndian.Uint16(b[8:]), HighCnt: binary.BigEndian.Uint16(b[10:]),
	}, BAAccLen, nil
}

// BARjtLen is the length in bytes of a BA_RJT payload.
const BARjtLen = 4

// These are reason and explanation codes of BA_RJT.
const (
	BARjtLogical   = 0x03
	BARjtInvalidID = 0x03 // explanation: invalid OX_ID-RX_ID combination
)

// A BARjt is the payload of BA_RJT, the rejection of an ABTS.
type BARjt struct {
	Reason, Explanation, Vendor uint8
}

// Append appends the BARjtLen bytes of r to b.
func (r BARjt) Append(b []byte) []byte {
	return append(b, 0, r.Reason, r.Explanation, r.Vendor)
}

// ParseBARjt decodes a BA_RJT payload.
func ParseBARjt(b []byte) (r BARjt, n int, err error) {
	if len(b) < BARjtLen {
		return r, 0, io.ErrUnexpectedEOF
	}
	return BARjt{Reason: b[1], Explanation: b[2], Vendor: b[3]}, BARjtLen, nil
}

// These are reasons of a rejection, byte 1 of the Parameter field of P_RJT and F_RJT.
const (
	RejectBadDID      = 0x01
	RejectUnavailable = 0x03 // may become available
	RejectGone        = 0x04
	RejectClass       = 0x05
	RejectType        = 0x07
	RejectOXID        = 0x0B
	RejectRXID        = 0x0C
	RejectLength      = 0x13
	RejectLogin       = 0x16
)
