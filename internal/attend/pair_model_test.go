package attend

import (
	"strings"
	"testing"
)

// This model is of a connection in state Shared with a pair: of a producer in the other process,
// the pair's bit, the word asleep and the bell; of the goroutines that may serve the connection,
// which are the drainer, the shared poller and the goroutine started by unlock; and of somebody
// else who has the receive role for a while. The pair may end at any time, at either side, and the
// producer's process may die. Each step is one access to shared state, in the order of the code. As
// in the other model, a wake-up is lost if bytes have arrived and no steps lead to a world where
// they are read.

// The places of a serving goroutine.
const (
	sIdle = iota
	sTry  // try to lock the role
	sMark // set missed
	sAgain
	sPair // look whether the pair has ended
	sBell // ask for the own bell, after a report of it
	sEnter
	sAskPair
	sEnded
	sOwn // ask for the own bell
	sRead
	sUnlock
	sMissed
)

// The further places of the drainer.
const (
	dScan = sMissed + 1 + iota
	dHush
	dAsleep
	dCheck
	dSleep
	dAwake
	dEnd
	dGone
)

// The places of the producer.
const (
	pubIdle = iota
	pubAsks
	pubTake
	pubBit
	pubAsleep
	pubRing
	pubEnded
	pubBell
	pubDead
)

const (
	drains = iota
	polls
	unlocks
	holds
	roleFree = 255
)

// A pairWorld is the state of the model.
type pairWorld struct {
	arrived       bool
	asks          uint8 // 0, 1: own bell, 2: pair
	bit, asleep   bool
	rung, hung    bool // the bell of the pair
	reported      bool // the own bell, as the shared poller sees it
	entered       bool // the connection is in the table
	ended, theirs bool // whether this side and the producer's side know that the pair has ended
	role          uint8
	missed        bool
	again         uint8 // goroutines that unlock has started, and that have not begun
	sends, rounds uint8 // publications and holds of the role still to come
	ends, mortal  bool  // the pair may still end, and the producer may still die
	producer      uint8
	at            [4]uint8 // the serving goroutines, and whoever else has the role
	closing       bool     // the drainer serves the connection for the last time
}

// A pairModel is the model with at most one part left out.
type pairModel struct{ without string }

const (
	withoutAsk    = "serves without asking first"
	withoutCheck  = "sleeps without looking at the bits after asleep is set"
	withoutMissed = "forgets a report that finds the role taken"
	withoutAgain  = "does not try again after missed is set"
	withoutUnlock = "does not look at missed after unlocking the role"
	withoutEnded  = "does not look whether the pair has ended after asking for it"
)

func (m pairModel) successors(w pairWorld) (out []change[pairWorld]) {
	add := func(what string, f func(n *pairWorld)) {
		n := w
		f(&n)
		if n != w {
			out = append(out, change[pairWorld]{what, n})
		}
	}
	if w.ends {
		add("this side ends the pair", func(n *pairWorld) { n.ends, n.ended, n.hung = false, true, true })
		add("the peer ends the pair", func(n *pairWorld) { n.ends, n.theirs, n.hung = false, true, true })
	}
	if w.mortal {
		add("the producer dies", func(n *pairWorld) {
			n.mortal, n.producer, n.sends, n.hung, n.reported = false, pubDead, 0, true, true
		})
	}
	m.publish(w, add)
	m.drain(w, add)
	if w.at[polls] == sIdle && w.reported {
		add("poller takes a report", func(n *pairWorld) { n.reported = false; n.at[polls] = sTry })
	}
	if w.at[unlocks] == sIdle && w.again > 0 {
		add("another goroutine begins", func(n *pairWorld) { n.again--; n.at[unlocks] = sTry })
	}
	for i, name := range []string{"drainer", "poller", "other goroutine"} {
		m.serve(w, i, name+" ", add)
	}
	switch w.at[holds] {
	case sIdle:
		if w.rounds > 0 && w.role == roleFree {
			add("somebody locks the role", func(n *pairWorld) { n.rounds--; n.role = holds; n.at[holds] = sUnlock })
		}
	default:
		m.serve(w, holds, "somebody ", add)
	}
	return out
}

func (m pairModel) publish(w pairWorld, add func(string, func(*pairWorld))) {
	switch w.producer {
	case pubIdle:
		if w.sends > 0 {
			add("producer publishes", func(n *pairWorld) { n.sends--; n.arrived = true; n.producer = pubAsks })
		}
	case pubAsks:
		add("producer looks for a request", func(n *pairWorld) {
			n.producer = pubTake
			if n.asks == 0 {
				n.producer = pubIdle
			}
		})
	case pubTake:
		add("producer takes the request", func(n *pairWorld) {
			n.producer = [3]uint8{pubIdle, pubBell, pubBit}[n.asks]
			n.asks = 0
		})
	case pubBit:
		add("producer sets the bit", func(n *pairWorld) { n.bit = true; n.producer = pubAsleep })
	case pubAsleep:
		add("producer looks at asleep", func(n *pairWorld) {
			n.producer = pubEnded
			if n.asleep {
				n.asleep, n.producer = false, pubRing
			}
		})
	case pubRing:
		add("producer rings the bell of the pair", func(n *pairWorld) {
			n.producer = pubEnded
			if n.hung {
				n.theirs = true
			} else {
				n.rung = true
			}
		})
	case pubEnded:
		add("producer looks whether the pair has ended", func(n *pairWorld) {
			n.producer = pubIdle
			if n.theirs {
				n.producer = pubBell
			}
		})
	case pubBell:
		add("producer rings the own bell", func(n *pairWorld) { n.reported = true; n.producer = pubIdle })
	}
}

func (m pairModel) drain(w pairWorld, add func(string, func(*pairWorld))) {
	to := func(what string, at uint8) {
		add("drainer "+what, func(n *pairWorld) { n.at[drains] = at })
	}
	switch w.at[drains] {
	case sIdle: // a connection was served
		if w.closing {
			to("is done", dGone)
		} else {
			to("goes on", dScan)
		}
	case dScan:
		switch {
		case w.bit:
			add("drainer takes the bit", func(n *pairWorld) {
				n.bit = false
				if n.entered {
					n.at[drains] = sTry
				}
			})
		default:
			to("finds no bit", dHush)
		}
	case dHush:
		add("drainer empties the bell", func(n *pairWorld) {
			n.rung, n.at[drains] = false, dAsleep
			if n.hung {
				n.ended, n.at[drains] = true, dAwake
			}
		})
	case dAsleep:
		add("drainer sets asleep", func(n *pairWorld) {
			n.asleep, n.at[drains] = true, dCheck
			if m.without == withoutCheck {
				n.at[drains] = dSleep
			}
		})
	case dCheck:
		if w.bit {
			to("finds a bit", dAwake)
		} else {
			to("finds no bit, and sleeps", dSleep)
		}
	case dSleep:
		if w.rung || w.hung {
			to("is woken", dHush)
		}
	case dAwake:
		add("drainer clears asleep", func(n *pairWorld) {
			n.asleep, n.at[drains] = false, dScan
			if n.ended {
				n.at[drains] = dEnd
			}
		})
	case dEnd:
		add("drainer empties the table", func(n *pairWorld) {
			n.at[drains] = dGone
			if n.entered {
				n.entered, n.closing, n.at[drains] = false, true, sTry
			}
		})
	}
}

func (m pairModel) serve(w pairWorld, i int, name string, add func(string, func(*pairWorld))) {
	me := uint8(i)
	step := func(what string, f func(n *pairWorld) (to uint8)) {
		add(name+what, func(n *pairWorld) { n.at[i] = f(n) })
	}
	switch w.at[i] {
	case sTry:
		step("tries for the role", func(n *pairWorld) uint8 {
			switch {
			case n.role == roleFree:
				n.role = me
				return sPair
			case m.without == withoutMissed:
				return sIdle
			}
			return sMark
		})
	case sMark:
		step("sets missed", func(n *pairWorld) uint8 {
			n.missed = true
			if m.without == withoutAgain {
				return sIdle
			}
			return sAgain
		})
	case sAgain:
		step("tries for the role again", func(n *pairWorld) uint8 {
			if n.role != roleFree {
				return sIdle
			}
			n.role, n.missed = me, false
			return sPair
		})
	case sPair:
		step("looks whether there is a pair", func(n *pairWorld) uint8 {
			switch {
			case m.without == withoutAsk:
				return sRead
			case n.ended:
				return sOwn
			case i == drains:
				return sAskPair
			}
			return sBell
		})
	case sBell:
		step("asks for the own bell first", func(n *pairWorld) uint8 { n.asks = 1; return sEnter })
	case sEnter:
		step("enters the connection in the table", func(n *pairWorld) uint8 { n.entered = true; return sAskPair })
	case sAskPair:
		step("asks for the pair", func(n *pairWorld) uint8 {
			n.asks = 2
			if m.without == withoutEnded {
				return sRead
			}
			return sEnded
		})
	case sEnded:
		step("looks whether the pair has ended", func(n *pairWorld) uint8 {
			if n.ended {
				return sOwn
			}
			return sRead
		})
	case sOwn:
		step("asks for the own bell", func(n *pairWorld) uint8 { n.asks = 1; return sRead })
	case sRead:
		step("reads", func(n *pairWorld) uint8 { n.arrived = false; return sUnlock })
	case sUnlock:
		step("unlocks the role", func(n *pairWorld) uint8 {
			n.role = roleFree
			if m.without == withoutUnlock {
				return sIdle
			}
			return sMissed
		})
	case sMissed:
		step("looks whether a report was missed", func(n *pairWorld) uint8 {
			if n.missed {
				n.missed = false
				n.again++
			}
			return sIdle
		})
	}
}

// starts returns the worlds after the registration, and after the first report. In each, nothing
// ends, or the pair may end, or the producer may die: an end that is still to come would have the
// bytes read.
func (m pairModel) starts() (all []pairWorld) {
	w := pairWorld{asks: 1, sends: 2, rounds: 1, role: roleFree}
	w.at[drains] = dScan
	used := w
	used.asks, used.entered = 2, true
	for _, w := range []pairWorld{w, used} {
		all = append(all, w)
		if !w.entered {
			w.rounds = 0 // fewer worlds
		}
		w.ends = true
		all = append(all, w)
		w.ends, w.mortal, w.rounds = false, true, 0
		all = append(all, w)
	}
	return all
}

func (m pairModel) explore() (worlds int, trace []string, why string) {
	for _, start := range m.starts() {
		n, trace, why := explore(start, m.successors, func(w pairWorld) bool { return !w.arrived }, nil)
		worlds += n
		if why != "" {
			return worlds, trace, why
		}
	}
	return worlds, nil, ""
}

// TestNoWakeUpIsLostInAPair: no wake-up is lost, whatever happens between any two steps.
func TestNoWakeUpIsLostInAPair(t *testing.T) {
	if underRace {
		t.Skip("SKIPPED under the race detector: the model has one goroutine, and would take minutes")
	}
	n, trace, why := pairModel{}.explore()
	if why != "" {
		t.Errorf("%s after %d steps:\n%s", why, len(trace), strings.Join(trace, "\n"))
	}
	t.Logf("%d worlds", n)
	if n < 50000 {
		t.Errorf("%d worlds only: the model is not what it was", n)
	}
}

// TestPairModelFindsBreakage checks that the exploration finds each part that is left out.
func TestPairModelFindsBreakage(t *testing.T) {
	if underRace {
		t.Skip("SKIPPED under the race detector: the model has one goroutine, and would take minutes")
	}
	for _, what := range []string{withoutAsk, withoutCheck, withoutMissed, withoutAgain, withoutUnlock,
		withoutEnded} {
		t.Run(what, func(t *testing.T) {
			_, trace, why := pairModel{what}.explore()
			if why == "" {
				t.Fatal("not found")
			}
			t.Logf("%s:\n%s", why, strings.Join(trace, "\n"))
		})
	}
}
