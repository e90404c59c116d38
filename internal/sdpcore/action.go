package sdpcore

import "viaduct/internal/wire/sdpwire"

// An Op is the kind of an Action.
type Op uint8

const (
	// OpSend: send Msg as an iWARP Send; only OpSend counts as a message. [SDP-5-4] Its payload is
	// N bytes of write ID from Off, then the bytes of the OpPart actions that follow directly. If
	// Adv is not zero, the message advertises: register Msg.Size bytes (of write ID from Off for a
	// SrcAvail, of read RID from Off for a SinkAvail), put STag and VA into Msg and pass them to
	// the machine by Bind.
	OpSend Op = iota
	// OpPart: N more payload bytes for the OpSend before it, of write ID from Off.
	OpPart
	// OpRDMAWrite: write N bytes of write ID from Off to the peer's STag at TO. Neither this nor
	// OpRDMARead carries a solicited event [SDP-14.2-3].
	OpRDMAWrite
	// OpRDMARead: read N bytes from the peer's STag at TO into read ID from
	// Off, or, if Local is set, into memory of the driver's own, which joins
	// the queue of held payload when done. Completions are reported by
	// ReadDone, in order.
	OpRDMARead
	// OpHold: append the payload (N bytes) of the current message to the queue of held payload. It
	// occupies its Private Buffer.
	OpHold
	// OpCompact: copy the newest held payload (N bytes) elsewhere, so that its Private Buffer can
	// be posted again. [D-79]
	OpCompact
	// OpCopy: move N bytes from the front of the held payload to read ID at Off. Post a Private
	// Buffer again once all its bytes were moved.
	OpCopy
	// OpDrop: drop N bytes from the front of the held payload.
	OpDrop
	// OpRevoke: the advertisement Adv has ended; unless Remote is set its STag
	// must be invalidated now, before any later action. [D-41]
	OpRevoke
	// OpWriteDone: write ID has ended with N bytes sent; its memory is free
	// once the Sends and RDMA Writes before this action are complete. Err is
	// nil, ErrCancelled, or what ended the connection.
	OpWriteDone
	// OpDetach: write ID is cancelled but the peer is owed the bytes from Off: copy them, let the
	// caller return with the full count, and use the copy. [D-32]
	OpDetach
	// OpReadDone: read ID has ended with N bytes in it. Err is nil, io.EOF
	// (only with N 0), ErrCancelled, or what ended the connection.
	OpReadDone
	// OpUrgentPending: the peer announces an urgent byte.
	OpUrgentPending
	// OpUrgent: the byte at stream position Pos is urgent; with Local set it is
	// the last payload byte of the message just received and not in the stream.
	OpUrgent
	// OpPeerClosed: DisConn was received; nothing more will be.
	OpPeerClosed
	// OpMode: a half changed its mode to Msg.Mode; the sending half if Local.
	OpMode
	// OpResize: make N the size of the receive Private Buffers, by swapping the
	// free ones at once; report by Resized. [D-46]
	OpResize
	// OpPeerSize: the peer's receive Private Buffers now have N bytes.
	OpPeerSize
	// OpSuspended: the peer has acknowledged SuspComm; close the LLP.
	OpSuspended
	// OpReconnect: once everything before is sent, close the LLP and connect to
	// port Msg.Port of the same address. [SDP-13.1.1-8] [SDP-13.1.1-9]
	OpReconnect
	// OpFinish: both directions are closed; tear the LLP down gracefully once
	// everything before is sent. [D-49]
	OpFinish
	// OpAbort: end the LLP. With Local set, an AbortConn precedes that the peer must receive: tear
	// the LLP down in order once it is sent. Otherwise reset the LLP at once. Err is the reason.
	// Only OpRevoke, OpWriteDone and OpReadDone follow.
	OpAbort
)

var opNames = [...]string{"Send", "Part", "RDMAWrite", "RDMARead", "Hold", "Compact", "Copy", "Drop", "Revoke", "WriteDone",
	"Detach", "ReadDone", "UrgentPending", "Urgent", "PeerClosed", "Mode", "Resize", "PeerSize", "Suspended", "Reconnect", "Finish", "Abort"}

// String returns the name without "Op".
func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return "Op(?)"
}

// An Action is one thing for the driver to do. Op determines which fields are valid.
type Action struct {
	Op         Op
	Solicited  bool // OpSend: with Solicited Event
	Invalidate bool // OpSend: and with Invalidate of STag
	Local      bool
	Remote     bool // OpRevoke: the peer has invalidated the STag
	Parts      int
	STag       uint32
	TO         uint64
	ID         uint64
	RID        uint64 // OpSend of a SinkAvail: the read that is advertised
	Adv        uint64
	Off, N     int
	Pos        uint64
	Msg        sdpwire.Message
	Err        error
}
