//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"viaduct/interop/internal/link"
	"viaduct/interop/internal/mixed"
)

// A scenario is a network with the conditions that must hold on it.
type scenario struct {
	name string
	run  func(ctx context.Context, o *options, s scenario) (said string, err error)

	mtu        int
	fault      link.Fault // fault of both directions
	traffic    time.Duration
	rate       int // bytes per second of each long connection, each way
	sysctl     map[string]string
	keepAlive  time.Duration // period of TCP's keepalive of all connections, 0 leaves the default
	track      bool
	events     []event
	size       string // message size of a throughput measurement
	congestion string // congestion control of a throughput measurement; any that an unprivileged program may choose
	alone      bool   // run it when nothing else runs; throughput measurements run one after the other

	// Conditions besides the promises of package mixed.
	ends    ending
	trouble time.Duration              // how long set-ups may fail after the first event; 0 means never
	limit   time.Duration              // an operation that takes longer counts as hung
	hit     func(c link.Counters) bool // whether the fault occurred
	dropped bool                       // TCP must have dropped segments with wrong checksums
}

// An event changes the network at a time, counted from the moment when all long connections are up.
type event struct {
	at time.Duration
	do func(t *test) error
}

// An ending is the required end of the long connections.
type ending uint8

const (
	outlive ending = iota // all connections end in order
	either
	die // all connections end with an error
)

// A test is a running scenario.
type test struct {
	s     scenario
	net   *link.Network
	hosts []*host
	at    []addresses // listening addresses of each host
	plans map[string]mixed.Plan
	longs int // number of ends of long connections
}

const defaultMTU = 1500

// pair is the usual scenario: two hosts. Each keeps long connections of all transports to the
// other, and opens and closes short connections.
func pair(ctx context.Context, o *options, s scenario) (said string, err error) {
	t := &test{s: s, net: link.New(), plans: map[string]mixed.Plan{"long": longPlan(s.traffic, s.rate), "short": plans["short"]}}
	defer t.net.Close()
	if s.track {
		t.net.Track()
	}
	for i := range 2 {
		mtu := s.mtu
		if mtu == 0 {
			mtu = defaultMTU
		}
		h, err := newHost(ctx, t.net, i, mtu, uint64(len(s.name)))
		if err != nil {
			return "", err
		}
		defer h.end()
		for k, v := range s.sysctl {
			if err := h.Sysctl(k, v); err != nil {
				return "", err
			}
		}
		h.SetFault(s.fault)
		t.hosts = append(t.hosts, h)
	}
	transports := mixed.Transports()
	t.longs = 4 * len(transports)
	for _, h := range t.hosts {
		o, err := h.job(job{Listen: h.addr.String(), Plans: t.plans, Transports: transports, Limit: s.limit, KeepAlive: s.keepAlive})
		if err != nil {
			return "", err
		}
		t.at = append(t.at, o.At)
	}
	for i, h := range t.hosts {
		for _, j := range []job{
			{Plan: "long", Each: 1},
			{Plan: "short", Each: 1, Again: s.traffic + time.Second},
		} {
			j.At, j.Plans, j.Transports, j.Attempt, j.KeepAlive = t.at[1-i], t.plans, transports, setupLimit, s.keepAlive
			if _, err := h.job(j); err != nil {
				return "", err
			}
		}
	}
	for _, h := range t.hosts {
		if _, err := h.job(job{Ready: 2 * len(transports)}); err != nil {
			return "", err
		}
	}
	begin := time.Now()
	var first time.Time
	for _, e := range s.events {
		select {
		case <-time.After(time.Until(begin.Add(e.at))):
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
		if first.IsZero() {
			first = time.Now()
		}
		if err := e.do(t); err != nil {
			return "", err
		}
	}
	return t.judge(o, first)
}

// setupLimit is longer than any documented time limit of a set-up.
const setupLimit = 2 * time.Minute

// kept is the number of descriptors kept for later connections: the runtime's epoll instance and
// frameio's instances.
const kept = 6

// everywhere gives job j to all workers at the same time and waits for the outcomes.
func (t *test) everywhere(j job) ([]outcome, error) {
	out, errs := make([]outcome, len(t.hosts)), make([]error, len(t.hosts))
	var all sync.WaitGroup
	for i, h := range t.hosts {
		all.Go(func() { out[i], errs[i] = h.job(j) })
	}
	all.Wait()
	return out, errors.Join(errs...)
}

// collect waits until all connections have ended and returns the outcomes of all workers. collect
// first waits for every connection dialled by a worker, because no listener may close during a
// set-up whose first packet was lost.
func (t *test) collect() ([]outcome, error) {
	if _, err := t.everywhere(job{Finish: true}); err != nil {
		return nil, err
	}
	return t.everywhere(job{Collect: true})
}

// judge collects the outcomes and checks the conditions of the scenario.
func (t *test) judge(o *options, first time.Time) (said string, err error) {
	out, err := t.collect()
	if err != nil {
		return "", err
	}
	s := t.s
	var wrong []error
	bad := func(format string, a ...any) {
		if len(wrong) < 12 {
			wrong = append(wrong, fmt.Errorf(format, a...))
		}
	}
	var bytes, requests uint64
	longs, shorts, failed := 0, 0, 0
	slowest := time.Duration(0)
	for i, w := range out {
		for _, r := range w.Runs {
			bytes += r.Tally.ReceivedBytes
			requests += r.Tally.Completed
			role := "listened"
			if r.Dialled {
				role = "dialled"
			}
			what := fmt.Sprintf("%s, %s, host %d that %s, after %v", r.Transport, r.Plan, i, role, r.Took.Round(time.Millisecond))
			if o.verbose {
				fmt.Printf("    %s: %s %q\n", s.name, what, r.Err)
			}
			inTrouble := s.trouble > 0 && !first.IsZero() && r.Begin.Add(r.Took).After(first) && r.Begin.Before(first.Add(s.trouble))
			slowest = max(slowest, r.Took)
			switch {
			case r.Broken:
				bad("%s: %s", what, r.Err)
			case r.Tally.SharedMemory:
				bad("%s: it went through shared memory and not over the network", what)
			case r.Hung:
				bad("%s: it hung: %s", what, r.Err)
			case r.Plan == "long" && s.ends == outlive && r.Err != "":
				bad("%s: it ended early: %s", what, r.Err)
			case r.Plan == "long" && s.ends == die && r.Err == "":
				bad("%s: it ended in order where the network was gone", what)
			case r.Plan == "short" && r.Err != "" && !inTrouble:
				bad("%s: %s", what, r.Err)
			}
			if r.Plan == "long" {
				longs++
				continue
			}
			if r.Dialled {
				shorts++
				if r.Err != "" {
					failed++
				}
			}
		}
		if l := w.Left; l.Goroutines > 0 || l.Descriptors > kept || l.Regions > 0 {
			bad("host %d is left with %d goroutines, %d descriptors and %d regions more than before", i, l.Goroutines, l.Descriptors, l.Regions)
		}
		if s.dropped && w.Checked == 0 {
			bad("host %d: TCP saw no wrong checksum", i)
		}
	}
	if longs != t.longs {
		bad("%d ends of long connections, and not %d", longs, t.longs)
	}
	if shorts == 0 {
		bad("no short connection")
	}
	var c link.Counters
	for _, h := range t.hosts {
		k := h.Counters()
		c.Packets += k.Packets
		c.Lost += k.Lost + k.Overflowed
		c.Doubled += k.Doubled
		c.Corrupted += k.Corrupted
		c.Overtaken += k.Overtaken
		c.Resets += k.Resets
	}
	if s.hit != nil && !s.hit(c) {
		bad("the fault was not there: %+v", c)
	}
	said = fmt.Sprintf("%d set-ups (%d failed), %d requests, %.1f MB verified; %d packets", shorts+longs/2, failed, requests, float64(bytes)/1e6, c.Packets)
	for _, n := range []struct {
		n    uint64
		what string
	}{{c.Lost, "lost"}, {c.Doubled, "doubled"}, {c.Corrupted, "corrupted"}, {c.Overtaken, "overtaking"}, {c.Resets, "reset"}} {
		if n.n > 0 {
			said += fmt.Sprintf(", %d %s", n.n, n.what)
		}
	}
	if s.ends == die {
		said += fmt.Sprintf("; the last ended after %.1f s", slowest.Seconds())
	}
	return said, errors.Join(wrong...)
}

// all sets the fault of every port.
func (t *test) all(f link.Fault) {
	for _, h := range t.hosts {
		h.SetFault(f)
	}
}

// scenarios returns all scenarios in the order of starting: long scenarios come first.
func scenarios(long bool) []scenario {
	traffic := 4 * time.Second
	if long {
		traffic = 30 * time.Second
	}
	ms := time.Millisecond
	delay := func(f link.Fault) link.Fault { f.Delay = 10 * ms; return f }
	// If a peer vanishes silently, the system gives up after some 25 s instead of 15 minutes
	// because of soon, and in a short run keepalive gives up after 30 s instead of 150 s.
	keepAlive := 3 * time.Second
	if long {
		keepAlive = 0
	}
	soon := map[string]string{"ipv4/tcp_retries2": "6", "ipv4/tcp_syn_retries": "3", "ipv4/tcp_synack_retries": "3"}
	hole := func(t *test) error { t.all(link.Fault{Blackhole: true}); return nil }
	clear := func(t *test) error { t.all(t.s.fault); return nil }
	const rate = 100_000
	// A busy wire always carries parts of messages of most connections, so that a fault hits the
	// middle of messages.
	busy, busyRate := delay(link.Fault{Rate: 6_000_000}), 60_000
	all := []scenario{
		{name: "hole for ever", fault: delay(link.Fault{}), traffic: traffic + 6*time.Second, sysctl: soon, keepAlive: keepAlive, events: []event{{2 * time.Second, hole}},
			ends: die, trouble: time.Hour, limit: 180 * time.Second},
		{name: "hole of 5 s", fault: busy, rate: busyRate, traffic: traffic + 9*time.Second, events: []event{{2 * time.Second, hole}, {7 * time.Second, clear}},
			trouble: 25 * time.Second},
		{name: "link down for 3 s", fault: busy, rate: busyRate, traffic: traffic + 7*time.Second, trouble: 20 * time.Second, events: []event{
			{2 * time.Second, func(t *test) error { return t.hosts[0].SetUp(false) }},
			{5 * time.Second, func(t *test) error { return t.hosts[0].SetUp(true) }}}},
		{name: "address away for 3 s", fault: busy, rate: busyRate, traffic: traffic + 7*time.Second, sysctl: soon, keepAlive: keepAlive, trouble: 20 * time.Second, limit: 180 * time.Second, events: []event{
			{2 * time.Second, func(t *test) error { return t.hosts[0].SetAddr(netip.MustParseAddr("10.77.0.100")) }},
			{5 * time.Second, func(t *test) error { return t.hosts[0].SetAddr(t.hosts[0].addr) }}}},
		{name: "address changed for ever", fault: delay(link.Fault{}), traffic: traffic + 6*time.Second, sysctl: soon, keepAlive: keepAlive, ends: die, trouble: time.Hour, limit: 180 * time.Second, events: []event{
			{2 * time.Second, func(t *test) error { return t.hosts[0].SetAddr(netip.MustParseAddr("10.77.0.100")) }}}},
		{name: "connections reset", fault: delay(link.Fault{}), track: true, traffic: traffic + 4*time.Second, ends: die, trouble: 20 * time.Second,
			hit: func(c link.Counters) bool { return c.Resets > 0 }, events: []event{
				{2 * time.Second, func(t *test) error { t.net.Forget(); return nil }}}},
		{name: "throughput, loss 0.1 %", run: throughput, size: "64K", traffic: 4 * time.Second, limit: 5 * time.Minute, congestion: "reno",
			fault: delay(link.Fault{LossEvery: 1000}), alone: long},
		{name: "fabric of five namespaces", run: ring, fault: delay(link.Fault{Loss: 0.001})},
		{name: "loss 5 %", fault: delay(link.Fault{Loss: 0.05})},
		{name: "loss 1 %", fault: delay(link.Fault{Loss: 0.01})},
		{name: "loss 0.1 %", fault: delay(link.Fault{Loss: 0.001})},
		{name: "delay 20 ms, jitter", fault: link.Fault{Delay: 20 * ms, Jitter: 5 * ms}, hit: func(c link.Counters) bool { return c.Lost == 0 }},
		{name: "reordering 5 %", fault: delay(link.Fault{Reorder: 0.05}), hit: func(c link.Counters) bool { return c.Overtaken > 0 }},
		{name: "duplication 5 %", fault: delay(link.Fault{Duplicate: 0.05}), hit: func(c link.Counters) bool { return c.Doubled > 0 }},
		{name: "corruption 1 %", fault: delay(link.Fault{Corrupt: 0.01}), dropped: true, hit: func(c link.Counters) bool { return c.Corrupted > 0 }},
		{name: "all of these", fault: link.Fault{Delay: 20 * ms, Jitter: 5 * ms, Loss: 0.01, Reorder: 0.02, Duplicate: 0.02, Corrupt: 0.002}},
		{name: "10 Mbit/s", fault: delay(link.Fault{Rate: 10_000_000}), rate: 60_000},
		{name: "MTU 576", mtu: 576, fault: delay(link.Fault{Loss: 0.001})},
		{name: "MTU 9000", mtu: 9000, fault: delay(link.Fault{Loss: 0.003})}, // a greater loss, because larger packets are fewer
	}
	if long { // only with -long, because a full link keeps the emulator busy
		all = append(all, scenario{name: "throughput, 300 Mbit/s", run: throughput, size: "1M", alone: true, mtu: 9000, traffic: 3 * time.Second, limit: 5 * time.Minute,
			fault: delay(link.Fault{Rate: 300_000_000, Queue: 4 << 20})})
	}
	for i := range all {
		s := &all[i]
		if s.run == nil {
			s.run = pair
		}
		if s.traffic == 0 {
			s.traffic = traffic
		}
		if s.rate == 0 {
			s.rate = rate
		}
		if s.limit == 0 {
			s.limit = s.traffic + 3*time.Minute
		}
		if s.fault.Loss > 0 && s.hit == nil {
			s.hit = func(c link.Counters) bool { return c.Lost > 0 }
		}
	}
	return all
}
