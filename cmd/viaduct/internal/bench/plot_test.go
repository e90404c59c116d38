package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPlot: each line is in a legend once, and each kind of row has a chart.
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
		charts []string
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
		count := func(text string) int { return strings.Count(string(b), ">"+text+"</text>") }
		for _, name := range []string{"Bandwidth", "Message rate", "Round trip"} {
			want := 0
			if strings.Contains(fmt.Sprint(tc.charts), name) {
				want = 1
			}
			if n := count(name); n != want {
				t.Errorf("%d rows: %d charts %q, want %d", len(tc.rows), n, name, want)
			}
		}
		names := []string{"the caption"}
		for _, r := range tc.rows {
			if n := lineOf(r); r.Error == "" && !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
		for _, name := range names {
			if n := count(name); n != 1 {
				t.Errorf("%d rows: %q is there %d times", len(tc.rows), name, n)
			}
		}
	}
}
