package attend

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// This file explores every interleaving of a small model of one connection that is served by pair: a
// peer that publishes, two drainers (the second one has taken over), a consumer that polls, sleeps at
// its own bell, leaves bytes for later and waits, and the watch. It has the two handshakes, one above
// the other: position then asks, against asks then position; mark then asleep, against asleep then
// marks. As in model_test.go each step is one access to what is shared, in the order of the code, and
// a wake-up is lost if a world can be reached from which nothing leads to one where all is read.

// A pairWorld is what the actors share, and where they are.
type pairWorld struct {
	sends, keeps uint8 // what the peer sends yet; how often a read leaves something yet
	bytes, left  bool  // published and not read; read and left for the consumer
	asks         uint8 // 0, asksBell, asksPair
	mark         bool
	asleep       bool // the drainer says so
	rung         bool // the pair's bell has rung, or Again has interrupted
	news         uint8
	role         uint8 // whose it is, 0: free
	looks, seen  uint8
	waited       bool
	watch        bool  // the connection is on the watch's list, and the timer runs
	quiet        uint8 // looks as the watch saw it
	done         bool  // something was read since the consumer last looked
	peer         uint8
	drain        [2]uint8
	at           uint8 // the consumer's place in its script
	asked        uint8 // what the peer found in asks
	takeOvers    uint8 // how often another drainer may take over yet
	second       bool  // one has
}

const (
	asksBell = 1
	asksPair = 2
)

// The places of a drainer.
const (
	dTake = iota
	dNews
	dOwn
	dTry
	dWaits
	dLooked
	dNone
	dAsk
	dRead
	dLeft
	dFree
	dWatch
	dSays
	dLooks
	dSleeps
	dGone
)

// The steps of the consumer.
const (
	pcLook   = iota // looks moves
	pcTry           // it tries for the role
	pcRead          // it reads
	pcKeep          // news is left to it, if it has left bytes
	pcFree          // it gives the role back
	pcAgain         // it puts the mark back if news is newsUnlock
	pcSleepL        // as pcTry, to sleep at its own bell
	pcSleepK        // news is left to it
	pcSleepA        // it asks at its own bell
	pcSleepR        // it reads
	pcSleepF        // it gives the role back
	pcSleepU        // as pcAgain
	pcSleep         // it sleeps at its own bell, for a while at most
	pcWaited        // waited is set
	pcWait          // it puts the mark back if there are news
	pcPark          // it sleeps until something was read
	pcEnd
)

// The scripts of consumers: one that polls and waits, one that sleeps at its own bell between, one
// that does not wait in the end, one that looks once, and none.
var pairScripts = map[string][]uint8{
	"waits":  {pcLook, pcTry, pcRead, pcKeep, pcFree, pcAgain, pcWaited, pcWait, pcPark, pcLook, pcTry, pcRead, pcKeep, pcFree, pcAgain, pcWaited, pcWait, pcEnd},
	"sleeps": {pcSleepL, pcSleepK, pcSleepA, pcSleepR, pcSleepF, pcSleepU, pcSleep, pcLook, pcTry, pcRead, pcKeep, pcFree, pcAgain, pcWaited, pcWait, pcPark, pcEnd},
	"leaves": {pcSleepL, pcSleepK, pcSleepA, pcSleepR, pcSleepF, pcSleepU, pcLook, pcTry, pcRead, pcKeep, pcFree, pcAgain, pcEnd},
	"once":   {pcLook, pcTry, pcRead, pcKeep, pcFree, pcAgain, pcWaited, pcWait, pcEnd},
	"none":   {pcEnd},
}

// A pairBreakage is one mistake in the order of things.
type pairBreakage uint8

const (
	soundPair       pairBreakage = iota
	waitForgets                  // Wait does not put the mark back
	unlockForgets                // Unlock does not look at news
	sleepLooksFirst              // the drainer looks for marks, then says that it sleeps
	readsFirst                   // the drainer reads, then asks
	bellForgets                  // a consumer that sleeps at its own bell does not set news
	looksFirst                   // the drainer finds the consumer looking, then sets news
)

type pairExplorer struct {
	script []uint8
	broken pairBreakage

	// The watch takes a millisecond. A consumer that waits must not need it.
	noWatch bool
}

func (w *pairWorld) again() {
	w.mark = true
	if w.asleep {
		w.asleep, w.rung = false, true
	}
}

func (w *pairWorld) doesLook() bool {
	if w.looks == w.seen {
		return false
	}
	if !w.waited {
		return true
	}
	w.waited, w.seen = false, w.looks
	return false
}

// read takes what is there. With keep some of it is left.
func (w *pairWorld) read(keep bool) {
	if w.bytes || w.left {
		w.done = true
	}
	w.bytes, w.left = false, keep
	if keep {
		w.keeps--
	}
}

func (w *pairWorld) onWatch() { w.watch = true }

func (x *pairExplorer) successors(w pairWorld) (out []pairChange) {
	add := func(what string, f func(n *pairWorld)) {
		n := w
		if f(&n); n != w {
			out = append(out, pairChange{what, n})
		}
	}
	x.peer(w, add)
	for i := range w.drain {
		if i == 0 || w.second {
			x.drainer(w, i, add)
		}
	}
	if w.takeOvers > 0 && w.drain[0] > dTake && w.drain[0] < dSays {
		add("another drainer takes over", func(n *pairWorld) { n.takeOvers--; n.second = true })
	}
	x.consumer(w, add)
	if w.watch && !x.noWatch {
		add("the watch looks", func(n *pairWorld) {
			n.watch = false
			switch {
			case n.news == newsNone:
			case n.quiet != n.looks:
				n.quiet = n.looks
				n.onWatch()
			default:
				n.seen, n.news = n.looks, newsNone
				n.again()
			}
		})
	}
	return out
}

type pairChange struct {
	what string
	to   pairWorld
}

func (x *pairExplorer) peer(w pairWorld, add func(string, func(*pairWorld))) {
	switch w.peer {
	case 0:
		if w.sends > 0 {
			add("peer publishes", func(n *pairWorld) { n.sends--; n.bytes, n.peer = true, 1 })
		}
	case 1:
		add("peer looks at asks", func(n *pairWorld) {
			n.asked, n.asks = n.asks, 0
			n.peer = 2
			if n.asked == 0 {
				n.peer = 0
			}
		})
	case 2:
		add("peer tells", func(n *pairWorld) {
			n.peer = 0
			if n.asked == asksPair { // who sleeps at the other bell looks within a moment anyway
				n.mark, n.peer = true, 3
			}
			n.asked = 0
		})
	case 3:
		add("peer looks whether the drainer sleeps", func(n *pairWorld) {
			n.peer = 0
			if n.asleep {
				n.asleep, n.rung = false, true
			}
		})
	}
}

func (x *pairExplorer) drainer(w pairWorld, i int, add func(string, func(*pairWorld))) {
	me := uint8(i + 1)
	name := fmt.Sprintf("drainer %d ", i+1)
	goTo := func(n *pairWorld, at uint8) { n.drain[i] = at }
	switch w.drain[i] {
	case dTake:
		add(name+"looks at the list", func(n *pairWorld) {
			switch {
			case n.mark:
				n.mark = false
				goTo(n, dNews)
			case x.broken == sleepLooksFirst:
				goTo(n, dLooks)
			default:
				goTo(n, dSays)
			}
		})
	case dNews:
		add(name+"has Unlock see to news", func(n *pairWorld) { n.news = newsUnlock; goTo(n, dOwn) })
	case dOwn:
		add(name+"looks at news", func(n *pairWorld) {
			if n.news == newsWait {
				x.next(n, i)
			} else {
				goTo(n, dTry)
			}
		})
	case dTry:
		add(name+"tries for the role", func(n *pairWorld) {
			if n.role != 0 {
				x.next(n, i)
				return
			}
			n.role = me
			goTo(n, dWaits)
			if x.broken == looksFirst {
				goTo(n, dLooked)
			}
		})
	case dWaits:
		add(name+"has Wait see to news", func(n *pairWorld) {
			n.news = newsWait
			goTo(n, dLooked)
			if x.broken == looksFirst {
				n.role = 0
				x.next(n, i)
			}
		})
	case dLooked:
		add(name+"looks whether a consumer looks", func(n *pairWorld) {
			switch {
			case !n.doesLook():
				goTo(n, dNone)
			case x.broken == looksFirst:
				goTo(n, dWaits)
			default:
				goTo(n, dFree)
				n.onWatch()
			}
		})
	case dNone:
		add(name+"sees to news", func(n *pairWorld) {
			n.news = newsNone
			goTo(n, dAsk)
			if x.broken == readsFirst {
				goTo(n, dRead)
			}
		})
	case dAsk:
		add(name+"asks", func(n *pairWorld) {
			n.asks = asksPair
			goTo(n, dRead)
			if x.broken == readsFirst {
				goTo(n, dFree)
			}
		})
	case dRead:
		after := uint8(dFree)
		if x.broken == readsFirst {
			after = dAsk
		}
		add(name+"reads", func(n *pairWorld) { n.read(false); goTo(n, after) })
		if w.keeps > 0 && w.bytes && x.broken != readsFirst && !x.noWatch {
			add(name+"reads and leaves something", func(n *pairWorld) { n.read(true); goTo(n, dLeft) })
		}
	case dLeft:
		add(name+"leaves it to Wait", func(n *pairWorld) {
			n.news = newsWait
			n.onWatch()
			goTo(n, dFree)
		})
	case dFree:
		add(name+"gives the role back", func(n *pairWorld) { n.role = 0; goTo(n, dWatch) })
	case dWatch:
		add(name+"looks at news after it", func(n *pairWorld) {
			if n.news == newsUnlock && x.broken != unlockForgets {
				n.news = newsNone
				n.again()
			}
			x.next(n, i)
		})
	case dSays:
		add(name+"says that it sleeps", func(n *pairWorld) {
			n.asleep, n.rung = true, false
			goTo(n, dLooks)
			if x.broken == sleepLooksFirst {
				goTo(n, dSleeps)
			}
		})
	case dLooks:
		add(name+"looks for marks", func(n *pairWorld) {
			switch {
			case n.mark:
				n.asleep = false
				goTo(n, dTake)
			case x.broken == sleepLooksFirst:
				goTo(n, dSays)
			default:
				goTo(n, dSleeps)
			}
		})
	case dSleeps:
		if w.rung {
			add(name+"is woken", func(n *pairWorld) { n.rung, n.asleep = false, false; goTo(n, dTake) })
		}
	}
}

// next is what a drainer does after a connection: the first one has ended if another has taken over.
func (x *pairExplorer) next(n *pairWorld, i int) {
	n.drain[i] = dTake
	if i == 0 && n.second {
		n.drain[i] = dGone
	}
}

func (x *pairExplorer) consumer(w pairWorld, add func(string, func(*pairWorld))) {
	const me = 3
	unlock := func(n *pairWorld) {
		n.at++
		if n.news == newsUnlock && x.broken != unlockForgets {
			n.news = newsNone
			n.again()
		}
	}
	try := func(n *pairWorld, steps uint8) {
		if n.role != 0 {
			n.at += steps
			return
		}
		n.role = me
		n.at++
	}
	switch x.script[w.at] {
	case pcLook:
		add("consumer begins to poll", func(n *pairWorld) { n.looks++; n.at++ })
	case pcTry:
		add("consumer tries for the role", func(n *pairWorld) { try(n, 5) })
	case pcRead, pcSleepR:
		add("consumer reads", func(n *pairWorld) { n.read(false); n.done = false; n.at++ })
		if w.keeps > 0 && w.bytes && x.script[w.at] == pcRead {
			add("consumer reads and leaves something", func(n *pairWorld) { n.read(true); n.done = false; n.at++ })
		}
	case pcKeep:
		add("consumer keeps news for what is left", func(n *pairWorld) {
			n.at++
			if n.left {
				n.news = newsWait
				n.onWatch()
			}
		})
	case pcFree, pcSleepF:
		add("consumer gives the role back", func(n *pairWorld) { n.role = 0; n.at++ })
	case pcAgain, pcSleepU:
		add("consumer looks at news after it", unlock)
	case pcSleepL:
		add("consumer tries for the role to sleep", func(n *pairWorld) { try(n, 6) })
	case pcSleepK:
		add("consumer keeps news for its sleep", func(n *pairWorld) {
			n.at++
			if x.broken != bellForgets {
				n.news = newsWait
				n.onWatch()
			}
		})
	case pcSleepA:
		add("consumer asks at its bell", func(n *pairWorld) { n.asks = asksBell; n.at++ })
	case pcSleep:
		add("consumer ends its sleep", func(n *pairWorld) { n.at++ })
	case pcWaited:
		add("consumer stops looking", func(n *pairWorld) { n.waited = true; n.at++ })
	case pcWait:
		add("consumer puts the mark back", func(n *pairWorld) {
			n.at++
			if n.news != newsNone && x.broken != waitForgets {
				n.news = newsNone
				n.again()
			}
		})
	case pcPark:
		if w.done {
			add("consumer is woken", func(n *pairWorld) { n.done = false; n.at++ })
		}
	}
}

// explore returns the number of worlds, and the way to the first from which not everything can be
// read any more.
func (x *pairExplorer) explore(start pairWorld) (worlds int, trace []string) {
	all, number := []pairWorld{start}, map[pairWorld]int32{start: 0}
	from, what, before := []int32{0}, []string{""}, [][]int32{nil}
	for n := int32(0); int(n) < len(all); n++ {
		for _, c := range x.successors(all[n]) {
			k, ok := number[c.to]
			if !ok {
				k = int32(len(all))
				number[c.to] = k
				all, from, what, before = append(all, c.to), append(from, n), append(what, c.what), append(before, nil)
			}
			before[k] = append(before[k], n)
		}
	}
	good := make([]bool, len(all))
	var queue []int32
	for n, w := range all {
		if !w.bytes && !w.left {
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
	n := slices.Index(good, false)
	if n < 0 {
		return len(all), nil
	}
	for k := int32(n); k != 0; k = from[k] {
		trace = append(trace, what[k])
	}
	slices.Reverse(trace)
	return len(all), trace
}

// pairCases calls f for the scripts and worlds that are explored: after registerPair, which marks the
// connection, and while the drainer sleeps; with two arrivals, with one that is read in two parts, and
// with one while another drainer takes over.
func pairCases(f func(name string, x pairExplorer, start pairWorld) bool) {
	for name, script := range pairScripts {
		for _, noWatch := range []bool{false, true} {
			if waits := script[max(0, len(script)-2)] == pcWait; noWatch && !waits {
				continue
			}
			for i, start := range []pairWorld{
				{sends: 2, asks: asksPair, asleep: true, drain: [2]uint8{dSleeps, dTake}},
				{sends: 1, keeps: 1, mark: true, asks: asksPair},
				{sends: 1, takeOvers: 1, mark: true, asks: asksPair},
			} {
				if start.takeOvers > 0 && name != "once" {
					continue
				}
				if !f(fmt.Sprintf("%s, start %d, noWatch %t", name, i, noWatch), pairExplorer{script: script, noWatch: noWatch}, start) {
					return
				}
			}
		}
	}
}

// No wake-up is lost between a pair of processes, whatever happens between any two steps.
func TestNoWakeUpOfPairIsLost(t *testing.T) {
	if underRace {
		t.Skip("SKIPPED under the race detector: the model has one goroutine, and would take minutes")
	}
	total := 0
	pairCases(func(name string, x pairExplorer, start pairWorld) bool {
		n, trace := x.explore(start)
		total += n
		if trace != nil {
			t.Errorf("%s: a wake-up is lost after %d steps:\n%s", name, len(trace), strings.Join(trace, "\n"))
		}
		return true
	})
	t.Logf("%d worlds", total)
	if total < 20000 {
		t.Errorf("%d worlds only: the model is not what it was", total)
	}
}

// The exploration finds each mistake in the order of things.
func TestModelFindsBreakageOfPair(t *testing.T) {
	if underRace {
		t.Skip("SKIPPED under the race detector: the model has one goroutine, and would take minutes")
	}
	for broken, name := range map[pairBreakage]string{
		waitForgets:     "Wait does not put the mark back",
		unlockForgets:   "Unlock does not look at news",
		sleepLooksFirst: "the drainer looks for marks before it says that it sleeps",
		readsFirst:      "the drainer reads before it asks",
		bellForgets:     "who sleeps at its own bell leaves no news",
		looksFirst:      "the drainer looks at the consumer before it sets news",
	} {
		t.Run(name, func(t *testing.T) {
			found := false
			pairCases(func(_ string, x pairExplorer, start pairWorld) bool {
				x.broken = broken
				_, trace := x.explore(start)
				if found = trace != nil; found {
					t.Logf("lost:\n%s", strings.Join(trace, "\n"))
				}
				return !found
			})
			if !found {
				t.Error("not found")
			}
		})
	}
}
