package rxe

import (
	"strconv"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// A Status is the status of a completion, with the values of ibv_wc_status.
type Status uint32

// The statuses.
const (
	Success          Status = 0
	LocalLength      Status = 1
	LocalQPOperation Status = 2
	LocalProtection  Status = 4
	Flushed          Status = 5
	WindowBind       Status = 6
	BadResponse      Status = 7
	RemoteInvalid    Status = 9
	RemoteAccess     Status = 10
	RemoteOperation  Status = 11
	RetryExceeded    Status = 12
	RNRRetryExceeded Status = 13
)

// String returns the beginning of the text of ibv_wc_status_str.
func (s Status) String() string {
	switch s {
	case Success:
		return "success"
	case LocalLength:
		return "local length error"
	case LocalQPOperation:
		return "local QP operation error"
	case LocalProtection:
		return "local protection error"
	case Flushed:
		return "flushed"
	case WindowBind:
		return "memory window bind error"
	case BadResponse:
		return "bad response error"
	case RemoteInvalid:
		return "remote invalid request"
	case RemoteAccess:
		return "remote access error"
	case RemoteOperation:
		return "remote operation error"
	case RetryExceeded:
		return "transport retry counter exceeded"
	case RNRRetryExceeded:
		return "RNR retry counter exceeded"
	}
	return "status " + strconv.Itoa(int(s))
}

// Kinds of completions, with the values of ibv_wc_opcode.
const (
	doneRecv         = 128
	doneRecvWriteImm = 129
	doneUnknown      = 0xff
)

var doneOf = map[Op]uint32{
	OpSend: 0, OpSendImm: 0, OpSendInvalidate: 0, OpWrite: 1, OpWriteImm: 1, OpRead: 2, OpCompareSwap: 3, OpFetchAdd: 4,
	OpBindWindow: 5, OpLocalInvalidate: 6, OpAtomicWrite: 9,
}

func (o Op) done() uint32 {
	if d, ok := doneOf[o]; ok {
		return d
	}
	return doneUnknown
}

// Flags of completions.
const (
	hasGRH        = 1 << 0
	hasImmediate  = 1 << 1
	hasInvalidate = 1 << 3
)

// completionLen is the size in bytes of an entry of a completion queue.
const completionLen = 64

// A completion is an entry of a completion queue.
type completion struct {
	id        uint64
	status    Status
	kind      uint32
	length    uint32
	imm       uint32 // immediate data, or the invalidated key
	qp, src   uint32
	flags     uint32
	sl        uint8
	solicited bool // the sender requested an event
}

func (c *completion) put(slot []byte) {
	b := abi.Body(slot[:completionLen])
	clear(b)
	b.Put64(0, c.id)
	b.Put32(8, uint32(c.status))
	b.Put32(12, c.kind)
	b.Put32(20, c.length)
	b.Put32(24, c.imm)
	b.Put32(28, c.qp)
	b.Put32(32, c.src)
	b.Put32(36, c.flags)
	b.Put8(44, c.sl)
	b.Put8(46, 1) // port
}
