package budget

import (
	"testing"
	"testing/synctest"
	"time"
)

// Each try takes a microsecond of the bubble's time.
func TestPoll(t *testing.T) {
	const us = time.Microsecond
	for _, test := range []struct {
		name   string
		row    Polling
		more   time.Duration
		script []Outcome // Nothing after the last
		want   Outcome
		tries  int
		misses bool
	}{
		{"nothing", Polling{Time: 10 * us, Tries: 1}, 0, nil, Nothing, 11, true},
		{"nothing, with other goroutines", Polling{Time: 10 * us, Tries: 1, Yield: true}, 0, nil, Nothing, 11, true},
		{"longer", Polling{Time: 10 * us, Tries: 1}, 5 * us, nil, Nothing, 16, true},
		{"clock read seldom", Polling{Time: 10 * us, Tries: 8}, 0, nil, Nothing, 16, true},
		{"found", Polling{Time: 10 * us, Tries: 1}, 0, []Outcome{Nothing, Found}, Found, 2, false},
		{"stopped", Polling{Time: 10 * us, Tries: 1}, 0, []Outcome{Nothing, Nothing, Stopped}, Stopped, 3, false},
		{"arrivals begin the time anew", Polling{Time: 3 * us, Tries: 1}, 0,
			[]Outcome{Nothing, Nothing, Nothing, Arrived, Nothing, Nothing, Arrived}, Nothing, 11, true},
		{"arrivals begin the tries anew", Polling{Time: us, Tries: 4}, 0,
			[]Outcome{Nothing, Nothing, Nothing, Arrived}, Nothing, 8, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var b Budget
				test.row.Max = 1
				tries := 0
				got := b.PollLonger(&test.row, test.more, func() Outcome {
					time.Sleep(us)
					tries++
					if tries <= len(test.script) {
						return test.script[tries-1]
					}
					return Nothing
				})
				if got != test.want || tries != test.tries {
					t.Errorf("outcome %d after %d tries, want %d after %d", got, tries, test.want, test.tries)
				}
				if missed := !b.Worth(); missed != test.misses {
					t.Errorf("a miss was recorded: %v, want %v", missed, test.misses)
				}
			})
		})
	}
}

// What was found makes polling more frequent again, and polling that was stopped does not.
func TestPollFound(t *testing.T) {
	for _, test := range []struct {
		outcome Outcome
		penalty int32
	}{{Found, 1}, {Stopped, 3}} {
		var b Budget
		row := Polling{Rule: Rule{Max: 15}, Time: time.Hour, Tries: 1}
		b.Miss(&row.Rule)
		b.Miss(&row.Rule)
		b.Poll(&row, func() Outcome { return test.outcome })
		if p := b.penalty.Load(); p != test.penalty {
			t.Errorf("outcome %d: penalty %d, want %d", test.outcome, p, test.penalty)
		}
	}
}
