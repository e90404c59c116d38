package fcvi

import (
	"testing"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/testkit"
)

// A nowhere is an outlet without a link.
type nowhere struct{}

func (o nowhere) begin(s *station) error {
	s.locked(func() { s.out = o })
	return nil
}

func (nowhere) Send(*fc.Frame)        {}
func (nowhere) room(fc.Addr) int      { return 1 }
func (nowhere) flush()                {}
func (nowhere) poller(fc.Addr) poller { return nil }
func (nowhere) close()                {}

func (s *station) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *station) clock() (at fc.Time) {
	s.do(func(now fc.Time) { at = now })
	return at
}

// TestStallOnce: a late timer waits once for frames that arrived meanwhile. If the timer is late
// again before running, the time is counted. [FCVI-8.3-6]
func TestStallOnce(t *testing.T) {
	s, err := newStation(fc.PortConfig{PortName: fc.PortName(1, 1), NodeName: fc.NodeName(1)}, machineConfig{},
		func(*station) (outlet, error) { return nowhere{}, nil })
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	ran := 0
	for round := 1; round <= 2; round++ {
		var set, due fc.Time
		s.do(func(now fc.Time) {
			set, due = now, now+time.Hour
			s.np.Timers().After(due, func(fc.Time) { ran++ })
		})
		s.locked(func() { s.start = s.start.Add(-30 * time.Minute) }) // in this case the timer is not late
		if at := s.clock() - set; at < 30*time.Minute || at > 31*time.Minute {
			t.Errorf("round %d: the clock went on by %v in half an hour", round, at)
		}
		set = s.clock()
		late := func() fc.Time { // the process could not run for two hours
			s.locked(func() { s.start = s.start.Add(-2 * time.Hour) })
			return s.clock()
		}
		if at := late(); at-set > time.Minute {
			t.Errorf("round %d: %v of the time that was lost are counted", round, at-set)
		}
		if at := late(); at != due {
			t.Errorf("round %d: the clock is at %v, with a timer for %v that is late again", round, at-set, due-set)
		}
		s.tick()
		if ran != round {
			t.Errorf("round %d: the timer ran %d times", round, ran)
		}
	}
}

// TestStall: a process prevented from running does not count the time as silence of peers. A late
// timer first waits for frames that arrived meanwhile, whether the frames or the timer run first
// after the stall. The test moves the clock, so that a pause of the test itself is no stall.
// [FCVI-8.3-6]
func TestStall(t *testing.T) {
	for _, timerFirst := range []bool{false, true} {
		s, err := newStation(fc.PortConfig{PortName: fc.PortName(1, 1), NodeName: fc.NodeName(1)}, machineConfig{},
			func(*station) (outlet, error) { return nowhere{}, nil })
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		fired := make(chan fc.Time, 1)
		var timer *fc.Timer
		var due fc.Time
		s.do(func(now fc.Time) { // a timer that is due much later is not late
			due = now + time.Hour
			timer = s.np.Timers().After(due, func(now fc.Time) { fired <- now })
		})
		counts(t, s)
		s.locked(func() { s.start = s.start.Add(-2 * time.Hour) }) // the process could not run for two hours
		awake := time.Now()
		if timerFirst {
			s.tick()
		}
		var woken fc.Time
		s.do(func(now fc.Time) { // handles the frames that arrived meanwhile
			if len(fired) > 0 {
				t.Error("the timer did not wait")
			}
			if now >= due {
				t.Errorf("at %v, with a timer for %v that has not run", now, due)
			}
			woken = now
			timer.Set(now + 20*time.Millisecond)
			due = timer.At()
		})
		if at := testkit.Await(t, "the timer", fired); at != due {
			t.Errorf("the timer for %v ran at %v", due, at)
		}
		// The clock does not catch up with the lost time.
		if d := s.clock() - woken; d > time.Since(awake) {
			t.Errorf("the clock went on by %v in %v", d, time.Since(awake))
		}
		counts(t, s)
	}
}

// counts checks that the clock of s runs at normal speed.
func counts(t *testing.T, s *station) {
	t.Helper()
	before := s.clock()
	time.Sleep(50 * time.Millisecond)
	if d := s.clock() - before; d < 50*time.Millisecond {
		t.Errorf("the clock went on by %v in 50ms", d)
	}
}
