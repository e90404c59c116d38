//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"errors"
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

// A user is how programs are tried.
type user struct {
	name  string
	uid   int
	apart bool // in a user namespace
}

func try(ctx context.Context, cost bool, rounds int, only string) error {
	l, err := newLab(ctx)
	if err != nil {
		return err
	}
	defer l.close()
	if cost {
		return l.cost(rounds)
	}
	users := []user{{"", os.Getuid(), false}}
	if os.Getuid() == 0 {
		users = append(users, user{"", nobody, false})
	}
	users = append(users, user{", in a user namespace", users[len(users)-1].uid, true})
	failed, n := 0, 0
	for _, u := range users {
		l.uid, l.apart = u.uid, u.apart
		if err := l.command(ctx, "true").Run(); err != nil {
			fmt.Printf("SKIPPED all%s: this machine does not allow it: %v\n", u.name, err)
			continue
		}
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
			if _, ok := errors.AsType[skipped](err); ok {
				verdict = "SKIPPED"
			} else if err != nil {
				verdict = "FAILED "
				failed++
			}
			n++
			fmt.Printf("%s %-28s uid %-5d %5.1f s%s", verdict, tr.name, u.uid, time.Since(begin).Seconds(), u.name)
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
