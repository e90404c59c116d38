// Package ddp implements the wire format and the rules of Direct Data
// Placement, RFC 5041: segments whose header says where their payload belongs.
//
// The package does no I/O and holds no payload. It has the codecs of the
// Tagged and the Untagged header ([Tagged], [Untagged]), the cutting of
// messages into segments ([Cutter]), the numbering of Untagged queues at both
// ends ([MSN], [Queue]), and the table of errors with the numbers a Terminate
// message carries ([Error], [Fault]).
//
// What must be known of registered memory to judge a Tagged segment is not
// here; the owner of the memory judges, and names the result with a [Fault].
//
// A receiver of Untagged segments goes like this:
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
