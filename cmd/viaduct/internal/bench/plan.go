package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// A Plan lists the measurements.
type Plan struct {
	Transports []string // schemes, with optional parameters after a ?
	Ops        []string
	Sizes      []int
	Doorbells  []int
	Conns      []int
	IdleConns  int
	Rounds     int
	Time       time.Duration // duration of one measurement
	Congestion string

	// Progress, if set, is called before each measurement.
	Progress func(done, all int, what string)

	// Rows, if set, is called with the rows of one comparison as soon as the rows are measured.
	Rows func([]Row)

	// Tell, if set, is called every Interval with the progress of the running measurement.
	// Measurements of idle connections report no progress.
	Interval time.Duration
	Tell     func(Interval)
}

// A Row is one line of the report. Values are in Unit. For microseconds and bytes, smaller values
// are better.
type Row struct {
	Transport string  `json:"transport"`
	Op        string  `json:"op"`
	Size      int     `json:"size"`
	Doorbell  int     `json:"doorbell,omitempty"`
	Conns     int     `json:"connections"`
	Unit      string  `json:"unit"`
	Median    float64 `json:"median"`
	Min       float64 `json:"min"`
	Max       float64 `json:"max"`
	Rounds    int     `json:"rounds"`
	ToTCP     float64 `json:"ratio_to_tcp"` // ratio of the medians; 0 without a baseline
	// Processor time per 10^9 bytes moved, on either side.
	ClientCPU float64 `json:"client_cpu_seconds_per_gb,omitempty"`
	ServerCPU float64 `json:"server_cpu_seconds_per_gb,omitempty"`
	// The path of the bytes between the processes.
	SharedMemory bool   `json:"shared_memory"`
	WhyTCP       string `json:"why_tcp,omitempty"`
	Error        string `json:"error,omitempty"`
}

// Unit returns the unit of an operation's results.
func Unit(op string) string {
	switch op {
	case OpPoll, OpWait:
		return "us"
	case OpRate:
		return "messages/s"
	case OpSetup, OpChurn:
		return "connections/s"
	case OpIdle:
		return "bytes"
	}
	return "bytes/s"
}

// rateSize is the size of the small messages of OpRate.
const rateSize = 64

// latencySizes returns the sizes up to 64 KiB, whose round trips are worth measuring, or else 64.
func latencySizes(sizes []int) (out []int) {
	for _, s := range sizes {
		if s <= 64<<10 {
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		out = []int{64}
	}
	return out
}

// specs returns the measurements of one transport, in the order of the report.
func (p *Plan) specs(transport string) (out []spec) {
	for _, op := range p.Ops {
		base := spec{Transport: transport, Op: op, Doorbell: 1, Congestion: p.Congestion}
		if !base.applies() {
			continue
		}
		sizes, doorbells, conns := p.Sizes, []int{1}, p.Conns
		switch op {
		case OpPoll, OpWait:
			sizes, conns = latencySizes(p.Sizes), []int{1}
		case OpRate:
			sizes, doorbells, conns = []int{rateSize}, p.Doorbells, []int{1}
		case OpSetup, OpChurn:
			sizes, conns = []int{rateSize}, []int{1}
		case OpIdle:
			sizes, conns = []int{rateSize}, []int{p.IdleConns}
		}
		for _, c := range conns {
			for _, size := range sizes {
				for _, d := range doorbells {
					s := base
					s.Size, s.Doorbell, s.Conns = size, d, c
					out = append(out, s)
				}
			}
		}
	}
	return out
}

// Applies reports whether a transport supports an operation.
func Applies(transport, op string) bool { return spec{Transport: transport, Op: op}.applies() }

// baseline returns the plain TCP measurement for comparison with a spec.
func (s spec) baseline() spec {
	b := s
	b.Transport = "tcp"
	switch s.Op {
	case OpWrite, OpRead, OpSend:
		b.Op = OpStream
	}
	return b
}

// groups returns the measurements in groups for comparison. The measurements of a group run
// together. Plain TCP is first in each group. The groups are in the order of the operations.
func (p *Plan) groups() (out [][]spec) {
	var all []spec
	for _, t := range p.Transports {
		for _, s := range p.specs(t) {
			if !slices.Contains(all, s) {
				all = append(all, s)
			}
		}
	}
	for _, s := range all {
		b := s.baseline()
		if slices.ContainsFunc(out, func(g []spec) bool { return g[0] == b }) {
			continue
		}
		g := []spec{b}
		for _, o := range all {
			if o != b && o.baseline() == b {
				g = append(g, o)
			}
		}
		out = append(out, g)
	}
	first := func(g []spec) int { // the first requested operation of g
		at := len(p.Ops)
		for _, s := range g {
			if i := slices.Index(p.Ops, s.Op); i >= 0 {
				at = min(at, i)
			}
		}
		return at
	}
	slices.SortStableFunc(out, func(a, b []spec) int { return cmp.Compare(first(a), first(b)) })
	return out
}

// Labels returns the rows of the report, in order and without figures.
func (p *Plan) Labels() (out []Row) {
	for _, g := range p.groups() {
		for _, s := range g {
			out = append(out, row(s, nil, nil))
		}
	}
	return out
}

// Run measures everything in the plan. Compared measurements take turns, round by round, so that
// changes of the machine's load affect all compared measurements. A failed measurement becomes a
// row with an error. Run returns an error only for the end of ctx, or if the server is lost.
func (c *Client) Run(ctx context.Context, p *Plan) (rows []Row, err error) {
	groups := p.groups()
	all, done := 0, 0
	for _, g := range groups {
		all += len(g) * p.Rounds
	}
	progress := func(s spec) {
		if p.Progress != nil {
			p.Progress(done, all, s.String())
		}
		done++
	}
	for _, g := range groups {
		side, err := c.compare(ctx, p, g, progress)
		if err != nil {
			return nil, err
		}
		if p.Progress != nil && done == all {
			p.Progress(all, all, "")
		}
		if p.Rows != nil {
			p.Rows(side)
		}
		rows = append(rows, side...)
	}
	return rows, nil
}

// compare measures one group. The first spec is plain TCP.
func (c *Client) compare(ctx context.Context, p *Plan, specs []spec, progress func(spec)) ([]Row, error) {
	samples := make([][]sample, len(specs))
	failed := make([]error, len(specs))
	for round := range p.Rounds {
		for i, s := range specs {
			progress(s)
			if failed[i] != nil || s.Op == OpIdle && round > 0 { // memory is the same in every round
				continue
			}
			m, err := c.measure(ctx, s, p.Time, p.meter(s, round+1))
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if err != nil {
				failed[i] = err
				if _, err := c.ask(request{Cmd: "close"}); err != nil {
					return nil, fmt.Errorf("%v: %w", s, failed[i])
				}
				continue
			}
			samples[i] = append(samples[i], m)
		}
	}
	rows := make([]Row, len(specs))
	for i, s := range specs {
		rows[i] = row(s, samples[i], failed[i])
		if b := rows[0].Median; b > 0 {
			rows[i].ToTCP = rows[i].Median / b
		}
	}
	return rows, nil
}

// String names a spec for people.
func (s spec) String() string {
	t := fmt.Sprintf("%s %s %d bytes", s.Transport, s.Op, s.Size)
	if s.Op == OpRate {
		t += fmt.Sprintf(", %d per doorbell", s.Doorbell)
	}
	if s.Conns > 1 {
		t += fmt.Sprintf(", %d connections", s.Conns)
	}
	return t
}

func row(s spec, ms []sample, err error) Row {
	r := Row{Transport: s.Transport, Op: s.Op, Size: s.Size, Conns: s.Conns, Unit: Unit(s.Op), Rounds: len(ms)}
	if s.Op == OpRate {
		r.Doorbell = s.Doorbell
	}
	if err != nil {
		r.Error = err.Error()
	}
	if len(ms) == 0 {
		return r
	}
	slices.SortFunc(ms, func(a, b sample) int {
		switch {
		case a.value < b.value:
			return -1
		case a.value > b.value:
			return 1
		}
		return 0
	})
	m := ms[len(ms)/2]
	r.SharedMemory, r.WhyTCP = m.path.SharedMemory, m.path.Why
	r.Median, r.Min, r.Max = m.value, ms[0].value, ms[len(ms)-1].value
	if m.bytes > 0 && Unit(s.Op) == "bytes/s" {
		r.ClientCPU, r.ServerCPU = m.cpuClient/(m.bytes/1e9), m.cpuServer/(m.bytes/1e9)
	}
	return r
}
