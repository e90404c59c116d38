package attend

import (
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"viaduct/internal/shm"
	"viaduct/internal/sock"
	"viaduct/internal/testkit"
)

// A byteReader is a Receiver that counts bytes.
type byteReader struct {
	src   *sock.Socket
	bytes atomic.Int64
	ended atomic.Bool
}

func (r *byteReader) Receive(bool, bool) (got Got, more bool, err error) {
	var b [512]byte
	for {
		n, err := r.src.Read(b[:])
		switch {
		case errors.Is(err, sock.ErrWouldBlock):
			return got, false, nil
		case err != nil:
			return got, false, err
		case n == 0:
			return got, false, errors.New("the end")
		}
		r.bytes.Add(int64(n))
		got.Any, got.Bytes = true, got.Bytes+n
	}
}

func (r *byteReader) Left() bool    { return false }
func (r *byteReader) Deliver() bool { return false }
func (r *byteReader) Partial() bool { return false }
func (r *byteReader) Rest()         {}
func (r *byteReader) Ended(error)   { r.ended.Store(true) }
func (r *byteReader) Sent() uint32  { return 0 }

// pairedReaders returns n connections with pairs, each with an Attention at one end. closeAll ends
// them all.
func pairedReaders(t *testing.T, n int) (as []*Attention, readers []*byteReader, peers []*sock.Socket) {
	t.Helper()
	for range n {
		x, y := testkit.TCPPair(t)
		x, y = sock.Shared(x, y)
		r := &byteReader{src: sock.Take(x)}
		a := new(Attention)
		a.Init(r.src, r)
		if p, _ := r.src.Pair(); p == nil {
			t.Skip("SKIPPED: tests go by TCP, or there is no pair")
		}
		a.Lock()
		a.Start()
		a.Unlock()
		peer := sock.Take(y)
		t.Cleanup(func() {
			a.Close(func() {})
			r.src.Close(false)
			a.Join()
			peer.Close(false)
		})
		as, readers, peers = append(as, a), append(readers, r), append(peers, peer)
	}
	return as, readers, peers
}

// What arrives for many connections is received by the drainer, and their ends are heard of.
func TestDrainerServes(t *testing.T) {
	as, readers, peers := pairedReaders(t, 70) // more than a word of the list
	for round := range 20 {
		for i, p := range peers {
			if i%3 != round%3 {
				if _, err := p.Write([]byte("hello")); err != nil {
					t.Fatal(err)
				}
			}
		}
		if round%4 == 0 {
			time.Sleep(2 * time.Millisecond) // the drainer sleeps
		}
	}
	for i, r := range readers {
		want := int64(0)
		for round := range 20 {
			if i%3 != round%3 {
				want += 5
			}
		}
		testkit.Eventually(t, "all bytes are received", func() bool { return r.bytes.Load() == want })
	}
	peers[7].CloseWrite()
	testkit.Eventually(t, "the end is heard of", func() bool { return readers[7].ended.Load() && as[7].State() == Closed })
}

// A consumer that polls keeps its bytes; one that has stopped without a Wait does so for a
// millisecond, and one that waits not at all.
func TestDrainerLeavesToConsumer(t *testing.T) {
	as, readers, peers := pairedReaders(t, 1)
	a, r, p := as[0], readers[0], peers[0]
	n := int64(0)
	write := func() {
		t.Helper()
		p.Write([]byte("x"))
		n++
	}
	write()
	testkit.Eventually(t, "the drainer receives", func() bool { return r.bytes.Load() == n })
	for range 50 {
		a.Poll()
		write()
		testkit.Eventually(t, "the watch finds that nobody polls", func() bool { return r.bytes.Load() == n })
		a.Poll()
		write()
		a.Wait()
		testkit.Eventually(t, "Wait has the drainer receive", func() bool { return r.bytes.Load() == n })
		a.Lock()
		write()
		time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
		a.Unlock()
		testkit.Eventually(t, "who gives the role back has the drainer receive", func() bool { return r.bytes.Load() == n })
	}
}

// Two consumers that wait at once both find a connection reserved. The second one, which gets the role
// when the first has registered the connection, leaves it registered.
func TestDrainerTwoWait(t *testing.T) {
	as, readers, peers := pairedReaders(t, 1)
	a := as[0]
	a.Lock()
	a.begin(Reserved, Wait)
	a.Unlock()
	peers[0].Write([]byte("x"))
	testkit.Eventually(t, "the drainer receives", func() bool { return readers[0].bytes.Load() == 1 })
	if a.State() != Shared {
		t.Errorf("state %v", a.State())
	}
}

// When a pair ends its connections go on, each by its own bell.
func TestDrainerEnds(t *testing.T) {
	as, readers, peers := pairedReaders(t, 3)
	pair, _ := readers[0].src.Pair()
	pair.End()
	for i, a := range as {
		testkit.Eventually(t, "the connection has an attendant", func() bool { return a.State() == Dedicated })
		peers[i].Write([]byte("hello"))
		testkit.Eventually(t, "the attendant receives", func() bool { return readers[i].bytes.Load() == 5 })
	}
}

// A peer that marks slots at random costs little, and the connections go on.
func TestDrainerHostileMarks(t *testing.T) {
	_, readers, peers := pairedReaders(t, 4)
	pair, _ := readers[0].src.Pair()
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				for range 100 {
					pair.Again(rand.IntN(shm.BoardSlots))
				}
				time.Sleep(20 * time.Microsecond)
			}
		}
	}()
	for n := range int64(100) {
		for i, p := range peers {
			p.Write([]byte("x"))
			testkit.Eventually(t, "the byte is received", func() bool { return readers[i].bytes.Load() == n+1 })
		}
	}
	close(stop)
	<-done
}

// In a crowd, small messages that follow each other closely do not make a connection busy; bulk does.
func TestBusyCrowd(t *testing.T) {
	defer AssumeProcessors(2)()
	lists := make([]Waiters, len(recent.lists))
	arrive := func(n int) bool {
		var r registration
		now := time.Now()
		for range closeRun {
			r.count(n, now)
		}
		return r.busy()
	}
	for range recent.lists {
		recent.others(&lists[0])
	}
	if !arrive(100) {
		t.Error("one that is alone is not busy")
	}
	for i := range lists {
		recent.others(&lists[i])
	}
	if arrive(100) || !arrive(bulk) {
		t.Errorf("in a crowd, small messages make it busy: %v, bulk: %v", arrive(100), arrive(bulk))
	}
	for range recent.lists {
		recent.others(&lists[0])
	}
}
