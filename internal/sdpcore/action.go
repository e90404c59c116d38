package sdpcore

import "viaduct/internal/wire/sdpwire"

// An Op is the kind of an Action.
type Op uint8

const (
	// OpSend: send Msg as an iWARP Send; only OpSend counts as a message. [SDP-5-4] The payload is
	// N bytes of write ID from Off, followed by the bytes of the OpPart actions directly after it.
	// If Adv is not zero, the message advertises memory: register Msg.Size bytes (of write ID from
	// Off for a SrcAvail, of read RID from Off for a SinkAvail), store STag and VA in Msg, and pass
	// the STag to the machine by Bind.
	OpSend Op = iota
	// OpPart: N more payload bytes for the preceding OpSend, of write ID from Off.
	OpPart
	// OpRDMAWrite: write N bytes of write ID from Off to the peer's STag at TO. Neither OpRDMAWrite
	// nor OpRDMARead carries a solicited event [SDP-14.2-3].
	OpRDMAWrite
	// OpRDMARead: read N bytes from the peer's STag at TO into read ID from Off. If Local is set,
	// read the bytes into memory of the driver. The memory joins the queue of held payload on
	// completion. Report completions by ReadDone, in order.
	OpRDMARead
	// OpHold: append the payload (N bytes) of the current message to the queue of held payload. The
	// payload occupies its Private Buffer until OpCopy, OpDrop or OpCompact.
	OpHold
	// OpCompact: copy the newest held payload (N bytes) elsewhere, so that the Private Buffer can
	// be posted again. [D-79]
	OpCompact
	// OpCopy: move N bytes from the front of the held payload to read ID at Off. Post a Private
	// Buffer again once all bytes in the buffer were moved.
	OpCopy
	// OpDrop: drop N bytes from the front of the held payload.
	OpDrop
	// OpRevoke: the advertisement Adv has ended. Invalidate the STag before any later action,
	// unless Remote is set. [D-41]
	OpRevoke
	// OpWriteDone: write ID has ended with N bytes sent. The memory of the write is free once the
	// Sends and RDMA Writes before this action are complete. Err is nil, ErrCancelled, or the
	// reason for the end of the connection.
	OpWriteDone
	// OpDetach: write ID was cancelled, but the bytes from Off must still be sent to the peer. Copy
	// these bytes, let the caller return with the full count, and use the copy. [D-32]
	OpDetach
	// OpReadDone: read ID has ended with N bytes. Err is nil, io.EOF (only with N = 0),
	// ErrCancelled, or the reason for the end of the connection.
	OpReadDone
	// OpUrgentPending: the peer announces an urgent byte.
	OpUrgentPending
	// OpUrgent: the byte at stream position Pos is urgent. If Local is set, the urgent byte is the
	// last payload byte of the message just received, and not part of the stream.
	OpUrgent
	// OpPeerClosed: DisConn was received; the peer will send no more data.
	OpPeerClosed
	// OpMode: a half-connection has changed its mode to Msg.Mode: the sending half if Local is set,
	// otherwise the receiving half.
	OpMode
	// OpResize: change the size of the receive Private Buffers to N, by replacing the free buffers
	// at once. Report the end by Resized. [D-46]
	OpResize
	// OpPeerSize: the peer's receive Private Buffers have N bytes from now on.
	OpPeerSize
	// OpSuspended: the peer has acknowledged SuspComm; close the LLP.
	OpSuspended
	// OpReconnect: after all earlier messages were sent, close the LLP and connect to port Msg.Port
	// of the same address. [SDP-13.1.1-8] [SDP-13.1.1-9]
	OpReconnect
	// OpFinish: both directions are closed. Close the LLP gracefully after all earlier messages
	// were sent. [D-49]
	OpFinish
	// OpAbort: end the LLP. If Local is set, an AbortConn precedes this action and must reach the
	// peer: close the LLP in order after the AbortConn was sent. Otherwise reset the LLP at once.
	// Err is the reason. Only OpRevoke, OpWriteDone and OpReadDone follow.
	OpAbort
)

var opNames = [...]string{"Send", "Part", "RDMAWrite", "RDMARead", "Hold", "Compact", "Copy",
	"Drop", "Revoke", "WriteDone",
	"Detach", "ReadDone", "UrgentPending", "Urgent", "PeerClosed", "Mode", "Resize", "PeerSize", "Suspended", "Reconnect", "Finish", "Abort"}

// String returns the name without "Op", or "Op(?)" for an unknown one.
func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return "Op(?)"
}

// An Action is a step for the driver to perform. Op determines which fields are valid.
type Action struct {
	Op         Op
	Solicited  bool // OpSend: with Solicited Event
	Invalidate bool // OpSend: and with Invalidate of STag
	Local      bool
	Remote     bool // OpRevoke: the peer has invalidated the STag
	Parts      int  // OpSend: number of OpParts that follow
	STag       uint32
	TO         uint64
	ID         uint64
	RID        uint64 // ID of the advertised read, if OpSend sends a SinkAvail
	Adv        uint64 // OpSend, OpRevoke: key of the advertisement; 0 if OpSend advertises nothing
	Off, N     int
	Pos        uint64
	Msg        sdpwire.Message
	Err        error
}
