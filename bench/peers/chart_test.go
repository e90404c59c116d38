package main

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestPictures: what is drawn has a line for each program that gave a figure, text that
// neither overlaps nor leaves the picture, points that lie in the plot, and colours for
// light and for dark.
func TestPictures(t *testing.T) {
	dir := t.TempDir()
	box := &toolbox{missing: map[string]string{}}
	r := &report{Machine: "Some Processor of a Long Name, Linux 6.18.44, 2 processors", Date: "2026-11-24", Rounds: 5, Samples: map[string]map[string]samples{}}
	all := box.pictures(measure{})
	if len(all) != 4 {
		t.Fatalf("%d pictures", len(all))
	}
	missing := all[0].curves[3].name // of a program that is not there
	for k, p := range all {
		got := map[string]samples{}
		for i, v := range p.curves {
			if v.name == missing {
				continue
			}
			for j, x := range p.xs {
				v0 := 1e-3 * float64(1+i) * float64(1+j*j*j*(1+k))
				res := result{Bytes: v0 * 1e9, Messages: v0 * 1e6, Seconds: 1}
				for q := range quantiles {
					res.QuantilesUS = append(res.QuantilesUS, float64((q+1)*(q+1)*(i+1)))
				}
				got[p.point(v, x)] = samples{res, res}
			}
		}
		r.Samples[p.title] = got
		if c := p.contest(); len(c.sides) == 0 || c.title != p.title {
			t.Errorf("%s: %d sides to measure", p.file, len(c.sides))
		}
	}
	if err := r.draw(dir, all); err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		b, err := os.ReadFile(filepath.Join(dir, p.file))
		if err != nil {
			t.Fatal(err)
		}
		svg := string(b)
		if err := xml.Unmarshal(b, new(struct{})); err != nil {
			t.Errorf("%s: %v", p.file, err)
		}
		type area struct {
			text           string
			x0, x1, y0, y1 float64
		}
		number := func(s string) float64 { v, _ := strconv.ParseFloat(s, 64); return v }
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
				t.Errorf("%s: %q leaves the picture", p.file, a.text)
			}
			for _, c := range areas[:i] {
				if a.x0 < c.x1 && c.x0 < a.x1 && a.y0 < c.y1 && c.y0 < a.y1 {
					t.Errorf("%s: %q and %q overlap", p.file, a.text, c.text)
				}
			}
		}
		lines := 0
		for _, v := range p.curves {
			want := 1
			if v.name == missing {
				want = 0
			}
			if n := strings.Count(svg, ">"+v.name+"</text>"); n != want {
				t.Errorf("%s: %q is there %d times", p.file, v.name, n)
			}
			lines += want
		}
		if n := strings.Count(svg, `<g class="mark`); n != lines*(len(p.xs)+1) {
			t.Errorf("%s: %d marks of %d lines", p.file, n, lines)
		}
		for _, m := range regexp.MustCompile(`[ML]([\d.]+),(-?[\d.]+)`).FindAllStringSubmatch(strings.Join(regexp.MustCompile(`<path class="line c\d" d="M[^h"]*"`).FindAllString(svg, -1), "\n"), -1) {
			if x, y := number(m[1]), number(m[2]); x < chartLeft || x > chartWidth-chartRight || y < chartTop || y > chartTop+chartPlot {
				t.Errorf("%s: a point at %v, %v", p.file, x, y)
			}
		}
		if !strings.Contains(svg, "prefers-color-scheme:dark") {
			t.Errorf("%s: nothing for dark pages", p.file)
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
