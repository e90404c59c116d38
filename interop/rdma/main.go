//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "-pair" {
		os.Exit(pairHelper(os.Args[2]))
	}
	if len(os.Args) == 5 && os.Args[1] == "-peer" {
		if err := peer(os.Args[2], os.Args[3], os.Args[4]); err != nil {
			fmt.Fprintln(os.Stderr, "interop/rdma:", err)
			os.Exit(1)
		}
		return
	}
	o := options{}
	flag.BoolVar(&o.long, "long", false, "try every option of the programs, not the most telling ones alone")
	flag.StringVar(&o.only, "only", "", "make the trials whose name contains `TEXT`")
	flag.StringVar(&o.way, "way", "", "try `WAY` alone: one, two or go")
	flag.IntVar(&o.runs, "runs", 1, "make each trial so many times")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := try(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "interop/rdma:", err)
		os.Exit(1)
	}
}

type options struct {
	long      bool
	only, way string
	runs      int
}

// The ways in which a trial is made.
const (
	one   = "one"
	two   = "two"
	goEnd = "go"
)

var ways = []string{one, two, goEnd}

// A row is what came of a trial.
type row struct {
	name    string
	good    map[string]int
	bad     map[string]int
	seconds float64
	note    string
}

func (r *row) cell(way string) string {
	switch g, b := r.good[way], r.bad[way]; {
	case g+b == 0:
		return "-"
	case b > 0:
		return fmt.Sprintf("FAILED %d of %d", b, g+b)
	case g > 1:
		return fmt.Sprintf("ok (%d)", g)
	}
	return "ok"
}

func try(ctx context.Context, o options) error {
	l, err := newLab(ctx)
	if err != nil {
		return err
	}
	defer l.close()
	if err := l.works(); err != nil {
		fmt.Printf("\n*** SKIPPED: %v ***\n", err)
		return nil
	}
	var rows []*row
	failed, made := 0, 0
	skipped := map[string][]string{}
	for _, tr := range trials() {
		if !strings.Contains(tr.name, o.only) || tr.long && !o.long {
			continue
		}
		if missing := tr.missing(); missing != "" {
			skipped[missing] = append(skipped[missing], tr.name)
			continue
		}
		r := &row{name: tr.name, good: map[string]int{}, bad: map[string]int{}}
		rows = append(rows, r)
		begin := time.Now()
		for range o.runs {
			for _, way := range ways {
				if o.way != "" && way != o.way || !tr.has(way) || tr.briefly == way && !o.long {
					continue
				}
				note, err := l.run(ctx, tr, way)
				if ctx.Err() != nil {
					return ctx.Err()
				}
				made++
				if note != "" {
					r.note = note
				}
				if err != nil {
					failed++
					r.bad[way]++
					fmt.Printf("FAILED %s, %s: %v\n", tr.name, way, err)
					continue
				}
				r.good[way]++
			}
		}
		r.seconds = time.Since(begin).Seconds()
	}
	fmt.Printf("\n%-34s %-16s %-16s %-16s %s\n", "program, uid "+fmt.Sprint(l.uid), "one supervisor", "two supervisors", "Go at one end", "seconds")
	for _, r := range rows {
		fmt.Printf("%-34s %-16s %-16s %-16s %5.1f %s\n", r.name, r.cell(one), r.cell(two), r.cell(goEnd), r.seconds, r.note)
	}
	for _, what := range slices.Sorted(maps.Keys(skipped)) {
		fmt.Printf("\n*** SKIPPED for want of %s: %s ***\n", what, strings.Join(skipped[what], "; "))
	}
	fmt.Printf("\n%d of %d runs failed\n", failed, made)
	if failed > 0 {
		return fmt.Errorf("%d of %d runs failed", failed, made)
	}
	return nil
}
