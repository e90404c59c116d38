package main

import (
	"fmt"
	"slices"
	"strconv"

	"viaduct/internal/figures"
)

// quantiles are the reported quantiles of round trips.
var quantiles = []float64{0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999}

// A curve shows the figures of a program over the variable of a picture.
type curve struct {
	name  string
	at    func(x int) side
	alike bool // x has no effect, so all points show the same figure
}

// A picture describes a drawing and the measurements: the value of each curve at each x, or the
// quantiles of each curve.
type picture struct {
	file   string
	title  string
	x, y   string // titles of the axes
	xs     []int
	tick   func(x int) string
	what   quantity
	scale  float64 // divisor of the values before they are drawn
	curves []curve
	dist   bool // xs are indices of quantiles, all of one measurement
}

// contest returns a single contest with all points of the picture, so that other load of the
// machine affects every point equally.
func (p *picture) contest() contest {
	c := contest{title: p.title}
	xs := p.xs
	if p.dist {
		xs = xs[:1]
	}
	for _, x := range xs {
		for _, v := range p.curves {
			s := v.at(x)
			s.name = p.point(v, x)
			c.sides = append(c.sides, s)
		}
	}
	return c
}

func (p *picture) point(v curve, x int) string {
	if p.dist || v.alike {
		return v.name
	}
	return fmt.Sprint(v.name, " at ", x)
}

// chart returns the drawing of the picture from the samples got, by name of the side.
func (p *picture) chart(got map[string]samples, caption string) figures.Chart {
	c := figures.Chart{File: p.file, Title: p.title, X: p.x, Y: p.y, Scale: figures.Logarithmic, Caption: caption, Lines: []figures.Line{}}
	if p.dist {
		c.Scale = figures.Odds
	}
	for _, x := range p.xs {
		c.Ticks = append(c.Ticks, p.tick(x))
		at := float64(x)
		if p.dist {
			at = quantiles[x]
		}
		c.At = append(c.At, at)
	}
	for _, v := range p.curves {
		l := figures.Line{Name: v.name}
		for _, x := range p.xs {
			s := got[p.point(v, x)]
			var value float64
			if p.dist {
				value = s.quantile(x)
			} else {
				value, _, _ = s.spread(p.what)
			}
			l.At = append(l.At, threeDigits(value/p.scale))
		}
		if l.Draws() {
			c.Lines = append(c.Lines, l)
		}
	}
	return c
}

// threeDigits rounds v to three digits, as many as a picture can show.
func threeDigits(v float64) float64 {
	v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 3, 64), 64)
	return v
}

// quantile returns the median over the rounds of the i-th quantile.
func (s samples) quantile(i int) float64 {
	var v []float64
	for _, r := range s {
		if i < len(r.QuantilesUS) {
			v = append(v, r.QuantilesUS[i])
		}
	}
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// pictures returns the pictures of docs/performance.md.
func (t *toolbox) pictures(base measure) []*picture {
	p := &programme{toolbox: t, base: base}
	size := func(x int) string { return shortSize(x) }
	bulk := func(n int) func(*measure) { // the same parameters as in the contests of these sizes
		depth := min(256, max(4, mib/n))
		return writes(n, depth, max(1, depth/4), max(n, 16*kib))
	}
	bell := func(n int) func(*measure) { return writes(64, 256, n, 16*kib) }
	mine := func(transport string, set func(int) func(*measure)) curve {
		return curve{transport, func(x int) side { return p.ours(transport, transport, set(x)) }, false}
	}
	ring := func(transport string, set func(int) func(*measure)) curve {
		return curve{ringsOf(transport), func(x int) side { return p.rings(transport, set(x)) }, false}
	}
	// The TCP peers batch by themselves or not at all: x does not matter there.
	constant := func(name string, s side) curve { return curve{name, func(int) side { return s }, true} }
	sizes := []int{64, kib, 8 * kib, 64 * kib, mib}
	ping := func(int) func(*measure) { return pings(8) }
	return []*picture{
		{file: "rate.svg", title: "RDMA Writes of 64 bytes over TCP", x: "messages per doorbell", y: "million messages/s",
			xs: []int{1, 2, 4, 16, 64}, tick: func(x int) string { return fmt.Sprint(x) }, what: rate, scale: 1e6, curves: []curve{
				mine("vitcp", bell), mine("iwarp", bell),
				{"C TCP, sendmsg of so many", func(x int) side { return p.cSide("", "stream", 64, x, 16*kib) }, false},
				constant("UCX tcp, put", p.ucxSide("ucp_put_bw", 64)), constant("libfabric tcp, write", p.fiSides("write", 64)[0]),
			}},
		{file: "bandwidth.svg", title: "RDMA Write over TCP", x: "bytes per message", y: "GB/s",
			xs: sizes, tick: size, what: bandwidth, scale: 1e9, curves: []curve{
				mine("vitcp", bulk), mine("iwarp", bulk),
				{"C TCP", func(x int) side { return p.cSide("", "stream", x, 1, max(x, 16*kib)) }, false},
				{"UCX tcp, put", func(x int) side { return p.ucxSide("ucp_put_bw", x) }, false},
				{"libfabric tcp, write", func(x int) side { return p.fiSides("write", x)[0] }, false},
			}},
		{file: "latency.svg", title: "Time of a message of 8 bytes, one way, polling", x: "per cent of the messages within", y: "microseconds",
			xs: upTo(len(quantiles)), tick: func(i int) string { return fmt.Sprintf("%g", quantiles[i]*100) }, scale: 1, dist: true, curves: []curve{
				ring("vitcp", ping), mine("vitcp", ping), ring("iwarp", ping), mine("iwarp", ping),
				constant("C TCP, spinning", p.cSide("", "spin", 8, 1, 8)), constant("libfabric tcp", p.fiSides("ping", 8)[0]),
				constant("libfabric shm", p.fiShm("ping", 8)),
			}},
		{file: "samehost.svg", title: "RDMA Write within one host", x: "bytes per message", y: "GB/s",
			xs: sizes, tick: size, what: bandwidth, scale: 1e9, curves: []curve{
				ring("vitcp", bulk), mine("vitcp", bulk), ring("iwarp", bulk),
				{"C TCP", func(x int) side { return p.cSide("", "stream", x, 1, max(x, 16*kib)) }, false},
				{"UCX posix, put", func(x int) side { return p.ucxPosix("ucp_put_bw", x) }, false},
				{"libfabric shm, write", func(x int) side { return p.fiShm("write", x) }, false},
			}},
	}
}

func upTo(n int) (out []int) {
	for i := range n {
		out = append(out, i)
	}
	return out
}

func shortSize(n int) string {
	switch {
	case n >= mib:
		return fmt.Sprint(n/mib, "M")
	case n >= kib:
		return fmt.Sprint(n/kib, "K")
	}
	return fmt.Sprint(n)
}

// charts returns the drawings of all pictures.
func (r *report) charts(all []*picture) (cs []figures.Chart) {
	caption := fmt.Sprintf("%s; %s; %d rounds, medians", r.Machine, r.Date, r.Rounds)
	for _, p := range all {
		cs = append(cs, p.chart(r.Samples[p.title], caption))
	}
	return cs
}
