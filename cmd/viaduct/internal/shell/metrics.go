package shell

import (
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics are the counters of the process in the form that Prometheus reads.
type Metrics struct {
	reg    *prometheus.Registry
	opened *prometheus.CounterVec
	active *prometheus.GaugeVec
	failed *prometheus.CounterVec
	bytes  *prometheus.CounterVec
	units  *prometheus.CounterVec
	srv    *http.Server
}

func newMetrics() *Metrics {
	m := &Metrics{
		reg: prometheus.NewRegistry(),
		opened: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "viaduct_connections_total",
			Help: "Connections set up, by transport and by role (dial or accept)."}, []string{"transport", "role"}),
		active: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "viaduct_connections_active",
			Help: "Connections open now."}, []string{"transport"}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "viaduct_connections_failed_total",
			Help: "Connections that could not be set up or ended with an error."}, []string{"transport"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "viaduct_payload_bytes_total",
			Help: "Bytes of the application, by transport and direction (in or out)."}, []string{"transport", "direction"}),
		units: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "viaduct_operations_total",
			Help: "Sends, receives, RDMA Writes and RDMA Reads of message transports that were completed."}, []string{"transport", "operation"}),
	}
	m.reg.MustRegister(m.opened, m.active, m.failed, m.bytes, m.units,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewBuildInfoCollector())
	return m
}

// Connection counts a connection; call the result when it ends.
func (m *Metrics) Connection(transport, role string) (ended func()) {
	m.opened.WithLabelValues(transport, role).Inc()
	g := m.active.WithLabelValues(transport)
	g.Inc()
	return g.Dec
}

// Failed counts a connection that failed.
func (m *Metrics) Failed(transport string) { m.failed.WithLabelValues(transport).Inc() }

// Bytes returns the counter of one direction, "in" or "out".
func (m *Metrics) Bytes(transport, direction string) prometheus.Counter {
	return m.bytes.WithLabelValues(transport, direction)
}

// Operations returns the counter of one operation.
func (m *Metrics) Operations(transport, operation string) prometheus.Counter {
	return m.units.WithLabelValues(transport, operation)
}

// Register adds a collector, for engines with statistics of their own.
func (m *Metrics) Register(c prometheus.Collector) error { return m.reg.Register(c) }

// CheckHostPort tells what is wrong with a TCP address of the form HOST:PORT.
func CheckHostPort(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	return err
}

// serve answers at /metrics and /debug/pprof/ and says on stderr where.
func (m *Metrics) serve(e *Env) error {
	if err := CheckHostPort(e.MetricsAt); err != nil {
		return Usage(fmt.Errorf("--metrics %q is not HOST:PORT: %w", e.MetricsAt, err))
	}
	l, err := net.Listen("tcp", e.MetricsAt)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	m.srv = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go m.srv.Serve(l)
	e.Log.Warn("metrics", "url", "http://"+l.Addr().String()+"/metrics")
	return nil
}

func (m *Metrics) close() {
	if m.srv != nil {
		m.srv.Close()
	}
}
