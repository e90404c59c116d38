package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"viaduct/interop/internal/proc"
)

type options struct {
	n       int
	only    string
	seed    uint64
	verbose bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var o options
	flag.IntVar(&o.n, "n", 100, "points at which something is killed")
	flag.StringVar(&o.only, "run", "", "cases whose name has this in it; empty: all")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "of the random points")
	flag.BoolVar(&o.verbose, "v", false, "print each point")
	flag.Parse()
	err := o.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
		os.Exit(1)
	}
}

// A campaign holds the shared state of the cases.
type campaign struct {
	*options
	ctx      context.Context
	bin, dir string
	r        *rand.Rand
	usual    map[string]time.Duration // undisturbed duration of each case
	counts   map[string]int           // number of each result, for the summary
}

// A point is a kill. run returns a short description of the result.
type point struct {
	name string
	run  func(c *campaign, dir string) (found string, err error)
}

func (o *options) run(ctx context.Context) error {
	if runtime.GOOS == "windows" {
		fmt.Println("\n*** SKIPPED: there is no SIGKILL on this system. Nothing was tested. ***")
		return nil
	}
	dir, err := os.MkdirTemp("", "viaduct-crash.")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	c := &campaign{options: o, ctx: ctx, dir: dir,
		r: rand.New(rand.NewPCG(o.seed, 0)), usual: map[string]time.Duration{}, counts: map[string]int{}}
	if c.bin, err = proc.Viaduct(ctx, dir); err != nil {
		return err
	}
	var all []point
	for _, p := range points() {
		if strings.Contains(p.name, o.only) {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return fmt.Errorf("no case has %q in its name", o.only)
	}
	fmt.Printf("%d points, seed %d\n", o.n, o.seed)
	begin := time.Now()
	for i := range o.n {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p := all[i%len(all)]
		at := filepath.Join(dir, fmt.Sprint(i))
		if err := os.Mkdir(at, 0o755); err != nil {
			return err
		}
		found, err := p.run(c, at)
		if err != nil {
			return fmt.Errorf("point %d, %s: %w", i, p.name, err)
		}
		if o.verbose {
			fmt.Printf("%4d  %-32s %s\n", i, p.name, found)
		}
		kind, _, _ := strings.Cut(p.name, ",")
		c.counts[kind+": "+found]++
		os.RemoveAll(at)
	}
	for _, k := range sorted(c.counts) {
		fmt.Printf("%5d  %s\n", c.counts[k], k)
	}
	fmt.Printf("\n%d passed, 0 failed: %.1f s\n", o.n, time.Since(begin).Seconds())
	return nil
}
