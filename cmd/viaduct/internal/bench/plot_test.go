package bench

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestPlot: no two texts overlap, each line is in the legend once, the legend is below all panels,
// and each kind of row has a panel.
func TestPlot(t *testing.T) {
	var rows []Row
	for i, tr := range []string{"tcp", "vitcp", "iwarp", "iwarp?crc=off", "sdp?policy=pipelined", "fcvi"} {
		for _, size := range []int{64, 4096, 1 << 20} {
			rows = append(rows,
				Row{Transport: tr, Op: OpWrite, Size: size, Conns: 1, Unit: "bytes/s",
					Median: 1e7 * float64(size*(i+1))},
				Row{Transport: tr, Op: OpPoll, Size: size, Conns: 3, Unit: "us",
					Median: float64(5*(i+1)) + float64(size)/1000})
		}
		for _, d := range []int{1, 8, 64} {
			rows = append(rows, Row{Transport: tr, Op: OpRate, Size: 64, Doorbell: d, Conns: 1,
				Unit: "messages/s", Median: 2e5 * float64(d*(i+1))})
		}
	}
	rows = append(rows, Row{Transport: "broken", Op: OpWrite, Size: 64, Conns: 1, Unit: "bytes/s", Error: "no"})
	for _, tc := range []struct {
		rows   []Row
		panels []string
	}{
		{nil, nil},
		{rows[:1], []string{"Bandwidth"}},
		{rows[:2], []string{"Bandwidth", "Round trip"}},
		{rows, []string{"Bandwidth", "Message rate", "Round trip"}},
	} {
		file := filepath.Join(t.TempDir(), "p.svg")
		if err := Plot(file, "the caption", tc.rows); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		type box struct {
			text           string
			x0, x1, y0, y1 float64
		}
		var boxes []box
		count := map[string]int{}
		for _, m := range regexp.MustCompile(`<text x="([-\d.]+)" y="([-\d.]+)" transform="scale\(1, -1\)"\s*style="[^"]*font-size:([\d.]+)px">([^<]*)<`).FindAllStringSubmatch(string(b), -1) {
			if slices.ContainsFunc(kinds, func(k kind) bool { return k.label == m[4] }) {
				continue // the text is rotated
			}
			number := func(s string) float64 { v, _ := strconv.ParseFloat(s, 64); return v }
			x, y, size := number(m[1]), number(m[2]), number(m[3])
			count[m[4]]++
			if x < 0 || y > 0 || x+0.4*size*float64(len(m[4])) > plotWidth {
				t.Errorf("%q leaves the picture", m[4])
			}
			boxes = append(boxes, box{m[4], x, x + 0.4*size*float64(len(m[4])), y - 0.6*size, y})
		}
		for i, a := range boxes {
			for _, c := range boxes[:i] {
				if a.x0 < c.x1 && c.x0 < a.x1 && a.y0 < c.y1 && c.y0 < a.y1 {
					t.Errorf("%q and %q overlap", a.text, c.text)
				}
			}
		}
		for _, name := range []string{"Bandwidth", "Message rate", "Round trip"} {
			want := 0
			if strings.Contains(fmt.Sprint(tc.panels), name) {
				want = 1
			}
			if count[name] != want {
				t.Errorf("%d rows: %d panels %q, want %d", len(tc.rows), count[name], name, want)
			}
		}
		names, _ := linesOf(tc.rows)
		for _, n := range append(names, "the caption") {
			if count[n] != 1 {
				t.Errorf("%d rows: %q is there %d times", len(tc.rows), n, count[n])
			}
		}
		lowest := math.Inf(-1) // lower edge of all panels: the bottom of the picture is at 0
		for _, c := range boxes {
			if strings.HasPrefix(c.text, "bytes per") || strings.HasPrefix(c.text, "messages per") {
				lowest = max(lowest, c.y1)
			}
		}
		for _, c := range boxes {
			for _, n := range names {
				if c.text == n && c.y0 < lowest {
					t.Errorf("%q is in a panel", n)
				}
			}
		}
	}
}
