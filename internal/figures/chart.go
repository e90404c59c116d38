package figures

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strings"
)

// A Chart is a drawing of lines over a few values of x. Its y axis is logarithmic.
type Chart struct {
	File    string    `json:"file"`
	Title   string    `json:"title"`
	X       string    `json:"x"` // labels of the axes
	Y       string    `json:"y"`
	Scale   Scale     `json:"x_scale"`
	At      []float64 `json:"x_at"` // x value of each tick
	Ticks   []string  `json:"ticks"`
	Lines   []Line    `json:"lines"`
	Caption string    `json:"caption"`
}

// A Line has a y value for each tick of the x axis; 0 stands for no value.
type Line struct {
	Name string    `json:"name"`
	At   []float64 `json:"at"`
}

// A Scale maps values to places on the x axis.
type Scale string

// The scales.
const (
	Logarithmic Scale = "logarithmic" // equal ratios are equally far apart
	Odds        Scale = "odds"        // for fractions p of 1: equal ratios of p/(1-p) are equally far apart
)

// place returns the place of v on the axis, in units that depend on the scale.
func (s Scale) place(v float64) float64 {
	if s == Odds {
		return math.Log(v / (1 - v))
	}
	return math.Log(v)
}

// Draws reports whether there is a point to draw.
func (l Line) Draws() bool { return slices.ContainsFunc(l.At, func(v float64) bool { return v > 0 }) }

// The sizes of a chart, in pixels. Text is readable on a page that shows the chart 700 pixels wide.
const (
	chartWidth   = 700
	chartLeft    = 70
	chartRight   = 24
	chartTop     = 40
	chartPlot    = 250 // height of the area of the lines
	chartLegend  = 20  // height of a line of the legend
	chartColumns = 3
	chartText    = 12.5
)

// A style is the look of a line. Its mark is drawn around 0,0. Marks differ, so that the lines of a
// chart can be told apart without colours.
type style struct {
	name        string // prefix of the names of such lines
	light, dark string // colours
	mark        string
}

// chartStyles are the styles of all charts, so that one program looks the same in each chart. Of
// several prefixes fitting a name, the longest counts. The marks of shared memory are hollow.
var chartStyles = []style{
	{"vitcp", "#0969da", "#58a6ff", `<circle r="4"/>`},
	{"iwarp", "#cf222e", "#ff7b72", `<rect x="-4" y="-4" width="8" height="8"/>`},
	{"C TCP", "#1a7f37", "#3fb950", `<path d="M0,-5L5,4L-5,4Z"/>`},
	{"UCX", "#8250df", "#bc8cff", `<path d="M0,-5.5L5.5,0L0,5.5L-5.5,0Z"/>`},
	{"libfabric", "#bc4c00", "#f0883e", `<path d="M0,5L5,-4L-5,-4Z"/>`},
	{"vitcp, shared memory", "#57606a", "#9da7b3", `<circle r="4" class="hollow"/>`},
	{"iwarp, shared memory", "#bf3989", "#f778ba", `<rect x="-4" y="-4" width="8" height="8" class="hollow"/>`},
	{"libfabric shm", "#1b7c83", "#39c5cf", `<path d="M0,5L5,-4L-5,-4Z" class="hollow"/>`},
}

// styles returns the number of each line's style: the index in chartStyles, plus the length of
// chartStyles for each further use of the style. A line without a fitting free style has the first
// free style.
func (c *Chart) styles() []int {
	chosen := make([]int, len(c.Lines))
	taken := map[int]bool{}
	for i, l := range c.Lines {
		best := -1
		for k, s := range chartStyles {
			if strings.HasPrefix(l.Name, s.name) && !taken[k] &&
				(best < 0 || len(s.name) > len(chartStyles[best].name)) {
				best = k
			}
		}
		if chosen[i] = best; best >= 0 {
			taken[best] = true
		}
	}
	for i, k := range chosen {
		if k >= 0 {
			continue
		}
		for k = 0; taken[k]; k++ {
		}
		chosen[i], taken[k] = k, true
	}
	return chosen
}

// svg returns the chart as a picture.
func (c *Chart) svg() []byte {
	b := begin(c.Title, c.height())
	c.draw(b)
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// Page returns an SVG picture of the charts, one below the other, with the caption at the end.
func Page(caption string, charts []*Chart) []byte {
	height := 28 // of the caption
	for _, c := range charts {
		height += c.height()
	}
	b := begin(caption, height)
	fmt.Fprintf(b, `<rect class="page" width="%d" height="%d"/>`+"\n", chartWidth, height)
	y := 0
	for _, c := range charts {
		fmt.Fprintf(b, `<g transform="translate(0,%d)">`+"\n", y)
		c.draw(b)
		b.WriteString("</g>\n")
		y += c.height()
	}
	text(b, 28, float64(height-12), "start", "small", caption)
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// begin returns the beginning of a picture, up to its styles. height is in pixels.
func begin(label string, height int) *bytes.Buffer {
	b := new(bytes.Buffer)
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-label="%s">`+"\n",
		chartWidth, height, chartWidth, height, escape(label))
	b.WriteString(chartStyle())
	return b
}

// columns returns the number of columns of the legend. The longest name has room in each.
func (c *Chart) columns() int {
	const char = 7 // width of a character in pixels
	longest := 0
	for _, l := range c.Lines {
		longest = max(longest, len(l.Name))
	}
	return max(1, min(chartColumns, (chartWidth-40)/(longest*char+36)))
}

// height returns the height of the chart in pixels.
func (c *Chart) height() int {
	columns := c.columns()
	return chartTop + chartPlot + 48 + (len(c.Lines)+columns-1)/columns*chartLegend + 28
}

// draw writes the elements of the chart.
func (c *Chart) draw(b *bytes.Buffer) {
	height := c.height()
	fmt.Fprintf(b, `<rect class="page" width="%d" height="%d"/>`+"\n", chartWidth, height)
	text(b, chartWidth/2, 22, "middle", "title", c.Title)

	lo, hi := c.bounds()
	bottom, right := float64(chartTop+chartPlot), float64(chartWidth-chartRight)
	y := func(v float64) float64 {
		return bottom - chartPlot*(math.Log(v)-math.Log(lo))/(math.Log(hi)-math.Log(lo))
	}
	first, last := c.Scale.place(c.At[0]), c.Scale.place(c.At[len(c.At)-1])
	x := func(i int) float64 {
		if first == last {
			return (chartLeft + right) / 2
		}
		return chartLeft + 20 + (c.Scale.place(c.At[i])-first)*(right-chartLeft-40)/(last-first)
	}
	for _, v := range niceTicks(lo, hi) {
		fmt.Fprintf(b, `<path class="grid" d="M%d,%.1fH%.0f"/>`+"\n", chartLeft, y(v), right)
		text(b, chartLeft-8, y(v)+4, "end", "", fmt.Sprintf("%g", v))
	}
	for i, t := range c.Ticks {
		fmt.Fprintf(b, `<path class="grid" d="M%.1f,%dV%.0f"/>`+"\n", x(i), chartTop, bottom)
		if t != "" {
			text(b, x(i), bottom+18, "middle", "", t)
		}
	}
	text(b, (chartLeft+right)/2, bottom+38, "middle", "", fmt.Sprintf("%s (%s scale)", c.X, c.Scale))
	fmt.Fprintf(b, `<text class="axis" transform="translate(16,%.0f) rotate(-90)" text-anchor="middle">%s</text>`+
		"\n", bottom-chartPlot/2, escape(c.Y+" (logarithmic scale)"))
	styles := c.styles()
	for i, l := range c.Lines {
		var path strings.Builder
		move := "M"
		for j, v := range l.At {
			if v <= 0 {
				move = "M"
				continue
			}
			fmt.Fprintf(&path, "%s%.1f,%.1f", move, x(j), y(v))
			move = "L"
		}
		line(b, styles[i], path.String())
		for j, v := range l.At {
			if v > 0 {
				mark(b, styles[i], x(j), y(v))
			}
		}
	}
	columns := c.columns()
	column := (chartWidth - 40) / columns
	for i, l := range c.Lines {
		lx, ly := float64(28+i%columns*column), bottom+62+float64(i/columns*chartLegend)
		line(b, styles[i], fmt.Sprintf("M%.0f,%.0fh28", lx, ly-4))
		mark(b, styles[i], lx+14, ly-4)
		text(b, lx+36, ly, "start", "", l.Name)
	}
	if c.Caption != "" {
		text(b, 28, float64(height-12), "start", "small", c.Caption)
	}
}

// line draws a path in a style. If the style is not the first with its colour, the path has dashes.
func line(b *bytes.Buffer, style int, path string) {
	dashes := ""
	if again := style / len(chartStyles); again > 0 {
		dashes = fmt.Sprintf(` stroke-dasharray="%d 3"`, 1+6/again)
	}
	fmt.Fprintf(b, `<path class="line c%d"%s d="%s"/>`+"\n", style%len(chartStyles), dashes, path)
}

// bounds returns the bounds of the y axis: 1 and 10 if there are no values.
func (c *Chart) bounds() (lo, hi float64) {
	lo, hi = math.Inf(1), 0
	for _, l := range c.Lines {
		for _, v := range l.At {
			if v > 0 {
				lo, hi = min(lo, v), max(hi, v)
			}
		}
	}
	if hi == 0 {
		return 1, 10
	}
	return lo / 1.15, max(hi*1.15, lo*2)
}

func mark(b *bytes.Buffer, style int, x, y float64) {
	fmt.Fprintf(b, `<g class="mark c%d" transform="translate(%.1f,%.1f)">%s</g>`+"\n",
		style%len(chartStyles), x, y, chartStyles[style%len(chartStyles)].mark)
}

func text(b *bytes.Buffer, x, y float64, anchor, class, s string) {
	if class != "" {
		class = fmt.Sprintf(` class="%s"`, class)
	}
	fmt.Fprintf(b, `<text%s x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", class, x, y, anchor, escape(s))
}

func escape(s string) string {
	var b bytes.Buffer
	xml.EscapeText(&b, []byte(s))
	return b.String()
}

// chartStyle returns the style sheet, with the colours of a light page and of a dark one.
func chartStyle() string {
	var b strings.Builder
	fmt.Fprintf(&b, "<style>\ntext{font:%gpx sans-serif;fill:#1f2328}.title{font-size:15px;font-weight:600}.small{font-size:11px}\n", chartText)
	b.WriteString(".page{fill:#fff}.grid{stroke:#d0d7de;stroke-width:1}.line{fill:none;stroke-width:2}.hollow{fill:#fff;stroke-width:2}\n")
	colors := func(of func(style) string) {
		for i, s := range chartStyles {
			fmt.Fprintf(&b, ".line.c%d{stroke:%[2]s}.mark.c%[1]d{fill:%[2]s;stroke:%[2]s}", i, of(s))
		}
	}
	colors(func(s style) string { return s.light })
	b.WriteString("\n@media (prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}.grid{stroke:#30363d}.hollow{fill:#0d1117}\n")
	colors(func(s style) string { return s.dark })
	b.WriteString("}\n</style>\n")
	return b.String()
}

// niceTicks returns the values 1, 2 and 5 times powers of ten on an axis from lo to hi (both > 0).
// If hi is more than 300 times lo, it returns powers of ten only.
func niceTicks(lo, hi float64) (out []float64) {
	steps := []float64{1, 2, 5}
	if hi/lo > 300 {
		steps = steps[:1]
	}
	for e := math.Floor(math.Log10(lo)); e <= math.Ceil(math.Log10(hi)); e++ {
		for _, s := range steps {
			if v := s * math.Pow(10, e); v >= lo*0.999 && v <= hi*1.001 {
				out = append(out, v)
			}
		}
	}
	return out
}
