package bench

import (
	"fmt"
	"os"
	"slices"

	"viaduct/internal/figures"
)

// A kind is the contents of a chart: the rows of one unit, by message size or by the number of
// messages per doorbell.
type kind struct {
	unit, title, label, below string
	scale                     float64
	x                         func(Row) int
}

var kinds = []kind{
	{"bytes/s", "Bandwidth", "10^9 bytes/s", "bytes per operation", 1e9, func(r Row) int { return r.Size }},
	{"messages/s", "Message rate", "10^6 messages/s", "messages per doorbell", 1e6, func(r Row) int { return max(r.Doorbell, 1) }},
	{"us", "Round trip", "microseconds", "bytes per message", 1, func(r Row) int { return r.Size }},
}

// Plot draws bandwidth, message rate and round trips into an SVG file. Each of the three has a
// separate chart if there are rows, with one line per transport and operation. The caption is below
// all charts.
func Plot(path, caption string, rows []Row) error {
	var charts []*figures.Chart
	for _, k := range kinds {
		if c := k.chart(rows); c != nil {
			charts = append(charts, c)
		}
	}
	return os.WriteFile(path, figures.Page(caption, charts), 0o666)
}

// shows reports whether the row belongs into the chart of kind k.
func (k kind) shows(r Row) bool {
	return r.Unit == k.unit && r.Error == "" && k.x(r) >= 1 && r.Median > 0
}

func lineOf(r Row) string {
	name := r.Transport + " " + r.Op
	if r.Unit == "messages/s" {
		name += fmt.Sprintf(", %d B", r.Size)
	}
	if r.Unit == "bytes/s" && r.Doorbell > 1 {
		name += fmt.Sprintf(", doorbell %d", r.Doorbell)
	}
	if r.Conns > 1 {
		name += fmt.Sprintf(", %d connections", r.Conns)
	}
	return name
}

// chart returns the chart of the rows of a kind, or nil without rows of the kind.
func (k kind) chart(rows []Row) *figures.Chart {
	c := &figures.Chart{Title: k.title, X: k.below, Y: k.label, Scale: figures.Logarithmic}
	for _, r := range rows {
		if x := float64(k.x(r)); k.shows(r) && !slices.Contains(c.At, x) {
			c.At = append(c.At, x)
		}
	}
	if len(c.At) == 0 {
		return nil
	}
	slices.Sort(c.At)
	for i, x := range c.At {
		c.Ticks = append(c.Ticks, "")
		if every := (len(c.At) + 11) / 12; i%every == 0 {
			c.Ticks[i] = sizeText(int(x))
		}
	}
	for _, r := range rows {
		if !k.shows(r) {
			continue
		}
		name := lineOf(r)
		i := slices.IndexFunc(c.Lines, func(l figures.Line) bool { return l.Name == name })
		if i < 0 {
			i = len(c.Lines)
			c.Lines = append(c.Lines, figures.Line{Name: name, At: make([]float64, len(c.At))})
		}
		c.Lines[i].At[slices.Index(c.At, float64(k.x(r)))] = r.Median / k.scale
	}
	return c
}

// sizeText returns a size, in units of 1024 bytes (K) or 1048576 bytes (M) if n is a multiple.
func sizeText(n int) string {
	switch {
	case n%(1<<20) == 0:
		return fmt.Sprintf("%dM", n>>20)
	case n%(1<<10) == 0:
		return fmt.Sprintf("%dK", n>>10)
	}
	return fmt.Sprint(n)
}
