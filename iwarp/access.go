package iwarp

import (
	"viaduct/internal/regmem"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/rdmap"
)

// The rights of regions and windows: [RDMAP-3.2-7] [RDMAP-8.1.1-5]

// Access is a set of rights of a peer to a region or window, for example RemoteRead|RemoteWrite.
// The owner may always read and write locally.
type Access uint8

// Access rights. Give no more than the transfer needs.
const ( // [SEC-6.3.5-1]
	RemoteRead  Access = 1 << iota // source of the peer's RDMA Reads
	RemoteWrite                    // target of the peer's RDMA Writes
	// RemoteAtomic makes a region the target of the peer's Atomic Operations. Use a word of Atomic
	// Operations for nothing else.
	RemoteAtomic

	LocalOnly Access = 0 // no remote rights; enough for memory that an own RDMA Read fills

	// Requirements: RemoteAtomic [RDMAPX-5-4], LocalOnly [I-58].
)

// String returns the rights by name, joined by "|", or "none" for LocalOnly.
func (a Access) String() string { return a.rights().String() }

func (a Access) rights() (r regmem.Rights) {
	if a&RemoteRead != 0 {
		r |= regmem.RemoteRead
	}
	if a&RemoteWrite != 0 {
		r |= regmem.RemoteWrite
	}
	if a&RemoteAtomic != 0 {
		r |= regmem.RemoteAtomic
	}
	return r
}

// refine returns regmem.Wrap instead of OutOfBounds for n bytes at offset to if the range ends
// exactly at 2^64, where the 64-bit sum is zero. All other outcomes are returned unchanged. [I-59]
func refine(out regmem.Outcome, to, n uint64) regmem.Outcome {
	if out == regmem.OutOfBounds && n > 0 && to+n == 0 {
		return regmem.Wrap
	}
	return out
}

// writeFault returns the DDP fault for the outcome of an access check of a received Tagged segment.
// [DDP-7.1-9] [DDP-7.1-10] [DDP-7.1-11] [DDP-7.1-12] [DDP-7.1-13] [I-42]
func writeFault(out regmem.Outcome) ddp.Fault {
	switch out {
	case regmem.OK:
		return ddp.OK
	case regmem.NoRegion, regmem.NoRights:
		return ddp.InvalidSTag
	case regmem.WrongDomain, regmem.WrongOwner: // [DDP-8.2-1] [DDP-8.2-2]
		return ddp.NotAssociated
	case regmem.Wrap:
		return ddp.Wrap
	case regmem.OutOfBounds:
		return ddp.OutOfBounds
	}
	return ddp.Catastrophic
}

// readFault returns the RDMAP fault for the outcome of an access check of the source of a Read or
// the target of an Atomic. [RDMAP-7.2-7] [RDMAP-7.2-8] [RDMAP-7.2-9] [RDMAP-7.2-10] [RDMAP-7.2-11]
// [RDMAP-7.2-12] [RDMAPX-8.2-3] [I-43] [I-67]
func readFault(out regmem.Outcome) rdmap.Fault {
	switch out {
	case regmem.OK:
		return rdmap.OK
	case regmem.NoRegion:
		return rdmap.InvalidSTag
	case regmem.WrongDomain, regmem.WrongOwner:
		return rdmap.NotAssociated
	case regmem.NoRights:
		return rdmap.AccessRights
	case regmem.Wrap:
		return rdmap.Wrap
	case regmem.OutOfBounds:
		return rdmap.OutOfBounds
	}
	return rdmap.Catastrophic
}
