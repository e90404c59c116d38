package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"viaduct/internal/figures"
)

// TestRecord checks that record stores the figures of a run in the results, the table and the
// pictures of a repository, and leaves the rest of the page unchanged. A curve without figures is
// not drawn.
func TestRecord(t *testing.T) {
	root := t.TempDir()
	page, err := os.ReadFile("../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "docs/performance.md")
	os.Mkdir(filepath.Dir(file), 0o700)
	if err := os.WriteFile(file, page, 0o600); err != nil {
		t.Fatal(err)
	}
	box := &toolbox{missing: map[string]string{}}
	r := &report{Machine: "a machine", Date: "2026-11-24", Rounds: 5, Samples: map[string]map[string]samples{},
		Lines: []line{{Contest: "c", Metric: "m", Ours: "o", Value: "7 k/s", Verdict: goalMet}, {Contest: "d", Metric: "m", Verdict: "not available: cc /tmp/x:\n a | b"}}}
	all := box.pictures(measure{})
	missing := all[0].curves[3].name // the program of this curve is missing
	for _, p := range all {
		got := map[string]samples{}
		for i, v := range p.curves {
			for j, x := range p.xs {
				amount := 1e-3 * float64(1+i) * float64(1+j*j)
				res := result{Bytes: amount * 1e9, Messages: amount * 1e6, Seconds: 1}
				for q := range quantiles {
					res.QuantilesUS = append(res.QuantilesUS, float64((q+1)*(q+1)*(i+1)))
				}
				if v.name != missing {
					got[p.point(v, x)] = samples{res, res}
				}
			}
		}
		r.Samples[p.title] = got
		if c := p.contest(); len(c.sides) == 0 || c.title != p.title {
			t.Errorf("%s: %d sides to measure", p.file, len(c.sides))
		}
	}
	for range 2 { // the second recording must have the same result
		if err := r.record(root, all); err != nil {
			t.Fatal(err)
		}
		b, _ := os.ReadFile(file)
		if s := string(b); strings.Count(s, "| c: m | o | 7 k/s |") != 1 || !strings.Contains(s, "| not available |\n\n") || strings.Contains(s, "/tmp/x") || strings.Contains(s, "| MISSED |") || !strings.Contains(s, "\n## Unmodified programs\n") {
			t.Fatalf("the page is\n%s", s)
		}
	}
	f, err := figures.Read(root)
	if err != nil || len(f.Pictures) != 4 {
		t.Fatalf("%d pictures, %v", len(f.Pictures), err)
	}
	for i, p := range all {
		svg, err := os.ReadFile(filepath.Join(root, "docs/performance", p.file))
		if err != nil {
			t.Fatal(err)
		}
		want := len(p.curves)
		if strings.Contains(string(svg), ">"+missing+"</text>") {
			t.Errorf("%s has %s", p.file, missing)
		}
		for _, v := range p.curves {
			if v.name == missing {
				want--
			}
		}
		if len(f.Pictures[i].Lines) != want || len(f.Pictures[i].At) != len(p.xs) {
			t.Errorf("%s: %d lines of %d, %d ticks", p.file, len(f.Pictures[i].Lines), want, len(f.Pictures[i].At))
		}
	}
	if err := os.WriteFile(file, []byte("nothing\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.record(root, all); err == nil {
		t.Error("a page without marks was accepted")
	}
}
