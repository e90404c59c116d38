package figures

import (
	"encoding/xml"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// drawings returns the charts of the results, and charts of values from no measurement.
func drawings(t *testing.T) []Chart {
	r, err := Read(root)
	if err != nil || len(r.Pictures) != 4 {
		t.Fatal(len(r.Pictures), err)
	}
	many := Chart{File: "many", Title: "t", X: "x", Y: "y", Scale: Logarithmic, At: []float64{1, 4}, Ticks: []string{"1", ""}}
	for i := range 20 { // styles are used again
		many.Lines = append(many.Lines, Line{fmt.Sprintf("sdp?policy=pipelined, %d connections", 10+i), []float64{1 + float64(i), 2}})
	}
	return append(r.Pictures, many,
		Chart{File: "wide", Title: "t", X: "x", Y: "y", Scale: Logarithmic, At: []float64{1, 10, 1e6},
			Ticks: []string{"1", "10", "1e6"}, Lines: []Line{{"a", []float64{1e-3, 2, 1e4}},
				{"gap", []float64{1, 0, 3}}}},
		Chart{File: "one", Title: "t", X: "x", Y: "y", Scale: Odds, At: []float64{0.5},
			Ticks: []string{"50"}, Lines: []Line{{"a", []float64{7}}}},
		Chart{File: "none", Title: "t", X: "x", Y: "y", Scale: Logarithmic, At: []float64{1, 2},
			Ticks: []string{"1", "2"}})
}

func number(s string) float64 { v, _ := strconv.ParseFloat(s, 64); return v }

// TestPictures: text neither overlaps nor leaves the picture, points lie in the plot, each line is
// in the legend, and there are colours for light and for dark pages.
func TestPictures(t *testing.T) {
	for _, p := range drawings(t) {
		svg := string(p.svg())
		if err := xml.Unmarshal([]byte(svg), new(struct{})); err != nil {
			t.Errorf("%s: %v", p.File, err)
		}
		type area struct {
			text           string
			x0, x1, y0, y1 float64
		}
		height := number(regexp.MustCompile(`height="(\d+)"`).FindStringSubmatch(svg)[1])
		var areas []area
		for _, m := range regexp.MustCompile(`<text(?: class="(\w+)")? x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)">([^<]*)<`).FindAllStringSubmatch(svg, -1) {
			size := map[string]float64{"": chartText, "small": 11, "title": 15}[m[1]]
			w := 0.55 * size * float64(len(m[5]))
			x0 := number(m[2]) - map[string]float64{"start": 0, "middle": w / 2, "end": w}[m[4]]
			areas = append(areas, area{m[5], x0, x0 + w, number(m[3]) - size, number(m[3]) + 3})
		}
		for i, a := range areas {
			if a.x0 < 0 || a.x1 > chartWidth || a.y0 < 0 || a.y1 > height {
				t.Errorf("%s: %q leaves the picture", p.File, a.text)
			}
			for _, c := range areas[:i] {
				if a.x0 < c.x1 && c.x0 < a.x1 && a.y0 < c.y1 && c.y0 < a.y1 {
					t.Errorf("%s: %q and %q overlap", p.File, a.text, c.text)
				}
			}
		}
		looks := regexp.MustCompile(`<path class="line (c\d"[^>]*) d="M[^"]*h28"`).FindAllStringSubmatch(svg, -1)
		slices.SortFunc(looks, func(a, b []string) int { return strings.Compare(a[1], b[1]) })
		if n := len(slices.CompactFunc(looks, func(a, b []string) bool { return a[1] == b[1] })); n != len(p.Lines) {
			t.Errorf("%s: %d kinds of line for %d lines", p.File, n, len(p.Lines))
		}
		marks := len(p.Lines) // marks in the legend
		for _, l := range p.Lines {
			if n := strings.Count(svg, ">"+l.Name+"</text>"); n != 1 {
				t.Errorf("%s: %q is there %d times", p.File, l.Name, n)
			}
			for _, v := range l.At {
				if v > 0 {
					marks++
				}
			}
		}
		if n := strings.Count(svg, `<g class="mark`); n != marks {
			t.Errorf("%s: %d marks, want %d", p.File, n, marks)
		}
		for _, at := range points(svg) {
			if at[0] < chartLeft || at[0] > chartWidth-chartRight || at[1] < chartTop || at[1] > chartTop+chartPlot {
				t.Errorf("%s: a point at %v", p.File, at)
			}
		}
		if !strings.Contains(svg, "prefers-color-scheme:dark") {
			t.Errorf("%s: nothing for dark pages", p.File)
		}
	}
}

// TestPage: the charts of a page are one below the other, and the caption below all.
func TestPage(t *testing.T) {
	a, b := drawings(t)[0], drawings(t)[1]
	svg := string(Page("the <caption>", []*Chart{&a, &b}))
	if err := xml.Unmarshal([]byte(svg), new(struct{})); err != nil {
		t.Error(err)
	}
	want := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d"`, chartWidth, a.height()+b.height()+28)
	if !strings.HasPrefix(svg, want) {
		t.Errorf("%.100s, want %s", svg, want)
	}
	rest := svg
	for _, part := range []string{`translate(0,0)`, a.Title, a.Caption, fmt.Sprintf(`translate(0,%d)`, a.height()), b.Title, "the &lt;caption&gt;</text>"} {
		_, after, ok := strings.Cut(rest, part)
		if !ok {
			t.Errorf("%q is missing, or in the wrong place", part)
		}
		rest = after
	}
}

// points returns the points of all lines of a drawing.
func points(svg string) (all [][2]float64) {
	for _, line := range regexp.MustCompile(`<path class="line c\d"[^>]* d="(M[^h"]*)"`).FindAllStringSubmatch(svg, -1) {
		for _, m := range regexp.MustCompile(`[ML]([\d.]+),(-?[\d.]+)`).FindAllStringSubmatch(line[1], -1) {
			all = append(all, [2]float64{number(m[1]), number(m[2])})
		}
	}
	return all
}

// TestAxes: the axes are as their labels say. On a logarithmic axis, the distance of two points is
// proportional to the logarithm of the ratio of their values, and ticks are where such points would
// be. On an axis of odds, the distance is proportional to the logarithm of the ratio of the odds.
func TestAxes(t *testing.T) {
	for _, p := range drawings(t)[:4] {
		svg := string(p.svg())
		for _, axis := range []string{p.Y + " (logarithmic scale)", p.X + " (" + string(p.Scale) + " scale)"} {
			if !strings.Contains(svg, ">"+axis+"</text>") {
				t.Errorf("%s has no axis %q", p.File, axis)
			}
		}
		var xs, ys [][2]float64 // measure and place
		measure := func(at float64) float64 {
			if p.Scale == Odds {
				return math.Log10(at) - math.Log10(1-at)
			}
			return math.Log2(at)
		}
		at := points(svg)
		for _, l := range p.Lines {
			for i, v := range l.At {
				if v > 0 {
					xs, ys = append(xs, [2]float64{measure(p.At[i]), at[0][0]}),
						append(ys, [2]float64{math.Log2(v), at[0][1]})
					at = at[1:]
				}
			}
		}
		for _, m := range regexp.MustCompile(`d="M\d+,([\d.]+)H\d+"/>\n<text[^>]*>([\d.e+-]+)<`).FindAllStringSubmatch(svg, -1) {
			ys = append(ys, [2]float64{math.Log2(number(m[2])), number(m[1])})
		}
		ticks := regexp.MustCompile(`d="M([\d.]+),\d+V\d+"/>\n<text[^>]*>([^<]+)<`).FindAllStringSubmatch(svg, -1)
		if len(ticks) != len(p.Ticks) {
			t.Fatalf("%s: %d ticks", p.File, len(ticks))
		}
		for i, m := range ticks {
			if xs = append(xs, [2]float64{measure(p.At[i]), number(m[1])}); m[2] != p.Ticks[i] {
				t.Errorf("%s: tick %q, want %q", p.File, m[2], p.Ticks[i])
			}
		}
		for name, all := range map[string][][2]float64{"x": xs, "y": ys} {
			if bad := bent(all); bad != "" {
				t.Errorf("%s: the %s axis is not what it says: %s", p.File, name, bad)
			}
		}
	}
}

// bent describes the first place that is not on the line through the two places farthest apart, or
// returns "" if all places are on the line.
func bent(all [][2]float64) string {
	lo, hi := all[0], all[0]
	for _, p := range all {
		if p[0] < lo[0] {
			lo = p
		}
		if p[0] > hi[0] {
			hi = p
		}
	}
	for _, p := range all {
		want := lo[1] + (hi[1]-lo[1])*(p[0]-lo[0])/(hi[0]-lo[0])
		if math.Abs(p[1]-want) > 0.2 { // places have one digit
			return fmt.Sprintf("at %.4g is %.1f, want %.1f", p[0], p[1], want)
		}
	}
	return ""
}

// TestStyles: a line looks the same in every chart, and no two lines of a chart look the same.
func TestStyles(t *testing.T) {
	for _, c := range []struct {
		names string
		want  string
	}{
		{"vitcp;vitcp, shared memory;iwarp", "[0 5 1]"},
		{"vitcp, shared memory;vitcp;libfabric shm, write;libfabric tcp", "[5 0 7 4]"},
		{"other;C TCP, spinning;C TCP", "[0 2 1]"},
	} {
		chart := new(Chart)
		for name := range strings.SplitSeq(c.names, ";") {
			chart.Lines = append(chart.Lines, Line{Name: name})
		}
		if got := fmt.Sprint(chart.styles()); got != c.want {
			t.Errorf("%s: %s, want %s", c.names, got, c.want)
		}
	}
	for _, p := range drawings(t) {
		seen := map[int]string{}
		for i, k := range p.styles() {
			if seen[k] != "" {
				t.Errorf("%s: %q and %q look the same", p.File, seen[k], p.Lines[i].Name)
			}
			seen[k] = p.Lines[i].Name
		}
	}
}

// TestNiceTicks: an axis has some values, and not too many.
func TestNiceTicks(t *testing.T) {
	for _, c := range [][2]float64{{1, 10}, {0.9, 2.1}, {3, 7}, {0.01, 20}, {1e-3, 1e3}, {4, 9000}} {
		if n := len(niceTicks(c[0], c[1])); n < 1 || n > 12 {
			t.Errorf("%v: %d, %v", c, n, fmt.Sprint(niceTicks(c[0], c[1])))
		}
	}
}
