//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
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
	record := flag.String("record", "", "put the figures of a measurement into the results and the pages of the repository at `DIR` too")
	only := flag.String("only", "", "try the programs whose name contains `TEXT`")
	busy := flag.Duration("busy", 20*time.Second, "how long sshd is tried beside busy loops")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := try(ctx, *cost, *rounds, *record, *only, *busy); err != nil {
		fmt.Fprintln(os.Stderr, "interop/run:", err)
		os.Exit(1)
	}
}

const nobody = 65534

// A user is the user for running the programs.
type user struct {
	name  string
	uid   int
	apart bool // each program runs in a separate user namespace
}

// A row holds the results of a trial for each user.
type row struct {
	trial
	verdicts []string
	shown    map[fact]bool // facts that every completed run has shown
}

// add records the facts of a run.
func (r *row) add(shown map[fact]bool) {
	if r.shown == nil {
		r.shown = shown
	}
	for f := range r.shown {
		r.shown[f] = r.shown[f] && shown[f]
	}
}

// table prints the results in the format of the documentation.
func table(users []user, rows []row) {
	fmt.Print("\n| client | server | bytes compared | server saw its peer | client saw its peer |")
	for _, u := range users {
		fmt.Printf(" uid %d%s |", u.uid, u.name)
	}
	fmt.Println("\n|---|---|---|---|---|" + strings.Repeat("---|", len(users)))
	for _, r := range rows {
		fmt.Printf("| %s | %s |", r.client, r.server)
		for _, f := range []fact{bytesSame, serverSaw, clientSaw} {
			fmt.Printf(" %s |", map[bool]string{true: "yes", false: "-"}[r.shown[f]])
		}
		fmt.Printf(" %s |\n", strings.Join(r.verdicts, " | "))
	}
}

func try(ctx context.Context, cost bool, rounds int, file, only string, busy time.Duration) error {
	l, err := newLab(ctx)
	if err != nil {
		return err
	}
	defer l.close()
	l.busy = busy
	if cost {
		return l.cost(rounds, file)
	}
	users := []user{{"", os.Getuid(), false}}
	if os.Getuid() == 0 {
		users = append(users, user{"", nobody, false})
	}
	users = append(users, user{", in a user namespace", users[len(users)-1].uid, true})
	rows := make([]row, len(trials))
	failed, n := 0, 0
	for _, u := range users {
		l.uid, l.apart = u.uid, u.apart
		allowed := l.command(ctx, "true").Run()
		if allowed != nil {
			fmt.Printf("SKIPPED all%s: this machine does not allow it: %v\n", u.name, allowed)
		}
		for i, tr := range trials {
			if !strings.Contains(tr.name, only) {
				continue
			}
			rows[i].trial = tr
			if allowed != nil {
				rows[i].verdicts = append(rows[i].verdicts, "skipped")
				continue
			}
			begin := time.Now()
			err := error(skipped("not installed: " + tr.missing()))
			if tr.missing() == "" {
				err = l.run(tr)
			}
			verdict := "ok"
			if _, ok := errors.AsType[skipped](err); ok {
				verdict = "skipped"
			} else if n++; err != nil {
				verdict = "failed"
				failed++
			} else {
				rows[i].add(l.shown)
			}
			rows[i].verdicts = append(rows[i].verdicts, verdict)
			if verdict != "ok" {
				verdict = strings.ToUpper(verdict)
			}
			fmt.Printf("%-7s %-28s uid %-5d %5.1f s%s", verdict, tr.name, u.uid, time.Since(begin).Seconds(), u.name)
			if err != nil {
				fmt.Printf("  %v", err)
			}
			fmt.Println()
		}
	}
	if strings.Contains(pythonName, only) {
		l.uid, l.apart = os.Getuid(), false
		begin := time.Now()
		err := l.comparePython()
		verdict := "ok"
		if _, ok := errors.AsType[skipped](err); ok {
			verdict = "SKIPPED"
		} else if n++; err != nil {
			verdict = "FAILED"
			failed++
		}
		fmt.Printf("%-7s %s: %5.1f s", verdict, pythonName, time.Since(begin).Seconds())
		if err != nil {
			fmt.Printf("  %v", err)
		}
		fmt.Println()
	}
	table(users, slices.DeleteFunc(rows, func(r row) bool { return r.name == "" }))
	if failed > 0 {
		return fmt.Errorf("%d of %d programs failed", failed, n)
	}
	if n == 0 {
		fmt.Println("SKIPPED: no program to try")
	}
	return nil
}
