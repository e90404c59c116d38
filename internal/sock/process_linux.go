package sock

import "sync/atomic"

// process is what the connections of the process share. The zero value is ready for use.
var process struct {
	partners partners    // of dialled connections
	joined   joinedPairs // of accepted connections
	shunned  shunned
	diag     diag

	// noOffset is set when the system has refused to peek past the next bytes, as Linux before 6.9
	// does.
	noOffset atomic.Bool
}
