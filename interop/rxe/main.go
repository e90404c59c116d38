//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	p := plan{only: regexp.MustCompile("")}
	flag.Func("only", "make the trials whose name matches the regular expression `RE`", func(s string) (err error) {
		p.only, err = regexp.Compile(s)
		return err
	})
	flag.BoolVar(&p.long, "long", false, "make all trials, not the most telling ones alone")
	flag.IntVar(&p.runs, "runs", 1, "make each trial so many times, all in turn; an interrupt ends that with the table")
	flag.IntVar(&p.busy, "busy", 0, "run so many busy loops meanwhile")
	flag.IntVar(&p.messages, "messages", 320, "let perftest's tools send so many messages, a multiple of 32 for the trials with lists")
	flag.DurationVar(&p.limit, "limit", 3*time.Minute, "how long a run may take; pyverbs, MPI and programs from source may take four times that")
	flag.StringVar(&p.viaduct, "viaduct", "", "use the command in `FILE` instead of building it")
	flag.StringVar(&p.sources.rdmaCore, "rdma-core", "", "use the libraries, programs and pyverbs of rdma-core that were built in `DIR`")
	flag.StringVar(&p.sources.valkey, "valkey", "", "run the RDMA test of valkey, whose source was built in `DIR`")
	flag.StringVar(&p.sources.mpi4py, "mpi4py", "", "run the tests of mpi4py, whose source is in `DIR`")
	figures := flag.Bool("figures", false, "measure latency, rates and an idle device, and stop")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	run := try
	if *figures {
		run = measure
	}
	if err := run(ctx, p); err != nil {
		fmt.Fprintln(os.Stderr, "interop/rxe:", err)
		os.Exit(1)
	}
}

// A plan determines the trials to run, and how.
type plan struct {
	only       *regexp.Regexp
	long       bool
	runs, busy int
	messages   int // of a run of a perftest tool
	limit      time.Duration
	viaduct    string // path of the command; "" means that it is built
	sources    sources
}

// A row holds the results of a trial.
type row struct {
	trial
	good, bad        int
	fastest, slowest time.Duration
	note             string
}

// add records a run. The result is printed if the run failed, or is the trial's only run.
func (r *row) add(took time.Duration, note string, err error, alone bool) {
	word := "ok"
	if r.note = note; err != nil {
		word = "FAILED"
		r.bad++
	} else {
		r.good++
	}
	if r.good+r.bad == 1 || took < r.fastest {
		r.fastest = took
	}
	r.slowest = max(r.slowest, took)
	if alone || err != nil {
		fmt.Printf("%-40s %-6s %5.1f s  %s\n", r.name, word, took.Seconds(), note)
	}
	if err != nil {
		fmt.Println(err)
	}
}

func try(ctx context.Context, p plan) error {
	l, err := newLab(ctx, p)
	if err != nil {
		return err
	}
	defer os.RemoveAll(l.dir)
	if err := l.findAddress(ctx); err != nil {
		fmt.Printf("\n*** SKIPPED: run --rdma --device rxe0 does not work here: %v ***\n", err)
		return nil
	}
	rows, skipped := l.rows(p)
	defer keepBusy(p.busy)()
	for n := 0; n < p.runs && ctx.Err() == nil; n++ {
		for _, r := range rows {
			began := time.Now()
			note, err := l.make(ctx, r.trial)
			if ctx.Err() != nil {
				break // an interrupt is no fault of the trial
			}
			r.add(time.Since(began), note, err, p.runs == 1)
		}
	}
	for missing, names := range skipped {
		fmt.Printf("*** SKIPPED because %s is missing: %s ***\n", missing, strings.Join(names, ", "))
	}
	if len(rows) == 0 && len(skipped) == 0 {
		return errors.New("no trial has such a name")
	}
	return report(rows, p.runs > 1)
}

// rows returns a row for each runnable chosen trial, and the names of the other chosen trials by
// the missing program.
func (l *lab) rows(p plan) (rows []*row, skipped map[string][]string) {
	skipped = map[string][]string{}
	for _, tr := range slices.Concat(trials, p.sources.trials()) {
		if !p.only.MatchString(tr.name) || tr.long && !p.long {
			continue
		}
		if m := l.missing(tr); m != "" {
			skipped[m] = append(skipped[m], tr.name)
			continue
		}
		rows = append(rows, &row{trial: tr})
	}
	return rows, skipped
}

// report prints a table if table is set. The error names the failed trials, and is nil if there are
// none.
func report(rows []*row, table bool) error {
	made := 0
	var failed []string
	for _, r := range rows {
		made += r.good + r.bad
		if r.bad > 0 {
			failed = append(failed, r.name)
		}
		if table {
			fmt.Printf("%-50s %4d of %4d ok, %.1f to %.1f s\n", r.name, r.good, r.good+r.bad, r.fastest.Seconds(), r.slowest.Seconds())
		}
	}
	fmt.Printf("%d runs of %d trials\n", made, len(rows))
	if len(failed) > 0 {
		return fmt.Errorf("%d trials failed: %s", len(failed), strings.Join(failed, ", "))
	}
	return nil
}

// keepBusy starts n busy loops as separate processes. stop ends the processes.
func keepBusy(n int) (stop func()) {
	var all []*exec.Cmd
	for range n {
		c := exec.Command("sh", "-c", "while :; do :; done")
		if err := c.Start(); err != nil {
			fmt.Println("no busy process:", err)
			continue
		}
		all = append(all, c)
	}
	return func() {
		for _, c := range all {
			c.Process.Kill()
			c.Wait()
		}
	}
}
