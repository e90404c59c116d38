//go:build !linux

package attend

// A registration is empty, because there is no shared poller here.
type registration struct{ closely uint32 }

func (*registration) leave(*Attention) {}

func register(*Attention, State, Event) bool { return false }

func paired(*Attention) bool { return false }
func serveMissed(*Attention) {}

type counter struct{}

func (counter) Load() uint32 { return 0 }

var gathers, drained counter
