package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// A skip is the reason why the program cannot run here: the text names what this machine lacks.
type skip struct{ error }

var require = flag.Bool("require", false, "fail if something is missing, instead of skipping")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := program(ctx)
	stop()
	var s skip
	switch {
	case err == nil:
	case errors.As(err, &s) && !*require:
		fmt.Printf("\n*** SKIPPED: %v ***\n*** Nothing was tested on bad networks. ***\n", err)
	default:
		fmt.Fprintln(os.Stderr, "netns:", err)
		os.Exit(1)
	}
}
