package shm

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// pair returns the ends of a ring in private memory, and the memory. ring is the greatest size in
// bytes.
func pair(ring int) (*Producer, *Consumer, []byte) {
	b := make([]byte, total(ring)+controlSize)
	for uintptr(len(b)) > 0 && addressOf(b)%controlSize != 0 {
		b = b[1:]
	}
	b = b[:total(ring)]
	_, out := attach(b, ring, true)
	in, _ := attach(b, ring, false)
	out.Wake, in.Wake = func() {}, func() {}
	out.c.small.Store(0)
	out.Roomy() // the ring gets its first size
	return out, in, b
}

func shrinkCalm() {
	process.grown.Lock()
	defer process.grown.Unlock()
	process.grown.shrinkLocked()
}

// pattern is the bytes that tests write.
var pattern = func() []byte {
	b := make([]byte, 65521+2*FirstRing)
	r := rand.NewChaCha8([32]byte{})
	r.Read(b)
	return b
}()

// TestRingIsABuffer checks that the ring behaves like a plain buffer for any sizes of writes,
// reads, scattered reads and peeks.
func TestRingIsABuffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, q, _ := pair(4 * FirstRing)
		defer p.disown()
		if rapid.Bool().Draw(t, "small") {
			p.c.small.Store(1)
			p.setSize(smallRing)
		}
		p.tail, p.head = 1<<63-100, 1<<63-100 // positions near 2^63 are like any others
		q.tail, q.head = p.tail, p.tail
		p.c.tail.Store(p.tail)
		p.c.head.Store(p.tail)
		var model []byte
		next := 0
		fill := func(n int) []byte {
			next += 12345
			return pattern[next%65521:][:n]
		}
		sizes := rapid.OneOf(rapid.IntRange(0, 100), rapid.IntRange(0, 2*FirstRing))
		// room returns the number of bytes that a write of n bytes can take: 0 while the ring is to
		// grow and is not empty.
		room := func(n int) int {
			small := p.ring == smallRing
			switch {
			case small && len(model) == 0 && (p.grow.due || n > smallRing):
				return FirstRing
			case !p.grow.due:
				return int(p.ring) - len(model)
			case len(model) > 0:
				return 0
			}
			return int(min(growBy*p.ring, 4*FirstRing))
		}
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				b := fill(sizes.Draw(t, "n"))
				room := room(len(b))
				n, err := p.Write(b)
				written(t, model, b, n, err, room)
				model = append(model, b[:n]...)
			},
			"writev": func(t *rapid.T) {
				var pieces [][]byte
				for range rapid.IntRange(1, 5).Draw(t, "pieces") {
					pieces = append(pieces, fill(sizes.Draw(t, "n")))
				}
				all := bytes.Join(pieces, nil)
				room := room(len(all))
				n, err := p.WriteV(pieces)
				written(t, model, all, n, err, room)
				model = append(model, all[:n]...)
			},
			"reserve": func(t *rapid.T) {
				n := 1 + sizes.Draw(t, "n")
				b := p.Reserve(n)
				at := int(p.tail & (p.ring - 1))
				if want := !p.grow.due && !p.grow.large.Load() && at+n <= int(p.ring) &&
					n <= room(0); (b != nil) != want || b != nil && len(b) != n {
					t.Fatalf("%d bytes of %d at %d of %d, %d are free", len(b), n, at, p.ring, room(0))
				}
				if b != nil && rapid.Bool().Draw(t, "commit") {
					model = append(model, b[:copy(b, fill(n))]...)
					p.Commit(n)
				}
			},
			"grow":   func(*rapid.T) { p.grow.due = true },
			"shrink": func(*rapid.T) { shrinkCalm() },
			"read": func(t *rapid.T) {
				b := make([]byte, 1+sizes.Draw(t, "n"))
				n, err := q.Read(b)
				readAs(t, model, b[:n], len(b), err)
				model = model[n:]
			},
			"readv": func(t *rapid.T) {
				places := [][]byte{make([]byte, 1+sizes.Draw(t, "n")), nil, make([]byte, sizes.Draw(t, "m"))}
				n, err := q.ReadV(places)
				all := bytes.Join(places, nil)
				readAs(t, model, all[:n], len(all), err)
				model = model[n:]
			},
			"peek": func(t *rapid.T) {
				off := sizes.Draw(t, "off")
				b := make([]byte, 1+sizes.Draw(t, "n"))
				n, err := q.Peek(off, b)
				readAs(t, model[min(off, len(model)):], b[:n], len(b), err)
			},
		})
	})
}

func written(t *rapid.T, model, b []byte, n int, err error, room int) {
	want := min(len(b), room)
	if n != want || (err == nil) != (want > 0 || len(b) == 0) || err != nil && err != ErrWouldBlock {
		t.Fatalf("wrote %d of %d to %d: %v", n, len(b), len(model), err)
	}
}

func readAs(t *rapid.T, model, got []byte, room int, err error) {
	if len(model) == 0 {
		if err != ErrWouldBlock {
			t.Fatalf("nothing there: %v", err)
		}
		return
	}
	if err != nil || !bytes.Equal(got, model[:min(room, len(model))]) {
		t.Fatalf("read %d bytes of %d, wrong ones or an error: %v", len(got), len(model), err)
	}
}

func TestEnds(t *testing.T) {
	p, q, _ := pair(MinRing)
	wakes := 0
	p.Wake = func() { wakes++ }
	b := make([]byte, 10)
	q.Ask()
	p.Write([]byte("abc"))
	p.Write([]byte("d"))
	if wakes != 1 {
		t.Errorf("%d wake-ups for one request", wakes)
	}
	q.Ask()
	p.Finish()
	p.Finish()
	if wakes != 2 {
		t.Errorf("%d wake-ups after the end", wakes)
	}
	if _, err := p.Write(b); err != io.ErrClosedPipe {
		t.Errorf("write after the end: %v", err)
	}
	if n, err := q.Read(b); n != 4 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := q.Read(b); err != io.EOF {
		t.Errorf("end: %v", err)
	}
	p.Abort() // an abort takes precedence over an orderly end
	if _, err := q.Read(b); err != ErrReset {
		t.Errorf("abort: %v", err)
	}

	p, q, _ = pair(MinRing)
	if p.Ask() {
		t.Error("an empty ring has no room")
	}
	for _, err := p.Write(make([]byte, 1000)); err == nil; _, err = p.Write(make([]byte, 1000)) {
	}
	if !p.Ask() || p.Roomy() {
		t.Error("a full ring has room")
	}
	wakes = 0
	q.Wake = func() { wakes++ }
	q.Read(make([]byte, MinRing/2-1))
	if wakes != 0 {
		t.Error("woken for less than half of the ring")
	}
	q.Read(b[:1])
	if wakes != 1 {
		t.Error("not woken for half of the ring")
	}
	p.Ask()
	q.Leave()
	if wakes != 2 {
		t.Error("not woken as the consumer left")
	}
	if _, err := p.Write(make([]byte, MinRing)); err != ErrPipe {
		t.Errorf("write to a consumer that left: %v", err)
	}
}

// TestHostileIndices: an impossible position of the peer is an error, and no access is outside the
// ring.
func TestHostileIndices(t *testing.T) {
	const ring = MinRing
	for _, c := range []struct {
		name       string
		head, tail uint64 // positions that the peer publishes
		read       error
		write      error
	}{
		{"honest", 5, 10, nil, nil},
		{"tail goes back", 5, 9, ErrIndex, nil},
		{"tail behind the head", 5, 4, ErrIndex, nil},
		{"tail a ring ahead", 5, 5 + ring, nil, nil},
		{"tail further", 5, 5 + ring + 1, ErrIndex, nil},
		{"tail at the end of numbers", 5, 1<<64 - 1, ErrIndex, nil},
		{"head goes back", 4, 10, nil, ErrIndex},
		{"head past the tail", 11, 10, nil, ErrIndex},
		{"head at the end of numbers", 1<<64 - 1, 10, nil, ErrIndex},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, q, _ := pair(ring)
			p.tail, p.head = 10, 5
			q.tail, q.head = 10, 5
			p.c.head.Store(c.head)
			q.c.tail.Store(c.tail)
			if _, err := q.Read(make([]byte, 2*ring)); err != c.read {
				t.Errorf("read: %v", err)
			}
			p.c.head.Store(c.head)
			if _, err := p.room(ring); err != c.write {
				t.Errorf("write: %v", err)
			}
		})
	}
}

// FuzzHostilePeer changes any word of the memory between any two calls. It checks that the worst
// result is an error, and that no byte outside the memory is read or written.
func FuzzHostilePeer(f *testing.F) {
	f.Add(uint64(1), []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Add(uint64(2), bytes.Repeat([]byte{6, 0, 3}, 20))
	f.Fuzz(func(t *testing.T, seed uint64, script []byte) {
		const ring = 4 * FirstRing
		r := rand.New(rand.NewPCG(seed, 1))
		p, q, b := pair(ring)
		defer p.disown()
		guard := bytes.Clone(script)
		buf := make([]byte, 2*ring)
		for _, op := range script {
			n := r.IntN(len(buf))
			var k int
			var err error
			switch op % 11 {
			case 10:
				if f := p.Reserve(1 + n%ring); f != nil {
					f[0], f[len(f)-1] = 1, 2
					p.Commit(len(f))
				}
			case 0:
				k, err = p.Write(buf[:n])
			case 1:
				k, err = q.Read(buf[:n+1])
			case 2:
				k, err = q.ReadV([][]byte{buf[:n/3], buf[n/3 : n/2], buf[n/2 : n+1]})
			case 3:
				k, err = p.WriteV([][]byte{buf[:n/3], buf[n/3 : n/2], buf[n/2 : n+1]})
			case 4:
				k, err = q.Peek(r.IntN(ring), buf[:n+1])
			case 5:
				q.Ask()
				p.Ask()
				p.Roomy()
			case 6: // any value in any word of a control
				at := r.IntN(2*controlSize/8) * 8
				if r.IntN(2) == 0 {
					at = [8]int{0, 8, 24, 128, controlSize, controlSize + 8, controlSize + 24, controlSize + 128}[r.IntN(8)]
				}
				v := r.Uint64()
				switch r.IntN(3) { // close to a plausible value
				case 0:
					v = q.head + uint64(r.IntN(2*ring)) - ring/2
				case 1:
					k := r.IntN(2 * nearMax)
					v = nearPiece(q.head+uint64(k), k)
				}
				for i := range 8 {
					b[at+i] = byte(v >> (8 * i))
				}
			case 8:
				p.grow.due = true
			case 9: // a possible size
				p.c.size.Store(smallRing << r.IntN(7))
				p.c.small.Store(r.Uint32N(2))
				if r.IntN(2) == 0 {
					shrinkCalm()
				}
			case 7:
				for i := range 64 {
					b[(n+i)%len(b)] = byte(r.Uint32())
				}
			}
			if k < 0 || k > len(buf) {
				t.Fatalf("%d bytes", k)
			}
			switch {
			case err == nil, err == ErrWouldBlock, err == ErrIndex, err == ErrReset, err == ErrPipe,
				err == io.EOF, err == io.ErrClosedPipe:
			default:
				t.Fatal(err)
			}
			if p.tail-p.head > ring || q.tail-q.head > ring {
				t.Fatalf("the producer believes in %d bytes, the consumer in %d", p.tail-p.head, q.tail-q.head)
			}
		}
		if !bytes.Equal(guard, script) {
			t.Fatal("memory outside was written")
		}
	})
}

// TestHostileSize: an impossible size ends the connection.
func TestHostileSize(t *testing.T) {
	for size, ok := range map[uint32]bool{
		FirstRing: true, 2 * FirstRing: true, 4 * FirstRing: true, 0: true,
		1: false, 8 * FirstRing: false, FirstRing + 1: false, 1 << 31: false,
		smallRing: true, FirstRing / 2: true, smallRing / 2: false,
	} {
		p, q, _ := pair(4 * FirstRing)
		p.Write(make([]byte, 10))
		p.c.size.Store(size)
		if _, err := q.Read(make([]byte, 20)); (err == nil) != ok || err != nil && err != ErrIndex {
			t.Errorf("%d: %v", size, err)
		}
	}
}

// TestStreamWithSleepers passes bytes between two goroutines, one at each end, that sleep by the
// protocol, while the ring grows and shrinks.
func TestStreamWithSleepers(t *testing.T) {
	const total = 20 << 20
	p, q, _ := pair(4 * FirstRing)
	defer p.disown()
	p.c.small.Store(1)
	p.setSize(smallRing)
	data, room := make(chan struct{}, 1), make(chan struct{}, 1)
	poke := func(c chan struct{}) func() {
		return func() {
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}
	p.Wake, q.Wake = poke(data), poke(room)
	go func() {
		r := rand.New(rand.NewPCG(1, 1))
		b := make([]byte, 100<<10)
		for sent := 0; sent < total; {
			switch r.IntN(64) {
			case 0:
				p.grow.mu.Lock()
				p.grow.due = true
				p.grow.mu.Unlock()
			case 1:
				go shrinkCalm()
			}
			k := min(r.IntN(len(b))>>r.IntN(12)+1, total-sent)
			for i := range k {
				b[i] = byte((sent + i) * 7 >> 3)
			}
			for done := 0; done < k; {
				n, err := p.Write(b[done:k])
				done += n
				if err == ErrWouldBlock && p.Ask() {
					<-room
				} else if err != nil && err != ErrWouldBlock {
					t.Error(err)
					return
				}
			}
			sent += k
		}
		p.Finish()
	}()
	r := rand.New(rand.NewPCG(2, 2))
	b := make([]byte, 100<<10)
	for got := 0; ; {
		q.Ask()
		n, err := q.Read(b[:1+r.IntN(len(b))>>r.IntN(12)])
		for i := range n {
			if b[i] != byte((got+i)*7>>3) {
				t.Fatalf("byte %d is wrong", got+i)
			}
		}
		got += n
		if errors.Is(err, io.EOF) {
			if got != total {
				t.Fatalf("%d bytes of %d", got, total)
			}
			return
		}
		if err == ErrWouldBlock {
			<-data
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestSmallRing: a ring begins with smallRing bytes if the consumer knows the size. It grows before
// a longer write if it is empty, and otherwise after a write without room. No byte is lost.
func TestSmallRing(t *testing.T) {
	for _, c := range []struct {
		name   string
		older  bool  // the consumer does not know smallRing
		unread int   // bytes that the consumer has not read when the first write begins
		sizes  []int // of writes
		rings  []uint64
		took   []int
	}{
		{"short messages", false, 0, []int{1, 1000, smallRing}, []uint64{smallRing, smallRing, smallRing}, []int{1, 1000, smallRing}},
		{"a long message", false, 0, []int{1, smallRing + 1}, []uint64{smallRing, FirstRing}, []int{1, smallRing + 1}},
		{"no room", false, 1000, []int{smallRing, 10}, []uint64{smallRing, FirstRing}, []int{smallRing - 1000, 10}},
		{"an older peer", true, 0, []int{1, FirstRing}, []uint64{FirstRing, FirstRing}, []int{1, FirstRing}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := make([]byte, total(4*FirstRing))
			_, p := attach(b, 4*FirstRing, true)
			q, _ := attach(b, 4*FirstRing, false)
			p.Wake, q.Wake = func() {}, func() {}
			defer p.disown()
			if c.older {
				p.c.small.Store(0)
			}
			if p.Reserve(1) == nil {
				t.Error("no room in the beginning")
			}
			var sent, got []byte
			write := func(n int) int {
				b := pattern[len(sent)%1000:][:n]
				n, err := p.WriteV([][]byte{b[:n/3], b[n/3:]})
				if err != nil {
					t.Fatal(err)
				}
				sent = append(sent, b[:n]...)
				return n
			}
			write(c.unread)
			for i, n := range c.sizes {
				if took := write(n); took != c.took[i] || p.ring != c.rings[i] {
					t.Errorf("%d of %d bytes written, the ring has %d", took, n, p.ring)
				}
				for b := make([]byte, FirstRing); len(got) < len(sent); {
					n, err := q.Read(b)
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, b[:n]...)
				}
			}
			if !bytes.Equal(sent, got) || q.ring != p.ring {
				t.Errorf("%d bytes for %d, or others; rings of %d and %d", len(got), len(sent), p.ring, q.ring)
			}
		})
	}
}
