// Package sdpcore is the Sockets Direct Protocol of draft-pinkerton-iwarp-sdp-01 as a machine
// without input or output: its methods take events and the time, and return actions.
//
// A [Machine] is one end of one connection after its Hello and HelloAck. It holds both
// half-connections (it is the Data Source of one and the Data Sink of the other), each with its
// flow control mode. It performs the four data transfer mechanisms in either role, with credits,
// advertisements and their revocation, mode changes, urgent data, buffer resizing, graceful and
// abortive close, and suspension for socket duplication.
//
// The machine never sees a byte of payload. A write or a read is a length and a number that the
// caller chooses; the actions name the bytes of it to send, place or copy. A driver has this loop:
//
//	acts = m.Receive(now, &msg, inv, acts[:0])   // or Write, Read, ReadDone, Tick, ...
//	for i := range acts { perform acts[i], in order }
//
// Every event function appends to the slice that it gets, so a driver that reuses the slice
// allocates no memory per message.
//
// A message that breaks a rule causes an OpAbort whose Err is a [*Violation], which names the row
// of the requirement matrix. A wrong call by the driver panics.
//
// A Machine is not safe for concurrent use. There is no promise of compatibility before version 1.
package sdpcore
