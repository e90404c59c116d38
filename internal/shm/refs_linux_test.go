package shm

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// lendingPair returns the ends of a ring whose consumer has mapped the producer's memory, and the
// memory of the ring.
func lendingPair(t testing.TB) (p *Producer, q *Consumer, mem []byte) {
	p, q, mem = pair(4 * FirstRing)
	p.Offer = func(fd int) (bool, bool) {
		q.Borrow(fd)
		return true, false
	}
	b := allocate(t, refMin)
	p.WriteV([][]byte{b}) // passes through the ring
	if n, err := q.Read(make([]byte, 2*refMin)); n != refMin || err != nil || p.Owed() != 0 {
		t.Fatalf("read %d, owed %d: %v", n, p.Owed(), err)
	}
	t.Cleanup(q.Close)
	t.Cleanup(p.disown)
	return p, q, mem
}

func allocate(t testing.TB, n int) []byte {
	b, err := Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Free(b) })
	return b
}

// refer writes pieces by reference. It fails the test if the producer owes nothing afterwards.
func refer(t testing.TB, p *Producer, pieces ...[]byte) {
	t.Helper()
	if n, err := p.WriteV(pieces); n > 0 && len(pieces[0]) >= refMin || err != nil && err != ErrWouldBlock {
		t.Fatalf("%d, %v", n, err)
	}
	if p.Owed() == 0 {
		t.Fatal("nothing was referred to")
	}
}

// TestReferencesAreABuffer: a ring with references behaves like a plain buffer, whichever pieces
// are passed by reference and wherever the reader puts the bytes. The test overwrites each piece as
// soon as the piece is reported as written or detached, because the producer may then change it.
func TestReferencesAreABuffer(t *testing.T) {
	const most = 3 * refMin
	rapid.Check(t, func(rt *rapid.T) {
		p, q, _ := lendingPair(t)
		var stream, model []byte // bytes written and not read; bytes that are owed are at the end
		var owed [][]byte        // the pieces that are owed
		var mem [][]byte         // the memory of the pieces, from Alloc
		defer func() {
			for _, b := range mem {
				Free(b)
			}
		}()
		next := byte(0)
		settle := func(rt *rapid.T) {
			n, err := p.WriteV(owed)
			left := q.ref.bytes > 0 || p.ref.refs != q.ref.done
			if (n == 0) != left || left && err != ErrWouldBlock || !left && err != nil {
				rt.Fatalf("%d of %d owed, %v", n, len(owed), err)
			}
			if n == 0 {
				return
			}
			for _, b := range mem {
				clear(b) // written: the producer may change it
				Free(b)
			}
			mem, owed = nil, nil
		}
		rt.Repeat(map[string]func(*rapid.T){
			"write": func(rt *rapid.T) {
				if owed != nil {
					settle(rt)
					return
				}
				var pieces [][]byte
				total := 0
				for range rapid.IntRange(1, 6).Draw(rt, "pieces") {
					n := rapid.IntRange(1, most).Draw(rt, "n")
					b := make([]byte, n)
					if rapid.Bool().Draw(rt, "lent") {
						b = allocate(t, n)
						mem = append(mem, b)
					}
					next += 7
					for i := range b {
						b[i] = next + byte(i%251)
					}
					total += n
					pieces = append(pieces, b)
				}
				all := bytes.Join(pieces, nil)
				n, err := p.WriteV(pieces)
				if err != nil && err != ErrWouldBlock || (n == 0) != (err == ErrWouldBlock) {
					rt.Fatalf("%d, %v", n, err)
				}
				took := n + p.Owed()
				if took > total || p.Owed() == 0 && n == 0 && len(model) == 0 {
					rt.Fatalf("took %d of %d", took, total)
				}
				model = append(model, all[:took]...)
				stream = append(stream, all[:took]...)
				if p.Owed() > 0 {
					owed = [][]byte{all[n:took]}
				} else {
					for _, b := range mem {
						Free(b)
					}
					mem = nil
				}
			},
			"detach": func(*rapid.T) {
				p.Detach()
				for _, b := range mem {
					clear(b)
				}
			},
			"read": func(rt *rapid.T) {
				b := make([]byte, rapid.IntRange(1, most).Draw(rt, "n"))
				taken := q.Taken()
				n, err := q.Read(b)
				if err == ErrWouldBlock && len(model) == 0 {
					return
				}
				if err != nil || n == 0 || !bytes.Equal(b[:n], model[:n]) || q.Taken()-taken != uint64(n) {
					rt.Fatalf("read %d of %d, %v", n, len(model), err)
				}
				if n < min(len(b), len(model)) && !q.Apart() {
					rt.Fatalf("read %d of %d, and the rest is not apart", n, len(model))
				}
				model = model[n:]
			},
			"readv": func(rt *rapid.T) {
				places := [][]byte{make([]byte, rapid.IntRange(1, most).Draw(rt, "n")),
					make([]byte, rapid.IntRange(0, most).Draw(rt, "m"))}
				n, err := q.ReadV(places)
				readAs(rt, model, bytes.Join(places, nil)[:n], len(places[0])+len(places[1]), err)
				model = model[n:]
			},
			"peek": func(rt *rapid.T) {
				off := rapid.IntRange(0, 2*most).Draw(rt, "off")
				b := make([]byte, rapid.IntRange(1, most).Draw(rt, "n"))
				n, err := q.Peek(off, b)
				readAs(rt, model[min(off, len(model)):], b[:n], len(b), err)
			},
			"available": func(rt *rapid.T) {
				n, err := q.Available()
				if n != len(model) || (err == ErrWouldBlock) != (n == 0) {
					rt.Fatalf("%d of %d, %v", n, len(model), err)
				}
			},
		})
	})
}

// TestReferencesWake checks that a waiting producer is woken when the last reference was followed,
// and not before.
func TestReferencesWake(t *testing.T) {
	p, q, _ := lendingPair(t)
	b := allocate(t, 2*refMin)
	refer(t, p, b[:refMin], b[refMin:])
	wakes := 0
	q.Wake = func() { wakes++ }
	if !p.Ask() || p.Roomy() {
		t.Error("what is owed is not waited for")
	}
	q.Read(make([]byte, refMin))
	q.Read(make([]byte, refMin-1))
	if wakes != 0 {
		t.Error("woken before the end")
	}
	q.Read(make([]byte, 1))
	if wakes != 1 || !p.Roomy() || p.Ask() {
		t.Errorf("%d wake-ups behind the last reference", wakes)
	}
	if n, err := p.WriteV([][]byte{b}); n != len(b) || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	refer(t, p, b)
	q.Leave()
	if _, err := p.WriteV([][]byte{b}); err != ErrPipe {
		t.Errorf("the consumer left: %v", err)
	}
}

// TestManyReferences: there are never more references than slots.
func TestManyReferences(t *testing.T) {
	p, q, _ := lendingPair(t)
	var pieces [][]byte
	b := allocate(t, refMin)
	for range 2 * refSlots {
		pieces = append(pieces, b)
	}
	p.WriteV(pieces)
	if n := len(p.ref.out); n != refSlots {
		t.Errorf("%d references", n)
	}
	total := p.Owed()
	for range total / refMin {
		if n, err := q.Read(make([]byte, refMin)); n != refMin || err != nil {
			t.Fatal(n, err)
		}
	}
	if n, err := p.WriteV(pieces); n != total || err != nil {
		t.Errorf("%d of %d, %v", n, total, err)
	}
}

// TestOwedAtTheEnd: a stream that ends while bytes are owed is aborted, because the producer may
// change the bytes before the consumer has copied them.
func TestOwedAtTheEnd(t *testing.T) {
	p, q, _ := lendingPair(t)
	b := allocate(t, refMin)
	refer(t, p, b)
	q.Available()
	p.Finish()
	if n, err := q.Read(make([]byte, refMin)); err != ErrReset {
		t.Errorf("%d, %v", n, err)
	}

	p, q, _ = lendingPair(t)
	refer(t, p, b)
	if n, err := q.Read(make([]byte, refMin)); n != refMin || err != nil {
		t.Fatal(n, err)
	}
	p.Finish() // the consumer has copied all bytes, though the producer has not reported that
	if _, err := q.Read(make([]byte, 1)); err != io.EOF {
		t.Error(err)
	}
}

// TestHostileReferences: an impossible reference of the producer is an error, the consumer reads
// nothing outside the lent memory, and a wrong count of the consumer never makes the producer
// report bytes it does not owe.
func TestHostileReferences(t *testing.T) {
	b := allocate(t, refMin)
	size := uint64(process.arena.size)
	for _, c := range []struct {
		name             string
		where, pos, size func(uint64) uint64
	}{
		{name: "outside", where: func(uint64) uint64 { return size }},
		{name: "over the end", where: func(uint64) uint64 { return size - refMin + 1 }},
		{name: "far outside", where: func(uint64) uint64 { return ^uint64(0) }},
		{name: "no bytes", size: func(uint64) uint64 { return 0 }},
		{name: "longer than what is lent", size: func(uint64) uint64 { return size + 1 }},
		{name: "a negative length", size: func(uint64) uint64 { return 1 << 63 }},
		{name: "behind the ring", pos: func(p uint64) uint64 { return p + 5*FirstRing }},
		{name: "before the position", pos: func(p uint64) uint64 { return p - 1 }},
	} {
		p, q, _ := lendingPair(t)
		refer(t, p, b)
		s := p.c.slot(p.ref.refs - 1)
		change := func(v interface {
			Load() uint64
			Store(uint64)
		}, f func(uint64) uint64) {
			if f != nil {
				v.Store(f(v.Load()))
			}
		}
		change(&s.where, c.where)
		change(&s.pos, c.pos)
		change(&s.size, c.size)
		if n, err := q.Read(make([]byte, refMin)); err != ErrIndex {
			t.Errorf("%s: %d, %v", c.name, n, err)
		}
	}

	p, q, _ := lendingPair(t)
	p.c.refs.Store(p.ref.refs + refSlots + 1)
	if _, err := q.Available(); err != ErrIndex {
		t.Errorf("more references than slots: %v", err)
	}

	p, q, _ = pair(FirstRing)
	p.c.refs.Store(1)
	if _, err := q.Available(); err != ErrIndex {
		t.Errorf("a reference to what was not lent: %v", err)
	}

	p, q, _ = lendingPair(t)
	refer(t, p, b)
	for _, done := range []uint32{q.ref.done + 2, q.ref.done - 1} {
		p.c.done.Store(done)
		if n, err := p.WriteV([][]byte{b}); n != 0 || err != ErrIndex {
			t.Errorf("done %d: %d, %v", done, n, err)
		}
		p.Detach() // ignores the impossible count
	}
	for i := range refSlots + 1 {
		// Stands for a peer that moves the reference forever.
		p.c.slot(p.ref.refs - 1).where.Store(uint64(i))
	}
	p.c.done.Store(q.ref.done)
	if n, err := q.Read(make([]byte, refMin)); n != refMin || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// TestAlloc: allocated memory is zeroed, overlaps no other allocation, and cannot be accessed after
// Free.
func TestAlloc(t *testing.T) {
	for _, n := range []int{-1, 0, arenaSize + 1} {
		if _, err := Alloc(n); err == nil {
			t.Errorf("%d bytes", n)
		}
	}
	var got [][]byte
	for i, n := range []int{1, pageSize, pageSize + 1, 10 * pageSize} {
		b := allocate(t, n)
		if len(b) != n || cap(b) != n || addressOf(b)%pageSize != 0 {
			t.Errorf("%d, %d bytes of %d", len(b), cap(b), n)
		}
		for j := range b {
			if b[j] != 0 {
				t.Fatalf("byte %d is %d", j, b[j])
			}
			b[j] = byte(i + 1)
		}
		got = append(got, b)
	}
	for i, b := range got {
		if b[0] != byte(i+1) || b[len(b)-1] != byte(i+1) {
			t.Errorf("%d was written to by another", i)
		}
	}
	if err := Free(got[1][1:]); err == nil {
		t.Error("a part was given back")
	}
	if err := Free(make([]byte, 10)); err == nil {
		t.Error("other memory was given back")
	}
	for _, b := range got {
		if err := Free(b); err != nil {
			t.Error(err)
		}
	}
	if err := Free(got[0]); err == nil {
		t.Error("given back twice")
	}
	if !faults(func() { got[0][0]++ }) {
		t.Error("what was given back can be touched")
	}
	process.arena.mu.Lock()
	defer process.arena.mu.Unlock()
	for i := 1; i < len(process.arena.free); i++ {
		if a, b := process.arena.free[i-1], process.arena.free[i]; a.at+a.size >= b.at {
			t.Errorf("free: %+v", process.arena.free)
		}
	}
}

func faults(f func()) (did bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { did = recover() != nil }()
	f()
	return false
}

// TestLentIsReadOnly checks that lent memory can be read, cannot be written to, and cannot be
// opened for writing by other users.
func TestLentIsReadOnly(t *testing.T) {
	b := allocate(t, pageSize)
	b[0] = 77
	l, err := borrow(process.arena.fd)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	again, err := borrow(process.arena.fd)
	if err != nil || again != l {
		t.Errorf("mapped twice: %v", err)
	}
	again.close()
	at, _ := process.arena.offset(b)
	v, err := l.bytes(at, pageSize)
	if err != nil || v[0] != 77 {
		t.Fatal(v[0], err)
	}
	if !faults(func() { v[0] = 1 }) {
		t.Error("it can be written to")
	}
	if m, err := unix.Mmap(process.arena.fd, 0, pageSize, unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		unix.Munmap(m)
		t.Error("it can be mapped for writing")
	}
	var st unix.Stat_t
	if err := unix.Fstat(process.arena.fd, &st); err != nil || st.Mode&0o777 != 0o400 {
		t.Errorf("mode %o, %v", st.Mode, err)
	}
}

// TestBorrowChecks: borrow refuses a descriptor that is not sealed memory of ordinary pages.
func TestBorrowChecks(t *testing.T) {
	make := func(size int64, seals int) int {
		fd, err := memfd("test")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		unix.Ftruncate(fd, size)
		unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		return fd
	}
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	file.Truncate(pageSize)
	for name, fd := range map[string]int{
		"no size":         make(0, seals),
		"can shrink":      make(pageSize, seals&^unix.F_SEAL_SHRINK),
		"can be unsealed": make(pageSize, seals&^unix.F_SEAL_SEAL),
		"a file":          int(file.Fd()),
		"closed":          -1,
	} {
		if l, err := borrow(fd); err == nil {
			l.close()
			t.Errorf("%s: mapped", name)
		}
	}
	l, err := borrow(make(pageSize, seals))
	if err != nil {
		t.Fatal(err)
	}
	l.close()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil || bytes.Contains(maps, fmt.Appendf(nil, "/memfd:test")) {
		t.Errorf("mapped still: %v", err)
	}
}

// TestNotLent: a consumer that cannot map the memory, or does not support references, gets all
// bytes through the ring.
func TestNotLent(t *testing.T) {
	p, q, _ := pair(FirstRing)
	offers := 0
	p.Offer = func(int) (bool, bool) { offers++; return true, false }
	b := allocate(t, refMin)
	b[5] = 5
	for range 3 {
		if n, err := p.WriteV([][]byte{b}); n != refMin || err != nil {
			t.Fatal(n, err)
		}
		got := make([]byte, refMin)
		if n, err := q.Read(got); n != refMin || err != nil || got[5] != 5 {
			t.Fatal(n, err)
		}
	}
	if offers != 1 {
		t.Errorf("%d offers", offers)
	}
	p, _, _ = pair(FirstRing)
	offers = 0
	p.Offer = func(int) (bool, bool) { offers++; return false, offers < 3 }
	for range 5 {
		p.WriteV([][]byte{b})
	}
	if offers != 3 {
		t.Errorf("%d offers of which the third has failed for good", offers)
	}
}
