package abi

// Sizes in bytes of the entries of the siw provider's rings.
const (
	SQELen = 120
	RQELen = 112
	CQELen = 32
	// CQCtrlLen is the length of the control word after the last entry of a completion queue. The
	// program requests events in the control word.
	CQCtrlLen = 8

	MaxSGE    = 6  // scatter/gather elements of an entry
	MaxInline = 80 // bytes of inline payload; they take the room of all elements but the first
)

// NoKey, as the offset of a ring in the answer to a create command, means to the provider: there is
// no ring. Therefore no ring may be placed at this offset.
const NoKey = 0x90000

// Flags of entries. In send and receive entries, Valid is in the word at FlagsAt. In completions,
// Valid is in the lowest byte of the word at FlagsAt.
const (
	Valid     = 1 << 0
	Inline    = 1 << 1
	Signalled = 1 << 2
	Solicited = 1 << 3
	ReadFence = 1 << 4
	RemInval  = 1 << 5

	FlagsAt = 8
)

// The requests of a program in the control word of a completion queue.
const (
	NotifySolicited = 1 << 0
	NotifyNext      = 1 << 1
)

// A WROp is the operation of an entry.
type WROp uint8

// The operations.
const (
	WROpWrite        WROp = 0
	WROpRead         WROp = 1
	WROpReadLocalInv WROp = 2
	WROpSend         WROp = 3
	WROpSendImm      WROp = 4
	WROpSendInv      WROp = 5
	WROpReceive      WROp = 8
)

// A WCStatus is the status of a completion, with the provider's numbers.
type WCStatus uint16

// The statuses.
const (
	WCSuccess WCStatus = iota
	WCLocLen
	WCLocProt
	WCLocQPOp
	WCFlush
	WCBadResp
	WCLocAccess
	WCRemAccess
	WCRemInvReq
	WCGeneral
)

// An SGE describes a range of the program's memory.
type SGE struct {
	Addr   uint64
	Length uint32
	Key    uint32
}

// A SendEntry is an entry of a send queue.
type SendEntry struct {
	ID     uint64
	Flags  uint16
	NumSGE uint8
	Op     WROp
	RKey   uint32
	RAddr  uint64
	SGE    [MaxSGE]SGE
	Inline [MaxInline]byte // if the flag Inline is set; SGE[0].Length bytes of it
}

// ParseSend decodes an entry of SQELen bytes. ok is false if the entry has too many elements or too
// much inline data.
func ParseSend(b *[SQELen]byte, e *SendEntry) (ok bool) {
	p := Body(b[:])
	e.ID, e.Flags, e.NumSGE, e.Op = p.U64(0), p.U16(8), p.U8(10), WROp(p.U8(11))
	e.RKey, e.RAddr = p.U32(12), p.U64(16)
	if e.Flags&Inline != 0 {
		e.SGE[0] = SGE{Length: p.U32(32)}
		copy(e.Inline[:], p[40:])
		e.NumSGE = min(e.NumSGE, 1)
		return e.SGE[0].Length <= MaxInline
	}
	parseSGEs(p[24:], &e.SGE)
	return e.NumSGE <= MaxSGE
}

func parseSGEs(p Body, to *[MaxSGE]SGE) {
	for i := range to {
		to[i] = SGE{p.U64(16 * i), p.U32(16*i + 8), p.U32(16*i + 12)}
	}
}

// A RecvEntry is an entry of a receive queue.
type RecvEntry struct {
	ID     uint64
	Flags  uint16
	NumSGE uint8
	SGE    [MaxSGE]SGE
}

// ParseRecv decodes an entry of RQELen bytes. ok is as for ParseSend.
func ParseRecv(b *[RQELen]byte, e *RecvEntry) (ok bool) {
	p := Body(b[:])
	e.ID, e.Flags, e.NumSGE = p.U64(0), p.U16(8), p.U8(10)
	parseSGEs(p[16:], &e.SGE)
	return e.NumSGE <= MaxSGE
}

// A Completion is an entry of a completion queue.
type Completion struct {
	ID        uint64
	Op        WROp
	Status    WCStatus
	Bytes     uint32
	Inval     uint32 // STag, if HasInval
	HasInval  bool
	QP        uint32
	Solicited bool // the program may have requested events only for such completions
}

// Put writes the completion except for the flags at FlagsAt, and returns the flags. The caller
// stores the flags last, because the flags make the entry visible to the program.
func (c *Completion) Put(b []byte) (flags uint32) {
	p := Body(b)
	p.Put64(0, c.ID)
	p.Put32(12, c.Bytes)
	p.Put64(16, uint64(c.Inval))
	p.Put64(24, uint64(c.QP))
	flags = Valid
	if c.HasInval {
		flags |= RemInval
	}
	return flags | uint32(c.Op)<<8 | uint32(c.Status)<<16
}
