package budget

// The rules of all efforts that have a Budget. Each is named after what the effort is for, with the
// place where it is made. Nothing changes the rules.
var (
	// Wait: a consumer polls before it sleeps (attend.Until). After polls without result, the peer
	// probably waits for the polling processor. An early answer does not promise another.
	Wait = Rule{Grace: 1, Hits: 8, Max: 255}

	// Sleep: a consumer sleeps at the sockets themselves (attend.Sleeper).
	Sleep = Rule{Max: 1<<10 - 1}

	// Attendant: an attendant polls shared memory before it sleeps. A connection with rare requests
	// is not polled.
	Attendant = Rule{Grace: 2, Max: 63}

	// Pause: an attendant lets small frames accumulate (attend's moderator). A pause that brings
	// few bytes has delayed them.
	Pause = Rule{Max: 1 << 10}

	// Room: a writer polls for room in a ring before it sleeps (internal/sock).
	Room = Rule{Grace: 2, Max: 63}

	// Answer: a set-up polls for an answer already under way (sock.Soon).
	Answer = Rule{Grace: 4, Max: 15}

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
