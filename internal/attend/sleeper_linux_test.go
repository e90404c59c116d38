package attend

import (
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// begin resets the package for a test, as on n processors, with sleeps of at most d.
func begin(t *testing.T, n int, d time.Duration) {
	process.sleeper.worth.Reset()
	process.processors.Store(int32(n))
	process.sleeper.period = d
	if process.sleeper.taken.Load() {
		t.Fatal("the Sleeper is taken")
	}
	process.sleeper.armed, process.sleeper.useful = false, false
	process.sleeper.company.Store(0)
	t.Cleanup(func() {
		process.processors.Store(int32(runtime.GOMAXPROCS(0)))
		process.sleeper.period = Period
		process.sleeper.worth.Reset()
		process.sleeper.armed = false
	})
}

// maxPassed is the largest number of skipped occasions.
const maxPassed = 1<<10 - 1

const forever = 10 * time.Minute // longer than a test may take

func take(t *testing.T) *Sleeper {
	t.Helper()
	var s *Sleeper
	testkit.Eventually(t, "a Sleeper", func() bool { s = TakeSleeper(); return s != nil })
	t.Cleanup(s.Free)
	return s
}

// pipe returns a descriptor r to sleep at, and a descriptor w. A write to w makes r readable.
func pipe(t *testing.T) (r, w int) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p[0]); unix.Close(p[1]) })
	return p[0], p[1]
}

// TestEnds: a sleep is ended by bytes or a Wake, before or during the sleep. A Wake of an awake
// Sleeper must have no effect.
func TestEnds(t *testing.T) {
	begin(t, 2, forever)
	s := take(t)
	r, w := pipe(t)
	expect := func(want Outcome) {
		t.Helper()
		if o := s.Sleep(); o != want {
			t.Errorf("ended with %d, want %d", o, want)
		}
		if s.state.Load() != awake {
			t.Error("asleep after Sleep")
		}
	}
	s.Add(r)
	unix.Write(w, []byte{1})
	expect(Arrived)
	s.Wake() // has no effect, because the Sleeper is awake
	s.Again()
	s.Add(r)
	expect(Arrived)
	unix.Read(r, make([]byte, 1))

	s.Again()
	s.Add(r)
	s.Wake()
	s.Wake()
	expect(Woken)

	for _, f := range []func(){s.Wake, WakeSleeper, func() { unix.Write(w, []byte{1}) }} {
		s.Again()
		s.Add(r)
		done := make(chan struct{})
		go func() { defer close(done); time.Sleep(time.Millisecond); f() }()
		if o := s.Sleep(); o == Paused {
			t.Error("not woken")
		}
		<-done
	}
}

// TestNoneIsLost: no wake-up is lost, whenever it happens. Every round needs a wake-up, because no
// sleep ends by itself.
func TestNoneIsLost(t *testing.T) {
	begin(t, 2, forever)
	s := take(t)
	rounds := 3000
	switch {
	case runtime.GOMAXPROCS(0) == 1:
		rounds = 50 // the runtime needs a while to run another goroutine
	case !testkit.LongRuns():
		rounds = 1000
	}
	r, w := pipe(t)
	var want, have atomic.Int64
	var wg sync.WaitGroup
	for k := range 2 { // one goroutine calls Wake, the other one writes
		wg.Go(func() {
			for i := k; i < rounds; i += 2 {
				for want.Load() <= int64(i) {
					runtime.Gosched()
				}
				if have.Store(int64(i) + 1); k == 0 {
					s.Wake()
				} else {
					unix.Write(w, []byte{1})
				}
			}
		})
	}
	for i := range int64(rounds) {
		want.Store(i + 1)
		for have.Load() <= i {
			s.Again()
			s.Add(r)
			if have.Load() > i {
				break
			}
			if s.Sleep() == Paused && have.Load() <= i {
				continue // the Wake of an earlier round was late
			}
		}
		if i%2 == 1 {
			unix.Read(r, make([]byte, 1))
		}
	}
	wg.Wait()
}

// TestInVain: a sleep ends by itself, more and more occasions to sleep are skipped after useless
// sleeps, and fewer after a useful one.
func TestInVain(t *testing.T) {
	begin(t, 2, 100*time.Microsecond)
	r, w := pipe(t)
	sleep := func() Outcome {
		n := 0
		for ; ; n++ {
			if s := TakeSleeper(); s != nil {
				defer s.Free()
				s.Add(r)
				return s.Sleep()
			}
			if n > 2*maxPassed {
				t.Fatal("never again")
			}
		}
	}
	passed := func() (n int) { // occasions that are skipped
		for !process.sleeper.worth.Worth() {
			n++
		}
		return n
	}
	last := 0
	for range 12 {
		if o := sleep(); o != Paused {
			t.Fatalf("ended with %d", o)
		}
		n := passed()
		if n < min(2*last+1, maxPassed) || n > maxPassed {
			t.Errorf("%d occasions are passed over after %d", n, last)
		}
		last = n
	}
	unix.Write(w, []byte{1})
	for start := time.Now(); ; {
		sleep()
		if n := passed(); n == 0 {
			break
		}
		if time.Since(start) > testkit.Patience {
			t.Fatal("what was in vain is not forgotten")
		}
	}
}

// TestOneProcessor checks three rules for one processor. A consumer that has slept at the sockets
// for a process.sleeper.period sleeps once through the runtime. A consumer that comes back after a long time need
// not do so. No consumer sleeps at the sockets while another one waits.
func TestOneProcessor(t *testing.T) {
	begin(t, 1, 20*time.Millisecond)
	r, w := pipe(t)
	unix.Write(w, []byte{1})
	paused := false
	for start := time.Now(); !paused; {
		s := TakeSleeper()
		if paused = s == nil; !paused {
			s.Add(r)
			paused = s.Sleep() == Paused
			s.Free()
		}
		if time.Since(start) > testkit.Patience {
			t.Fatal("dozes all the time")
		}
	}
	s := take(t)
	if TakeSleeper() != nil {
		t.Error("two doze on one processor")
	}
	s.Add(r)
	if s.Sleep() != Arrived {
		t.Error("paused twice")
	}
	s.Free()
	time.Sleep(3 * process.sleeper.period)
	s = take(t)
	s.Add(r)
	if s.Sleep() != Arrived {
		t.Error("paused after a long time awake")
	}
	s.Free()
	Park()
	defer Unpark()
	if TakeSleeper() != nil {
		t.Error("dozes while another waits")
	}
}

// TestLimits checks that one goroutine has the Sleeper at a time, and that it takes a few sockets
// only.
func TestLimits(t *testing.T) {
	r, _ := pipe(t)
	begin(t, 1, forever)
	s := take(t)
	if TakeSleeper() != nil {
		t.Error("two goroutines have the Sleeper")
	}
	for i := range MaxSockets + 1 {
		if ok := s.Add(r); ok != (i < MaxSockets) {
			t.Errorf("socket %d: %t", i, ok)
		}
	}
}

// TestCompany checks that nobody gets the Sleeper while other goroutines run between the waits, and
// that a goroutine gets it again later.
func TestCompany(t *testing.T) {
	begin(t, 2, forever)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that Gosched lets the other goroutine run
	var over atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !over.Load() {
			for start := clock(); clock()-start < 5*aloneTime; {
			}
			runtime.Gosched()
		}
	})
	refused := func() bool {
		s := TakeSleeper()
		if s != nil {
			s.Free()
		}
		return s == nil
	}
	for range 10 { // the other goroutine begins
		refused()
	}
	for i := range 10 {
		if !refused() {
			t.Errorf("wait %d gets the Sleeper", i)
		}
	}
	over.Store(true)
	wg.Wait()
	testkit.Eventually(t, "a sleep", func() bool { return !refused() })
}

// TestClosed: a socket that is closed, or whose number belongs to another file, does no harm.
func TestClosed(t *testing.T) {
	begin(t, 2, forever)
	s := take(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r, w := pipe(t)
	s.Add(r)
	unix.Close(r)
	if o := s.Sleep(); o != Arrived {
		t.Errorf("ended with %d", o)
	}
	s.Again()
	s.Add(r)
	WakeSleeper()
	f, err := os.Open(os.DevNull) // the file most likely gets the same number
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if o := s.Sleep(); o == Paused {
		t.Errorf("ended with %d", o)
	}
	unix.Close(w)
	unix.Dup3(int(f.Fd()), r, unix.O_CLOEXEC) // the cleanup closes this number
	unix.Dup3(int(f.Fd()), w, unix.O_CLOEXEC)
}
