package vitcp

import "viaduct/internal/wire/vitcpwire"

// A Dialect defines the numbers and options that the draft leaves open, because another
// implementation may use different ones. The zero value is this project's dialect. Any other value
// must be configured at both ends.
type Dialect struct {
	// TypeOffset is added to the number of each of the draft's nine types on the wire. The offset
	// is 1 for a peer that counts types from one. The maximum is 22, so that the types do not
	// collide with the Disconnect extension.
	TypeOffset uint8

	// BareReadResponse means that Read Responses have no RDMA header.
	BareReadResponse bool

	// TypeOffset [V-02], BareReadResponse [V-23].
}

func (d Dialect) wire() vitcpwire.Dialect { return vitcpwire.Dialect(d) }
