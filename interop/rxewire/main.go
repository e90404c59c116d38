//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"
)

// A plan holds the options of the command.
type plan struct {
	only *regexp.Regexp
	runs int
	seed uint64
}

func main() {
	p := plan{only: regexp.MustCompile("")}
	flag.Func("only", "hold the conversations alone whose names match the regular expression `RE`", func(s string) (err error) {
		p.only, err = regexp.Compile(s)
		return err
	})
	flag.IntVar(&p.runs, "runs", 1, "hold each conversation so many times; with -figures, the number of rounds")
	flag.Uint64Var(&p.seed, "seed", 1, "seed of the faults")
	figures := flag.Bool("figures", false, "measure bandwidth and latency over a clean network")
	require := flag.Bool("require", false, "fail if namespaces are not allowed or programs are missing")
	limit := flag.Duration("timeout", 20*time.Minute, "time for everything")
	flag.Parse()
	if flag.Arg(0) == "worker" {
		if err := work(flag.Args()[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "rxewire worker:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, *limit)
	run := try
	if *figures {
		run = measure
	}
	err := run(ctx, p)
	cancel()
	stop()
	var s skip
	switch {
	case err == nil:
	case errors.As(err, &s) && !*require:
		fmt.Printf("\n*** SKIPPED: %v ***\n*** RoCEv2 between namespaces was not tested. ***\n", err)
	default:
		fmt.Fprintln(os.Stderr, "rxewire:", err)
		os.Exit(1)
	}
}

// A skip is the reason why the program cannot run here.
type skip string

func (s skip) Error() string { return string(s) }
