package bench

import (
	"fmt"
	"image/color"
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

// The size of a plot and its parts, in points. The text is readable if the plot is 700 pixels wide.
const (
	plotWidth   = 700
	panelHeight = 290
	legendLine  = 17
	legendWidth = 230 // width of a column
	titleHeight = 24
)

// A kind is the contents of a panel: the rows of one unit, by message size or by the number of
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

// Plot draws bandwidth, message rate and round trips into an SVG file. Each has a separate panel if
// there are rows for it, with one line per transport and operation, in the colour of the transport.
// The legend is below all panels.
func Plot(path, caption string, rows []Row) error {
	names, transports := linesOf(rows)
	var panels []*plot.Plot
	legend := map[string][]plot.Thumbnailer{}
	for _, k := range kinds {
		p, err := panel(rows, k, names, transports, legend)
		if err != nil {
			return err
		}
		if p != nil {
			panels = append(panels, p)
		}
	}
	perLine := min(len(panels), 2)
	panelLines := 0
	if perLine > 0 {
		panelLines = (len(panels) + perLine - 1) / perLine
	}
	columns := plotWidth / legendWidth
	legendLines := (len(names) + columns - 1) / columns
	below := vg.Length(legendLines*legendLine + titleHeight)
	height := vg.Length(panelLines*panelHeight) + below
	c := vgsvg.New(plotWidth, height)
	all := draw.New(c)
	all.FillPolygon(color.White, []vg.Point{{}, {X: plotWidth}, {X: plotWidth, Y: height}, {Y: height}})
	if len(panels) > 0 {
		grid := make([][]*plot.Plot, panelLines)
		for i := range grid {
			grid[i] = make([]*plot.Plot, perLine)
			for j := range grid[i] {
				if n := i*perLine + j; n < len(panels) {
					grid[i][j] = panels[n]
				}
			}
		}
		tiles := draw.Tiles{Rows: panelLines, Cols: perLine, PadX: 16, PadY: 12, PadTop: 8,
			PadBottom: 4, PadLeft: 8, PadRight: 16}
		for i, line := range plot.Align(grid, tiles, draw.Crop(all, 0, 0, below, 0)) {
			for j, at := range line {
				if grid[i][j] != nil {
					grid[i][j].Draw(at)
				}
			}
		}
	}
	for i, n := range names {
		l := plot.NewLegend()
		l.Top, l.Left, l.TextStyle.Font.Size, l.ThumbnailWidth = true, true, 12, 30
		l.Add(n, legend[n]...)
		x, y := vg.Length(i%columns*legendWidth+24), below-vg.Length(i/columns*legendLine)
		l.Draw(draw.Crop(all, x, x+legendWidth-plotWidth, y-legendLine, y-height))
	}
	style := plot.NewLegend().TextStyle
	style.Font.Size = 11
	all.FillText(style, vg.Point{X: 24, Y: 8}, caption)
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

// shows reports whether the row belongs into a panel of this kind.
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

// linesOf returns the names of all lines, and the transports, in order.
func linesOf(rows []Row) (names, transports []string) {
	for _, r := range rows {
		if !slices.ContainsFunc(kinds, func(k kind) bool { return k.shows(r) }) {
			continue
		}
		if n := lineOf(r); !slices.Contains(names, n) {
			names = append(names, n)
		}
		if !slices.Contains(transports, r.Transport) {
			transports = append(transports, r.Transport)
		}
	}
	return names, transports
}

// panel draws the rows of one kind, and adds its lines to the legend. It returns nil if there are
// no such rows.
func panel(rows []Row, k kind, names, transports []string, legend map[string][]plot.Thumbnailer) (*plot.Plot, error) {
	lines := map[string]plotter.XYs{}
	of := map[string]int{} // the transport of a line
	for _, r := range rows {
		if k.shows(r) {
			n := lineOf(r)
			lines[n] = append(lines[n], plotter.XY{X: float64(k.x(r)), Y: r.Median / k.scale})
			of[n] = slices.Index(transports, r.Transport)
		}
	}
	if len(lines) == 0 {
		return nil, nil
	}
	p := plot.New()
	p.Title.Text, p.Y.Label.Text, p.X.Label.Text = k.title, k.label, k.below
	p.Title.TextStyle.Font.Size = 14
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Label.TextStyle.Font.Size, a.Tick.Label.Font.Size = 12, 11
	}
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.TickerFunc(sizeTicks)
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.TickerFunc(valueTicks)
	p.Add(plotter.NewGrid())
	drawn := map[int]int{} // lines of a transport
	for _, n := range names {
		xy := lines[n]
		if xy == nil {
			continue
		}
		slices.SortFunc(xy, func(a, b plotter.XY) int { return int(a.X - b.X) })
		l, s, err := plotter.NewLinePoints(xy)
		if err != nil {
			return nil, err
		}
		t := of[n]
		l.Width, s.Radius = 1.5, 3
		l.Color, s.Color, s.Shape = plotutil.DarkColors[t%len(plotutil.DarkColors)],
			plotutil.DarkColors[t%len(plotutil.DarkColors)], plotutil.Shape(t)
		l.Dashes = plotutil.Dashes(drawn[t])
		drawn[t]++
		p.Add(l, s)
		legend[n] = []plot.Thumbnailer{l, s}
	}
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		if a.Min == a.Max { // a logarithmic axis needs a range
			a.Min, a.Max = a.Min/2, a.Max*2
		}
	}
	return p, nil
}

// valueTicks marks 1, 2 and 5 times the powers of ten between two values. If these are fewer than
// three ticks, it marks more multiples.
func valueTicks(lo, hi float64) (ticks []plot.Tick) {
	for _, steps := range [][]float64{{1, 2, 5}, {1, 1.5, 2, 3, 4, 5, 7}} {
		ticks = nil
		for x := math.Pow(10, math.Floor(math.Log10(lo))); x <= hi; x *= 10 {
			for _, k := range steps {
				if v := k * x; v >= lo*0.999 && v <= hi*1.001 {
					ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'g', 3, 64)})
				}
			}
		}
		if len(ticks) >= 3 {
			break
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
