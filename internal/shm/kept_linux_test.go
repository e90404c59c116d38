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
	if told, err = Open(fd, MinRing); err != nil {
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
	made.Keep(Keeper{Place: place})
	told.Keep(Keeper{By: place})
	t.Cleanup(func() { made.Close(); told.Close(); Drop() })
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
	a := Reuse("here")
	if a == nil {
		t.Fatal("the memory is not used again")
	}
	defer a.Close()
	if i := bytes.IndexFunc(a.b, func(r rune) bool { return r != 0 }); i >= 0 {
		t.Errorf("at %d the memory is not empty", i)
	}
	if Reuse("here") != nil {
		t.Error("memory was kept twice")
	}
	what := []byte("a connection")
	if m := Asked("here", what); m != nil {
		t.Fatal("nothing was asked for")
	}
	a.Ask(what)
	if m := Asked("elsewhere", what); m != nil {
		t.Fatal("another one was asked")
	}
	if m := Asked("here", []byte("a connexion")); m != nil {
		t.Fatal("something else was asked for")
	}
	b := Asked("here", what)
	if b == nil {
		t.Fatal("the other process does not hear of it")
	}
	defer b.Close()
	if Asked("here", what) != nil {
		t.Error("it hears of it twice")
	}
	if a.Uses() != 1 || b.Uses() != 1 {
		t.Errorf("used %d and %d times", a.Uses(), b.Uses())
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

// The two that agree by kept memory end up with the same, whatever each does next and in
// whatever order.
func TestAsk(t *testing.T) {
	const dialer, listener = 0, 1
	type step struct {
		side int
		name string
		do   func(m *Memory) bool
	}
	yes := func(do func(*Memory)) func(*Memory) bool { return func(m *Memory) bool { do(m); return true } }
	granted := func(m *Memory) bool { y, done := m.Answered(); return y && done }
	refused := func(m *Memory) bool { y, done := m.Answered(); return !y && done }
	pending := func(m *Memory) bool { _, done := m.Answered(); return !done }
	commits := func(m *Memory) bool { y, done := m.Committed(); return y && done }
	leaves := func(m *Memory) bool { y, done := m.Committed(); return !y && done }
	undecided := func(m *Memory) bool { _, done := m.Committed(); return !done }
	grant := func(yes, ok, wake bool) func(*Memory) bool {
		return func(m *Memory) bool { o, w := m.Grant(yes); return o == ok && w == wake }
	}
	not := func(f func(*Memory) bool) func(*Memory) bool { return func(m *Memory) bool { return !f(m) } }
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"granted", []step{{dialer, "pending", pending}, {listener, "grant", grant(true, true, false)}, {dialer, "granted", granted},
			{dialer, "late to sleep", not((*Memory).Await)}, {dialer, "late to withdraw", not((*Memory).Withdraw)},
			{listener, "undecided", undecided}, {dialer, "commit", yes((*Memory).Commit)}, {listener, "commits", commits}}},
		{"granted while it sleeps", []step{{dialer, "sleep", (*Memory).Await}, {dialer, "pending", pending},
			{listener, "grant", grant(true, true, true)}, {listener, "grant once", grant(true, false, false)}, {dialer, "granted", granted},
			{dialer, "leave", yes((*Memory).Leave)}, {listener, "leaves", leaves}}},
		{"refused", []step{{listener, "refuse", grant(false, true, false)}, {dialer, "refused", refused}, {dialer, "late", not((*Memory).Withdraw)}}},
		{"refused while it sleeps", []step{{dialer, "sleep", (*Memory).Await}, {listener, "refuse", grant(false, true, true)}, {dialer, "refused", refused}}},
		{"withdrawn", []step{{dialer, "withdraw", (*Memory).Withdraw}, {listener, "late", grant(true, false, false)}, {dialer, "not granted", refused}}},
		{"withdrawn after sleep", []step{{dialer, "sleep", (*Memory).Await}, {dialer, "withdraw", (*Memory).Withdraw}, {listener, "late", grant(false, false, false)}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			made, told := ended(t, c.name, 10)
			made.Close()
			told.Close()
			sides := [2]*Memory{Reuse(c.name)}
			defer sides[dialer].Close()
			sides[dialer].Ask([]byte("x"))
			sides[listener] = Asked(c.name, []byte("x"))
			defer sides[listener].Close()
			for i, s := range c.steps {
				if !s.do(sides[s.side]) {
					t.Fatalf("step %d, %s, is otherwise", i, s.name)
				}
			}
		})
	}
}

// What was withdrawn, or belongs where nothing is asked any more, is given back with its
// descriptors.
func TestKeptFiles(t *testing.T) {
	before := testkit.OpenFiles()
	keep := func() {
		made, told := ended(t, "here", 10)
		for _, m := range []*Memory{made, told} {
			var p [2]int
			if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			m.Hold(p[:]...)
			m.Close()
		}
	}
	holds := func(step string, want int) {
		t.Helper()
		if n := testkit.OpenFiles() - before; n != want {
			t.Errorf("%s: %d descriptors are kept, want %d", step, n, want)
		}
	}
	keep()
	holds("one connection", 4)
	a := Reuse("here")
	a.Ask([]byte("x"))
	a.Withdraw()
	holds("asked and withdrawn", 4)
	a.Close()
	holds("given back by the dialer", 2)
	keep()
	holds("another connection", 4) // and nothing of the first
	Forget("elsewhere")
	holds("another one forgets", 4)
	Forget("here")
	holds("the listener forgets", 2)
	if Asks() {
		t.Error("something may be asked for still")
	}
	if !Drop() || Drop() {
		t.Error("the dialer's was not dropped, or twice")
	}
	holds("all is dropped", 0)
	made, told := ended(t, "here", keptBytes+1)
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	made.Hold(p[:]...)
	made.Close()
	told.Close()
	holds("memory that is not kept", 0)
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
		{"not wanted", 10, func(made, told *Memory) { made.keeper, told.keeper = Keeper{}, Keeper{} }},
	} {
		made, told := ended(t, "here", c.n)
		c.spoil(made, told)
		made.Close()
		told.Close()
		if Reuse("here") != nil {
			t.Errorf("%s: it is used again", c.name)
		}
		if Drop(); Used() != before {
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
