// Package ulp has what the protocols of this module above iWARP need of package iwarp besides its
// public interface: nvme, sdp, and the device siw0 of viaduct run. RFC 5040 calls such a protocol a
// ULP, an upper layer protocol. A program has no use for these types, because they serve a consumer
// that takes part in receiving.
//
// The package has no types of iwarp, because iwarp imports the package. S stands for iwarp.SendWR,
// R for iwarp.RecvWR.
package ulp

import "viaduct/internal/attend"

// A Source chooses the memory of each message when the message begins to arrive, so that no
// receives are posted in advance. Memory is bound only while in use, the last used memory is reused
// first, and a waiting consumer can receive bytes directly into a buffer. Messages are reported as
// usual, by completions with the given ID.
//
// All methods except SetStream and Keep are called in the receive role of the stream: one at a
// time, by the goroutine with the role. The methods must neither block nor call methods of the
// stream.
//
// A consumer may lend memory for a time, for example the buffer of a waiting read, and take the
// memory back by [Stream.Reclaim].
type Source[S, R any] interface {
	// SetStream is called before the first call of the other methods.
	SetStream(Stream[S])

	// NextRecv returns the memory of the next message. head is the arrived part of the message, and
	// may be empty. size is the length in bytes of the first segment, and last is true if the
	// message has no other segment. If ok is false, the stream ends, as without a posted receive.
	NextRecv(head []byte, size int, last bool) (wr R, ok bool)

	// Reclaim is called by [Stream.Reclaim] with the ID of the current message. It returns other
	// memory for the message, with the same layout, for moving the arrived bytes. If ok is false,
	// the message stays in place.
	Reclaim(id uint64) (wr R, ok bool)

	// Full reports whether the stream should not receive the next message before the consumer has
	// handled earlier ones. Full is called before each message. next reports how much of the next
	// messages has arrived; the report may take a system call.
	Full(next Pending) bool

	// Keep reports whether messages refused by Full stay unread for a consumer about to poll, for
	// at most a millisecond. It is called without a role, after the handler of the completion
	// queue.
	Keep() bool

	// Guess predicts the next messages, assuming that the next messages are like the last message.
	// It returns the zero value if no prediction is possible. Any arriving bytes may be written to
	// the memory named by the guess.
	Guess() Guess
}

// A Guess is the prediction of a [Source]. Until the next call of Guess, NextRecv must give messages
// either the next part of Payload, or memory outside of Payload.
type Guess struct {
	Open    int    // length of the current message in bytes; 0 if unknown
	Header  int    // length of the header of each following message, at most 32
	Size    int    // payload bytes of each following message; 0 if none is predicted
	Payload []byte // lent memory for the payloads, one after the other
	Partial int    // number of payloads that may be read into Payload before they are complete
}

// A Pending reports on the unread bytes of a stream. A Pending is valid only during the call of
// [Source.Full].
type Pending interface {
	// Has reports whether at least n bytes have arrived, including the headers of all layers.
	Has(n int) bool

	// IsSend reports whether the bytes begin with a Send, which needs a receive. The result is
	// provisional, because the checksum was not verified.
	IsSend() bool
}

// A Stream is an iwarp.QueuePair with a [Source].
type Stream[S any] interface {
	// PostNow posts a request without More, for a caller who can use the result at once. If sent is
	// true, the request is complete, and has no completion on the queue unless it failed. Otherwise
	// the completion follows, even if Unsignaled is set. The errors are the errors of Post.
	PostNow(wr S) (sent bool, err error)

	// KeepSends copies the unregistered memory (SGE.Buf) of posted requests not yet sent. The
	// caller may then reuse the memory at once, though the requests complete later. The memory of
	// Reads and Atomics stays lent. KeepSends does not wait for the peer. Call it only after
	// start-up.
	KeepSends()

	// Reclaim makes the stream stop using the memory lent by the Source; the Source must not return
	// the lent memory any more. A current message in the lent memory is moved to other memory.
	// After Reclaim has returned, nothing reads into the lent memory. Reclaim waits for a goroutine
	// that is receiving, but never for the peer.
	Reclaim()

	// Undelivered returns the number of bytes TCP has taken and the peer's TCP has not
	// acknowledged, or 0 if the system does not report the number. Undelivered bytes may be lost if
	// the process ends now.
	Undelivered() int

	// Handle makes the stream's receive queue call f when completions arrive. The goroutine that
	// received, sent or ended a stream calls f, possibly inside a post or a poll. So f must not
	// block, for example on a channel or a mutex that a poster holds. f may post, and may run in
	// several goroutines at once. f gets the completions by PollN; a PollN from f polls no
	// connection. Handle itself does not call f for completions already in the queue.
	Handle(f func())

	// Progress returns the SourceSleeper for the connections of the stream's receive queue.
	Progress() attend.SourceSleeper

	// CloseSoon closes the stream, like Close, if no long wait is needed. The result is false if
	// the stream must still be closed.
	CloseSoon() bool
}
