package iwarp

import (
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// A RecvSource chooses the memory of each message when the message begins to arrive, so that no
// receives are posted in advance. Memory is bound only while in use, the last used memory is reused
// first, and a waiting consumer can receive bytes directly into a buffer. Messages are reported as
// usual, by completions with the given ID.
//
// All methods except Keep are called in the receive role of the stream: one at a time, by the
// goroutine with the role. The methods must neither block nor call methods of the stream.
//
// A consumer may lend memory for a time, for example the buffer of a waiting read, and take the
// memory back by [QueuePair.Reclaim].
type RecvSource interface {
	// NextRecv returns the memory of the next message. head is the arrived part of the message, and
	// may be empty. size is the length in bytes of the first segment, and last is true if the
	// message has no other segment. If ok is false, the stream ends, as without a posted receive.
	NextRecv(head []byte, size int, last bool) (wr RecvWR, ok bool)

	// Reclaim is called by [QueuePair.Reclaim] with the ID of the current message. It returns other
	// memory for the message, with the same layout, for moving the arrived bytes. It returns nil to
	// leave the message in place.
	Reclaim(id uint64) []SGE

	// Full reports whether the stream should not receive the next message before the consumer has
	// handled earlier ones. Full is called before each message. stream reports how much of the next
	// messages has arrived; the report may take a system call.
	Full(stream Pending) bool

	// Keep reports whether messages refused by Full stay unread for a consumer about to poll, for
	// at most a millisecond. It is called without a role, after the handler of the completion
	// queue.
	Keep() bool

	// Guess predicts the next messages, assuming that the next messages are like the last message.
	// It returns the zero value if no prediction is possible. Any arriving bytes may be written to
	// the memory named by the guess.
	Guess() RecvGuess
}

// A RecvGuess is the prediction of a RecvSource. Until the next call of Guess, NextRecv must give
// messages either the next part of Payload, or memory outside of Payload.
type RecvGuess struct {
	Open    int    // length of the current message in bytes; 0 if unknown
	Header  int    // length of the header of each following message, at most 32
	Size    int    // payload bytes of each following message; 0 if none is predicted
	Payload []byte // lent memory for the payloads, one after the other
	Partial int    // number of payloads that may be read into Payload before they are complete
}

// A Pending reports on the unread bytes of a stream. A Pending is valid only during the call of
// Full.
type Pending interface {
	// Has reports whether at least n bytes have arrived, including the headers of all layers.
	Has(n int) bool

	// IsSend reports whether the bytes begin with a Send, which needs a receive. The result is
	// provisional, because the checksum was not verified.
	IsSend() bool
}

// Reclaim makes the stream stop using the memory lent by the RecvSource; the RecvSource must not
// return the lent memory any more. A current message in the lent memory is moved to other memory.
// After Reclaim has returned, nothing reads into the lent memory. Reclaim waits for a goroutine
// that is receiving, but never for the peer.
func (q *QueuePair) Reclaim() { q.link.fc.WithReceiver(q.rx.reclaim) }

func (r *receiver) reclaim() {
	if r.life.Load().ended() || r.box.recv == nil {
		return
	}
	to := r.box.recvs.supply.Reclaim(r.box.recv.id)
	if to == nil {
		return
	}
	n, _ := r.queues[0].Open()
	if r.Open() && r.seg.op.IsSend() {
		n += uint32(r.Placed())
	}
	r.mem.move(to, r.box.sg(), uint64(n))
	r.box.recv.reset()
	r.box.recv.nsg = copy(r.box.recv.sg[:], to)
}

// full reports whether Receive should leave the next bytes unread. next holds the unread bytes;
// staged is the number of arrived bytes. full is false inside a message, and if no source is set.
func (r *receiver) full(next []byte, staged int) bool {
	if r.box.recvs.supply == nil || r.box.recv != nil || !r.link.fc.Leaves() {
		return false
	}
	if r.dec.Markers {
		next = nil
	}
	u := r.unread
	u.staged, u.next = staged, next
	full := r.box.recvs.supply.Full(u)
	u.next = nil
	return full
}

// An unread is the [Pending] during a call of RecvSource.Full.
type unread struct {
	link   *link
	staged int    // bytes read and not handled
	next   []byte // the first of the staged bytes, or nil on streams with markers
}

// IsSend implements [Pending]. It returns false if the opcode has not arrived, and on streams with
// markers.
func (u *unread) IsSend() bool {
	p := u.next
	if len(p) < mpa.LengthLen+2 || ddp.IsTagged(p[mpa.LengthLen]) {
		return false
	}
	_, op := rdmap.ParseControl(p[mpa.LengthLen+1])
	return op.IsSend()
}

// Has implements [Pending]. It asks the kernel only if too few bytes are staged.
func (u *unread) Has(n int) bool { return u.staged >= n || u.staged+u.link.fc.Pending() >= n }
