// Package sdpcore is the Sockets Direct Protocol of draft-pinkerton-iwarp-sdp-01 as a machine
// without input or output: the methods take events and the time, and return actions.
//
// A [Machine] is one end of a connection after Hello and HelloAck. A Machine holds both
// half-connections, as Data Source and as Data Sink, each with a flow control mode. The machine
// performs the four data transfer mechanisms in either role, with credits, advertisements and their
// revocation, mode changes, urgent data, buffer resizing, graceful and abortive close, and
// suspension for socket duplication.
//
// The machine never sees a byte of payload. A write or a read is a length and a number chosen by
// the caller; the actions name the bytes to send, place or copy. A driver has this loop:
//
//	acts = m.Receive(now, &msg, inv, acts[:0])   // or Write, Read, ReadDone, Tick, ...
//	for i := range acts { perform acts[i], in order }
//
// The Machine passes each event to its parts, and then repeats one step until no rule allows another
// (pump.go). Each part is in a file of its own, with its state:
//
//	source.go                         the outgoing half: Data (Bcopy) and the choice of the mechanism
//	writes.go                         the outgoing stream
//	srcavail.go                       own SrcAvails (Read Zcopy)
//	sinkroom.go                       the peer's SinkAvails (Write Zcopy)
//	sink.go                           the incoming half: payload and the order of the reads
//	reads.go, held.go                 unfinished reads, and payload that no read has taken yet
//	fetch.go                          the peer's SrcAvails and the RDMA Reads from them
//	offer.go                          own SinkAvails
//	mode.go, policy.go                the mode of each half, and when to change it
//	credits.go, updates.go            the numbers of Private Buffers, and empty Data that refresh them
//	send.go, urgent.go                the next message, and the urgent bytes it announces
//	resize.go, suspend.go, close.go   buffer sizes, suspension, the end
//
// Every event function appends to the slice passed in, so a driver that reuses the slice allocates
// no memory per message.
//
// A message against a rule causes an OpAbort whose Err is a [*Violation] with the row of the
// requirement matrix. A wrong call by the driver panics.
//
// A Machine is not safe for concurrent use. There is no promise of compatibility before version 1.
package sdpcore
