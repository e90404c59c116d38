package shm

import (
	"bytes"
	"runtime"
	"sync/atomic"
	"testing"

	"viaduct/internal/testkit"
)

// TestNear: a short piece is read from the line of the position if it is the only piece and the
// buffer has room for the whole block, and everything else is read from the ring.
func TestNear(t *testing.T) {
	for _, c := range []struct {
		what   string
		before int // bytes that have passed through the ring before
		pieces []int
		room   int
		near   bool
	}{
		{"one byte", 0, []int{1}, nearMax, true},
		{"as much as there can be", 0, []int{nearMax}, 100, true},
		{"a byte more", 0, []int{nearMax + 1}, 100, false},
		{"two pieces", 0, []int{5, 6}, 100, false},
		{"one behind a long one", 0, []int{500, 6}, 1000, false},
		{"a short buffer", 0, []int{5}, nearMax - 1, false},
		{"at the end of the ring", FirstRing - nearMax, []int{nearMax}, 100, true},
		{"around the end of the ring", FirstRing - 3, []int{8}, 100, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			p, q, _ := pair(FirstRing)
			for passed := 0; passed < c.before; passed += 0 {
				n, err := p.Write(pattern[:c.before-passed])
				if err != nil {
					t.Fatal(err)
				}
				q.Read(make([]byte, n))
				passed += n
			}
			var want []byte
			for i, n := range c.pieces {
				b := pattern[1000*i+1:][:n]
				want = append(want, b...)
				if i%2 == 0 {
					p.Write(b)
				} else {
					p.WriteV([][]byte{b[:n/2], b[n/2:]})
				}
			}
			// The bytes in the ring are changed to show where the read bytes came from.
			inRing := bytes.Clone(want)
			for i := range inRing {
				at := &p.data[(p.tail-uint64(len(want))+uint64(i))&(p.ring-1)]
				*at ^= 0x55
				inRing[i] = *at
			}
			if !c.near {
				want = inRing
			}
			b := make([]byte, c.room)
			n, err := q.Read(b)
			if err != nil || !bytes.Equal(b[:n], want) {
				t.Errorf("%v, %d bytes that are not those of the %s", err, n,
					map[bool]string{true: "line", false: "ring"}[c.near])
			}
			if _, err := q.Read(b); err != ErrWouldBlock {
				t.Errorf("behind it: %v", err)
			}
			if q.head != p.tail || q.c.head.Load() != p.tail {
				t.Errorf("taken up to %d, told %d, of %d", q.head, q.c.head.Load(), p.tail)
			}
		})
	}
}

// TestNearChanges: the consumer does not use the bytes of the line while the producer replaces
// them.
func TestNearChanges(t *testing.T) {
	p, q, _ := pair(FirstRing)
	p.Write([]byte("piece"))
	p.c.near.of.set(nearPiece(p.tail+5, 5)) // the producer has begun to write the next piece
	b := make([]byte, 100)
	if n, err := q.Read(b); err != nil || string(b[:n]) != "piece" {
		t.Errorf("%q, %v", b[:n], err)
	}
}

// TestNearBeside: a short piece arrives whole if it is read while the next piece is written.
func TestNearBeside(t *testing.T) {
	if runtime.GOMAXPROCS(0) == 1 {
		t.Skip("SKIPPED: nothing runs beside anything on one processor")
	}
	p, q, _ := pair(FirstRing)
	rounds := 20_000
	if testkit.LongRuns() {
		rounds = 300_000
	}
	var idle atomic.Int64
	go func() {
		for round := range rounds {
			for q.c.head.Load() != p.tail { // the consumer waits for the first of two pieces
			}
			a, b := bytes.Repeat([]byte{byte(2 * round)}, nearMax), bytes.Repeat([]byte{byte(2*round + 1)}, nearMax)
			p.Write(a)
			for range round % 64 {
				idle.Load()
			}
			p.Write(b)
		}
		p.Finish()
	}()
	b := make([]byte, 3*nearMax)
	for got := 0; got < 2*rounds; {
		n, err := q.Read(b)
		if err == ErrWouldBlock {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			if want := byte(got + i/nearMax); b[i] != want {
				t.Fatalf("byte %d of piece %d of a read of %d is %d", i%nearMax, got+i/nearMax, n, b[i])
			}
		}
		got += n / nearMax
	}
}

// A nearWorld is the shared state of a producer and a consumer of short pieces, with each side's
// place in the order of steps. A piece is a number; the bytes are two copies of the number.
type nearWorld struct {
	tail, of uint8
	bytes    [2]uint8

	making, at uint8 // the producer's piece, and the index of its next step

	// The consumer's state: the position read last, the consumer's position, and the index of the
	// next step.
	seen, head, place uint8
	copied            [2]uint8
}

// A nearOrder has the steps of each side: o is the name of the piece, b is half of its bytes, and t
// is the position.
type nearOrder struct{ producer, consumer string }

// explore takes every possible step from w on. It reports whether the consumer can accept bytes of
// a wrong piece. been has the worlds explored before.
func (o nearOrder) explore(w nearWorld, been map[nearWorld]bool) (wrong bool) {
	const pieces = 3
	if been[w] {
		return false
	}
	been[w] = true
	if w.making <= pieces {
		n := w
		half := bytes.Count([]byte(o.producer[:w.at]), []byte{'b'})
		switch o.producer[w.at] {
		case 'o':
			n.of = w.making
		case 'b':
			n.bytes[half] = w.making
		case 't':
			n.tail = w.making
		}
		if n.at++; int(n.at) == len(o.producer) {
			n.at, n.making = 0, w.making+1
		}
		if o.explore(n, been) {
			return true
		}
	}
	n := w
	half := bytes.Count([]byte(o.consumer[:w.place]), []byte{'b'})
	good := true // the consumer continues as if the line had the piece
	switch o.consumer[w.place] {
	case 't':
		n.seen = w.tail
		good = w.tail == w.head+1
	case 'o':
		good = w.of == w.seen
	case 'b':
		n.copied[half] = w.bytes[half]
	}
	n.place++
	if !good {
		n.head, n.place = n.seen, 0 // the bytes are taken from the ring
	} else if int(n.place) == len(o.consumer) {
		if n.copied != [2]uint8{n.seen, n.seen} {
			return true
		}
		n.head, n.place = n.seen, 0
	}
	if n.place == 0 {
		n.copied = [2]uint8{}
	}
	return n != w && o.explore(n, been)
}

// TestNearOrder explores every interleaving of the steps of near.put, near.get and the position. It
// checks that the order of the code is right and that the model finds errors in wrong orders.
func TestNearOrder(t *testing.T) {
	for _, c := range []struct {
		what  string
		order nearOrder
		wrong bool
	}{
		{"as written", nearOrder{"obbt", "tobbo"}, false},
		{"the bytes before which piece they are of", nearOrder{"bbot", "tobbo"}, true},
		{"the position before the bytes", nearOrder{"otbb", "tobbo"}, true},
		{"no look behind the bytes", nearOrder{"obbt", "tobb"}, true},
		{"the position last", nearOrder{"obbt", "obbot"}, true},
	} {
		been := make(map[nearWorld]bool)
		if got := c.order.explore(nearWorld{making: 1}, been); got != c.wrong {
			t.Errorf("%s: wrong bytes are believed: %t, in %d worlds", c.what, got, len(been))
		}
	}
}
