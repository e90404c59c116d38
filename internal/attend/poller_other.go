//go:build !linux

package attend

// A registration is empty, because there is no shared poller here.
type registration struct{ closely uint32 }

func (a *Attention) register(State, Event) bool { return false }
func (a *Attention) deregister()                {}

func (a *Attention) apply(Event) {}

func (a *Attention) paired() bool { return false }
func (a *Attention) serveMissed() {}

type counter struct{}

func (counter) Load() uint32 { return 0 }

var gathers, drained counter
