package shell

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics are the counters of the process in Prometheus' format. Names and units follow Prometheus'
// conventions. Every label has a small fixed set of values, such as a transport, an operation or a
// kind of error. No label is an address or a path. Metrics are safe for concurrent use.
type Metrics struct {
	reg       *prometheus.Registry
	opened    *prometheus.CounterVec
	active    *prometheus.GaugeVec
	errors    *prometheus.CounterVec
	bytes     *prometheus.CounterVec
	units     *prometheus.CounterVec
	unitBytes *prometheus.CounterVec
	retries   *prometheus.CounterVec
	again     prometheus.Counter
	paths     *prometheus.CounterVec
	setup     *prometheus.HistogramVec
	trips     *prometheus.HistogramVec
	requests  *prometheus.HistogramVec
	transfers *prometheus.HistogramVec
	denied    *prometheus.CounterVec
	traffic   traffic
	srv       *http.Server
}

// The bucket limits of the histograms in seconds. Each limit is four times the previous limit.
var (
	tripBuckets     = prometheus.ExponentialBuckets(10e-6, 4, 9)  // 10 us to 0.66 s
	setupBuckets    = prometheus.ExponentialBuckets(100e-6, 4, 9) // 0.1 ms to 6.6 s
	transferBuckets = prometheus.ExponentialBuckets(1e-3, 4, 11)  // 1 ms to 17 min
)

func newMetrics() *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	m := &Metrics{
		reg: prometheus.NewRegistry(),
		opened: counter("viaduct_connections_total",
			"Connections set up, by transport and by role (dial or accept).", "transport", "role"),
		active: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "viaduct_connections_active",
			Help: "Connections open now."}, []string{"transport"}),
		errors: counter("viaduct_errors_total",
			"Connections that could not be set up or ended with an error, by its kind.", "transport", "kind"),
		bytes: counter("viaduct_payload_bytes_total",
			"Bytes of files, bodies of HTTP, streams and messages that the command has moved, by direction (in or out). Files that a client fetches by RDMA Read are counted at the client alone.", "transport", "direction"),
		units: counter("viaduct_operations_total",
			"Operations of message transports that this side has begun (send, write, read) or taken (receive).", "transport", "operation"),
		unitBytes: counter("viaduct_operation_bytes_total",
			"Bytes that those operations were for.", "transport", "operation"),
		retries: counter("viaduct_setup_retries_total",
			"Attempts to connect after the first, to a server that did not listen yet.", "transport"),
		again: prometheus.NewCounter(prometheus.CounterOpts{Name: "viaduct_retries_total",
			Help: "Attempts under --retry, after one that failed."}),
		denied: counter("viaduct_token_refusals_total",
			"Requests that a server refused because the token was missing, or wrong.", "transport", "kind"),
		paths: counter("viaduct_connection_paths_total",
			"Connections by how their bytes go: tcp, shared_memory, or fallback for TCP in place of SDP; and why not by shared memory.", "transport", "path", "reason"),
		setup: histogram("viaduct_setup_duration_seconds",
			"Time from the call to connect to a connection that is set up.", setupBuckets, "transport"),
		trips: histogram("viaduct_round_trip_duration_seconds",
			"Round trips of ping.", tripBuckets, "transport"),
		requests: histogram("viaduct_request_duration_seconds",
			"Time in which the memory service or the HTTP server answered a request, by operation and result (ok or refused).", setupBuckets, "transport", "operation", "result"),
		transfers: histogram("viaduct_transfer_duration_seconds",
			"Time in which a file was got or put, its verification included, by operation and result (ok or failed).", transferBuckets, "transport", "operation", "result"),
	}
	m.reg.MustRegister(m.opened, m.active, m.errors, m.bytes, m.units, m.unitBytes, m.retries,
		m.again, m.paths, m.setup, m.trips, m.requests, m.transfers, m.denied, &m.traffic,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector())
	return m
}

// Connection counts a connection. The caller must call ended when the connection ends.
func (m *Metrics) Connection(transport, role string) (ended func()) {
	m.opened.WithLabelValues(transport, role).Inc()
	g := m.active.WithLabelValues(transport)
	g.Inc()
	return g.Dec
}

// Failed counts a connection that failed with err.
func (m *Metrics) Failed(transport string, err error) {
	m.errors.WithLabelValues(transport, ErrorKind(err)).Inc()
}

// Bytes returns the byte counter of a transport for a direction, "in" or "out".
func (m *Metrics) Bytes(transport, direction string) prometheus.Counter {
	return m.bytes.WithLabelValues(transport, direction)
}

// SetUp records how long the set-up of a connection took.
func (m *Metrics) SetUp(transport string, took time.Duration) {
	m.setup.WithLabelValues(transport).Observe(took.Seconds())
}

// Retried counts an attempt to connect after the first.
func (m *Metrics) Retried(transport string) { m.retries.WithLabelValues(transport).Inc() }

// Again counts the repetition of a failed operation.
func (m *Metrics) Again() {
	if m != nil {
		m.again.Inc()
	}
}

// RoundTrips returns the histogram of ping's round trips, in seconds.
func (m *Metrics) RoundTrips(transport string) prometheus.Observer {
	return m.trips.WithLabelValues(transport)
}

// Request counts a request answered by a server. refused is the reason for a refusal, or nil.
func (m *Metrics) Request(transport, operation string, took time.Duration, refused error) {
	result := "ok"
	if refused != nil {
		result = "refused"
	}
	m.requests.WithLabelValues(transport, operation, result).Observe(took.Seconds())
}

// Denied counts a request refused because of a missing or wrong token.
func (m *Metrics) Denied(transport, kind string) { m.denied.WithLabelValues(transport, kind).Inc() }

// Transfer counts a client's fetch or store of a file, including failures. Unless ctx has ended, a
// failure is also counted as an error.
func (m *Metrics) Transfer(ctx context.Context, transport, operation string, took time.Duration, err error) {
	result := "ok"
	if err != nil {
		result = "failed"
		if ctx.Err() == nil {
			m.Failed(transport, err)
		}
	}
	m.transfers.WithLabelValues(transport, operation, result).Observe(took.Seconds())
}

// Operations are the counters of a message transport. A nil Operations counts nothing.
type Operations struct{ send, receive, write, read opCounter }

type opCounter struct{ n, bytes prometheus.Counter }

// Operations returns the counters of a transport.
func (m *Metrics) Operations(transport string) *Operations {
	if m == nil {
		return nil
	}
	of := func(op string) opCounter {
		return opCounter{m.units.WithLabelValues(transport, op), m.unitBytes.WithLabelValues(transport, op)}
	}
	return &Operations{of("send"), of("receive"), of("write"), of("read")}
}

func (o opCounter) count(n int) {
	o.n.Inc()
	o.bytes.Add(float64(n))
}

// Send counts a sent message of n bytes.
func (o *Operations) Send(n int) {
	if o != nil {
		o.send.count(n)
	}
}

// Receive counts a received message of n bytes.
func (o *Operations) Receive(n int) {
	if o != nil {
		o.receive.count(n)
	}
}

// Write counts a posted RDMA Write of n bytes.
func (o *Operations) Write(n int) {
	if o != nil {
		o.write.count(n)
	}
}

// Read counts a posted RDMA Read of n bytes.
func (o *Operations) Read(n int) {
	if o != nil {
		o.read.count(n)
	}
}

// Describe sends the descriptions of all metrics.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) { m.reg.Describe(ch) }

// Register adds a collector, for engines with statistics of their own.
func (m *Metrics) Register(c prometheus.Collector) error { return m.reg.Register(c) }

// Handler answers with all metrics.
func (m *Metrics) Handler() http.Handler { return promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{}) }

// CheckHostPort returns an error if s is not a TCP address of the form HOST:PORT.
func CheckHostPort(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	return err
}

// serve answers at /metrics and /debug/pprof/, and logs the address.
func (m *Metrics) serve(e *Env) error {
	if err := CheckHostPort(e.MetricsAt); err != nil {
		return Usage(fmt.Errorf("--metrics %q is not HOST:PORT: %w", e.MetricsAt, err))
	}
	l, err := net.Listen("tcp", e.MetricsAt)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", m.Handler())
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	m.srv = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: e.HTTPLog()}
	go m.srv.Serve(l)
	e.Notice("metrics", "url", "http://"+l.Addr().String()+"/metrics")
	return nil
}

func (m *Metrics) close() {
	if m.srv != nil {
		m.srv.Close()
	}
}
