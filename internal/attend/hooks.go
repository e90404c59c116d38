package attend

// The functions in this file are for tests of other packages. Dedicate brings an Attention into a
// state it otherwise reaches only under load; the others return counts.

// Dedicate starts an attendant for a connection that waits with a shared poller. It does nothing in
// any other state.
func (a *Attention) Dedicate() {
	if a.State() == Shared {
		a.apply(Busy)
	}
}

// Gathers returns the number of pauses that shared pollers have made between two rounds.
func Gathers() uint32 { return gathers.Load() }

// Pauses returns the number of attendants that are letting frames accumulate.
func Pauses() int32 { return pauses.Load() }

// Received returns the number of arrivals that the attendant or a shared poller has read. Each
// arrival that a consumer has read adds more than one.
func (a *Attention) Received() uint32 { return a.idle.arrivals.Load() }
