package sdpcore

import (
	"time"

	"viaduct/internal/wire/sdpwire"
)

// A read is a buffer of the ULP that waits for bytes.
type read struct {
	id       uint64
	n        int  // room in bytes
	off      int  // number of bytes already in the buffer
	inflight int  // bytes after off that RDMA Reads in progress will place
	all      bool // ends only when full [SDP-9.3-15]
	fetched  bool // an RDMA Read was started for this read
	offered  bool // advertised by a SinkAvail
	cancel   bool // cancelled by the driver
}

// A held is a run of payload that waits for a read.
type held struct {
	n       int
	private bool // whether the payload is in a Private Buffer
}

// An inAdv is a SrcAvail of the peer that is Unprocessed, or In-Process once asked is not zero.
// When the last message that answers it is sent, it is Processed, and removed. [SDP-5-1]
type inAdv struct {
	key      uint64
	stag     uint32
	to       uint64        // offset of the first byte after the payload of the SrcAvail
	size     int           // bytes after that payload
	asked    int           // bytes requested by RDMA Read
	done     int           // bytes whose RDMA Read is complete
	reported int           // bytes acknowledged by RdmaRdCompl
	at       time.Duration // when the SrcAvail arrived, or when its last RDMA Read was complete
	wantSm   bool          // whether to answer the SrcAvail with SendSm
	empty    bool          // the message's payload is the whole buffer, so RdmaRdCompl of 0 answers it [D-18]
}

// A readOp is an RDMA Read in progress.
type readOp struct {
	adv   uint64 // key of the SrcAvail that is read
	rid   uint64 // read that gets the bytes, unless local is set
	n     int
	local bool // the bytes go to memory of the driver
}

// A sinkAdv is a SinkAvail of our own that is not resolved.
type sinkAdv struct {
	key  uint64
	rid  uint64
	size int
	stag uint32
}

// sink is the half-connection with this end as the Data Sink.
//
// The stream continues in this order: held payload, bytes of RDMA Reads in progress, the rest of a
// SrcAvail answered with SendSm (expected), and the SrcAvails from oldest to newest.
type sink struct {
	// accept, beginSrcAvail and stepPayload depend on the mode. [SDP-11-4] [SDP-11.2-3] [SDP-11.3-3]
	mode  sdpwire.Mode
	reads deque[read]

	holds     deque[held]
	held      int // bytes of held payload
	compacted int // part of held outside Private Buffers

	adverts  deque[inAdv]
	ops      deque[readOp]
	opsLocal int // number of ops into local memory
	expected int // bytes still to be received by Data after a SendSm [SDP-9.2-27]

	srcCancel bool // a SrcAvailCancel is being answered [SDP-9.5.4-5]

	offers     deque[sinkAdv]
	count      serial // NonDiscards [SDP-6.3.3.4-1], wraps as 32-bit numbers do [SDP-6.3.3.4-4]
	cancelWant bool   // a SinkAvailCancel must be sent
	cancelOpen bool   // a SinkAvailCancel was sent and is not Processed
	cancelSeq  serial // MSeq of the last SinkAvailCancel
	cancelAt   time.Duration

	expects   bool   // the driver has more messages
	eof       bool   // DisConn received
	disSeen   bool   // DisConn received on the current connection [D-52]
	closed    bool   // the ULP has stopped reading
	discard   bool   // the ULP drops held payload
	announced int    // number of OOB_PEND flags received without their byte [D-29]
	pos       uint64 // stream position after the last received byte

	waitAt time.Duration // time since which no read waits for the oldest SrcAvail
	pol    snkPolicy
}
