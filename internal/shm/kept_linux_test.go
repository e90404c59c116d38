package shm

import (
	"bytes"
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/testkit"
)

// ended makes memory for two ends that are to keep it, passes n bytes each way, and ends
// them. The ends are not closed yet.
func ended(t *testing.T, place string, n int) (made, told *Memory) {
	t.Helper()
	made, fd, err := Create(MinRing)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if told, err = Open(fd, MinRing, made.Key()); err != nil {
		t.Fatal(err)
	}
	in, out := made.Ends(true)
	other, back := told.Ends(false)
	pass(t, out, other, n)
	pass(t, back, in, n)
	out.Finish()
	back.Abort()
	in.Leave()
	other.Leave()
	made.Keep(place)
	told.Keep("")
	t.Cleanup(func() { made.Close(); told.Close(); dropKept() })
	return made, told
}

// pass has n bytes pass by a ring.
func pass(t *testing.T, p *Producer, q *Consumer, n int) {
	t.Helper()
	want, got := bytes.Repeat([]byte("secret"), n/6+1)[:n], make([]byte, n)
	for i, k := 0, 0; i < n; i += k {
		var err error
		if k, err = p.Write(want[i:min(n, i+MinRing/2)]); err == nil {
			_, err = io.ReadFull(q, got[i:i+k])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, want) {
		t.Fatal("other bytes came")
	}
}

// Memory of which both processes have ended their connection serves their next one, and is as
// empty as new memory then; before, and for others, there is none.
func TestKept(t *testing.T) {
	made, told := ended(t, "here", 5000)
	key := made.Key()
	used := Used()
	made.Close()
	made.Close() // is nothing the second time
	if m := Reuse("here"); m != nil {
		t.Fatal("memory that the other process has not left is used again")
	}
	told.Close()
	if m := Reuse("elsewhere"); m != nil {
		t.Fatal("another process gets the memory")
	}
	if m := Known(newKey(), MinRing); m != nil {
		t.Fatal("memory by another name")
	}
	if m := Known(key, 2*MinRing); m != nil {
		t.Fatal("memory of another size")
	}
	a := Reuse("here")
	if a == nil {
		t.Fatal("the memory is not used again")
	}
	defer a.Close()
	if i := bytes.IndexFunc(a.b, func(r rune) bool { return r != 0 }); i >= 0 {
		t.Errorf("at %d the memory is not empty", i)
	}
	if a.Key() != key || Reuse("here") != nil {
		t.Error("memory was kept twice, or has another name")
	}
	b := Known(key, MinRing)
	if b == nil {
		t.Fatal("the other process does not know it")
	}
	defer b.Close()
	if Known(key, MinRing) != nil {
		t.Error("it knows it twice")
	}
	in, out := a.Ends(true)
	other, back := b.Ends(false)
	if _, err := in.Available(); err != ErrWouldBlock {
		t.Errorf("before anything was written: %v", err)
	}
	pass(t, out, other, 100000)
	pass(t, back, in, 100000)
	if n := Used(); n != used {
		t.Errorf("%d bytes of rings, %d before", n, used)
	}
}

// What was used much, or was not to be kept, is given back at once; what is kept for as long
// as its time, and at most so much of each kind.
func TestKeptForAMoment(t *testing.T) {
	before := Used()
	for _, c := range []struct {
		name  string
		n     int
		spoil func(made, told *Memory)
	}{
		{"much has passed", keptBytes + 1, func(*Memory, *Memory) {}},
		{"much has come", 10, func(_, told *Memory) { told.out.c.tail.Store(keptBytes + 1) }},
		{"not wanted", 10, func(made, told *Memory) { made.kept, told.kept = false, false }},
	} {
		made, told := ended(t, "here", c.n)
		c.spoil(made, told)
		made.Close()
		told.Close()
		if Reuse("here") != nil {
			t.Errorf("%s: it is used again", c.name)
		}
		if dropKept(); Used() != before {
			t.Errorf("%s: %d bytes are accounted for, %d before", c.name, Used(), before)
		}
	}
	for range maxKept + 3 {
		made, told := ended(t, "here", 10)
		made.Close()
		told.Close()
	}
	if n := (Used() - before) / first(MinRing); n != 2*maxKept {
		t.Errorf("%d mappings are kept, want %d", n, 2*maxKept)
	}
	start := time.Now()
	testkit.Eventually(t, "all is given back", func() bool { return Used() == before })
	if d := time.Since(start); d < toldFor/2 {
		t.Errorf("given back after %v", d)
	}
}

// New memory is made of what is kept, if there is no other.
func TestKeptIsBudgeted(t *testing.T) {
	made, told := ended(t, "here", 10)
	made.Close()
	told.Close()
	SetLimit(first(MinRing))
	defer SetLimit(0)
	m, fd, err := Create(MinRing)
	if err != nil {
		t.Fatal(err)
	}
	m.Close()
	unix.Close(fd)
}
