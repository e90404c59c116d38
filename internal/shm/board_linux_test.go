package shm

import (
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// twoBoards returns both mappings of a Board.
func twoBoards(t *testing.T) (a, b *Board) {
	t.Helper()
	a, fd, err := CreateBoard()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if b, err = OpenBoard(fd); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// A mark is taken once, by the other side, and only the first one wakes a reader that sleeps.
func TestBoardMarks(t *testing.T) {
	a, b := twoBoards(t)
	take := func(b *Board) (slots []int) {
		b.Take(func(slot int) bool { slots = append(slots, slot); return true })
		return slots
	}
	if a.Tell(0) || a.Tell(BoardSlots-1) || a.Tell(0) {
		t.Error("a reader that is awake was to be woken")
	}
	if b.Sleep() {
		t.Error("a reader sleeps though something is marked")
	}
	if got := take(b); len(got) != 2 || got[0] != 0 || got[1] != BoardSlots-1 {
		t.Errorf("took %v", got)
	}
	if got := append(take(a), take(b)...); len(got) != 0 {
		t.Errorf("took %v again", got)
	}
	if !b.Sleep() || !a.Tell(77) || a.Tell(78) || b.Again(79) {
		t.Error("not the first mark alone wakes the reader")
	}
	if got := take(b); len(got) != 3 {
		t.Errorf("took %v", got)
	}
	if !b.Sleep() || !b.Again(5) {
		t.Error("a mark of its own does not wake the reader")
	}
	b.Take(func(int) bool { return true })
	b.Sleep()
	b.Awake()
	if a.Tell(6) {
		t.Error("a reader that has said that it is awake was to be woken")
	}
	a.Tell(7)
	if n := b.Take(func(int) bool { return false }); n != 1 || len(take(b)) != 1 {
		t.Error("what was not looked at is not marked any more")
	}
}

// A slot is free if neither side uses it.
func TestBoardSlots(t *testing.T) {
	a, b := twoBoards(t)
	var taken SlotSet
	taken[0] = 1 << 1
	b.Hold(0)
	if n := a.Free(&taken); n != 2 {
		t.Errorf("slot %d is free, not 2", n)
	}
	b.Release(0)
	if n := a.Free(&taken); n != 0 {
		t.Errorf("slot %d is free, not 0", n)
	}
	for i := range taken {
		taken[i] = ^uint64(0)
	}
	if n := a.Free(&taken); n != -1 {
		t.Errorf("slot %d is free, none was left", n)
	}
	for _, n := range []int{-1, BoardSlots, 1 << 30} {
		if CheckSlot(n) == nil {
			t.Errorf("%d is a slot", n)
		}
	}
}

// Memory of another size, or that can change its size, is refused.
func TestForeignBoardIsChecked(t *testing.T) {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	unix.Ftruncate(fd, boardSize)
	if _, err := OpenBoard(fd); err == nil {
		t.Error("memory without seals was mapped")
	}
	m, rings, err := Create(MinRing)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	defer unix.Close(rings)
	if _, err := OpenBoard(rings); err == nil {
		t.Error("memory for rings was mapped")
	}
}

// Two producers mark, a reader sleeps whenever it finds nothing: it finds all.
func TestBoardLosesNothing(t *testing.T) {
	a, b := twoBoards(t)
	const producers, rounds = 2, 3000
	bell := make(chan struct{}, 1)
	var made, seen [producers]atomic.Int64
	done := make(chan struct{})
	for i := range producers {
		go func() {
			for n := range int64(rounds) {
				made[i].Store(n + 1)
				if a.Tell(i * 64) {
					bell <- struct{}{}
				}
				for n%16 == 0 && seen[i].Load() <= n { // let the reader fall asleep
					select {
					case <-done:
						return
					default:
						unix.Nanosleep(&unix.Timespec{Nsec: 1000}, nil)
					}
				}
			}
		}()
	}
	defer close(done)
	for seen[0].Load() < rounds || seen[1].Load() < rounds {
		if b.Take(func(slot int) bool { i := slot / 64; seen[i].Store(made[i].Load()); return true }) > 0 {
			continue
		}
		if b.Sleep() {
			<-bell // a mark that is lost keeps the test here
			b.Awake()
		}
	}
}
