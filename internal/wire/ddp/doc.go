// Package ddp implements the wire format and the rules of Direct Data Placement, RFC 5041: segments
// whose header determines where the payload is placed.
//
// The package does no I/O and holds no payload. It has the codecs of the Tagged and the Untagged
// header ([Tagged], [Untagged]), the cutting of messages into segments ([Cutter]), the numbering of
// Untagged queues at both ends ([MSN], [Queue]), and the table of errors with the numbers a
// Terminate message carries ([Error], [Fault]).
//
// The package does not check Tagged segments against registered memory; the owner of the memory
// does, and returns the result as a [Fault].
//
// A receiver of Untagged segments works like this:
//
//	h, n, err := ddp.ParseUntagged(ulpdu)
//	payload := ulpdu[n:]
//	fault := queue.Check(h, len(payload), len(buffer), true)
//	if fault != ddp.OK { ... }
//	copy(buffer[h.MO:], payload)
//	length, done := queue.Placed(h, len(payload))
//
// There is no promise of compatibility before version 1 of the module.
package ddp
