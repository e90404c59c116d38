package shm

import (
	"bytes"
	"runtime"
	"sync/atomic"
	"testing"
)

// TestNear: a short piece comes from the line of the position, if it is all that there is
// and there is room for what the line holds; everything else comes from the ring.
func TestNear(t *testing.T) {
	for _, c := range []struct {
		what   string
		before int // bytes of the ring that were passed before
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
			// What comes from the ring can be told by what is there.
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
				t.Errorf("%v, %d bytes that are not those of the %s", err, n, map[bool]string{true: "line", false: "ring"}[c.near])
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

// TestNearChanges: bytes of the line that are being written to are not believed.
func TestNearChanges(t *testing.T) {
	p, q, _ := pair(FirstRing)
	p.Write([]byte("piece"))
	p.c.near.of.set(nearPiece(p.tail+5, 5)) // the next is on its way
	b := make([]byte, 100)
	if n, err := q.Read(b); err != nil || string(b[:n]) != "piece" {
		t.Errorf("%q, %v", b[:n], err)
	}
}

// TestNearBeside: a short piece that is read while the next is written comes whole, whatever
// the line has at any moment.
func TestNearBeside(t *testing.T) {
	if runtime.GOMAXPROCS(0) == 1 {
		t.Skip("SKIPPED: nothing runs beside anything on one processor")
	}
	p, q, _ := pair(FirstRing)
	const rounds = 300000
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
