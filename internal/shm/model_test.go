package shm

import (
	"bytes"
	"strings"
	"testing"
)

// The model explores every interleaving of the protocol that wakes a sleeping end. A producer
// publishes a few times; a consumer polls or sleeps. A poller may at any moment read on the
// consumer's behalf, as a thread with the receive role does. The poller may first take wake-ups
// from the bell, because the producer's memory arrives with a wake-up. The producer's process may
// die between two steps. Each step is one access to shared state, in the order of the code. A
// wake-up is lost if the model can reach a world where something was published or the producer is
// dead, no step is possible, and the consumer sleeps.
//
// The bell is a stream of wake-ups that ends with the producer's process. The arrival of a wake-up
// or of the end is reported to a sleeper once, provided that the bell has something to take at the
// time of the report.
//
// Waiting for room is the same protocol with the roles exchanged: the consumer publishes its
// position, and the producer sleeps.

// A world is the shared state together with the place of each side in its order of steps.
type world struct {
	there  bool  // something is published and not read
	asks   bool  // the consumer's request
	bell   uint8 // wake-ups on their way or not taken
	hungUp bool  // the bell has ended
	news   bool  // something arrived at the bell since the last report
	gone   bool  // the consumer knows that the bell has ended
	owes   bool  // the producer has taken the request and has not rung the bell yet
	sends  uint8 // publications to come
	mortal bool  // the producer may still die

	producer uint8 // index of the next step
	consumer uint8
	other    uint8 // reads that the poller may still make
	beside   uint8 // index of the poller's next step
}

// An order is a sequence of steps for each side. Wrong sequences are a check that the model finds
// lost wake-ups.
type order struct {
	// p publish, l look for the request and skip the rest without one, x take the request, b ring
	// the bell.
	producer []byte
	consumer []byte // d take wake-ups including the end, D take wake-ups only, a ask, r read, s sleep
	beside   []byte // steps of the poller, if it takes wake-ups from the bell
}

// told is the consumer's place after it has reported the end.
const told = 255

// reports reports whether the bell wakes a sleeper.
func (w *world) reports() bool { return w.news && (w.bell > 0 || w.hungUp) }

var (
	asWritten = order{[]byte("plxb"), []byte("dars"), []byte("dar")}
	wrong     = map[string]order{
		"looks before it publishes":                   {[]byte("lxpb"), []byte("dars"), []byte("dar")},
		"reads before it asks":                        {[]byte("plxb"), []byte("dras"), []byte("dar")},
		"takes wake-ups at the end":                   {[]byte("plxb"), []byte("ards"), []byte("dar")},
		"leaves the end in the bell behind a wake-up": {[]byte("plxb"), []byte("Dars"), []byte("dar")},
		"takes the wake-ups of another":               {[]byte("plxb"), []byte("dars"), []byte("dr")},
	}
)

// steps returns the worlds that are one step from w, and a name for each step.
func (o order) steps(w world) (names []string, to []world) {
	add := func(what string, n world) { names, to = append(names, what), append(to, n) }
	// The producer restarts after its last step, as long as it has something to publish.
	if n := w; w.producer > 0 || w.sends > 0 {
		at := int(w.producer)
		if at == 0 {
			n.sends--
		}
		n.producer = uint8((at + 1) % len(o.producer))
		switch o.producer[at] {
		case 'p':
			n.there = true
			add("publish", n)
		case 'l':
			if !w.asks {
				n.producer = o.without(at)
				add("not asked", n)
			} else {
				add("asked", n)
			}
		case 'x':
			n.asks, n.owes = false, w.asks
			if !w.asks {
				n.producer = o.without(at)
				add("the request was taken already", n)
			} else {
				add("take the request", n)
			}
		case 'b':
			if w.owes {
				n.bell++
				n.news = true
			}
			n.owes = false
			add("wake, if the request was taken", n)
		}
	}
	if w.mortal {
		n := w
		n.mortal, n.sends, n.producer, n.owes = false, 0, 0, false
		n.hungUp, n.news = true, true
		add("the producer dies", n)
	}
	if w.consumer == told {
		return names, to
	}
	n := w
	n.consumer = uint8((int(w.consumer) + 1) % len(o.consumer))
	switch o.consumer[w.consumer] {
	case 'd':
		n.bell, n.gone = 0, w.gone || w.hungUp
		add("take wake-ups", n)
	case 'D':
		n.bell, n.gone = 0, w.gone || w.hungUp && w.bell == 0
		add("take the wake-ups that there are", n)
	case 'a':
		n.asks = true
		add("ask", n)
	case 'r':
		if w.there {
			n.there, n.consumer = false, 0
			add("read", n)
		} else if w.gone {
			n.consumer = told
			add("tell of the end", n)
		} else {
			add("nothing there", n)
		}
	case 's':
		if w.reports() {
			n.news = false
			add("woken", n)
		}
	}
	switch n := w; {
	case w.beside > 0:
		n.beside = uint8((int(w.beside) + 1) % len(o.beside))
		switch o.beside[w.beside] {
		case 'a':
			n.asks = true
			add("the poller beside asks", n)
		case 'r':
			n.there = false
			add("the poller beside reads", n)
		}
	case w.other > 0:
		n.other--
		n.there = false
		add("a poller beside reads", n)
		n.there = w.there
		n.bell, n.gone, n.beside = 0, w.gone || w.hungUp, 1
		add("a poller beside takes wake-ups", n)
	}
	return names, to
}

// without returns the next step of a producer that need not wake the consumer: the next publication
// after step at, or 0, the first step, if there is no other publication.
func (o order) without(at int) uint8 {
	if i := bytes.IndexByte(o.producer[at:], 'p'); i >= 0 {
		return uint8(at + i)
	}
	return 0
}

// explore returns the names of the steps on a shortest way to a world with a lost wake-up, nil if
// there is none. It also returns the number of worlds.
func (o order) explore() (trace []string, worlds int) {
	type way struct {
		from world
		what string
	}
	start := world{sends: 3, other: 2, mortal: true}
	seen := map[world]way{start: {}}
	for queue := []world{start}; len(queue) > 0; queue = queue[1:] {
		w := queue[0]
		names, to := o.steps(w)
		asleep := w.consumer != told && o.consumer[w.consumer] == 's' && !w.reports()
		if (w.there || w.hungUp) && w.producer == 0 && w.sends == 0 && w.beside == 0 && asleep {
			for w != start {
				trace = append([]string{seen[w].what}, trace...)
				w = seen[w].from
			}
			return trace, len(seen)
		}
		for i, n := range to {
			if _, ok := seen[n]; !ok {
				seen[n] = way{w, names[i]}
				queue = append(queue, n)
			}
		}
	}
	return nil, len(seen)
}

func TestNoWakeUpIsLost(t *testing.T) {
	trace, n := asWritten.explore()
	t.Logf("%d worlds", n)
	if trace != nil {
		t.Errorf("nothing wakes the consumer:\n%s", strings.Join(trace, "\n"))
	}
	if n < 100 {
		t.Error("the model does not move")
	}
}

// TestModelFindsLostWakeUps: the model finds a lost wake-up in each wrong order, and none in the
// order of the code.
func TestModelFindsLostWakeUps(t *testing.T) {
	for name, o := range wrong {
		trace, _ := o.explore()
		if trace == nil {
			t.Errorf("%s: no wake-up is lost", name)
		}
		t.Logf("%s:\n%s", name, strings.Join(trace, "\n"))
	}
}
