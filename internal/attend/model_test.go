package attend

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"viaduct/internal/testkit"
)

// The model test explores every interleaving of a small model of an Attention: a peer that sends
// and closes, two consumers, the attendant, a shared poller, the sweep, and the timer of one
// millisecond. Each step of an actor is one access to state shared by the actors, in the order of
// the code, and the transition function of the package changes the state. A world is a combination
// of all states. A wake-up is lost if the model can reach a world from which no steps lead to a
// world where all arrived bytes are read. The test prints the shortest way to such a world.

// The places of the actors in their programs. A consumer's place is an offset into its script.
const (
	aNone = iota // there is no attendant
	// The attendant was started, and locks the role to check whether the stream is open.
	aStart
	aRunPolled // the attendant began in state Polled, and checks whether a consumer still polls
	aReady     // the attendant is at the source, and tries to lock the role
	aRole      // the attendant has the role, and checks the state
	aArm       // the attendant calls Arm
	aReceive   // the attendant reads
	aLeft      // bytes were left, and the consumer was woken: the attendant applies Left
	aLeftLook  // the attendant checks whether the consumer has polled meanwhile
	aSleep     // the attendant sleeps at the source
	aMove      // the attendant applies Contended
	aLook      // the attendant checks whether the consumer waits already
	aWaitRole  // the attendant waits until the role is free
	aAside     // the attendant checks whether to stay away from the source
	aTimer     // the attendant waits for the timer or for being resumed
	aRetire    // the attendant locks the role, to retire
	aRegister  // the attendant registers the source and applies Idle
)

const (
	pIdle = iota
	pServe
	pRole
	pReceive
	pLeft
	pMove
	pMiss  // the role was taken, and the connection has a pair: the poller sets missed
	pAgain // the poller tries for the role again
)

const (
	free = iota
	byAttendant
	byPoller
	byFirst // byFirst+1 stands for the second consumer
)

// A world is the state that all actors share, and their places.
type world struct {
	state                 State
	role                  uint8
	looks, seen           uint8
	waited                bool
	resume                bool  // the signal that wakes the attendant in state Polled
	arrived, eof          bool  // at the source, and not read
	left                  bool  // bytes were read, and left for a consumer that is about to poll
	keeps                 uint8 // number of further reads that leave bytes
	armed, report         bool  // the source, as the attendant sees it
	registered, reported  bool  // the source, as the poller sees it
	paired                bool  // the connection has a pair; the poller stands for a drainer too
	missed, again         bool  // a report found the role taken, and is served again
	interrupt             bool  // the sweep asks the attendant to retire
	sends, closes, sweeps uint8
	completions           [2]bool // bytes were read since the consumer last checked

	att      uint8
	attLooks uint8
	taken    bool // the attendant was contended because the role was locked
	poll     uint8
	at       [2]uint8 // the consumers' places
	ended    bool     // a Receive has found the end
}

// The steps of the consumers.
type op uint8

const (
	cLook  op = iota // change looks
	cTry             // try to lock the role; skip cRead and cFree if it is locked
	cRead            // read
	cFree            // unlock the role
	cLeft            // apply Left, if bytes were left
	cSeen            // set waited, in Wait
	cWait            // apply Wait
	cSleep           // sleep until bytes were read, or the stream has ended
	cDone
)

var (
	poll    = []op{cLook, cTry, cRead, cFree, cLeft}
	wait    = []op{cSeen, cWait}
	scripts = map[string][2][]op{
		"waits":       {join(poll, wait, []op{cSleep}, poll, wait), nil},
		"polls last":  {join(wait, []op{cSleep}, poll), nil},
		"two wait":    {join(poll, wait, []op{cSleep}, poll, wait), join(poll, wait)},
		"one polls":   {join(wait, []op{cSleep}, poll, wait), join(poll)},
		"no consumer": {nil, nil},
	}
)

func join(parts ...[]op) (all []op) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return append(all, cDone)
}

// A change is one step.
type change[W any] struct {
	what string
	to   W
}

// An explorer holds the parts of a model that do not change.
type explorer struct {
	script [2][]op
	next   func(State, Event) (State, Action)
}

// arrive makes bytes arrive at the source.
func (w *world) arrive() {
	if w.armed {
		w.report = true
	}
	if w.registered {
		w.reported = true
	}
}

// read reads the bytes at the source and the bytes that were left. The consumers then find
// completions. If keep is true, some bytes are left. It reports whether the stream has ended.
func (w *world) read(keep bool) (ended bool) {
	if w.arrived || w.left {
		w.completions = [2]bool{true, true}
	}
	w.arrived, w.left = false, false
	if keep {
		w.left = true
		w.keeps--
		return false
	}
	if w.eof {
		w.eof, w.ended = false, true
		return true
	}
	return false
}

// mayKeep reports whether a read may leave bytes.
func (w *world) mayKeep() bool { return w.keeps > 0 && (w.arrived || w.left) }

func (w *world) looked() bool {
	if w.looks == w.seen {
		return false
	}
	if !w.waited {
		return true
	}
	w.waited, w.seen = false, w.looks
	return false
}

func (x *explorer) move(w *world, e Event) Action {
	to, do := x.next(w.state, e)
	w.state = to
	return do
}

func (x *explorer) moveFrom(w *world, from State, e Event) bool {
	if w.state != from {
		return false
	}
	w.state, _ = x.next(from, e)
	return true
}

// dedicate starts the attendant. It panics if there is an attendant, because two would sleep at the
// same source.
func (w *world) dedicate() {
	w.registered, w.reported = false, false
	if w.att != aNone {
		panic("a second attendant")
	}
	w.att = aStart
}

// close performs the end of a Receive that finds the end of the stream, when it unlocks the role.
func (x *explorer) close(w *world) {
	x.move(w, Close)
	w.resume = true
}

// successors returns every step that is possible in w.
func (x *explorer) successors(w world) (out []change[world]) {
	add := func(what string, f func(n *world)) {
		n := w
		f(&n)
		if n.role == free && w.role != free && n.missed {
			n.missed, n.again = false, true // unlock starts another goroutine; see pair_model_test.go
		}
		if n != w {
			out = append(out, change[world]{what, n})
		}
	}
	if w.sends > 0 {
		add("peer sends", func(n *world) { n.sends--; n.arrived = true; n.arrive() })
	}
	if w.sends == 0 && w.closes > 0 {
		add("peer closes", func(n *world) { n.closes--; n.eof = true; n.arrive() })
	}
	if w.sweeps > 0 && w.att != aNone {
		add("sweep interrupts", func(n *world) { n.sweeps--; n.interrupt = true })
	}
	x.attendant(w, add)
	x.poller(w, add)
	for i := range w.at {
		x.consumer(w, i, add)
	}
	return out
}

func (x *explorer) attendant(w world, add func(string, func(*world))) {
	switch w.att {
	case aStart:
		if w.role == free {
			add("attendant starts", func(n *world) {
				switch n.state {
				case Closed:
					n.att = aNone
				case Polled:
					n.att, n.attLooks = aRunPolled, n.looks
				default:
					n.att = aReady
				}
			})
		}
	case aRunPolled:
		add("attendant looks whether a consumer polls", func(n *world) {
			if !n.looked() {
				x.moveFrom(n, Polled, Quiet)
			}
			n.att = aAside
		})
	case aReady:
		add("attendant tries for the role", func(n *world) {
			if n.role != free {
				n.att, n.taken, n.armed, n.report = aMove, true, false, false
				n.attLooks = n.looks
			} else {
				n.role, n.att = byAttendant, aRole
			}
		})
	case aRole:
		add("attendant looks at the state", func(n *world) {
			switch {
			case n.state == Closed:
				n.role, n.att = free, aNone
			case n.looked():
				n.role, n.att, n.taken, n.armed, n.report = free, aMove, false, false, false
				n.attLooks = n.looks
			default:
				n.att = aArm
			}
		})
	case aArm:
		add("attendant arms", func(n *world) { n.armed, n.att = true, aReceive })
	case aReceive:
		add("attendant reads", func(n *world) {
			if n.read(false) {
				x.close(n)
				n.att = aNone
			} else {
				n.att = aSleep
			}
			n.role = free
		})
		if w.mayKeep() {
			add("attendant reads and leaves something", func(n *world) {
				n.attLooks = n.looks
				n.read(true)
				n.role, n.att = free, aLeft
			})
			add("attendant reads and leaves something that is not kept", func(n *world) {
				n.read(true)
				n.role, n.att = free, aReady
			})
		}
	case aLeft:
		add("attendant applies Left", func(n *world) {
			n.armed, n.report = false, false
			x.move(n, Left)
			n.att = aLeftLook
		})
	case aLeftLook:
		add("attendant looks whether the consumer was here", func(n *world) {
			if n.looks != n.attLooks && !n.looked() {
				x.moveFrom(n, Polled, Quiet)
			}
			n.att = aAside
		})
	case aSleep:
		if w.report {
			add("attendant is woken", func(n *world) { n.report, n.att = false, aReady })
		}
		if w.state == Closed {
			add("attendant is woken by the end", func(n *world) { n.att = aReady })
		}
		if w.interrupt {
			add("attendant is interrupted", func(n *world) {
				n.interrupt, n.armed, n.report, n.att = false, false, false, aRetire
			})
		}
	case aMove:
		add("attendant applies Contended", func(n *world) {
			n.att = aLook
			x.move(n, Contended)
		})
	case aLook:
		add("attendant looks whether the consumer waits", func(n *world) {
			n.att = aAside
			if !n.looked() {
				x.moveFrom(n, Polled, Quiet)
				if n.taken {
					n.att = aWaitRole
				}
			}
		})
	case aWaitRole:
		if w.role == free {
			add("attendant finds the role free", func(n *world) { n.att = aAside })
		}
	case aAside:
		add("attendant looks at the state from aside", func(n *world) {
			switch n.state {
			case Closed:
				n.att = aNone
			case Polled:
				n.att = aTimer
			default:
				n.att = aReady
			}
		})
	case aTimer:
		if w.resume {
			add("attendant is resumed", func(n *world) { n.resume, n.att = false, aAside })
		}
		add("the timer fires", func(n *world) {
			if n.looks != n.attLooks {
				n.attLooks = n.looks
			} else {
				n.seen = n.looks
				x.moveFrom(n, Polled, Quiet)
			}
			n.att = aAside
		})
	case aRetire:
		if w.role == free {
			add("attendant takes the role to retire", func(n *world) {
				switch n.state {
				case Closed:
					n.att = aNone
				case Polled:
					n.att = aReady
				default:
					n.role, n.att = byAttendant, aRegister
				}
			})
		}
	case aRegister:
		add("attendant registers the source", func(n *world) {
			n.role = free
			// Registration and state change in one step, under the lock of the poller.
			if !n.left && x.moveFrom(n, Dedicated, Idle) {
				n.att = aNone
				n.registered, n.reported = true, n.arrived || n.eof
			} else {
				n.att = aReady
			}
		})
	}
}

func (x *explorer) poller(w world, add func(string, func(*world))) {
	switch w.poll {
	case pIdle:
		if w.registered && w.reported {
			add("poller takes a report", func(n *world) { n.reported, n.poll = false, pServe })
		}
		if w.again {
			add("a missed report is served", func(n *world) { n.again, n.poll = false, pServe })
		}
	case pServe:
		add("poller tries for the role", func(n *world) {
			switch {
			case n.role == free:
				n.role, n.poll = byPoller, pRole
			case n.paired:
				n.poll = pMiss
			default:
				n.poll = pMove
			}
		})
	case pMiss:
		add("poller sets missed", func(n *world) { n.missed, n.poll = true, pAgain })
	case pAgain:
		add("poller tries for the role again", func(n *world) {
			n.poll = pIdle
			if n.role == free {
				n.role, n.missed, n.poll = byPoller, false, pRole
			}
		})
	case pRole:
		add("poller looks at the state", func(n *world) {
			switch {
			case n.state != Shared:
				n.role, n.poll = free, pIdle
			case n.looked():
				n.role, n.poll = free, pMove
			default:
				n.poll = pReceive
			}
		})
	case pReceive:
		add("poller reads", func(n *world) {
			if n.read(false) {
				x.close(n)
			}
			n.role, n.poll = free, pIdle
		})
		if w.mayKeep() {
			add("poller reads and leaves something", func(n *world) {
				n.read(true)
				n.role, n.poll = free, pLeft
			})
		}
	case pLeft:
		add("poller applies Left", func(n *world) {
			n.poll, n.waited = pIdle, false
			n.looks++
			if n.state == Shared && x.move(n, Left) == Dedicate {
				n.dedicate()
			}
		})
	case pMove:
		add("poller applies Contended", func(n *world) {
			n.poll = pIdle
			if n.state == Shared && x.move(n, Contended) == Dedicate {
				n.dedicate()
			}
		})
	}
}

func (x *explorer) consumer(w world, i int, add func(string, func(*world))) {
	if int(w.at[i]) >= len(x.script[i]) {
		return
	}
	me := uint8(byFirst + i)
	name := fmt.Sprintf("consumer %d ", i+1)
	switch x.script[i][w.at[i]] {
	case cLook:
		add(name+"begins to poll", func(n *world) { n.looks++; n.at[i]++ })
	case cTry:
		add(name+"tries for the role", func(n *world) {
			if n.role != free {
				n.at[i] += 4
				return
			}
			n.role = me
			n.at[i]++
		})
	case cRead:
		add(name+"reads", func(n *world) {
			n.at[i]++
			if n.state != Closed && n.read(false) {
				x.close(n)
			}
			n.completions[i] = false
		})
		if w.state != Closed && w.mayKeep() {
			add(name+"reads and leaves something", func(n *world) {
				n.at[i]++
				n.read(true)
				n.completions[i] = false
			})
		}
	case cLeft:
		add(name+"applies Left", func(n *world) {
			n.at[i]++
			if !n.left {
				return
			}
			from := n.state
			switch do := x.move(n, Left); {
			case do == Dedicate:
				n.dedicate()
			case from == Dedicated:
				n.interrupt = true
			}
		})
	case cFree:
		add(name+"gives the role back", func(n *world) { n.role = free; n.at[i]++ })
	case cSeen:
		add(name+"stops looking", func(n *world) { n.waited = true; n.at[i]++ })
	case cWait:
		add(name+"applies Wait", func(n *world) {
			n.at[i]++
			if x.move(n, Wait) == Resume {
				n.resume = true
			}
		})
	case cSleep:
		if w.completions[i] || w.ended {
			add(name+"is woken", func(n *world) { n.completions[i] = false; n.at[i]++ })
		}
	case cDone:
		if int(w.at[i]) < len(x.script[i])-1 {
			add(name+"goes", func(n *world) { n.at[i]++ })
		}
	}
}

// explore explores the model from start.
func (x *explorer) explore(start world) (worlds int, trace []string, why string) {
	read := func(w world) bool { return !w.arrived && !w.eof && !w.left || w.state == Closed }
	return explore(start, x.successors, read, func(w world) string { return w.state.String() })
}

// explore returns the number of reachable worlds from start. read reports whether all arrived bytes
// are read in a world. If they can never be read in some world, trace has the steps to the first
// such world, and why the reason. show, if not nil, describes the world after each step.
func explore[W comparable](start W, successors func(W) []change[W], read func(W) bool, show func(W) string) (worlds int, trace []string, why string) {
	var (
		all              = []W{start}
		number           = map[W]int32{start: 0}
		from             = []int32{0} // the world from which each world was first reached
		what             = []string{""}
		before [][]int32 = [][]int32{nil} // all worlds that lead to each world
	)
	path := func(n int32) (steps []string) {
		for ; n != 0; n = from[n] {
			s := what[n]
			if show != nil {
				s = fmt.Sprintf("%-48s %s", s, show(all[n]))
			}
			steps = append(steps, s)
		}
		slices.Reverse(steps)
		return steps
	}
	for n := int32(0); int(n) < len(all); n++ {
		out, err := try(successors, all[n])
		if err != "" {
			return len(all), path(n), err
		}
		for _, c := range out {
			k, ok := number[c.to]
			if !ok {
				k = int32(len(all))
				number[c.to] = k
				all, from, what, before = append(all, c.to), append(from, n), append(what, c.what), append(before, nil)
			}
			before[k] = append(before[k], n)
		}
	}
	// Go backwards from the worlds without unread bytes.
	good := make([]bool, len(all))
	var queue []int32
	for n, w := range all {
		if read(w) {
			good[n] = true
			queue = append(queue, int32(n))
		}
	}
	for len(queue) > 0 {
		n := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, b := range before[n] {
			if !good[b] {
				good[b] = true
				queue = append(queue, b)
			}
		}
	}
	if n := slices.Index(good, false); n >= 0 {
		return len(all), path(int32(n)),
			"a wake-up is lost: something has arrived, and nothing that can happen reads it"
	}
	return len(all), nil, ""
}

// try returns the successors of w, or the panic of the model.
func try[W any](successors func(W) []change[W], w W) (out []change[W], err string) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Sprint(r)
		}
	}()
	return successors(w), ""
}

// starts returns the worlds after Start, with a shared poller, with an attendant, and with a shared
// poller and a pair. In each world the future has two arrivals, or an arrival and the end of the
// stream, or an arrival and a sweep, or an arrival read in two parts. Two consumers and a pair have
// most of the worlds, and are explored at full length only.
func starts(script [2][]op) (all []world) {
	for _, w := range []world{{sends: 2}, {sends: 1, closes: 1}, {sends: 1, sweeps: 1}, {sends: 1, keeps: 1}} {
		shared, dedicated := w, w
		shared.state, shared.registered = Shared, true
		dedicated.state, dedicated.att = Dedicated, aReady
		paired := shared
		paired.paired = true
		all = append(all, shared, dedicated)
		if script[1] == nil || testkit.LongRuns() {
			all = append(all, paired)
		}
	}
	return all
}

// TestNoWakeUpIsLost: no wake-up is lost, whatever happens between any two steps of two consumers,
// the attendant, a shared poller, the sweep, the timer, arrivals and the end.
func TestNoWakeUpIsLost(t *testing.T) {
	if underRace {
		t.Skip("SKIPPED under the race detector: the model has one goroutine, and would take minutes")
	}
	total := 0
	for name, script := range scripts {
		for _, start := range starts(script) {
			x := &explorer{script, next}
			n, trace, why := x.explore(start)
			total += n
			if why != "" {
				t.Errorf("%s, from %v: %s after %d steps:\n%s", name, start.state, why, len(trace),
					strings.Join(trace, "\n"))
			}
		}
	}
	t.Logf("%d worlds", total)
	if total < 50000 {
		t.Errorf("%d worlds only: the model is not what it was", total)
	}
}

// TestModelFindsBreakage checks that the exploration finds a broken transition table. Each of the
// changes looks harmless.
func TestModelFindsBreakage(t *testing.T) {
	if underRace {
		t.Skip("SKIPPED under the race detector: the model has one goroutine, and would take minutes")
	}
	for _, b := range []struct {
		name string
		from State
		on   Event
		to   State
		do   Action
	}{
		{"what was left of a shared source starts no attendant", Shared, Left, Polled, Nothing},
		{"a contended arrival starts no attendant", Shared, Contended, Polled, Nothing},
		{"the attendant never returns to the source by itself", Polled, Quiet, Polled, Nothing},
		{"a retired connection counts as dedicated", Dedicated, Idle, Dedicated, Retire},
	} {
		t.Run(b.name, func(t *testing.T) {
			broken := func(s State, e Event) (State, Action) {
				if s == b.from && e == b.on {
					return b.to, b.do
				}
				return next(s, e)
			}
			for _, script := range scripts {
				for _, start := range starts(script) {
					x := &explorer{script, broken}
					if _, trace, why := x.explore(start); why != "" {
						t.Logf("%s:\n%s", why, strings.Join(trace, "\n"))
						return
					}
				}
			}
			t.Error("not found")
		})
	}
}
