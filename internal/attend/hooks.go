package attend

// The functions below are for tests of other packages. Dedicate brings an Attention into a state
// otherwise reached only under load; the others return counts.

// Dedicate starts an attendant for a connection that waits with a shared poller. In any other state
// Dedicate does nothing.
func (a *Attention) Dedicate() {
	if a.State() == Shared {
		a.apply(Busy)
	}
}

// Gathers returns the number of pauses of shared pollers between two rounds.
func Gathers() uint32 { return process.gathers.Load() }

// Drained returns the number of arrivals that peers have announced by the pair of the processes.
func Drained() uint32 { return process.drained.Load() }

// Pauses returns the number of attendants now letting frames accumulate.
func Pauses() int32 { return process.pauses.Load() }

// Received returns the number of arrivals read by the attendant or a shared poller. Each arrival
// read by a consumer adds more than 1.
func (a *Attention) Received() uint32 { return a.idle.arrivals.Load() }
