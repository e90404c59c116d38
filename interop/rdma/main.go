//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "-pair" {
		os.Exit(pairHelper(os.Args[2]))
	}
	if len(os.Args) == 2 && os.Args[1] == "-commands" {
		if err := commands(); err != nil {
			fmt.Fprintln(os.Stderr, "interop/rdma:", err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) == 5 && os.Args[1] == "-peer" {
		if err := peer(os.Args[2], os.Args[3], os.Args[4]); err != nil {
			fmt.Fprintln(os.Stderr, "interop/rdma:", err)
			os.Exit(1)
		}
		return
	}
	o := options{only: regexp.MustCompile("")}
	flag.BoolVar(&o.long, "long", false, "try every option of the programs, not the most telling ones alone")
	flag.Func("only", "make the trials whose name matches the regular expression `RE`", func(s string) (err error) {
		o.only, err = regexp.Compile(s)
		return err
	})
	figures := flag.Bool("figures", false, "measure latency, bandwidth, doorbells and commands, and stop")
	flag.StringVar(&o.way, "way", "", "try `WAY` alone: one, two or go")
	flag.IntVar(&o.runs, "runs", 1, "make each trial so many times, all in turn; an interrupt ends that with the table")
	flag.DurationVar(&limit, "limit", limit, "how long a run may take; more where many programs share the processors")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	run := func(ctx context.Context) error { return try(ctx, o) }
	if *figures {
		run = measure
	}
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "interop/rdma:", err)
		os.Exit(1)
	}
}

type options struct {
	long bool
	only *regexp.Regexp
	way  string
	runs int
}

// Ways of making a trial.
const (
	one   = "one"
	two   = "two"
	goEnd = "go"
)

var ways = []string{one, two, goEnd}

// A row is the result of a trial.
type row struct {
	trial
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
	skipped := map[string][]string{}
	for _, tr := range trials() {
		if !o.only.MatchString(tr.name) || tr.long && !o.long {
			continue
		}
		if missing := tr.missing(); missing != "" {
			skipped[missing] = append(skipped[missing], tr.name)
			continue
		}
		rows = append(rows, &row{trial: tr, good: map[string]int{}, bad: map[string]int{}})
	}
	failed, made := 0, 0
	for n := 0; n < o.runs && ctx.Err() == nil; n++ {
		for _, r := range rows {
			begin := time.Now()
			for _, way := range ways {
				if o.way != "" && way != o.way || !r.has(way) || r.briefly == way && !o.long {
					continue
				}
				note, err := l.run(ctx, r.trial, way)
				if ctx.Err() != nil {
					break // an interrupt is no fault of the trial
				}
				made++
				if note != "" {
					r.note = note
				}
				if err != nil {
					failed++
					r.bad[way]++
					fmt.Printf("FAILED %s, %s: %v\n", r.name, way, err)
					continue
				}
				r.good[way]++
			}
			r.seconds += time.Since(begin).Seconds()
		}
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
	return ctx.Err()
}
