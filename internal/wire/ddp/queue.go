package ddp

import "viaduct/internal/fault"

// An MSN is the sequence number of a message within its queue and direction.
// It starts at 1, rises by one per message, and 0 follows 2^32-1.
// [DDP-4.3-6] [DDP-4.3-7] [DDP-4.3-8]
type MSN uint32

// FirstMSN is the number of the first message of a queue. [DDP-4.3-7]
const FirstMSN MSN = 1

// Next returns the number after m.
func (m MSN) Next() MSN { return m + 1 }

// Less reports whether m comes before o, for numbers less than 2^31 apart.
func (m MSN) Less(o MSN) bool { return int32(m-o) < 0 }

// A Queue follows the messages that come in on one Untagged queue. It keeps the
// rules of order only; the buffers belong to the caller. The zero value is not
// ready, see NewQueue. Not safe for concurrent use.
//
// Over a reliable stream segments come in the order they were sent, so the
// queue is strict: the MSN is that of the message in progress or the next one,
// and MO is what was placed so far [I-48]. A receiver may be laxer than that;
// gaps would hand stale memory to the ULP.
type Queue struct {
	next MSN
	mo   uint32 // bytes of the message in progress
	open bool   // the first segment of message next was placed, its last was not
}

// NewQueue returns a Queue that expects first as its first MSN, usually
// FirstMSN.
func NewQueue(first MSN) Queue { return Queue{next: first} }

// Next returns the MSN of the message in progress or expected next.
func (q *Queue) Next() MSN { return q.next }

// Open reports whether a message is in progress, and its length so far.
func (q *Queue) Open() (n uint32, open bool) { return q.mo, q.open }

// Check judges a segment with n bytes of payload. size is the length of the
// buffer of the message in progress, or of the one that the next message would
// use up; have says whether there is one. Nothing changes.
//
// The order is: sequence, presence of a buffer, offset, length. Segments without
// payload are judged as well, since they use up a buffer all the same [I-51].
// [DDP-7.1-2] [DDP-7.1-6] [DDP-7.1-7] [DDP-7.1-8]
func (q *Queue) Check(h Untagged, n int, size uint64, have bool) Fault {
	switch {
	case h.MSN != q.next && !fault.On("ddp-msn-unchecked"): // [DDP-7.1-8]
		return InvalidMSNRange
	case !have: // [DDP-7.1-2]
		return InvalidMSNNoBuffer
	case h.MO != q.mo: // [DDP-7.1-6]
		return InvalidMO
	case uint64(n) > size-min(size, uint64(h.MO)): // [DDP-7.1-7] [DDP-1.2-1]
		return MessageTooLong
	case uint64(h.MO)+uint64(n) > MaxMessage: // [DDP-5.2-2]
		return MessageTooLong
	}
	return OK
}

// Placed notes that the payload of a segment that passed Check is in place. If
// the segment was the last of its message, it returns the length of the message
// and done, and the queue moves on: the message is complete, and it is so once.
// [DDP-5.3-5] [DDP-5.4-2] [DDP-5.4-3] [DDP-4.1-7]
func (q *Queue) Placed(h Untagged, n int) (length uint32, done bool) {
	q.mo += uint32(n)
	q.open = true
	if !h.Last {
		return q.mo, false
	}
	length = q.mo
	q.next, q.mo, q.open = q.next.Next(), 0, false // [DDP-4.3-8]
	return length, true
}
