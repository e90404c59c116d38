// Package abi has the structures exchanged between user-space RDMA libraries and the kernel:
// commands of /dev/infiniband/uverbsN and rdma_cm, the netlink messages for finding devices, and
// the rings of the siw provider. All are little-endian, like both processors supported here. The
// package does no input or output.
//
// The structures are defined in Linux' include/uapi/rdma: ib_user_verbs.h, rdma_user_cm.h,
// rdma_netlink.h and siw-abi.h.
package abi

import "encoding/binary"

var le = binary.LittleEndian

// A Body is the body of a command or of a response. Its methods use the offsets of the structure.
// Reads beyond the end return zeros, so that a decoder needs only a single check of the length.
type Body []byte

// U8, U16, U32 and U64 return the number at an offset.
func (b Body) U8(at int) uint8 {
	if at < len(b) {
		return b[at]
	}
	return 0
}

func (b Body) U16(at int) uint16 {
	if at+2 <= len(b) {
		return le.Uint16(b[at:])
	}
	return 0
}

func (b Body) U32(at int) uint32 {
	if at+4 <= len(b) {
		return le.Uint32(b[at:])
	}
	return 0
}

func (b Body) U64(at int) uint64 {
	if at+8 <= len(b) {
		return le.Uint64(b[at:])
	}
	return 0
}

// Bytes returns n bytes at an offset. Bytes beyond the end of the body are zeros.
func (b Body) Bytes(at, n int) []byte {
	if at+n <= len(b) {
		return b[at : at+n : at+n]
	}
	p := make([]byte, n)
	if at < len(b) {
		copy(p, b[at:])
	}
	return p
}

// Put8, Put16, Put32 and Put64 set the number at an offset within b.
func (b Body) Put8(at int, v uint8)   { b[at] = v }
func (b Body) Put16(at int, v uint16) { le.PutUint16(b[at:], v) }
func (b Body) Put32(at int, v uint32) { le.PutUint32(b[at:], v) }
func (b Body) Put64(at int, v uint64) { le.PutUint64(b[at:], v) }

// Words returns a body of 32-bit numbers.
func Words(v ...uint32) Body {
	b := make(Body, 0, 4*len(v))
	for _, w := range v {
		b = le.AppendUint32(b, w)
	}
	return b
}
