package vitest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"viaduct/vi"
)

// A Harness connects the suite to a provider.
type Harness struct {
	// Open opens a NIC of side 0 or 1. The two sides are nodes that can reach each other. The suite
	// calls Open many times, and a test may call Open more than once for a side. NICs of different
	// calls must not interfere with each other. The suite closes the NICs.
	Open func(side int, cfg *vi.Config) (*vi.NIC, error)

	// Address returns the address of NIC n for other NICs, with the given discriminator.
	Address func(n *vi.NIC, discriminator []byte) vi.Address

	// Unreachable, if set, returns an address where there is no node. A connection attempt to the
	// address fails at once.
	Unreachable func() vi.Address

	// FlowControl means that the provider supports descriptor flow control.
	FlowControl bool

	// Lossy means that messages at unreliable delivery may be lost. At unreliable delivery the
	// suite then runs only the families that tolerate loss.
	Lossy bool

	// Unordered means that the bytes of a message may be placed in any order, as on a fabric
	// reordering frames. Programs watching memory for the last byte do not work there.
	Unordered bool

	// Scale multiplies the suite's patience; 0 means 1. A network with lost and repeated frames
	// needs a larger value.
	Scale int

	// Levels, if not 0, is the set of reliability levels the suite tests.
	Levels vi.Reliability

	// Only, if set, lists the families to run.
	Only []string

	// Tally, if set, allows connections to break at the reliable levels.
	Tally *Tally

	// Faults injects faults of the network.
	Faults Faults

	// Around, if set, calls test for each test, with the Harness of that test. It can so run each
	// test in a bubble of package synctest, with a network of its own. Open is then called only in
	// test. A bubble has no subtests, so the parts of a test run as one, and without a Tally a part
	// that is skipped skips the parts behind it.
	Around func(t *testing.T, test func(*testing.T, Harness))
}

// around calls test as Around does, or directly if Around is not set.
func (h Harness) around(t *testing.T, test func(*testing.T, Harness)) {
	if h.Around == nil {
		test(t, h)
		return
	}
	h.Around(t, test)
}

// Faults has functions for injecting faults into the connection of a VI. If a function is nil, the
// tests using the function are skipped.
type Faults struct {
	// Cut breaks the transport of v's connection without a message to either side.
	Cut func(v *vi.VI)

	// Corrupt damages the payload of the next message sent by v, and Truncate cuts the payload
	// short.
	Corrupt, Truncate func(v *vi.VI)

	// Dropped means that the network itself detects damage and drops the frame. The provider then
	// sees a lost message instead of a damaged message.
	Dropped bool
}

// A family is a group of tests, for a line of the checklist. [VIA 8.3]
type family struct {
	name string
	run  func(*env)

	once    bool // runs at one level, because the level makes no difference
	lossy   bool // runs on a network that loses messages
	read    bool // needs RDMA Read
	flow    bool // needs descriptor flow control
	skipped func(Harness) string
}

// Run runs the suite with the provider of h.
func Run(t *testing.T, h Harness) {
	var attrs vi.NICAttributes
	h.around(t, func(t *testing.T, h Harness) {
		probe, err := h.Open(0, nil)
		if err != nil {
			t.Fatal(err)
		}
		attrs = probe.Query()
		if err := probe.Close(); err != nil {
			t.Fatal(err)
		}
	})
	first := true
	for _, level := range []vi.Reliability{vi.ReliableReception, vi.ReliableDelivery, vi.UnreliableDelivery} {
		if attrs.ReliabilityLevels&level == 0 || h.Levels != 0 && h.Levels&level == 0 {
			continue
		}
		t.Run(levelNames[level], func(t *testing.T) {
			for _, f := range families {
				switch {
				case h.Only != nil && !slices.Contains(h.Only, f.name),
					f.once && !first,
					f.read && attrs.RDMAReadSupport&level == 0,
					f.flow && !h.FlowControl,
					h.Lossy && level == vi.UnreliableDelivery && !f.lossy:
					continue // the family does not run with this provider or level
				}
				t.Run(f.name, func(t *testing.T) {
					if f.skipped != nil {
						if why := f.skipped(h); why != "" {
							t.Skip(why)
						}
					}
					h.around(t, func(t *testing.T, h Harness) {
						start(t, h, level, levelNames[level]+"/"+f.name, f.run)
					})
				})
			}
		})
		first = false
	}
	if first {
		t.Fatalf("the NIC supports no reliability level: %v", attrs.ReliabilityLevels)
	}
}

var levelNames = map[vi.Reliability]string{
	vi.UnreliableDelivery: "UD", vi.ReliableDelivery: "RD", vi.ReliableReception: "RR",
}

// An env is the environment of a test, with two NICs.
type env struct {
	reporter
	Harness
	name  string
	real  *testing.T
	trial *trial // nil if the test is tried only once
	level vi.Reliability
	nics  [2]*vi.NIC
	async [2]*recorder
	names int
}

func newEnv(t *testing.T, r reporter, h Harness, level vi.Reliability, name string, x *trial) *env {
	e := &env{reporter: r, Harness: h, name: name, real: t, trial: x, level: level}
	for side := range e.nics {
		e.nics[side] = e.open(side, nil)
		e.async[side] = newRecorder(e.nics[side])
	}
	if x != nil {
		x.env(e)
	}
	return e
}

// sub runs a part of a test with a new env, as a subtest if possible.
func (e *env) sub(name string, f func(*env)) {
	e.Helper()
	if e.Around == nil {
		e.real.Run(name, func(t *testing.T) { start(t, e.Harness, e.level, e.name+"/"+name, f) })
		return
	}
	failed := e.real.Failed()
	if start(e.real, e.Harness, e.level, e.name+"/"+name, f); !failed && e.real.Failed() {
		e.real.Logf("the failure is in %s", name)
	}
}

func (e *env) open(side int, cfg *vi.Config) *vi.NIC {
	e.Helper()
	n, err := e.Open(side, cfg)
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() {
		if err := n.Close(); err != nil {
			e.Errorf("closing NIC %d: %v", side, err)
		}
	})
	return n
}

func (e *env) reliable() bool { return e.level != vi.UnreliableDelivery }

func (e *env) canRead() bool { return e.nics[0].Query().RDMAReadSupport&e.level != 0 }

// patience returns the time the suite waits for an expected event.
func (e *env) patience() time.Duration {
	if e.trial != nil { // a lost message never arrives, so waiting longer does not help
		limit := 3 * time.Second
		if e.trial.broke() {
			limit = time.Second
		}
		return limit * time.Duration(max(1, e.Scale))
	}
	return patience * time.Duration(max(1, e.Scale))
}

// patience is several times the duration of any expected event on a busy machine. Only a failing
// test waits so long.
const patience = time.Minute

// moment is the time the suite waits before concluding that an event does not happen.
const moment = 3 * time.Millisecond

// ctx returns a context that ends after the suite's patience.
func (e *env) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), e.patience())
	e.Cleanup(cancel)
	return ctx
}

// eventually waits until ok returns true, and fails the test after the suite's patience.
func (e *env) eventually(what string, ok func() bool) {
	e.Helper()
	for end := time.Now().Add(e.patience()); !ok(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			e.Fatalf("not within %v: %s", e.patience(), what)
		}
	}
}

func (e *env) must(err error) {
	e.Helper()
	if err != nil {
		e.tried(err)
		e.Fatal(err)
	}
}

func (e *env) wantErr(what string, got, want error) {
	e.Helper()
	if want == nil && got != nil || !errors.Is(got, want) {
		e.tried(got)
		e.Errorf("%s: error %v, want %v", what, got, want)
	}
}

// address returns an address of side with a discriminator this test has not used yet.
func (e *env) address(side int) vi.Address {
	e.names++
	return e.Address(e.nics[side], fmt.Appendf(nil, "d%d", e.names))
}

// attrs returns VI attributes with the level of the test and with RDMA Write and Read enabled as
// far as the level allows.
func (e *env) attrs() vi.Attributes {
	return vi.Attributes{Reliability: e.level, MaxTransferSize: e.mtu(), EnableRDMAWrite: true,
		EnableRDMARead: e.canRead()}
}

// mtu returns an odd transfer size. On most networks a message of mtu bytes takes several frames.
func (e *env) mtu() uint32 {
	return min(40961, e.nics[0].Query().MaxTransferSize, e.nics[1].Query().MaxTransferSize)
}

func (e *env) vi(side int, opts ...func(*vi.Attributes)) *vi.VI {
	e.Helper()
	a := e.attrs()
	for _, o := range opts {
		o(&a)
	}
	v, err := e.nics[side].CreateVI(a, nil, nil)
	e.must(err)
	return v
}

// region registers n bytes on a side, with all accesses allowed.
func (e *env) region(side, n int) *vi.Region {
	e.Helper()
	return e.regionOf(side, make([]byte, n),
		vi.MemAttributes{EnableRDMAWrite: true, EnableRDMARead: e.nics[side].Query().RDMAReadSupport != 0})
}

func (e *env) regionOf(side int, b []byte, a vi.MemAttributes) *vi.Region {
	e.Helper()
	r, err := e.nics[side].RegisterMem(b, a)
	e.must(err)
	return r
}

// A recorder records the asynchronous errors of a NIC.
type recorder struct {
	mu     sync.Mutex
	events []vi.ErrorDescriptor // guarded by mu; errors that no test has claimed yet
	lost   bool                 // guarded by mu; a connection was lost, even if no test claims it
}

func newRecorder(n *vi.NIC) *recorder {
	r := &recorder{}
	n.ErrorCallback(func(d vi.ErrorDescriptor) {
		r.mu.Lock()
		r.events = append(r.events, d)
		r.lost = r.lost || d.Code == vi.ErrorConnLost
		r.mu.Unlock()
	})
	return r
}

func (r *recorder) codes() []vi.ErrorCode {
	r.mu.Lock()
	defer r.mu.Unlock()
	var cs []vi.ErrorCode
	for _, d := range r.events {
		cs = append(cs, d.Code)
	}
	return cs
}

// claim waits until a side has reported exactly the errors want of v, in order, and removes the
// errors from the record.
func (e *env) claim(side int, v *vi.VI, want ...vi.ErrorCode) {
	e.Helper()
	r := e.async[side]
	deadline := time.Now().Add(e.patience())
	for {
		got := r.codes()
		if len(got) >= len(want) || time.Now().After(deadline) {
			break
		}
		time.Sleep(100 * time.Microsecond)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	ok := len(r.events) == len(want)
	for i := 0; ok && i < len(want); i++ {
		d := r.events[i]
		ok = d.Code == want[i] && d.VI == v && d.NIC == e.nics[side] && (d.Resource == vi.ResourceVI ||
			d.Resource == vi.ResourceDescriptor)
	}
	if !ok {
		e.Errorf("side %d: asynchronous errors %v, want %v of the VI", side, r.events, want)
	}
	r.events = nil
}
