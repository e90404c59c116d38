package budget

import "time"

// The polls of all waits. Each is named after what is waited for, with the place where it is made.
// Nothing changes them. They yield where the awaited bytes may come from a goroutine of this
// process, which waits for this very processor.
var (
	// Wait: a consumer waits for a completion (attend.Until). After polls without result, the peer
	// probably waits for the polling processor. An early answer does not promise another. Waking a
	// goroutine whose processor is idle takes about as long as Time.
	Wait = Polling{Rule{Grace: 1, Hits: 8, Max: 255}, 30 * time.Microsecond, 1, true}

	// WaitNear replaces Wait if all peers are on the same host and the process waits for nothing
	// else. If both ends sleep, each message has to wake an idle processor. On a virtual machine the
	// two wake-ups of a round trip take up to 100 us, against 20 us for the whole round trip if both
	// ends poll, and cost three times the processor time.
	WaitNear = Polling{Wait.Rule, 200 * time.Microsecond, 1, true}

	// Attendant: an attendant looks at shared memory, which takes no system call, until something
	// arrives. A connection with rare requests is not polled. A sleep costs both ends together as
	// long as a copy of hundreds of kilobytes.
	Attendant = Polling{Rule{Grace: 2, Max: 63}, 30 * time.Microsecond, 16, true}

	// Room: a writer waits for room in a ring (internal/sock), longer if the peer still has to copy
	// bytes from the writer's memory. Room is made by another process.
	Room = Polling{Rule{Grace: 2, Max: 63}, 20 * time.Microsecond, 8, false}

	// Answer: a set-up waits for an answer already under way (sock.Soon).
	Answer = Polling{Rule{Grace: 4, Max: 15}, 100 * time.Microsecond, 1, true}

	// Sent: the engine of run --rdma waits for the completion of a request to which a received
	// message may be the answer.
	Sent = Polling{Rule{}, 100 * time.Microsecond, 1, true}
)

// The rules of all other efforts that have a Budget, each named and placed in the same way. Nothing
// changes them.
var (
	// Sleep: a consumer sleeps at the sockets themselves (attend.Sleeper).
	Sleep = Rule{Max: 1<<10 - 1}

	// Pause: an attendant lets small frames accumulate (attend's moderator). A pause that brings
	// few bytes has delayed them.
	Pause = Rule{Max: 1 << 10}

	// Ahead: a read goes straight to the places of predicted frames (internal/frameio). It takes
	// many right predictions to compensate for a wrong one.
	Ahead = Rule{Hits: 32, Max: 255}

	// Writes: iwarp peeks at the headers of Writes in the socket.
	Writes = Rule{Max: 63}

	// Rest: a read of SDP waits for the rest of a message whose beginning is in the read's buffer.
	Rest = Rule{Max: 1 << 10}

	// Reply: a poll of internal/roceudp defers acknowledgements to the reply of the consumer.
	Reply = Rule{Grace: 1, Max: 255}
)
