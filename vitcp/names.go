package vitcp

import "viaduct/internal/wire/vitcpwire"

// A Dialect defines the numbers and options the draft leaves open, because another implementation
// may use different values. The zero value is the project's dialect. Any other value must be
// configured at both ends.
type Dialect struct {
	// TypeOffset is added to the number of each of the draft's nine types on the wire. The offset
	// is 1 for a peer whose types are counted from 1. The maximum is 22, so that the types do not
	// collide with the Disconnect extension.
	TypeOffset uint8

	// BareReadResponse means that Read Responses have no RDMA header.
	BareReadResponse bool

	// TypeOffset [V-02], BareReadResponse [V-23].
}

func (d Dialect) wire() vitcpwire.Dialect { return vitcpwire.Dialect(d) }
