package attend

// What follows lets tests of the packages above bring an Attention into a state
// that it would come to by itself only under load.

// Dedicate gives a connection that waits with a shared poller an attendant.
func (a *Attention) Dedicate() {
	if a.State() == Shared {
		a.apply(Busy)
	}
}

// Gathers returns how often a shared poller has let more gather before it looked
// again.
func Gathers() uint32 { return gathers.Load() }

// Pauses returns how many attendants let frames accumulate at this moment.
func Pauses() int32 { return pauses.Load() }

// Received returns how many arrivals the attendant or a shared poller has taken,
// and more for each that a consumer took.
func (a *Attention) Received() uint32 { return a.idle.arrivals.Load() }
