//go:build !linux

package attend

// A registration is empty, because there is no shared poller here.
type registration struct{ closely uint32 }

func (*registration) leave(*Attention) {}

// A pollerSet is empty too.
type pollerSet struct{}

func (*pollerSet) add(*Attention, State, Event) bool { return false }

func paired(*Attention) bool { return false }
func serveMissed(*Attention) {}
