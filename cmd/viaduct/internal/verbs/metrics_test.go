package verbs

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/store"
	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/internal/testkit"
)

// exposition returns the text Prometheus would scrape.
func exposition(t *testing.T, e *shell.Env) string {
	t.Helper()
	w := httptest.NewRecorder()
	e.Metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("%d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// scrape returns the values by series.
func scrape(t *testing.T, e *shell.Env) map[string]float64 {
	t.Helper()
	m := map[string]float64{}
	for line := range strings.Lines(exposition(t, e)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		v, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		m[line[:at]] = v
	}
	return m
}

func metricsEnv(t *testing.T) *shell.Env {
	t.Helper()
	e := shell.NewEnv()
	e.LogLevel, e.LogFormat, e.Stderr = "error", "text", io.Discard
	if err := e.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// filesServer serves a directory over a transport from this process until stop is called.
func filesServer(t *testing.T, scheme, dir string) (e *shell.Env, u *addr.URL, stop func()) {
	t.Helper()
	listen := scheme + "://127.0.0.1:0"
	if scheme == "vitcp" || scheme == "fcvi" {
		listen += "/m"
	}
	e = metricsEnv(t)
	r, w := io.Pipe()
	e.Stdout = w
	st, err := store.Open(dir, true, 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	lu, lt, err := parse(listen)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	s := &server{e: e, store: st, ts: []*transport.Transport{lt}, rf: &registerFlags{}}
	go func() {
		ended <- s.run(ctx, []*addr.URL{lu}, &transport.Options{Env: e, RecvCount: memReceives,
			RecvSize: memReceiveSize})
		w.Close()
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err, <-ended)
	}
	if u, err = addr.Parse(strings.TrimSpace(strings.TrimPrefix(line, "listening "))); err != nil {
		t.Fatal(err)
	}
	return e, u, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		st.Close()
	}
}

// The sizes of the transfers are no multiples of a piece.
const (
	putSize = 3<<20 + 17
	getSize = 2<<20 + 5
	piece   = 256 << 10

	streamSize = 100_001 // one piece
)

// transfer puts a file and a stream and gets another file over a transport. It returns both
// environments after the end, with their counters.
func transfer(t *testing.T, scheme string) (client, server *shell.Env) {
	t.Helper()
	dir := t.TempDir()
	there := make([]byte, getSize)
	rand.NewChaCha8([32]byte{1}).Read(there)
	if err := os.WriteFile(filepath.Join(dir, "there"), there, 0o600); err != nil {
		t.Fatal(err)
	}
	server, u, stop := filesServer(t, scheme, dir)
	client = metricsEnv(t)
	ct, err := transport.For(u)
	if err != nil {
		t.Fatal(err)
	}
	fc, err := dialFiles(t.Context(), client, u, ct, &transport.Options{Env: client})
	if err != nil {
		t.Fatal(err)
	}
	here := make([]byte, putSize)
	rand.NewChaCha8([32]byte{2}).Read(here)
	if err := fc.Put(t.Context(), "put", putSize, bytes.NewReader(here), sha256.New(), nil); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := fc.Get(t.Context(), "there", 0, &got, sha256.New(), nil, nil); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), there) {
		t.Error("got something else")
	}
	fc.Close()
	// A separate connection, so that iWARP's pacing needs no extra RDMA Read.
	if fc, err = dialFiles(t.Context(), client, u, ct, &transport.Options{Env: client}); err != nil {
		t.Fatal(err)
	}
	if err := fc.PutStream(t.Context(), "stream", bytes.NewReader(here[:streamSize]), sha256.New(), nil); err != nil {
		t.Fatal(err)
	}
	fc.Close()
	// Stopping the server breaks connections whose end has not reached the server, so wait for the
	// end.
	testkit.Eventually(t, "the end of the connection", func() bool {
		return scrape(t, server)[fmt.Sprintf("viaduct_connections_active{transport=%q}", scheme)] == 0
	})
	stop()
	return client, server
}

// TestMetricsExact: after transfers of known sizes, the counters at both ends have exactly the
// expected values.
func TestMetricsExact(t *testing.T) {
	for _, scheme := range transport.Names() {
		t.Run(scheme, func(t *testing.T) {
			ce, se := transfer(t, scheme)
			client, server := scrape(t, ce), scrape(t, se)
			check := func(side string, have map[string]float64, want map[string]float64) {
				t.Helper()
				for _, series := range slices.Sorted(maps.Keys(want)) {
					if have[series] != want[series] {
						t.Errorf("%s: %s is %v, want %v", side, series, have[series], want[series])
					}
				}
			}
			series := func(name string, labels ...string) string {
				s := name + "{"
				for i := 0; i < len(labels); i += 2 {
					s += fmt.Sprintf("%s=%q,", labels[i], labels[i+1])
				}
				return s + fmt.Sprintf("transport=%q}", scheme)
			}
			conns := 2.0
			if scheme == "tcp" || scheme == "sdp" {
				// On a busy machine, an answer may arrive long before the goroutine that wrote the
				// request goes on. net/http then uses another connection for the next request.
				conns = max(conns, client[series("viaduct_connections_total", "role", "dial")])
			}
			check("client", client, map[string]float64{
				series("viaduct_payload_bytes_total", "direction", "out"):                                 putSize + streamSize,
				series("viaduct_payload_bytes_total", "direction", "in"):                                  getSize,
				series("viaduct_connections_total", "role", "dial"):                                       conns,
				series("viaduct_connections_active"):                                                      0,
				series("viaduct_setup_duration_seconds_count"):                                            conns,
				series("viaduct_transfer_duration_seconds_count", "operation", "put", "result", "ok"):     2,
				series("viaduct_transfer_duration_seconds_count", "operation", "get", "result", "ok"):     1,
				series("viaduct_transfer_duration_seconds_count", "operation", "get", "result", "failed"): 0,
				series("viaduct_setup_retries_total"):                                                     0,
			})
			check("server", server, map[string]float64{
				series("viaduct_connections_total", "role", "accept"):    conns,
				series("viaduct_connections_active"):                     0,
				series("viaduct_payload_bytes_total", "direction", "in"): putSize + streamSize,
				series("viaduct_errors_total", "kind", "other"):          0,
				series("viaduct_errors_total", "kind", "ended"):          0,
				series("viaduct_connections_without_credit"):             0,
				series("viaduct_queued_requests"):                        0,
				series("viaduct_queued_bytes"):                           0,
				series("viaduct_messages_without_receive_total"):         0,
			})
			if scheme == "tcp" || scheme == "sdp" {
				check("server", server, map[string]float64{
					series("viaduct_payload_bytes_total", "direction", "out"):                             getSize,
					series("viaduct_request_duration_seconds_count", "operation", "put", "result", "ok"):  2,
					series("viaduct_request_duration_seconds_count", "operation", "get", "result", "ok"):  1,
					series("viaduct_request_duration_seconds_count", "operation", "head", "result", "ok"): 1,
				})
			} else {
				puts, gets := float64((putSize+piece-1)/piece), float64((getSize+piece-1)/piece)
				requests := 0.0
				if scheme == "iwarp" {
					requests = gets * 28 // bytes of a Read Request Header [RDMAP 4.4]
				}
				check("client", client, map[string]float64{
					// requests: three times open and close, and three times extend
					series("viaduct_operations_total", "operation", "send"):       9,
					series("viaduct_operations_total", "operation", "receive"):    9,
					series("viaduct_operations_total", "operation", "write"):      puts + 1,
					series("viaduct_operations_total", "operation", "read"):       gets,
					series("viaduct_operation_bytes_total", "operation", "write"): putSize + streamSize,
					series("viaduct_operation_bytes_total", "operation", "read"):  getSize,
				})
				check("server", server, map[string]float64{
					series("viaduct_operations_total", "operation", "send"):                                      9,
					series("viaduct_operations_total", "operation", "receive"):                                   9,
					series("viaduct_operations_total", "operation", "write"):                                     0,
					series("viaduct_operations_total", "operation", "read"):                                      0,
					series("viaduct_served_operations_total", "operation", "read"):                               gets,
					series("viaduct_request_duration_seconds_count", "operation", "open_read", "result", "ok"):   1,
					series("viaduct_request_duration_seconds_count", "operation", "close_read", "result", "ok"):  1,
					series("viaduct_request_duration_seconds_count", "operation", "open_write", "result", "ok"):  2,
					series("viaduct_request_duration_seconds_count", "operation", "close_write", "result", "ok"): 2,
					series("viaduct_request_duration_seconds_count", "operation", "extend", "result", "ok"):      3,
					// The connection carried the file and the request and response messages, and
					// over iWARP also the Read Requests.
					series("viaduct_transport_bytes_total", "direction", "in"):  putSize + streamSize + server[series("viaduct_operation_bytes_total", "operation", "receive")] + requests,
					series("viaduct_transport_bytes_total", "direction", "out"): getSize + server[series("viaduct_operation_bytes_total", "operation", "send")],
				})
			}
			if scheme != "tcp" { // both ends have counted the same bytes
				check("client", client, map[string]float64{
					series("viaduct_transport_bytes_total", "direction", "in"):  server[series("viaduct_transport_bytes_total", "direction", "out")],
					series("viaduct_transport_bytes_total", "direction", "out"): server[series("viaduct_transport_bytes_total", "direction", "in")],
				})
				if n := client[series("viaduct_transport_bytes_total", "direction", "out")]; n < putSize {
					t.Errorf("the client's connection has carried %v bytes", n)
				}
			}
		})
	}
}

// TestMetricsErrors: failures are counted by kind, and so are repeated attempts.
func TestMetricsErrors(t *testing.T) {
	at := testkit.ClosedPort(t)
	for _, scheme := range []string{"vitcp", "iwarp", "sdp", "tcp"} {
		u, err := addr.Parse(scheme + "://" + at)
		if scheme == "vitcp" {
			u, err = addr.Parse("vitcp://" + at + "/m")
		}
		if err != nil {
			t.Fatal(err)
		}
		ct, err := transport.For(u)
		if err != nil {
			t.Fatal(err)
		}
		e := metricsEnv(t)
		if _, err := dialFiles(t.Context(), e, u, ct, &transport.Options{Env: e}); err == nil {
			t.Fatalf("%s: connected to nothing", scheme)
		}
		got := scrape(t, e)
		if n := got[fmt.Sprintf("viaduct_errors_total{kind=%q,transport=%q}", "refused", scheme)]; n != 1 {
			t.Errorf("%s: %v refused connections in %s", scheme, n, exposition(t, e))
		}
		if n := got[fmt.Sprintf("viaduct_setup_duration_seconds_count{transport=%q}", scheme)]; n != 0 {
			t.Errorf("%s: %v connections set up", scheme, n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp := make(chan struct{})
		go func() {
			defer close(gaveUp)
			dialFiles(ctx, e, u, ct, &transport.Options{Env: e, Wait: time.Hour})
		}()
		testkit.Eventually(t, "an attempt after the first", func() bool {
			return scrape(t, e)[fmt.Sprintf("viaduct_setup_retries_total{transport=%q}", scheme)] > 0
		})
		cancel()
		<-gaveUp
	}
}

// TestMetricsOfPackage: the alerts and the dashboard of the Debian and RPM packages use only
// existing metrics, and promtool accepts the metrics and the alerts.
func TestMetricsOfPackage(t *testing.T) {
	e := metricsEnv(t)
	for _, m := range []prometheus.Collector{portmapStats{}, newRegistryStats()} {
		if err := e.Metrics.Register(m); err != nil {
			t.Fatal(err)
		}
	}
	ch := make(chan *prometheus.Desc, 1000)
	e.Metrics.Describe(ch)
	close(ch)
	known := map[string]bool{"up": true}
	labels := map[string]bool{"job": true, "instance": true, "le": true}
	for d := range ch {
		m := regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`).FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("description %v", d)
		}
		known[m[1]] = true
		if strings.HasSuffix(m[1], "_duration_seconds") {
			for _, s := range []string{"_bucket", "_sum", "_count"} {
				known[m[1]+s] = true
			}
		}
		for l := range strings.SplitSeq(m[2], ",") {
			labels[l] = true
		}
	}
	const dir = "../../../../packaging"
	rules, err := os.ReadFile(dir + "/prometheus/viaduct.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	dashboard, err := os.ReadFile(dir + "/grafana/viaduct.json")
	if err != nil {
		t.Fatal(err)
	}
	type board struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
	}
	var b board
	if err := json.Unmarshal(dashboard, &b); err != nil {
		t.Fatal(err)
	}
	asked := map[string]bool{}
	ask := func(where, expr string) {
		for _, n := range regexp.MustCompile(`\b(up|(viaduct|process|go)_[a-z_]+)\b`).FindAllString(regexp.MustCompile(`"[^"]*"`).ReplaceAllString(expr, `""`), -1) {
			asked[n] = true
			if !known[n] {
				t.Errorf("%s asks for %s, which is not exported", where, n)
			}
		}
		for _, m := range regexp.MustCompile(`([a-z]+)\s*(?:=~|!~|!=|=)\s*"`).FindAllStringSubmatch(expr, -1) {
			if !labels[m[1]] {
				t.Errorf("%s asks for the label %s, which nothing has", where, m[1])
			}
		}
		for _, m := range regexp.MustCompile(`\b(?:by|on) \(([^)]*)\)`).FindAllStringSubmatch(expr, -1) {
			for l := range strings.SplitSeq(m[1], ",") {
				if !labels[strings.TrimSpace(l)] {
					t.Errorf("%s asks for the label %s, which nothing has", where, l)
				}
			}
		}
	}
	tests, err := os.ReadFile(dir + "/prometheus/viaduct.rules.test.yml")
	if err != nil {
		t.Fatal(err)
	}
	alerts := strings.Split(string(rules), "- alert: ")[1:]
	for _, a := range alerts {
		name, rest, _ := strings.Cut(a, "\n")
		expr, _, _ := strings.Cut(rest, "labels: {severity")
		ask(name, expr)
		if !regexp.MustCompile(`alertname: ` + name + `\n\s+exp_alerts`).Match(tests) {
			t.Errorf("no test has %s fire", name)
		}
	}
	panels := 0
	for _, p := range b.Panels {
		for _, q := range p.Targets {
			panels++
			ask("the panel "+strconv.Quote(p.Title), q.Expr)
		}
	}
	if len(alerts) == 0 || panels == 0 {
		t.Fatalf("%d alerts, %d panels", len(alerts), panels)
	}
	for n := range known { // the dashboard shows all metrics
		if base := strings.TrimSuffix(strings.TrimSuffix(n, "_sum"), "_count"); strings.HasPrefix(n, "viaduct_") &&
			!asked[n] && !asked[base+"_bucket"] {
			t.Errorf("neither an alert nor a panel asks for %s", n)
		}
	}
}

// TestPromtool: promtool accepts the metrics of a server and a client, and the alerts fire when
// expected.
func TestPromtool(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("SKIPPED: promtool is not installed (Debian has it in prometheus)")
	}
	for _, scheme := range transport.Names() {
		client, server := transfer(t, scheme)
		client.Metrics.Failed(scheme, io.ErrUnexpectedEOF)
		client.Metrics.Retried(scheme)
		client.Metrics.RoundTrips(scheme).Observe(1e-4)
		for _, e := range []*shell.Env{client, server} {
			c := exec.Command(promtool, "check", "metrics")
			c.Stdin = strings.NewReader(exposition(t, e))
			if out, err := c.CombinedOutput(); err != nil || len(out) != 0 {
				t.Errorf("promtool check metrics, %s: %v\n%s", scheme, err, out)
			}
		}
	}
	for _, args := range []string{"check rules viaduct.rules.yml", "test rules viaduct.rules.test.yml"} {
		c := exec.Command(promtool, strings.Fields(args)...)
		c.Dir = "../../../../packaging/prometheus"
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", args, err, out)
		}
	}
}
