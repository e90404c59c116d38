package vitcp

import "viaduct/internal/wire/vitcpwire"

// A Dialect holds the numbers and options that the draft leaves open, in which another
// implementation may differ. The zero value is this project's dialect. Another one must be
// configured at both ends.
type Dialect struct {
	// TypeOffset is added to each of the draft's nine types on the wire. It is 1 for a peer that
	// counts types from one. It is at most 22, so that the Disconnect extension does not collide
	// with them.
	TypeOffset uint8

	// BareReadResponse leaves the RDMA header out of Read Responses.
	BareReadResponse bool

	// TypeOffset [V-02], BareReadResponse [V-23].
}

func (d Dialect) wire() vitcpwire.Dialect { return vitcpwire.Dialect(d) }
