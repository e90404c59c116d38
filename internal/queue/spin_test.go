package queue

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"viaduct/internal/attend"
)

// slowProgress finds something with every other look, each of which takes 0.6
// of the time that a consumer polls in vain.
type slowProgress struct {
	polls, unpolls int
	polled         func(n int)
	slept          func()
}

func (p *slowProgress) Poll() bool {
	time.Sleep(attend.SpinTime * 6 / 10)
	p.polls++
	p.polled(p.polls)
	return p.polls%2 == 0
}

func (p *slowProgress) Unpoll() {
	p.unpolls++
	p.slept()
}

// on has the test run as on n processors.
func on(t *testing.T, n int) { t.Cleanup(attend.AssumeProcessors(n)) }

// A consumer that waits goes on polling while something comes, however long it
// takes, and sleeps soon after nothing does.
func TestSpinAfterProgress(t *testing.T) {
	on(t, 2)
	synctest.Test(t, func(t *testing.T) {
		var c Completions[int]
		p := &slowProgress{slept: func() { t.Error("a consumer sleeps while something comes") }}
		p.polled = func(n int) {
			if n == 20 {
				c.Push(7)
			}
		}
		if v, err := c.Wait(context.Background(), p); v != 7 || err != nil || p.polls != 20 {
			t.Errorf("waited for %d, %v in %d polls", v, err, p.polls)
		}
		dry := &slowProgress{polls: 1, polled: func(int) {}} // the first look finds something
		dry.slept = func() {
			if dry.polls != 4 { // and two more in vain are too long
				t.Errorf("sleeps after poll %d", dry.polls)
			}
			c.Push(8)
		}
		odd := &vain{slowProgress: dry}
		if v, err := c.Wait(context.Background(), odd); v != 8 || err != nil || dry.unpolls != 1 {
			t.Errorf("waited for %d, %v, slept %d times", v, err, dry.unpolls)
		}
	})
}

// vain finds something with its first look only.
type vain struct{ *slowProgress }

func (p *vain) Poll() bool { return p.slowProgress.Poll() && p.polls == 2 }
