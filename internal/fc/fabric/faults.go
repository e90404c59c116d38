package fabric

import (
	"time"

	"viaduct/internal/fc"
)

// An Action is the effect of a fault on a frame.
type Action uint8

// These are the actions of a Fault.
const (
	Drop Action = iota + 1
	Duplicate
	Delay // the frame arrives late, after later frames
	Corrupt
	Truncate
)

func (a Action) String() string {
	return [...]string{"none", "drop", "duplicate", "delay", "corrupt", "truncate"}[min(int(a), 5)]
}

// A Fault is a rule of a fault plan. [FCFS-3.2-3]
type Fault struct {
	Match func(f *fc.Frame) bool // frames to which the rule applies; nil means every frame
	Nth   int                    // number of the matching frame that is affected, from 1; 0 means every one
	Do    Action
	Late  time.Duration // delay of a delayed frame, or of the second copy of a duplicated frame

	Hits int // number of matches so far
	Done int // number of times that the action was performed
}

// A Noise describes random faults by their probabilities. It affects the frames for which Only
// returns true, or all if Only is nil.
type Noise struct {
	Loss, Duplicate, Reorder, Corrupt float64
	MaxDelay                          time.Duration // maximum delay of reordered frames and of duplicates; 0 means 100 us
	Only                              func(f *fc.Frame) bool
}

// AddFault adds a rule to the plan and returns the rule.
func (n *Net) AddFault(f *Fault) *Fault {
	n.faults = append(n.faults, f)
	return f
}

// ClearFaults removes all rules and the noise.
func (n *Net) ClearFaults() { n.faults, n.noise = nil, Noise{} }

// SetNoise sets the random faults.
func (n *Net) SetNoise(x Noise) { n.noise = x }

// OfType returns a function matching frames with TYPE t.
func OfType(t fc.Type) func(*fc.Frame) bool {
	return func(f *fc.Frame) bool { return f.Type == t }
}

// ELSOf returns a function matching extended link service frames with command c.
func ELSOf(c fc.ELSCmd) func(*fc.Frame) bool {
	return func(f *fc.Frame) bool { return f.Type == fc.TypeELS && fc.CmdOf(f.Payload) == c }
}

// A verdict is the combined effect of all faults on a frame.
type verdict struct {
	copies int
	delay  time.Duration
	again  time.Duration // delay of the second copy
	damage Action
}

func (n *Net) judge(e *End, f *fc.Frame) verdict {
	v := verdict{copies: 1}
	for _, x := range n.faults {
		if x.Match != nil && !x.Match(f) {
			continue
		}
		x.Hits++
		if x.Nth != 0 && x.Nth != x.Hits {
			continue
		}
		x.Done++
		switch x.Do {
		case Drop:
			v.copies = 0
			n.stats.Dropped++
		case Duplicate:
			v.copies = 2
			v.again = x.Late
			n.stats.Duplicated++
		case Delay:
			v.delay = x.Late
			n.stats.Delayed++
		case Corrupt:
			v.damage = Corrupt
			n.stats.Corrupted++
		case Truncate:
			v.damage = Truncate
			n.stats.Truncated++
		}
	}
	x := &n.noise
	if x.Only != nil && !x.Only(f) {
		return v
	}
	hit := func(p float64) bool { return p > 0 && n.rng.Float64() < p }
	late := func() time.Duration {
		if x.MaxDelay <= 0 {
			return 100 * time.Microsecond
		}
		return time.Duration(1 + n.rng.Int64N(int64(x.MaxDelay)))
	}
	if hit(x.Loss) {
		v.copies = 0
		n.stats.Dropped++
	}
	if hit(x.Duplicate) && v.copies == 1 {
		v.copies, v.again = 2, late()
		n.stats.Duplicated++
	}
	if hit(x.Reorder) && v.delay == 0 {
		v.delay = late()
		n.stats.Delayed++
	}
	if hit(x.Corrupt) && v.damage == 0 {
		v.damage = Corrupt
		n.stats.Corrupted++
	}
	return v
}
