package shell

import (
	"net"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"viaduct/internal/sock"
	"viaduct/iwarp"
	"viaduct/samehost"
	"viaduct/sdp"
	"viaduct/vi"
)

// A sample holds the state reported by a connection's engine at a moment. Pairs of numbers are in
// the order in, out.
type sample struct {
	counts
	gauges
}

// counts are numbers that never decrease.
type counts struct {
	bytes, messages                     [2]uint64
	servedReads, servedAtomics          uint64
	noReceive, creditStalls, violations uint64
	byMechanism                         [len(mechanisms)][2]uint64
}

// gauges describe an open connection.
type gauges struct {
	credits  int // -1 without flow control by credits
	requests uint64
	bytes    uint64
	memory   uint64
}

const (
	in = iota
	out
)

var directions = [...]string{in: "in", out: "out"}

// mechanisms are the SDP mechanisms for moving payload.
var mechanisms = [...]string{"bcopy", "prefix", "transact", "read", "write"}

// each calls f with each number of c and the same number of o.
func (c *counts) each(o *counts, f func(c, o *uint64)) {
	for d := range directions {
		f(&c.bytes[d], &o.bytes[d])
		f(&c.messages[d], &o.messages[d])
		for m := range mechanisms {
			f(&c.byMechanism[m][d], &o.byMechanism[m][d])
		}
	}
	f(&c.servedReads, &o.servedReads)
	f(&c.servedAtomics, &o.servedAtomics)
	f(&c.noReceive, &o.noReceive)
	f(&c.creditStalls, &o.creditStalls)
	f(&c.violations, &o.violations)
}

func (c *counts) add(o *counts) { c.each(o, func(c, o *uint64) { *c += *o }) }

// reach raises every number to at least the number in o, since the counters a connection reports
// must not fall from one sample to the next.
func (c *counts) reach(o *counts) { c.each(o, func(c, o *uint64) { *c = max(*c, *o) }) }

// A source is a connection whose engine keeps counters.
type source struct {
	transport string
	ended     func() bool // the numbers of report do not change any more
	report    func() sample
	last      counts
}

// traffic sums the counters of the engines of all connections, including ended connections. traffic
// asks connections for numbers only at a collection, and when removing ended connections because
// the number of connections has doubled.
type traffic struct {
	mu      sync.Mutex
	live    []*source          // guarded by mu
	past    map[string]*counts // guarded by mu; by transport
	sweepAt int                // guarded by mu
}

const firstSweep = 64

func (t *traffic) watch(s *source) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.past == nil {
		t.past, t.sweepAt = make(map[string]*counts), firstSweep
	}
	if t.past[s.transport] == nil {
		t.past[s.transport] = new(counts)
	}
	t.live = append(t.live, s)
	if len(t.live) >= t.sweepAt {
		t.sweepLocked(nil)
		t.sweepAt = max(firstSweep, 2*len(t.live))
	}
}

// sweepLocked removes ended connections, adds the numbers of ended connections to past, and calls
// open for the others. If open is nil, sweepLocked asks only ended connections for numbers.
func (t *traffic) sweepLocked(open func(*source, sample)) {
	kept := t.live[:0]
	for _, s := range t.live {
		over := s.ended() // before report, so that its numbers are final
		if !over && open == nil {
			kept = append(kept, s)
			continue
		}
		r := s.report()
		r.reach(&s.last)
		s.last = r.counts
		if over {
			t.past[s.transport].add(&r.counts)
			continue
		}
		kept = append(kept, s)
		open(s, r)
	}
	clear(t.live[len(kept):])
	t.live = kept
}

func trafficDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, append([]string{"transport"}, labels...), nil)
}

var (
	trafficBytes = trafficDesc("viaduct_transport_bytes_total",
		"Payload that the connections of a transport have carried, requests and answers of the command's own included.", "direction")
	trafficMessages = trafficDesc("viaduct_transport_messages_total",
		"Messages of the transport's protocol.", "direction")
	trafficServed = trafficDesc("viaduct_served_operations_total",
		"RDMA Reads and atomic operations of the peer that were answered.", "operation")
	trafficNoReceive = trafficDesc("viaduct_messages_without_receive_total",
		"Messages for which no receive was posted.")
	trafficStalls   = trafficDesc("viaduct_credit_stalls_total", "Times that payload had to wait for credit.")
	trafficViolated = trafficDesc("viaduct_protocol_violations_total",
		"Offences of the peer against the protocol, as SDP counts them.")
	trafficMechanism = trafficDesc("viaduct_sdp_bytes_total",
		"Payload of SDP by the mechanism that has moved it.", "direction", "mechanism")
	trafficCredits = trafficDesc("viaduct_credits",
		"Messages that may be sent now, of all connections that count them.")
	trafficNoCredit = trafficDesc("viaduct_connections_without_credit", "Connections that may send nothing now.")
	trafficRequests = trafficDesc("viaduct_queued_requests",
		"Requests of message transports that are posted and not complete.")
	trafficQueued = trafficDesc("viaduct_queued_bytes",
		"Bytes of streams that are written and not sent and acknowledged.")
	trafficMemory = trafficDesc("viaduct_receive_buffer_bytes", "Memory of buffers for what peers send.")
)

// Describe is a method of prometheus.Collector.
func (t *traffic) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{trafficBytes, trafficMessages, trafficServed, trafficNoReceive, trafficStalls, trafficViolated, trafficMechanism,
		trafficCredits, trafficNoCredit, trafficRequests, trafficQueued, trafficMemory} {
		ch <- d
	}
}

// Collect is a method of prometheus.Collector.
func (t *traffic) Collect(ch chan<- prometheus.Metric) {
	t.mu.Lock()
	defer t.mu.Unlock()
	type now struct {
		counts
		gauges
		counted, idle int // connections with credits, and those without any left
	}
	sums := make(map[string]*now)
	open := make(map[string]*now)
	t.sweepLocked(func(s *source, r sample) {
		n := open[s.transport]
		if n == nil {
			n = new(now)
			open[s.transport] = n
		}
		n.add(&r.counts)
		n.requests += r.requests
		n.gauges.bytes += r.gauges.bytes
		n.memory += r.memory
		if r.credits >= 0 {
			n.counted++
			n.credits += r.credits
			if r.credits == 0 {
				n.idle++
			}
		}
	})
	for name, past := range t.past {
		n := open[name]
		if n == nil {
			n = new(now)
		}
		n.add(past)
		sums[name] = n
	}
	for name, n := range sums {
		count := func(d *prometheus.Desc, v uint64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v),
				append([]string{name}, labels...)...)
		}
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, name)
		}
		for d, direction := range directions {
			count(trafficBytes, n.counts.bytes[d], direction)
			count(trafficMessages, n.messages[d], direction)
		}
		if name == "sdp" {
			for d, direction := range directions {
				for m, mechanism := range mechanisms {
					count(trafficMechanism, n.byMechanism[m][d], direction, mechanism)
				}
			}
			count(trafficStalls, n.creditStalls)
			count(trafficViolated, n.violations)
			gauge(trafficQueued, float64(n.gauges.bytes))
		} else {
			count(trafficServed, n.servedReads, "read")
			if name == "iwarp" {
				count(trafficServed, n.servedAtomics, "atomic")
				count(trafficNoReceive, n.noReceive)
			}
			gauge(trafficRequests, float64(n.requests))
		}
		if name == "sdp" || name == "vitcp" {
			gauge(trafficCredits, float64(n.credits))
			gauge(trafficNoCredit, float64(n.idle))
		}
		gauge(trafficMemory, float64(n.memory))
	}
}

// WatchVI counts the traffic of a connected VI; memory is the size of its receives.
func (m *Metrics) WatchVI(transport string, v *vi.VI, memory uint64) {
	if m == nil {
		return
	}
	m.path(transport, v.Path())
	m.traffic.watch(&source{transport: transport, ended: func() bool { return v.State() == vi.Idle }, report: func() sample {
		t := v.Traffic()
		return sample{
			counts{bytes: [2]uint64{t.ReceivedBytes, t.SentBytes},
				messages: [2]uint64{t.ReceivedMessages, t.SentMessages}, servedReads: t.ServedReads},
			gauges{credits: t.Credits, requests: t.SendPosted, memory: memory},
		}
	}})
}

// WatchQueuePair counts the traffic of an iWARP stream; memory is the size of its receives.
func (m *Metrics) WatchQueuePair(q *iwarp.QueuePair, memory uint64) {
	if m == nil {
		return
	}
	m.path("iwarp", q.Path())
	m.traffic.watch(&source{transport: "iwarp", ended: func() bool { return isClosed(q.Ended()) }, report: func() sample {
		st := q.Stats()
		return sample{
			counts{bytes: [2]uint64{st.ReceivedBytes, st.SentBytes},
				messages:    [2]uint64{st.ReceivedMessages, st.SentMessages},
				servedReads: st.ServedReads, servedAtomics: st.ServedAtomics, noReceive: st.NoReceive},
			gauges{credits: -1, requests: st.SendPosted, memory: memory},
		}
	}})
}

// WatchStream counts the traffic of an SDP connection. Other streams are counted by their path
// only.
func (m *Metrics) WatchStream(c net.Conn) {
	if m == nil {
		return
	}
	switch c := c.(type) {
	case *sdp.Conn:
		m.path("sdp", StreamPath(c))
		m.traffic.watch(&source{transport: "sdp", ended: func() bool { return isClosed(c.Done()) },
			report: func() sample { return sdpSample(c.Stats()) }})
	case *sdp.TCPConn:
		m.paths.WithLabelValues("sdp", "fallback", "no_sdp").Inc()
	case *net.TCPConn:
		m.paths.WithLabelValues("tcp", "tcp", "transport").Inc()
	}
}

// StreamPath returns the path of a stream's bytes: shared memory, or TCP and why.
func StreamPath(c net.Conn) samehost.Path {
	if c, ok := c.(*sdp.Conn); ok {
		p := c.Path()
		return samehost.Path{SharedMemory: p.SharedMemory, Why: p.TCPWhy}
	}
	return samehost.Path{Why: "it is a TCP connection"}
}

func sdpSample(st sdp.Stats) sample {
	s := sample{counts{messages: [2]uint64{st.RecvMessages, st.SentMessages},
		creditStalls: st.CreditStalls, violations: st.Violations,
		byMechanism: [...][2]uint64{{st.RecvBytesBcopy, st.SentBytesBcopy},
			{st.RecvBytesPrefix, st.SentBytesPrefix}, {st.RecvBytesTransact, st.SentBytesTransact},
			{st.RecvBytesRead, st.SentBytesRead}, {st.RecvBytesWrite, st.SentBytesWrite}},
	}, gauges{credits: st.Credits, bytes: uint64(st.SendQueue), memory: uint64(st.Held)}}
	for _, m := range s.byMechanism {
		for d, n := range m {
			s.counts.bytes[d] += n
		}
	}
	return s
}

// path counts connections by the path of their bytes.
func (m *Metrics) path(transport string, p samehost.Path) {
	by, reason := "tcp", sock.Reason(p)
	if p.SharedMemory {
		by = "shared_memory"
	}
	m.paths.WithLabelValues(transport, by, reason).Inc()
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
