package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

type options struct {
	length, round, race time.Duration
	conns, victims      int
	verbose             bool
	quick               bool
	only                string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var o options
	flag.DurationVar(&o.length, "for", 60*time.Second, "time without the race detector")
	flag.DurationVar(&o.race, "race", 20*time.Second, "time with it, before; 0 for none")
	flag.DurationVar(&o.round, "round", 10*time.Second, "time from one measurement to the next")
	flag.IntVar(&o.conns, "conns", 200, "connections at a time")
	flag.IntVar(&o.victims, "victims", 2, "client processes that are killed, at a time")
	flag.BoolVar(&o.verbose, "v", false, "print why connections ended early")
	flag.StringVar(&o.only, "only", "", "one transport alone")
	flag.BoolVar(&o.quick, "part", false, "be the part that the race detector watches")
	role := flag.String("role", "", "server or victim, for processes that this program starts")
	flag.Parse()
	var err error
	switch *role {
	case "server":
		err = serve(ctx)
	case "victim":
		err = beVictim(ctx, &o)
	case "":
		err = o.run(ctx)
	default:
		err = fmt.Errorf("role %q is not known", *role)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

// run executes all rounds: the first rounds in a program built with the race detector, the others
// in this process.
func (o *options) run(ctx context.Context) error {
	if o.race > 0 && !o.quick {
		if err := o.watched(ctx); err != nil {
			return fmt.Errorf("with the race detector: %w", err)
		}
	}
	if o.length <= 0 {
		return nil
	}
	return o.soak(ctx)
}

// watched runs this program, built with the race detector, for the time of -race. On a race the
// detector ends a program with status 66.
func (o *options) watched(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "viaduct-soak.")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	bin := filepath.Join(dir, "soak")
	if out, err := exec.CommandContext(ctx, "go", "build", "-race", "-o", bin, "viaduct/interop/soak").CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		fmt.Printf("*** SKIPPED: the race detector can't be used here: %v: %s ***\n", err, out)
		return nil
	}
	fmt.Println("with the race detector:")
	cmd := exec.CommandContext(ctx, bin, "-part", "-for", o.race.String(), "-round", o.round.String(),
		"-conns", fmt.Sprint(o.conns/2), "-victims", fmt.Sprint(o.victims), "-only", o.only)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// beVictim makes connections until killed.
func beVictim(ctx context.Context, o *options) error {
	var at addresses
	if err := json.NewDecoder(os.Stdin).Decode(&at); err != nil {
		return err
	}
	c, err := newClient(at, o.only)
	if err != nil {
		return err
	}
	defer c.close()
	c.round(ctx, o.conns, 24*time.Hour, uint64(os.Getpid()))
	if c.wrong != nil {
		return c.wrong
	}
	return nil
}

var errGrowth = errors.New("something grew")
