//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"
)

func main() {
	if len(os.Args) > 2 && os.Args[1] == "-helper" {
		if err := helper(os.Args[2], os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, "interop/run:", err)
			os.Exit(1)
		}
		return
	}
	cost := flag.Bool("cost", false, "measure instead")
	rounds := flag.Int("rounds", 5, "of a measurement")
	only := flag.String("only", "", "try the programs whose name contains `TEXT`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := try(ctx, *cost, *rounds, *only); err != nil {
		fmt.Fprintln(os.Stderr, "interop/run:", err)
		os.Exit(1)
	}
}

const nobody = 65534

func try(ctx context.Context, cost bool, rounds int, only string) error {
	l, err := newLab(ctx)
	if err != nil {
		return err
	}
	defer l.close()
	if cost {
		return l.cost(rounds)
	}
	users := []int{os.Getuid()}
	if users[0] == 0 {
		users = append(users, nobody)
	}
	failed, n := 0, 0
	for _, l.uid = range users {
		for _, tr := range trials {
			if !strings.Contains(tr.name, only) {
				continue
			}
			if missing := tr.missing(); missing != "" {
				fmt.Printf("SKIPPED %-28s %s is not installed\n", tr.name, missing)
				continue
			}
			begin := time.Now()
			err := l.run(tr)
			verdict := "ok     "
			if err != nil {
				verdict = "FAILED "
				failed++
			}
			n++
			fmt.Printf("%s %-28s uid %-5d %5.1f s", verdict, tr.name, l.uid, time.Since(begin).Seconds())
			if err != nil {
				fmt.Printf("  %v", err)
			}
			fmt.Println()
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d programs failed", failed, n)
	}
	if n == 0 {
		fmt.Println("SKIPPED: no program to try")
	}
	return nil
}
