package vitest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"viaduct/vi"
)

// A Tally lets the suite run over a network that loses more than the reliable levels can recover.
// On such a network a connection may break, if both sides report it within the suite's patience and
// every posted descriptor completes with a status that shows it. A test whose connection broke in
// this way is repeated on new NICs. It counts as broken if all tries break. Three findings fail at
// once: wrong data, a wait without end, and a side without a report. Runs with other seeds may
// share a Tally. Check then requires that every test passed in at least one run.
type Tally struct {
	Tries  int    // number of tries of each test in one run; 0 means 3
	Shared *Tally // results are counted in this Tally instead, which its owner checks

	mu    sync.Mutex
	cases map[string]*outcome // guarded by mu
}

// An outcome counts how the runs of a test ended.
type outcome struct {
	outright, again, broken int
	last                    string // the finding when the connection broke
}

func (y *Tally) note(name string, f func(*outcome)) {
	if y.Shared != nil {
		y.Shared.note(name, f)
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.cases == nil {
		y.cases = map[string]*outcome{}
	}
	o := y.cases[name]
	if o == nil {
		o = &outcome{}
		y.cases[name] = o
	}
	f(o)
}

// Check prints the counts and fails for each test that never passed.
func (y *Tally) Check(t *testing.T) {
	y.mu.Lock()
	defer y.mu.Unlock()
	outright, again, broken, never := 0, 0, 0, 0
	for _, name := range slices.Sorted(maps.Keys(y.cases)) {
		o := y.cases[name]
		outright, again, broken = outright+o.outright, again+o.again, broken+o.broken
		if o.outright+o.again == 0 {
			never++
			t.Errorf("%s never came through: %s", name, o.last)
		}
	}
	t.Logf("%d tests: %d runs passed outright, %d when tried again, %d were reported broken; %d tests never came through",
		len(y.cases), outright, again, broken, never)
}

// Rare fails t if a connection broke in more than most runs, counted over all tests. A network that
// recovers lost frames breaks a connection only if it also loses the frames of the recovery.
func (y *Tally) Rare(t *testing.T, most int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	broke := 0
	for _, o := range y.cases {
		broke += o.again + o.broken
	}
	if t.Logf("%d runs broke a connection", broke); broke > most {
		t.Errorf("more than %d runs broke a connection", most)
	}
}

// start runs a test. If the harness allows it, a test whose connection breaks is repeated.
func start(t *testing.T, h Harness, level vi.Reliability, name string, f func(*env)) {
	y := h.Tally
	if y == nil {
		f(newEnv(t, t, h, level, name, nil))
		return
	}
	tries := y.Tries
	if tries == 0 {
		tries = 3
	}
	why := ""
	for n := range tries {
		x := &trial{T: t}
		broken := x.run(func() { f(newEnv(t, x, h, level, name, x)) })
		switch {
		case t.Failed() || x.skipped:
			return
		case !broken && n == 0:
			y.note(name, func(o *outcome) { o.outright++ })
			return
		case !broken:
			y.note(name, func(o *outcome) { o.again++ })
			return
		}
		why = x.why
	}
	y.note(name, func(o *outcome) { o.broken++; o.last = why })
}

// A reporter records the findings of a test.
type reporter interface {
	Helper()
	Cleanup(func())
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Skip(args ...any)
	Skipf(format string, args ...any)
}

// A trial is one try of a test. It stores the first finding, and reports this finding only if no
// broken connection explains it.
type trial struct {
	*testing.T

	mu       sync.Mutex
	found    string // guarded by mu: the first finding
	wrong    string // guarded by mu: wrong data before that finding
	why      string // explanation of found, set after the run
	setup    bool   // guarded by mu: a set-up failed with an error that reports the break
	skipped  bool
	cleanups []func()
	envs     []*env      // guarded by mu
	pairs    [][2]*vi.VI // guarded by mu: the connected VIs
}

var _ reporter = (*trial)(nil)

// run runs f. After a finding it checks how the connections ended. It returns true if a connection
// broke in the allowed way.
func (x *trial) run(f func()) (broken bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
	x.mu.Lock()
	found, wrong := x.found, x.wrong
	x.mu.Unlock()
	switch {
	case wrong != "":
		x.T.Errorf("wrong data: %s", wrong)
	case found != "":
		if why := x.audit(); why != "" {
			x.T.Errorf("%s; %s", found, why)
		} else {
			broken = true
		}
	}
	x.why, x.found = found, ""
	for _, c := range slices.Backward(x.cleanups) {
		c()
	}
	if x.found != "" { // a finding of a cleanup is always reported
		x.T.Error(x.found)
	}
	return broken
}

// bound returns the time the other side may take to detect that a connection broke.
func (e *env) bound() time.Duration { return patience * time.Duration(max(1, e.Scale)) }

// audit checks how the connections of a trial ended. It returns "" if a connection broke and was
// properly reported, which explains a finding. Otherwise it returns the fault.
func (x *trial) audit() string {
	lost := x.setup
	for end := time.Now().Add(time.Second); !lost && time.Now().Before(end); time.Sleep(time.Millisecond) {
		lost = x.told()
	}
	for _, p := range x.pairs {
		in := func(s vi.State) int {
			n := 0
			for _, v := range p {
				if v.State() == s {
					n++
				}
			}
			return n
		}
		if in(vi.Error) == 0 {
			continue
		}
		lost = true
		end := time.Now().Add(x.envs[0].bound())
		for in(vi.Connected) > 0 && time.Now().Before(end) {
			time.Sleep(time.Millisecond)
		}
		if in(vi.Connected) > 0 {
			return "one side of a broken connection still believes in it"
		}
		for _, v := range p {
			if why := flushed(v); why != "" {
				return why
			}
		}
	}
	if !lost {
		return "no connection is broken"
	}
	return ""
}

// told reports whether a NIC has reported a lost connection.
func (x *trial) told() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.envs {
		for _, r := range e.async {
			r.mu.Lock()
			lost := r.lost
			r.mu.Unlock()
			if lost {
				return true
			}
		}
	}
	return false
}

// broke reports whether any connection of the trial broke.
func (x *trial) broke() bool {
	if x.told() {
		return true
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, p := range x.pairs {
		if p[0].State() == vi.Error || p[1].State() == vi.Error {
			return true
		}
	}
	return false
}

// flushed checks that all descriptors of a VI that is not connected have completed. It returns "",
// or the fault.
func flushed(v *vi.VI) string {
	const bad = vi.StatusFlushed | vi.StatusTransportError | vi.StatusPartialError | vi.StatusRemoteDescriptor |
		vi.StatusRDMAProtection | vi.StatusLengthError | vi.StatusFormatError | vi.StatusProtectionError
	for _, wait := range []func(context.Context) (*vi.Descriptor, error){v.SendWait, v.RecvWait} {
		for {
			limit := time.Second
			if v.State() == vi.Error {
				limit = patience
			}
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			d, err := wait(ctx)
			cancel()
			if d == nil {
				if v.State() != vi.Error || errors.Is(err, vi.ErrQueueEmpty) ||
					errors.Is(err, vi.ErrResource) || errors.Is(err, vi.ErrClosed) {
					break
				}
				return fmt.Sprintf("a descriptor of a broken connection does not come back: %v", err)
			}
			if s := d.Status(); s&vi.StatusDone == 0 || s.Failed() && s&bad == 0 {
				return fmt.Sprintf("a descriptor of a broken connection has status %v", s)
			}
		}
	}
	return ""
}

// pair records two VIs that are, or will be, connected.
func (x *trial) pair(a, b *vi.VI) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p := [2]*vi.VI{a, b}; !slices.Contains(x.pairs, p) {
		x.pairs = append(x.pairs, p)
	}
}

// env adds the NICs of a test to the trial.
func (x *trial) env(e *env) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.envs = append(x.envs, e)
}

func (x *trial) Cleanup(f func()) { x.cleanups = append(x.cleanups, f) }

func (x *trial) find(s string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.found == "" {
		x.found = s
	}
}

func (x *trial) Error(args ...any)                 { x.find(fmt.Sprint(args...)) }
func (x *trial) Errorf(format string, args ...any) { x.find(fmt.Sprintf(format, args...)) }

func (x *trial) Fatal(args ...any) {
	x.Error(args...)
	runtime.Goexit()
}

func (x *trial) Fatalf(format string, args ...any) {
	x.Errorf(format, args...)
	runtime.Goexit()
}

func (x *trial) Skip(args ...any) {
	x.skipped = true
	runtime.Goexit()
}

func (x *trial) Skipf(string, ...any) { x.Skip() }

// wrongf reports wrong data. Only an earlier finding excuses it, because after that finding data
// may be missing.
func (e *env) wrongf(format string, args ...any) {
	e.Helper()
	if x := e.trial; x != nil {
		x.mu.Lock()
		if x.found == "" {
			x.wrong = fmt.Sprintf(format, args...)
		}
		x.mu.Unlock()
	}
	e.Fatalf(format, args...)
}

// tried records that a set-up failed because a connection broke.
func (e *env) tried(err error) {
	if x := e.trial; x != nil && err != nil {
		for _, known := range []error{vi.ErrTimeout, vi.ErrNotReachable, vi.ErrNoMatch, vi.ErrReject, vi.ErrInvalidState} {
			if errors.Is(err, known) {
				x.mu.Lock()
				x.setup = true
				x.mu.Unlock()
			}
		}
	}
}
