package vitcp

import "viaduct/internal/wire/vitcpwire"

// Names for types of the wire format that configurations and errors speak.
type (
	// A Dialect holds the numbers and habits that the draft leaves open; the
	// zero value is what this package speaks.
	Dialect = vitcpwire.Dialect
	// Attributes are what a provider states of its VI at set-up.
	Attributes = vitcpwire.Attributes
	// An ErrorCode is the Remote Error Code of a segment.
	ErrorCode = vitcpwire.RemoteError
)
