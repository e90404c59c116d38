package sock

import (
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/shm"
	"viaduct/internal/testkit"
	"viaduct/samehost"
)

// All connections to a process share a Pair, each with a slot of its own. It goes with the last one.
func TestPairOfConnections(t *testing.T) {
	l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto})
	var cs, ss [3]*Socket
	for i := range cs {
		c, s := sharedPair(t, l)
		cs[i], ss[i] = Take(c), Take(s)
		p, slot := cs[i].Pair()
		q, theirs := ss[i].Pair()
		if p == nil || q == nil || slot != theirs || slot != i {
			t.Fatalf("connection %d has slots %d and %d of %p and %p", i, slot, theirs, p, q)
		}
		if first, _ := cs[0].Pair(); p != first {
			t.Errorf("connection %d has a pair of its own", i)
		}
	}
	// A slot that the other process uses still is not given away.
	cs[1].Close(false)
	c, _ := sharedPair(t, l)
	if _, slot := Take(c).Pair(); slot != 3 {
		t.Errorf("slot %d of 0 to 2 in use, though the other side has not closed", slot)
	}
	ss[1].Close(false)
	c, _ = sharedPair(t, l)
	if _, slot := Take(c).Pair(); slot != 1 {
		t.Errorf("slot %d, not the free one", slot)
	}
}

// A Pair without connections is forgotten by both processes.
func TestPairGoes(t *testing.T) {
	l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto})
	c, s := sharedPair(t, l)
	p, _ := Take(c).Pair()
	known := func() (made, got bool) {
		pairs.mu.Lock()
		defer pairs.mu.Unlock()
		return pairs.made[p.peer] == p, pairs.got[p.id] != nil
	}
	if made, got := known(); !made || !got {
		t.Errorf("the pair of a connection: made %v, got %v", made, got)
	}
	c.Close()
	s.Close()
	testkit.Eventually(t, "the pair is forgotten", func() bool { made, got := known(); return !made && !got })
}

// A listener that does not know the Pair, or can't use it, shares memory without.
func TestPairUnknown(t *testing.T) {
	l := ownListener(t, "127.0.0.1:0", Tuning{SameHost: samehost.Auto})
	first, _ := sharedPair(t, l)
	p, _ := Take(first).Pair()
	pairs.mu.Lock()
	delete(pairs.got, p.id)
	pairs.mu.Unlock()
	c, s := sharedPair(t, l)
	for _, o := range []*Socket{Take(c), Take(s)} {
		if p, _ := o.Pair(); p != nil {
			t.Error("a connection has a pair that the listener does not know")
		}
	}
	c.Write([]byte("hello"))
	b := make([]byte, 5)
	if _, err := io.ReadFull(s, b); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v without a pair", b, err)
	}
	c, _ = sharedPair(t, l)
	if next, _ := Take(c).Pair(); next == nil || next == p {
		t.Error("the next connection has no new pair")
	}
}

// Slots that are none, in use, or of a Pair whose memory is none of ours are refused.
func TestPairRefused(t *testing.T) {
	p, slot, files := pairWith(peerKey{name: t.Name()})
	if p == nil {
		t.Fatal("no pair")
	}
	defer p.leave(slot)
	defer closeAll(files)
	m, rings, err := shm.Create(shm.MinRing)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	defer unix.Close(rings)
	other := p.id
	other[0]++
	for name, try := range map[string]func() (*Pair, error){
		"negative":    func() (*Pair, error) { return joinPair(p.id, -2, files) },
		"too large":   func() (*Pair, error) { return joinPair(p.id, shm.BoardSlots, files) },
		"not known":   func() (*Pair, error) { return joinPair(other, slot, nil) },
		"other files": func() (*Pair, error) { return joinPair(other, slot, []int{rings, files[1]}) },
	} {
		if q, err := try(); err == nil {
			t.Errorf("%s: joined", name)
			q.leave(slot)
		}
	}
	q, err := joinPair(p.id, slot, files)
	if err != nil {
		t.Fatal(err)
	}
	defer q.leave(slot)
	if _, err := joinPair(p.id, slot, nil); err == nil {
		t.Error("a slot in use was joined")
	}
}

// A sleeper is woken by the other process, by its own, and by the end; a bell never fills, though it
// is seldom read.
func TestPairSleeps(t *testing.T) {
	p, slot, files := pairWith(peerKey{name: t.Name()})
	if p == nil {
		t.Fatal("no pair")
	}
	defer p.leave(slot)
	q, err := joinPair(p.id, slot, files)
	if err != nil {
		t.Fatal(err)
	}
	defer q.leave(slot)
	closeAll(files)
	p.confirm(true)
	slept := make(chan bool)
	sleep := func() {
		for {
			ok := p.Sleep()
			p.Take(func(int) bool { return true }) // before the test marks again
			if slept <- ok; !ok {
				return
			}
		}
	}
	go sleep()
	for i := range 10 * emptyBell {
		if i%2 == 0 {
			q.tell(slot)
		} else {
			p.Again(slot)
		}
		testkit.Await(t, "the sleeper is woken", slept)
	}
	for range 100 {
		send(q.fd, []byte{0}) // rings without a mark are of no use to anybody
	}
	select {
	case <-slept:
		t.Error("woken for nothing")
	case <-time.After(10 * time.Millisecond):
	}
	q.End()
	if testkit.Await(t, "the sleeper hears of the end", slept) {
		t.Error("the other process has ended the pair")
	}
}
