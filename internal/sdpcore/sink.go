package sdpcore

import (
	"time"

	"viaduct/internal/wire/sdpwire"
)

// A read is a buffer of the ULP that waits for bytes.
type read struct {
	id       uint64
	n        int  // room in bytes
	off      int  // bytes in it
	inflight int  // bytes after these, requested by RDMA Reads in progress
	all      bool // ends only when full [SDP-9.3-15]
	fetched  bool // an RDMA Read was started for it
	offered  bool // advertised by a SinkAvail
	cancel   bool // cancelled by the driver
}

// A held is a run of payload that waits for a read.
type held struct {
	n       int
	private bool // lies in a Private Buffer
}

// An inAdv is a SrcAvail of the peer that is Unprocessed, or In-Process once asked is not zero. It
// is Processed, and removed, when its last message is sent. [SDP-5-1]
type inAdv struct {
	key      uint64
	stag     uint32
	to       uint64 // of the first byte not in the payload of the SrcAvail
	size     int    // bytes after that payload
	asked    int    // bytes requested by RDMA Read
	done     int    // bytes whose RDMA Read is complete
	reported int    // bytes acknowledged by RdmaRdCompl
	at       time.Duration
	wantSm   bool // to be answered by SendSm
	empty    bool // nothing but payload: to be answered by RdmaRdCompl of 0 [D-18]
}

// A readOp is an RDMA Read in progress.
type readOp struct {
	adv   uint64
	rid   uint64
	n     int
	local bool
}

// A sinkAdv is a SinkAvail of our own that is not resolved.
type sinkAdv struct {
	key  uint64
	rid  uint64
	size int
	stag uint32
}

// sink is the half-connection in which this end is the Data Sink.
//
// The stream continues in this order: held payload, bytes of RDMA Reads in progress, the rest of a
// SrcAvail that was answered by SendSm (expected), the SrcAvails from oldest to newest.
type sink struct {
	mode  sdpwire.Mode // accept, handleSrcAvail and mayOffer allow what it allows [SDP-11-4] [SDP-11.2-3] [SDP-11.3-3]
	reads deque[read]

	holds     deque[held]
	held      int // bytes
	compacted int // of them, outside Private Buffers

	adverts  deque[inAdv]
	ops      deque[readOp]
	opsLocal int // of them, into local memory
	expected int // bytes still to be received by Data after a SendSm [SDP-9.2-27]

	srcCancel bool // a SrcAvailCancel is being answered [SDP-9.5.4-5]

	offers     deque[sinkAdv]
	count      serial // NonDiscards [SDP-6.3.3.4-1], wraps as 32-bit numbers do [SDP-6.3.3.4-4]
	cancelWant bool   // SinkAvailCancel to be sent
	cancelOpen bool   // sent and not Processed
	cancelSeq  serial // MSeq of the newest
	cancelAt   time.Duration

	expects   bool // the driver has more messages at hand
	eof       bool // DisConn received
	disSeen   bool // on the present connection [D-52]
	closed    bool // the ULP has stopped reading
	discard   bool // and drops payload that is still held
	announced int  // OOB_PEND received without its byte [D-29]
	pos       uint64

	waitAt time.Duration // time since which the oldest SrcAvail has had no reader
	pol    snkPolicy
}
