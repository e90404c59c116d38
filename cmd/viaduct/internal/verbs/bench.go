package verbs

import (
	"context"
	"fmt"
	"math"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/bench"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/internal/sock"
)

// quietEnough is the part of the processor time that other processes may use without a warning.
const quietEnough = 0.1

func benchCommand(e *shell.Env) *cobra.Command {
	var transports, ops, sizes, doorbells, conns, server, client, plot string
	var p bench.Plan
	var rc reach
	c := &cobra.Command{
		Use:   "bench [--transports LIST] [--ops LIST] [--sizes LIST] [--time D]",
		Short: "compare the speed of the transports with plain TCP",
		Long: `Measure bandwidth, message rate, latency and processor time of the transports,
with plain TCP in every run. The measurements are between two processes of this
host, or between two hosts: one runs --server URL, the other --client with the
URL that the server prints. The measurements of a comparison take turns, round
by round. The table has medians and grows as they are known. With -i, each
measurement prints a line per interval; with --json, these are lines of their
own, {"interval":{...}}, before the line of the report. Operations:

  write, read, send  RDMA Writes, RDMA Reads and Sends, many outstanding
  stream             a byte stream, one write call per message
  poll, wait         round trips, both sides polling or waiting
  rate               64-byte RDMA Writes (for streams: writes) by --doorbells
  setup              connections opened, one after the other, each until both
                     ends can send; their end is not counted
  churn              connections opened and closed, one after the other
  idle               memory of an idle connection, for --idle-conns of them

A transport may have parameters, such as iwarp?crc=off. The column "path" is
"shm" if the bytes went through shared memory, which is the default between
processes of one host. X?samehost=off measures X over TCP. Without --transports
and --client, both are measured.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if server != "" {
				if client != "" || plot != "" || rc != (reach{}) {
					return shell.Usagef("--server goes with none of --client, --plot, --wait, --timeout and --retry")
				}
				return benchServer(cmd.Context(), e, server)
			}
			var err error
			if p.Transports, err = benchTransports(transports); err != nil {
				return err
			}
			if client == "" && sock.SharesByDefault && !cmd.Flags().Changed("transports") {
				p.Transports = benchPaths(p.Transports)
			}
			if p.Ops, err = benchOps(ops); err != nil {
				return err
			}
			if cmd.Flags().Changed("ops") && ops != "all" {
				if err := benchFits(transports, p.Transports, p.Ops); err != nil {
					return err
				}
			}
			if p.Sizes, err = benchNumbers("--sizes", sizes, 8, 64<<20); err != nil {
				return err
			}
			if p.Doorbells, err = benchNumbers("--doorbells", doorbells, 1, 1024); err != nil {
				return err
			}
			if p.Conns, err = benchNumbers("--conns", conns, 1, 10000); err != nil {
				return err
			}
			if p.Rounds < 1 || p.Rounds > 1000 || p.Time < time.Millisecond || p.Time > time.Hour ||
				p.IdleConns < 1 || p.IdleConns > 10000 {
				return shell.Usagef("--rounds, --time or --idle-conns is out of range")
			}
			if cmd.Flags().Changed("interval") && (p.Interval < time.Millisecond || p.Interval > time.Hour) {
				return shell.Usagef("--interval %v is not between 1ms and 1h", p.Interval)
			}
			return runBench(cmd.Context(), e, &p, client, rc, plot)
		},
	}
	f := c.Flags()
	f.StringVar(&transports, "transports", strings.Join(benchDefault(), ","), "`LIST` of transports")
	f.StringVar(&ops, "ops", "write,read,send,stream,poll,wait,rate", "`LIST` of operations, or all")
	f.StringVar(&sizes, "sizes", "64,4K,64K,1M", "`LIST` of message sizes")
	f.StringVar(&doorbells, "doorbells", "1,16,64", "`LIST` of messages per doorbell for rate")
	f.StringVar(&conns, "conns", "1", "`LIST` of connection counts for write, read, send and stream")
	f.IntVar(&p.IdleConns, "idle-conns", 1000, "make `N` connections for idle")
	f.DurationVar(&p.Time, "time", 400*time.Millisecond, "`D`uration of each measurement")
	f.DurationVarP(&p.Interval, "interval", "i", 0, "print the progress of a measurement every `D`")
	f.IntVar(&p.Rounds, "rounds", 5, "make each measurement `N` times")
	f.StringVar(&p.Congestion, "congestion", "", "congestion control `ALGORITHM` of all sockets (Linux)")
	f.StringVar(&server, "server", "", "be the server of a measurement: listen at `URL` (tcp://HOST:PORT)")
	f.StringVar(&client, "client", "", "measure against the server at `URL` instead of a process of our own")
	f.StringVar(&plot, "plot", "", "draw bandwidth, rate and round trips into `FILE.svg`")
	rc.add(c, true)
	return c
}

// benchDefault returns the transports to compare by default: all, and iwarp also without CRCs.
func benchDefault() (out []string) {
	for _, n := range transport.Names() {
		out = append(out, n)
		if n == "iwarp" {
			out = append(out, "iwarp?crc=off")
		}
	}
	return out
}

// benchPaths adds each transport over shared memory a second time, with TCP instead.
func benchPaths(transports []string) (out []string) {
	for _, t := range transports {
		out = append(out, t)
		if s := addr.SchemeOf(t); s != nil && s.Param("samehost") != nil {
			out = append(out, t+"?samehost=off")
		}
	}
	return out
}

func benchTransports(list string) (out []string, err error) {
	for _, t := range split(list) {
		scheme, _, _ := strings.Cut(t, "?")
		if !slices.Contains(transport.Names(), scheme) {
			return nil, shell.Usagef("--transports: %q is none of %s", scheme, strings.Join(transport.Names(), ", "))
		}
		s := scheme + "://h:1"
		if hasDisc(scheme) {
			s += "/d"
		}
		if _, _, err := parse(s + t[len(scheme):]); err != nil {
			return nil, err
		}
		if t != "tcp" {
			out = append(out, t)
		}
	}
	return append([]string{"tcp"}, out...), nil
}

func hasDisc(scheme string) bool {
	i := slices.IndexFunc(addr.Schemes, func(s addr.Scheme) bool { return s.Name == scheme })
	return i >= 0 && addr.Schemes[i].HasDisc
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

func benchOps(list string) ([]string, error) {
	if list == "all" {
		return bench.Ops, nil
	}
	ops := split(list)
	for _, o := range ops {
		if !slices.Contains(bench.Ops, o) {
			return nil, shell.Usagef("--ops: %q is none of %s", o, strings.Join(bench.Ops, ", "))
		}
	}
	if len(ops) == 0 {
		return nil, shell.Usagef("--ops names none")
	}
	return ops, nil
}

// benchFits refuses a requested operation that none of the requested transports has, because the
// rows of the operation would be missing silently. Plain TCP counts only if list names TCP or names
// nothing else, because every request measures TCP.
func benchFits(list string, transports, ops []string) error {
	if len(transports) > 1 && !slices.Contains(split(list), "tcp") {
		transports = transports[1:]
	}
	for _, op := range ops {
		if !slices.ContainsFunc(transports, func(t string) bool { return bench.Applies(t, op) }) {
			return shell.Usagef("--ops: %s is no operation of %s", op, strings.Join(transports, ", "))
		}
	}
	return nil
}

func benchNumbers(flag, list string, lo, hi uint64) (out []int, err error) {
	for _, s := range split(list) {
		n, err := addr.ParseSize(s)
		if err != nil || n < lo || n > hi {
			return nil, shell.Usagef("%s: %q is not between %d and %d", flag, s, lo, hi)
		}
		out = append(out, int(n))
	}
	if len(out) == 0 {
		return nil, shell.Usagef("%s names none", flag)
	}
	return out, nil
}

// control parses the address of a control connection, tcp://HOST:PORT.
func control(s string) (*addr.URL, error) {
	u, _, err := parse(s)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "tcp" || u.Path != "" {
		return nil, shell.Usagef("%s: the control connection is tcp://HOST:PORT", s)
	}
	return u, nil
}

func benchServer(ctx context.Context, e *shell.Env, at string) error {
	u, err := control(at)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", u.HostPort())
	if err != nil {
		return err
	}
	e.Listening(u.WithPort(l.Addr()))
	return bench.Serve(ctx, l, e.Status.Server())
}

// A benchReport is the document printed with --json.
type benchReport struct {
	Machine    string      `json:"machine"`
	Processors int         `json:"processors"`
	Go         string      `json:"go"`
	Date       string      `json:"date"`
	Congestion string      `json:"congestion,omitempty"`
	Busy       float64     `json:"busy_before"`
	Rounds     int         `json:"rounds"`
	Seconds    float64     `json:"seconds_per_measurement"`
	Rows       []bench.Row `json:"rows"`
}

func runBench(ctx context.Context, e *shell.Env, p *bench.Plan, at string, rc reach, plotFile string) error {
	if at == "" {
		c, err := startChild(ctx, e, "bench", "--server", "tcp://127.0.0.1:0")
		if err != nil {
			return err
		}
		defer c.stop()
		urls, err := c.listening(ctx, 1)
		if err != nil {
			return err
		}
		at = urls[0]
	}
	u, err := control(at)
	if err != nil {
		return err
	}
	r := benchReport{Machine: bench.Machine(), Processors: runtime.NumCPU(), Go: runtime.Version(),
		Date:       time.Now().UTC().Format(time.DateOnly),
		Congestion: p.Congestion, Rounds: p.Rounds, Seconds: p.Time.Seconds()}
	if busy, ok := bench.Busy(); ok {
		if r.Busy = busy; busy > quietEnough {
			e.Log.Warn("the machine is not quiet: figures will scatter", "busy_percent", math.Round(busy*100))
		}
	}
	c, err := retrying(rc.retrier(ctx, e), func() (*bench.Client, error) {
		return transport.Await(ctx, rc.wait,
			func() (*bench.Client, error) { return bench.Dial(ctx, u.HostPort(), e.Status.Server()) })
	})
	if err != nil {
		return err
	}
	defer c.Close()
	p.Progress = benchProgress(e)
	if table := newBenchTable(e, p); !e.JSON {
		table.begin(&r)
		p.Rows, p.Tell = table.rows, table.interval
	} else if p.Interval > 0 {
		p.Tell = func(i bench.Interval) {
			e.PrintEvent(struct {
				bench.Interval `json:"interval"`
			}{i})
		}
	}
	if r.Rows, err = c.Run(ctx, p); err != nil {
		return err
	}
	if plotFile != "" {
		title := r.Machine + ", " + r.Date
		if r.Congestion != "" {
			title += ", all sockets " + r.Congestion
		}
		if err := bench.Plot(plotFile, title, r.Rows); err != nil {
			return err
		}
	}
	if e.JSON {
		err = e.PrintJSON(r)
	}
	if err == nil {
		err = failures(r.Rows)
	}
	return err
}

// failures returns an error with the number of failed measurements and the reason of the first, or
// nil if none has failed.
func failures(rows []bench.Row) error {
	var first *bench.Row
	failed := 0
	for i := range rows {
		if rows[i].Error == "" {
			continue
		}
		if failed++; first == nil {
			first = &rows[i]
		}
	}
	if first == nil {
		return nil
	}
	return fmt.Errorf("%d of %d measurements failed, the first is %s %s of %d bytes: %s", failed, len(rows),
		first.Transport, first.Op, first.Size, first.Error)
}

// benchProgress returns a function that shows the current measurement, or nil without a terminal.
func benchProgress(e *shell.Env) func(done, all int, what string) {
	if !e.IsTerminal() {
		return nil
	}
	return func(done, all int, what string) {
		fmt.Fprintf(e.Stderr, "\r\x1b[K%d of %d  %s", done, all, what)
		if done == all {
			fmt.Fprint(e.Stderr, "\r\x1b[K")
		}
	}
}

// A benchTable prints each result as soon as it is measured.
type benchTable struct {
	e         *shell.Env
	c         *shell.Columns
	intervals bool // interval lines separate the rows, so that each group has its own head
	any       bool // rows have been printed
}

func newBenchTable(e *shell.Env, p *bench.Plan) *benchTable {
	t := &benchTable{e: e, intervals: p.Interval > 0,
		c: shell.NewColumns([]string{"op", "size>", "conns>", "transport", "path", "median>",
			"min>", "max>", "to TCP>", "CPU s/GB client>", "server>"})}
	for _, row := range p.Labels() {
		t.c.Fit(benchLine(row))
	}
	widest := figure("bytes/s", 99.9*(1<<20))
	t.c.Fit([]string{"", "", "", "", pathWord(true), widest, widest, widest})
	return t
}

func (t *benchTable) begin(r *benchReport) {
	t.e.Printf("%s; %d processors; %s; %s; %d rounds of %gs\n\n", r.Machine, r.Processors, r.Go,
		r.Date, r.Rounds, r.Seconds)
	if !t.intervals {
		t.e.Printf("%s", t.c.Head())
	}
}

// rows prints the results of a group.
func (t *benchTable) rows(rows []bench.Row) {
	t.clear()
	if t.any || t.intervals {
		t.e.Printf("\n")
	}
	if t.intervals {
		t.e.Printf("%s", t.c.Head())
	}
	for _, r := range rows {
		t.e.Printf("%s", t.c.Lay(benchLine(r)))
	}
	if t.intervals {
		t.e.Printf("\n")
	}
	t.any = true
}

// interval prints a line about a running measurement.
func (t *benchTable) interval(i bench.Interval) {
	t.clear()
	what := benchOp(i.Op, i.Doorbell)
	value := "-"
	if i.Done > 0 {
		value = figure(i.Unit, i.Value)
	}
	t.e.Printf("%-9s %8d  %-20s  round %d  %15s s  %10d done  %10s\n", what, i.Size, i.Transport,
		i.Round, fmt.Sprintf("%.2f-%.2f", i.From, i.To), i.Done, value)
}

// clear removes the progress line, which may be on the same terminal.
func (t *benchTable) clear() {
	if t.e.IsTerminal() {
		fmt.Fprint(t.e.Stderr, "\r\x1b[K")
	}
}

func benchOp(op string, doorbell int) string {
	if doorbell > 0 {
		return fmt.Sprintf("%s x%d", op, doorbell)
	}
	return op
}

// benchLine returns the cells of a result. A value not measured is "-".
func benchLine(row bench.Row) []string {
	line := []string{benchOp(row.Op, row.Doorbell), strconv.Itoa(row.Size), strconv.Itoa(row.Conns), row.Transport}
	if row.Error != "" {
		return append(line, "", "FAILED: "+row.Error)
	}
	ratio, cc, cs := "-", "-", "-"
	if row.ToTCP > 0 {
		ratio = fmt.Sprintf("%.2f", row.ToTCP)
	}
	if row.ClientCPU > 0 {
		cc, cs = fmt.Sprintf("%.2f", row.ClientCPU), fmt.Sprintf("%.2f", row.ServerCPU)
	}
	return append(line, pathWord(row.SharedMemory), figure(row.Unit, row.Median),
		figure(row.Unit, row.Min), figure(row.Unit, row.Max), ratio, cc, cs)
}

// figure formats a value with the unit.
func figure(unit string, v float64) string {
	switch unit {
	case "us":
		if v < 10 {
			return fmt.Sprintf("%.2f us", v)
		}
		return fmt.Sprintf("%.1f us", v)
	case "bytes/s":
		return shell.Rate(v)
	case "bytes":
		return shell.Size(v)
	case "messages/s":
		if v >= 1e6 {
			return fmt.Sprintf("%.2f M/s", v/1e6)
		}
		return fmt.Sprintf("%.0f k/s", v/1e3)
	}
	return fmt.Sprintf("%.0f /s", v)
}
