//go:build linux

package main

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"sync"
	"time"
)

type options struct {
	run      string
	long     bool
	parallel int
	verbose  bool
}

func program(ctx context.Context) error {
	var o options
	flag.StringVar(&o.run, "run", "", "scenarios whose name has this in it; empty: all")
	flag.BoolVar(&o.long, "long", false, "longer runs")
	flag.IntVar(&o.parallel, "parallel", 8, "scenarios at a time, but for those that measure throughput with -long")
	flag.BoolVar(&o.verbose, "v", false, "print how each connection ended")
	isWorker := flag.Bool("worker", false, "be a process in a namespace, which this program starts")
	flag.Parse()
	if *isWorker {
		return work(ctx)
	}
	return o.all(ctx)
}

// all runs the scenarios, several at a time, because scenarios mostly wait. Then all runs, one by
// one, the scenarios that measure times.
func (o *options) all(ctx context.Context) error {
	if again, err := sandbox(ctx); again {
		return err
	}
	begin := time.Now()
	var wanted []scenario
	for _, s := range scenarios(o.long) {
		if strings.Contains(s.name, o.run) {
			wanted = append(wanted, s)
		}
	}
	if len(wanted) == 0 {
		return fmt.Errorf("no scenario has %q in its name", o.run)
	}
	if err := possible(); err != nil {
		return skip{err}
	}
	slots := make(chan struct{}, o.parallel)
	var all sync.WaitGroup
	var mu sync.Mutex
	failed := 0
	one := func(s scenario) {
		if ctx.Err() != nil {
			return
		}
		from := time.Now()
		said, err := s.run(ctx, o, s)
		mu.Lock()
		defer mu.Unlock()
		verdict := "ok"
		if err != nil {
			verdict = "FAILED"
			failed++
		}
		fmt.Printf("%-7s %6.1f s  %-32s %s\n", verdict, time.Since(from).Seconds(), s.name, said)
		if err != nil {
			fmt.Printf("    %s\n", strings.ReplaceAll(err.Error(), "\n", "\n    "))
		}
	}
	for _, s := range wanted {
		if !s.alone {
			all.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				one(s)
			})
		}
	}
	all.Wait()
	for _, s := range wanted {
		if s.alone {
			one(s)
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d scenarios failed", failed, len(wanted))
	}
	fmt.Printf("\n%d passed, 0 failed: %.1f s\n", len(wanted), time.Since(begin).Seconds())
	return nil
}
