package main

import "fmt"

// A side is a program under measurement.
type side struct {
	name string
	run  func() (result, error)
	why  string   // why this side cannot be measured; "" if it can
	m    *measure // what run measures; nil if the side is a peer's program
}

// A quantity selects a figure of a result.
type quantity uint8

const (
	bandwidth quantity = iota // bytes per second
	rate                      // messages per second
	latency                   // microseconds one way, median
	memory                    // bytes per connection, of the process that uses more
	slow                      // round trip in microseconds, 99th percentile
	cpu                       // processor time of both processes for a message, in microseconds
	allocs                    // heap objects per message, of both processes
)

func (q quantity) of(r result) float64 {
	switch q {
	case bandwidth:
		return r.Bytes / max(r.Seconds, 1e-9)
	case rate:
		return r.Messages / max(r.Seconds, 1e-9)
	case latency:
		return r.LatencyUS
	case slow:
		return r.SlowUS
	case cpu:
		return (r.TxCPU + r.RxCPU) * 1e6 / max(r.Messages, 1)
	case memory:
		return max(r.TxMemory, r.RxMemory)
	case allocs:
		return r.TxAllocs + r.RxAllocs
	}
	return 0
}

func (q quantity) format(v float64) string {
	switch q {
	case bandwidth:
		return fmt.Sprintf("%.2f GB/s", v/1e9)
	case rate:
		if v < 1e6 {
			return fmt.Sprintf("%.0f k/s", v/1e3)
		}
		return fmt.Sprintf("%.2f M/s", v/1e6)
	case latency, slow, cpu:
		return fmt.Sprintf("%.2f us", v)
	case memory:
		return fmt.Sprintf("%.1f KiB", v/1024)
	}
	return fmt.Sprintf("%.4f", v)
}

// A row is a target: the comparison of a figure of the side ours with the figure of the side
// theirs.
type row struct {
	metric string
	ours   string // names of sides of the contest
	theirs string // name of a side; if "", the figure of ours itself is judged
	what   quantity
	goal   float64 // the ratio ours/theirs, or the figure of ours, to reach; 0 if the row is shown and not judged
	floor  float64
	least  bool // a smaller figure is better
}

// A contest is a set of sides, measured in the same interleaved rounds.
type contest struct {
	title string
	sides []side
	rows  []row
}

// rdma lists the transports with RDMA targets.
var rdma = []string{"vitcp", "iwarp"}

const kib, mib = 1 << 10, 1 << 20

// A programme collects the contests of a comparison.
type programme struct {
	*toolbox
	base measure
	all  []contest
}

// contests returns the contests of all targets.
func (t *toolbox) contests(base measure) []contest {
	p := &programme{toolbox: t, base: base}
	p.bulk()
	p.small()
	p.latencies()
	p.libvipl()
	p.scale()
	p.streams()
	p.sameHost()
	p.http()
	p.orientation()
	return p.all
}

func (p *programme) add(title string, sides []side, rows ...row) {
	p.all = append(p.all, contest{title, sides, rows})
}

// ours returns a side measured with our own packages. set changes the measure, a copy of p.base.
func (p *programme) ours(name, transport string, set func(m *measure)) side {
	m := p.base
	m.Transport = transport
	set(&m)
	return side{name: name, run: func() (result, error) { return driveApart("", m) }, m: &m}
}

// each returns a side of ours for each transport of rdma. set changes each measure.
func (p *programme) each(set func(m *measure)) (s []side) {
	for _, name := range rdma {
		s = append(s, p.ours(name, name, set))
	}
	return s
}

// judge returns a row for each transport of rdma. A row compares the quantity q of our side with q
// of the side theirs.
func judge(metric, theirs string, q quantity, goal, floor float64) (r []row) {
	for _, name := range rdma {
		r = append(r, row{metric: metric, ours: name, theirs: theirs, what: q, goal: goal, floor: floor, least: q == latency})
	}
	return r
}

func (t *toolbox) cSide(name, op string, size, batch, footprint int) side {
	return side{name: name, run: func() (result, error) { return t.c(op, size, batch, footprint) }, why: t.missing["c"]}
}

func (t *toolbox) ucxSide(test string, size int) side {
	return side{name: "UCX " + test, run: func() (result, error) { return t.ucx("tcp", test, size) }, why: t.missing["ucx_perftest"]}
}

// fiSides returns libfabric's two providers. The targets are for "tcp". The newer provider "net"
// (called tcp in later releases) is shown and not judged.
func (t *toolbox) fiSides(op string, size int) []side {
	return []side{
		{name: "libfabric tcp " + op, run: func() (result, error) { return t.libfabric("tcp", op, size) }, why: t.missing["libfabric"]},
		{name: "libfabric net " + op, run: func() (result, error) { return t.libfabric("net", op, size) }, why: t.missing["libfabric"]},
	}
}

func human(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
