package bench

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Plot draws bandwidth and round trips over the size of messages, one line per
// transport and operation, into an SVG file.
func Plot(path, caption string, rows []Row) error {
	left, err := panel(rows, "bytes/s", "bandwidth, 10^9 bytes/s", 1e9)
	if err != nil {
		return err
	}
	right, err := panel(rows, "us", "round trip, microseconds", 1)
	if err != nil {
		return err
	}
	left.Title.Text, right.Title.Text = "Bandwidth", "Round trip"
	left.X.Label.Text = "bytes per operation\n" + caption
	c := vgsvg.New(14*vg.Inch, 6*vg.Inch)
	tiles := draw.Tiles{Rows: 1, Cols: 2, PadX: vg.Points(20), PadTop: vg.Points(8), PadBottom: vg.Points(8), PadLeft: vg.Points(8), PadRight: vg.Points(8)}
	canvases := plot.Align([][]*plot.Plot{{left, right}}, tiles, draw.New(c))
	left.Draw(canvases[0][0])
	right.Draw(canvases[0][1])
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := c.WriteTo(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// panel draws the rows of one unit.
func panel(rows []Row, unit, label string, scale float64) (*plot.Plot, error) {
	p := plot.New()
	p.Y.Label.Text = label
	p.X.Label.Text = "bytes per operation"
	p.Legend.Top, p.Legend.Left = true, true
	lines := map[string]plotter.XYs{}
	var names []string
	for _, r := range rows {
		if r.Unit != unit || r.Error != "" || r.Size < 1 || r.Median <= 0 {
			continue
		}
		name := r.Transport + " " + r.Op
		if r.Conns > 1 {
			name += fmt.Sprintf(", %d connections", r.Conns)
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
		lines[name] = append(lines[name], plotter.XY{X: float64(r.Size), Y: r.Median / scale})
	}
	if len(names) == 0 {
		return p, nil
	}
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.TickerFunc(sizeTicks)
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.TickerFunc(valueTicks)
	for i, n := range names {
		xy := lines[n]
		slices.SortFunc(xy, func(a, b plotter.XY) int { return int(a.X - b.X) })
		l, s, err := plotter.NewLinePoints(xy)
		if err != nil {
			return nil, err
		}
		l.Color, s.Color = plotutil.Color(i), plotutil.Color(i)
		l.Dashes, s.Shape = plotutil.Dashes(i/7), plotutil.Shape(i)
		p.Add(l, s)
		p.Legend.Add(n, l, s)
	}
	p.Add(plotter.NewGrid())
	p.Y.Max *= 2 // room for the legend
	return p, nil
}

// valueTicks marks 1, 2 and 5 times the powers of ten between two values.
func valueTicks(lo, hi float64) (ticks []plot.Tick) {
	for x := math.Pow(10, math.Floor(math.Log10(lo))); x <= hi; x *= 10 {
		for _, k := range []float64{1, 2, 5} {
			if v := k * x; v >= lo*0.999 && v <= hi*1.001 {
				ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'g', 3, 64)})
			}
		}
	}
	return ticks
}

// sizeTicks marks the powers of four between two sizes.
func sizeTicks(lo, hi float64) (ticks []plot.Tick) {
	for x := 1.0; x <= hi*1.001; x *= 4 {
		if x < lo*0.999 {
			continue
		}
		label := fmt.Sprintf("%.0f", x)
		switch {
		case x >= 1<<20:
			label = fmt.Sprintf("%.0fM", x/(1<<20))
		case x >= 1<<10:
			label = fmt.Sprintf("%.0fK", x/(1<<10))
		}
		ticks = append(ticks, plot.Tick{Value: x, Label: label})
	}
	return ticks
}
