//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"viaduct/interop/internal/mixed"
)

// A job tells a worker what to do; each set field is a separate task. The answer is an outcome.
type job struct {
	// Listen: listen at the worker's host with each transport, for each plan.
	Listen string // host address
	Plans  map[string]mixed.Plan

	// Dial: connect to the other worker and run a plan once, or repeatedly for a given time.
	At         addresses
	Plan       string
	Transports []string
	Each       int           // number of connections of each transport
	Again      time.Duration // how long to make new connections
	Attempt    time.Duration // time limit of a set-up
	Limit      time.Duration // time limit of a connection's run, which then counts as hung

	// Ready: wait for the given number of long connections of the worker to be up.
	Ready int

	// Finish: wait until every connection dialled by the worker has ended.
	Finish bool

	// Collect: wait for all connections, close the listeners, and report. It follows the Finish of
	// all workers.
	Collect bool
	Fabric  string // fabric to join with host address Host
	Host    string

	KeepAlive time.Duration // period of TCP's keepalive, with Listen and At; 0 means the default
}

// addresses are the listening addresses of a worker, by plan and transport.
type addresses map[string]map[string]string

// An outcome is the answer to a job.
type outcome struct {
	Err     string
	At      addresses
	Runs    []run
	Left    leftovers
	Checked uint64 // segments that the namespace's TCP dropped because of a wrong checksum
}

// A run is an end of a connection, or an attempt to make a connection.
type run struct {
	Transport, Plan string
	Dialled         bool
	Begin           time.Time
	Setup           time.Duration // duration of the set-up; only at the end that dialled
	Took            time.Duration
	Tally           mixed.Tally
	Err             string
	Refused         bool // the set-up failed
	Broken          bool // a promise was broken
	Hung            bool // the time limit ended the run
}

// leftovers counts the remaining resources after all connections have ended.
type leftovers struct{ Goroutines, Descriptors, Regions int }

type worker struct {
	nodes map[string]mixed.Node
	limit atomic.Int64
	stop  context.CancelFunc
	ctx   context.Context
	waits []func()
	dials sync.WaitGroup
	open  atomic.Int64
	longs atomic.Int64 // long connections that have begun

	mu   sync.Mutex
	runs []run

	goroutines, descriptors int
}

var errHang = errors.New("ended by the limit of the test")

// work is the worker process: work reads jobs and writes outcomes.
func work(ctx context.Context) error {
	w := &worker{nodes: map[string]mixed.Node{}}
	w.ctx, w.stop = context.WithCancel(ctx)
	defer w.stop()
	w.limit.Store(int64(time.Minute))
	in, out := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	w.goroutines, w.descriptors = runtime.NumGoroutine(), descriptors()
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return nil // the parent process has ended
		}
		var j job
		if err := json.Unmarshal(line, &j); err != nil {
			return err
		}
		o, err := w.do(j)
		if err != nil {
			o.Err = err.Error()
		}
		if err := out.Encode(o); err != nil {
			return err
		}
	}
}

func (w *worker) do(j job) (o outcome, err error) {
	if j.Limit > 0 {
		w.limit.Store(int64(j.Limit))
	}
	switch {
	case j.Listen != "":
		o.At, err = w.listen(j)
	case j.At != nil:
		err = w.dial(j)
	case j.Ready > 0:
		for end := time.Now().Add(setupLimit); int(w.longs.Load()) < j.Ready && time.Now().Before(end); {
			time.Sleep(5 * time.Millisecond)
		}
		if n := int(w.longs.Load()); n < j.Ready {
			err = fmt.Errorf("%d of %d long connections came up", n, j.Ready)
		}
	case j.Finish:
		w.dials.Wait()
	case j.Collect:
		o = w.collect()
	}
	return o, err
}

func (j *job) settings() mixed.Settings {
	return mixed.Settings{Fabric: j.Fabric, Host: j.Host, KeepAlive: j.KeepAlive}
}

func (w *worker) node(j job, transport string) (mixed.Node, error) {
	if n := w.nodes[transport]; n != nil {
		return n, nil
	}
	n, err := mixed.Open(transport, j.settings())
	if err == nil {
		w.nodes[transport] = n
	}
	return n, err
}

func (w *worker) listen(j job) (addresses, error) {
	at := addresses{}
	for plan, p := range j.Plans {
		at[plan] = map[string]string{}
		for _, transport := range j.Transports {
			// Open a node for each plan, because the listeners of one VI NIC share a name.
			n, err := mixed.Open(transport, j.settings())
			if err != nil {
				return nil, err
			}
			w.nodes[plan+" "+transport] = n
			a, wait, err := n.Listen(w.ctx, j.Listen+":0", p, func(c mixed.Conn) {
				w.run(run{Transport: transport, Plan: plan, Begin: time.Now()}, c)
			})
			if err != nil {
				return nil, fmt.Errorf("%s: listen: %w", transport, err)
			}
			at[plan][transport] = a
			w.waits = append(w.waits, wait)
		}
	}
	return at, nil
}

// run runs connection c and records the result in r.
func (w *worker) run(r run, c mixed.Conn) {
	w.open.Add(1)
	defer w.open.Add(-1)
	if r.Plan == "long" {
		w.longs.Add(1)
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), time.Duration(w.limit.Load()), errHang)
	defer cancel()
	t, err := c.Run(ctx)
	r.Tally, r.Took = t, time.Since(r.Begin)
	if err != nil {
		r.Err, r.Broken, r.Hung = err.Error(), errors.Is(err, mixed.ErrBroken), errors.Is(err, errHang)
	}
	w.note(r)
}

func (w *worker) note(r run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.runs = append(w.runs, r)
}

func (w *worker) dial(j job) error {
	end := time.Now().Add(j.Again)
	for _, transport := range j.Transports {
		n, err := w.node(j, transport)
		if err != nil {
			return err
		}
		for range j.Each {
			w.dials.Go(func() {
				for first := true; first || time.Now().Before(end); first = false {
					w.once(n, j, transport)
				}
			})
		}
	}
	return nil
}

func (w *worker) once(n mixed.Node, j job, transport string) {
	r := run{Transport: transport, Plan: j.Plan, Dialled: true, Begin: time.Now()}
	ctx, cancel := context.WithTimeoutCause(w.ctx, j.Attempt, errHang)
	defer cancel()
	p := plans[j.Plan]
	if q, ok := j.Plans[j.Plan]; ok {
		p = q
	}
	c, err := n.Dial(ctx, j.At[j.Plan][transport], p)
	r.Setup = time.Since(r.Begin)
	if err != nil {
		r.Err, r.Refused, r.Took = err.Error(), true, r.Setup
		w.note(r)
		time.Sleep(20 * time.Millisecond) // so that immediate refusals do not cause a busy loop
		return
	}
	w.run(r, c)
}

// settle is how long goroutines, descriptors and regions of ended connections may take to
// disappear.
const settle = 30 * time.Second

func (w *worker) collect() (o outcome) {
	for end := time.Now().Add(time.Duration(w.limit.Load())); w.open.Load() > 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	w.stop()
	for _, wait := range w.waits {
		wait()
	}
	for name, n := range w.nodes {
		o.Left.Regions += n.Regions()
		if err := n.Close(); err != nil {
			o.Err += fmt.Sprintf("closing %s: %v\n", name, err)
		}
	}
	for end := time.Now().Add(settle); ; time.Sleep(50 * time.Millisecond) {
		o.Left.Goroutines, o.Left.Descriptors = runtime.NumGoroutine()-w.goroutines, descriptors()-w.descriptors
		if o.Left.Goroutines <= 0 && o.Left.Descriptors <= kept || time.Now().After(end) {
			break
		}
	}
	w.mu.Lock()
	o.Runs = slices.Clone(w.runs)
	w.mu.Unlock()
	o.Checked = badChecksums()
	return o
}
