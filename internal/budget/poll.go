package budget

import (
	"runtime"
	"time"
)

// A Polling says how a goroutine polls before it sleeps. A sleep costs a system call, and waking the
// goroutine costs the other end another; when its processor is idle, that takes tens of microseconds.
type Polling struct {
	Rule                // how polls without result make polling rarer
	Time  time.Duration // polling ends after this time without an arrival
	Tries int           // tries between two readings of the clock
	Yield bool          // whether other goroutines run after each reading of the clock
}

// An Outcome is the result of one try of a poll.
type Outcome uint8

const (
	Nothing Outcome = iota // nothing has come
	Arrived                // something has come, but not what is waited for: more may follow
	Found                  // what was waited for has come
	Stopped                // polling must end, for a reason that says nothing about its worth
)

// Poll calls try until it returns Found or Stopped, or for p.Time after the last arrival, and returns
// the last outcome. Poll records a Hit if the outcome is Found, and a Miss if the time is over. The
// caller has called Worth.
func (b *Budget) Poll(p *Polling, try func() Outcome) Outcome {
	return b.PollLonger(p, 0, try)
}

// PollLonger is like Poll, but polls longer by more.
func (b *Budget) PollLonger(p *Polling, more time.Duration, try func() Outcome) Outcome {
	start := time.Now()
	for n := 1; ; n++ {
		switch o := try(); o {
		case Arrived:
			start, n = time.Now(), 0
			continue
		case Found:
			b.Hit(&p.Rule)
			return o
		case Stopped:
			return o
		}
		if n < p.Tries {
			continue
		}
		n = 0
		if time.Since(start) > p.Time+more {
			b.Miss(&p.Rule)
			return Nothing
		}
		if p.Yield {
			runtime.Gosched()
		}
	}
}
