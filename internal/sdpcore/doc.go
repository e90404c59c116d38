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
// Every event function appends to the slice passed in, so a driver that reuses the slice allocates
// no memory per message.
//
// A message against a rule causes an OpAbort whose Err is a [*Violation] with the row of the
// requirement matrix. A wrong call by the driver panics.
//
// A Machine is not safe for concurrent use. There is no promise of compatibility before version 1.
package sdpcore
