package ib

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// These are errors of [Parse], which also returns io.ErrUnexpectedEOF for a packet that is shorter
// than its headers.
var (
	ErrOpcode  = errors.New("ib: opcode is not assigned")
	ErrVersion = errors.New("ib: unknown transport version")
	ErrPayload = errors.New("ib: payload does not fit the packet")
)

// A Packet is a packet without its invariant CRC. Its opcode determines which of the extended
// headers it has; the others are ignored. [ROCE-OP-2]
type Packet struct {
	BTH
	DETH      DETH
	RETH      RETH
	Atomic    AtomicETH
	AETH      AETH
	AtomicAck AtomicAckETH
	Imm       ImmDt
	Inv       IETH
	Payload   []byte // without pad
}

// pads holds the bytes that pad a payload to a multiple of four. [ROCE-BTH-3]
var pads [3]byte

// Pad returns the number of pad bytes after a payload of n bytes. [ROCE-BTH-3]
func Pad(n int) int { return -n & 3 }

// AppendHeaders appends the BTH and the extended headers of p to b. It sets the pad of the BTH for
// a payload of n bytes; the caller appends the payload.
func (p *Packet) AppendHeaders(b []byte, n int) []byte {
	h := p.BTH
	h.Pad = uint8(Pad(n))
	b = h.Append(b)
	ext := h.Opcode.describe().ext
	if ext&deth != 0 {
		b = p.DETH.Append(b)
	}
	if ext&reth != 0 {
		b = p.RETH.Append(b)
	}
	if ext&atomicETH != 0 {
		b = p.Atomic.Append(b)
	}
	if ext&aeth != 0 {
		b = p.AETH.Append(b)
	}
	if ext&atomicAckETH != 0 {
		b = p.AtomicAck.Append(b)
	}
	if ext&immDt != 0 {
		b = p.Imm.Append(b)
	}
	if ext&ieth != 0 {
		b = p.Inv.Append(b)
	}
	return b
}

// Append appends headers, payload and pad of p to b.
func (p *Packet) Append(b []byte) []byte {
	b = p.AppendHeaders(b, len(p.Payload))
	b = append(b, p.Payload...)
	return append(b, pads[:Pad(len(p.Payload))]...)
}

// Parse decodes a packet without an invariant CRC. Payload refers to b. The errors are ErrVersion
// [ROCE-BTH-2], ErrOpcode [ROCE-OP-3], io.ErrUnexpectedEOF, and ErrPayload for data not allowed by
// the opcode, or for a pad inconsistent with the length.
func Parse(b []byte) (p Packet, err error) {
	var n int
	if p.BTH, n, err = ParseBTH(b); err != nil {
		return Packet{}, err
	}
	if p.Version != 0 {
		return Packet{}, fmt.Errorf("%w %d", ErrVersion, p.Version)
	}
	r := p.Opcode.describe()
	if r.kind == Unassigned {
		return Packet{}, fmt.Errorf("%w: %#02x", ErrOpcode, uint8(p.Opcode))
	}
	b = b[n:]
	if len(b) < r.ext.len() {
		return Packet{}, io.ErrUnexpectedEOF
	}
	b = p.parseExtended(b, r.ext)
	pad := int(p.Pad)
	if len(b)&3 != 0 || pad > len(b) || len(b) > 0 && !r.payload {
		return Packet{}, fmt.Errorf("%w: %d bytes with a pad of %d in %v", ErrPayload, len(b), pad, p.Opcode)
	}
	p.Payload = b[:len(b)-pad]
	return p, nil
}

// parseExtended decodes the headers of ext and returns the remaining bytes. b is long enough.
func (p *Packet) parseExtended(b []byte, ext headers) []byte {
	if ext&deth != 0 {
		p.DETH, _, _ = ParseDETH(b)
		b = b[DETHLen:]
	}
	if ext&reth != 0 {
		p.RETH, _, _ = ParseRETH(b)
		b = b[RETHLen:]
	}
	if ext&atomicETH != 0 {
		p.Atomic, _, _ = ParseAtomicETH(b)
		b = b[AtomicETHLen:]
	}
	if ext&aeth != 0 {
		p.AETH, _, _ = ParseAETH(b)
		b = b[AETHLen:]
	}
	if ext&atomicAckETH != 0 {
		p.AtomicAck, _, _ = ParseAtomicAckETH(b)
		b = b[AtomicAckETHLen:]
	}
	if ext&immDt != 0 {
		p.Imm, _, _ = ParseImmDt(b)
		b = b[ImmDtLen:]
	}
	if ext&ieth != 0 {
		p.Inv, _, _ = ParseIETH(b)
		b = b[IETHLen:]
	}
	return b
}

// LogValue describes the packet. Keys are left out.
func (p *Packet) LogValue() slog.Value {
	as := []slog.Attr{
		slog.String("opcode", p.Opcode.String()),
		slog.Uint64("qpn", uint64(p.QPN)),
		slog.Uint64("psn", uint64(p.PSN)),
		slog.Int("len", len(p.Payload)),
	}
	ext := p.Opcode.describe().ext
	if ext&reth != 0 {
		as = append(as, slog.Uint64("va", p.RETH.VA), slog.Uint64("size", uint64(p.RETH.Length)))
	}
	if ext&aeth != 0 {
		as = append(as, slog.String("syndrome", p.AETH.Syndrome.String()), slog.Uint64("msn", uint64(p.AETH.MSN)))
	}
	return slog.GroupValue(as...)
}
