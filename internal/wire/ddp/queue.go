package ddp

import "viaduct/internal/fault"

// An MSN is the sequence number of a message within a queue and direction. It starts at 1, rises by
// 1 per message, and 0 follows 2^32-1. [DDP-4.3-6] [DDP-4.3-7] [DDP-4.3-8]
type MSN uint32

// FirstMSN is the number of the first message of a queue. [DDP-4.3-7]
const FirstMSN MSN = 1

// Next returns the number after m.
func (m MSN) Next() MSN { return m + 1 }

// Less reports whether m precedes o. The numbers must be less than 2^31 apart.
func (m MSN) Less(o MSN) bool { return int32(m-o) < 0 }

// A Queue checks the order of the messages arriving on an Untagged queue. The buffers belong to the
// caller. The zero value is not usable; call NewQueue. A Queue is not safe for concurrent use.
//
// A reliable stream delivers segments in order, so the queue is strict: the MSN must belong to the
// message in progress or to the next message, and MO must equal the number of bytes placed so far
// [I-48]. The RFC allows a laxer receiver, but a gap would pass stale memory to the ULP.
type Queue struct {
	next MSN
	mo   uint32 // number of placed bytes of the message in progress
	open bool   // a message is in progress: its first segment was placed, its last was not
}

// NewQueue returns a Queue with first as the first expected MSN, usually FirstMSN.
func NewQueue(first MSN) Queue { return Queue{next: first} }

// Next returns the MSN of the message in progress or expected next.
func (q *Queue) Next() MSN { return q.next }

// Open reports whether a message is in progress, and returns the number of its placed bytes.
func (q *Queue) Open() (n uint32, open bool) { return q.mo, q.open }

// Check checks a segment with n bytes of payload. It does not change the queue. size is the length
// of the buffer for the message in progress, or for the next message if none is in progress. have
// reports whether the buffer exists.
//
// The order of the checks is: sequence, presence of a buffer, offset, length. Segments without
// payload are checked too, since they consume a buffer as well [I-51]. [DDP-7.1-2] [DDP-7.1-6]
// [DDP-7.1-7] [DDP-7.1-8]
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

// Placed records that the payload of a segment that passed Check was placed. If the segment was the
// last of a message, Placed returns the length of the message and true, and the queue expects the
// next message. So each message is complete exactly once. [DDP-5.3-5] [DDP-5.4-2] [DDP-5.4-3]
// [DDP-4.1-7]
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
