package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"viaduct/interop/internal/mixed"
)

// A holding counts the resources of a process after all connections have ended.
type holding struct {
	Goroutines, Descriptors, Regions int
	Heap, RSS                        int64 // bytes
}

// kept is the number of descriptors that may be kept for later connections: epoll instances, of
// which one round leaves more than another.
const kept = 6

// exceeds reports whether h has more of anything but memory than was.
func (h holding) exceeds(was holding) bool {
	return h.Goroutines > was.Goroutines || h.Descriptors > was.Descriptors+kept || h.Regions > was.Regions
}

// counts has totals of all connections since the start of the process.
type counts struct {
	Orderly, Early uint64 // connections that ended in order, or early
	Shared         uint64 // connections of both kinds that used shared memory
	Bytes          uint64 // payload bytes verified in this process
	Requests       uint64 // requests that completed
	Wrong          string // the first broken promise, or ""
}

// A report is an answer of the server.
type report struct {
	Holding holding
	Counts  counts
	Open    []string // connections that did not end in time
}

// total adds up the tallies of connections.
type total struct {
	orderly, early, shared, bytes, requests atomic.Uint64
	wrong                                   atomic.Pointer[string]
}

func (t *total) add(tally mixed.Tally, err error) {
	t.bytes.Add(tally.ReceivedBytes)
	t.requests.Add(tally.Completed)
	if tally.SharedMemory {
		t.shared.Add(1)
	}
	switch {
	case errors.Is(err, mixed.ErrBroken):
		s := err.Error()
		t.wrong.CompareAndSwap(nil, &s)
	case err != nil:
		t.early.Add(1)
	default:
		t.orderly.Add(1)
	}
}

func (t *total) counts() counts {
	c := counts{Orderly: t.orderly.Load(), Early: t.early.Load(), Shared: t.shared.Load(), Bytes: t.bytes.Load(), Requests: t.requests.Load()}
	if s := t.wrong.Load(); s != nil {
		c.Wrong = *s
	}
	return c
}

// hold measures this process several times until limit is over, because resources of ended
// connections may disappear late. The result is the least measurement. On a busy machine they
// disappear later: while there are more than in was, a measurement of an earlier round or nil, hold
// goes on for up to a minute more.
func hold(regions func() int, limit time.Duration, was *holding) holding {
	best := holding{Goroutines: 1 << 30}
	for end := time.Now().Add(limit); ; time.Sleep(200 * time.Millisecond) {
		h := holding{Goroutines: runtime.NumGoroutine(), Descriptors: descriptors(), Regions: regions()}
		if h.Goroutines+h.Descriptors+h.Regions < best.Goroutines+best.Descriptors+best.Regions {
			best = h
		}
		if over := time.Since(end); over > time.Minute || over > 0 && (was == nil || !best.exceeds(*was)) {
			break
		}
	}
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	best.Heap, best.RSS = int64(m.HeapAlloc), resident()
	return best
}

// serve is the server process: serve prints the addresses, then answers each line of standard input
// with a report, until the input ends.
func serve(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	at := addresses{}
	var nodes []mixed.Node
	var waits []func()
	var sum total
	var open openings
	for _, transport := range mixed.Transports() {
		for _, b := range behaviours {
			n, err := mixed.Open(transport, mixed.Settings{Patience: time.Minute})
			if err != nil {
				return err
			}
			defer n.Close()
			nodes = append(nodes, n)
			a, wait, err := n.Listen(ctx, "127.0.0.1:0", b.plan, func(c mixed.Conn) {
				defer open.add(transport + ", one that " + b.name)()
				// Usually the client ends the connection. The time limit only detects a hanging
				// connection.
				run, cancel := context.WithTimeoutCause(ctx, b.plan.For+b.plan.Idle+2*patience, errHang)
				defer cancel()
				t, err := c.Run(run)
				if errors.Is(err, errHang) {
					err = errors.Join(mixed.ErrBroken, err)
				}
				if err != nil {
					err = fmt.Errorf("%s, a connection that %s, %+v: %w", transport, b.name, t, err)
				}
				sum.add(t, err)
			})
			if err != nil {
				return err
			}
			at[transport] = append(at[transport], a)
			waits = append(waits, wait)
		}
	}
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(at); err != nil {
		return err
	}
	regions := func() (all int) {
		for _, n := range nodes {
			all += n.Regions()
		}
		return all
	}
	var stuck []string // connections that did not end in an earlier round
	var first *holding // of round warm
	lines := bufio.NewScanner(os.Stdin)
	for round := 0; lines.Scan(); round++ {
		begin, left := time.Now(), open.list()
		if known := slices.Sorted(slices.Values(left)); len(left) > 0 && slices.Equal(known, stuck) {
			begin = begin.Add(-patience) // these connections have already had their time
		}
		for late := left; len(left) > 0 && time.Since(begin) < patience; left = open.list() {
			if late != nil && time.Since(begin) > settle {
				fmt.Fprintf(os.Stderr, "after %v not ended yet: %s\n", settle, strings.Join(left, "; "))
				late = nil
			}
			time.Sleep(20 * time.Millisecond)
		}
		if took := time.Since(begin); took > settle && len(left) == 0 {
			fmt.Fprintf(os.Stderr, "it ended %v after the round\n", took.Round(time.Second))
		}
		if stuck = slices.Sorted(slices.Values(left)); len(left) > 0 && time.Since(begin) < 2*patience {
			pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
		}
		now := hold(regions, settle, first)
		if round == warm {
			first = &now
		}
		if err := out.Encode(report{now, sum.counts(), left}); err != nil {
			return err
		}
	}
	stop()
	for _, wait := range waits {
		wait()
	}
	return lines.Err()
}

// errHang is the cause for ending a connection which does not end by itself.
var errHang = errors.New("the connection did not come to an end")

// patience is how long a connection may take to end after its peer was killed. The kernel reports
// the end of most connections at once; FC-VI's timers take longest.
const patience = 100 * time.Second

// openings holds the open connections.
type openings struct {
	mu   sync.Mutex
	next int
	all  map[int]string
}

func (o *openings) add(what string) (end func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[int]string{}
	}
	n := o.next
	o.next++
	o.all[n] = fmt.Sprintf("%s, since %s (%d)", what, time.Now().Format(time.TimeOnly), n)
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.all, n)
	}
}

func (o *openings) list() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Values(o.all))
}

// settle is the longest time until all resources of a closed connection are released. SDP and iWARP
// wait up to 5 s for the peer's close.
const settle = 6 * time.Second
