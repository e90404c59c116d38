//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

//go:embed testdata/post.c
var postProgram string

// A figure is a measurement of -figures.
type figure struct {
	what, goal string
	most       bool // the greatest value is the best
	measure    func(ctx context.Context, l *lab) (float64, error)
}

// Columns of perftest's printed tables.
const (
	latencyLeast   = 2
	latencyTypical = 4
	bandwidth      = 3 // average, in units of 2^20 bytes per second
	messageRate    = 4 // millions per second
)

var figures = []figure{
	{"ibv_post_send of one request, median, us", "12", false, posting("post")},
	{"the same until its completion, median, us", "", false, posting("done")},
	{"ib_read_lat, 2 bytes, typical, us", "12, floor 20", false, perftest("ib_read_lat -n 20000", latencyTypical)},
	{"ib_read_lat, 2 bytes, least, us", "", false, perftest("ib_read_lat -n 20000", latencyLeast)},
	{"ib_send_lat -e, typical, us", "40", false, perftest("ib_send_lat -e -n 5000", latencyTypical)},
	{"Writes of 64 bytes one by one, M/s", "0.1", true, perftest("ib_write_bw -s 64 -n 20000", messageRate)},
	{"Writes of 64 bytes in lists of 32, M/s", "1, floor 0.5", true, perftest("ib_write_bw -s 64 -l 32 -n 64000", messageRate)},
	{"Writes of 64 KiB, MiB/s", "1907 (2 GB/s), floor 1144", true, perftest("ib_write_bw -n 10000", bandwidth)},
	{"Reads of 64 KiB, MiB/s", "1430 (1.5 GB/s)", true, perftest("ib_read_bw -n 10000", bandwidth)},
	{"pyverbs' suite, s", "20", false, suiteTime},
	{"processor time of an idle device, % of one", "0", false, idle},
}

// measure runs each figure several times, and prints the best and the median value.
func measure(ctx context.Context, p plan) error {
	l, err := newLab(ctx, p)
	if err != nil {
		return err
	}
	defer os.RemoveAll(l.dir)
	if err := l.findAddress(ctx); err != nil {
		return err
	}
	fmt.Printf("%-46s %-26s %10s %10s\n", "figure", "goal", "best", "median")
	for _, f := range figures {
		if !p.only.MatchString(f.what) {
			continue
		}
		var all []float64
		for range p.runs {
			v, err := f.measure(ctx, l)
			if err != nil {
				return fmt.Errorf("%s: %w", f.what, err)
			}
			all = append(all, v)
		}
		slices.Sort(all)
		if f.most {
			slices.Reverse(all)
		}
		fmt.Printf("%-46s %-26s %10.2f %10.2f\n", f.what, f.goal, all[0], all[len(all)/2])
	}
	return nil
}

var perftestLine = regexp.MustCompile(`(?m)^ *\d+ +\d+ +[\d.]+ .*$`)

// perftest returns a function that runs a tool at both ends and returns a column of the client's
// table.
func perftest(line string, column int) func(context.Context, *lab) (float64, error) {
	return func(ctx context.Context, l *lab) (float64, error) {
		p := line + " -F -p $PORT"
		out, err := l.run(ctx, pair(p+" >/dev/null", p+" $ADDR"), l.limit)
		if err != nil {
			return 0, fmt.Errorf("%w\n%s", err, out)
		}
		words := strings.Fields(perftestLine.FindString(out))
		if len(words) <= column {
			return 0, fmt.Errorf("no figures in %q", out)
		}
		return strconv.ParseFloat(words[column], 64)
	}
}

// posting returns a function that builds and runs post.c, and returns the median of the figure what
// in microseconds.
func posting(what string) func(context.Context, *lab) (float64, error) {
	return func(ctx context.Context, l *lab) (float64, error) {
		script := "cat >post.c <<'END'\n" + postProgram + "END\ncc -O2 -o post post.c -libverbs && ./post"
		out, err := l.run(ctx, script, l.limit)
		if err != nil {
			return 0, fmt.Errorf("%w\n%s", err, out)
		}
		const median = 2
		for line := range strings.Lines(out) {
			if words := strings.Fields(line); len(words) == 4 && words[0] == what {
				ns, err := strconv.ParseFloat(words[median], 64)
				return ns / 1000, err
			}
		}
		return 0, fmt.Errorf("no figures in %q", out)
	}
}

// suiteTime returns the duration of the pyverbs suite in seconds.
func suiteTime(ctx context.Context, l *lab) (float64, error) {
	i := slices.IndexFunc(trials, func(tr trial) bool { return tr.name == "pyverbs" })
	if m := l.missing(trials[i]); m != "" {
		return 0, errors.New("missing: " + m)
	}
	began := time.Now()
	_, err := l.make(ctx, trials[i])
	return time.Since(began).Seconds(), err
}

// idle returns the processor time, in percent of a processor, of a supervisor whose program has a
// queue pair and waits for a peer.
func idle(ctx context.Context, l *lab) (percent float64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	over := make(chan error, 1)
	go func() {
		_, err := l.run(ctx, "ibv_rc_pingpong -g 1 -p $PORT & s=$!; listens; touch waiting; wait $s", time.Minute)
		over <- err
	}()
	waiting := filepath.Join(l.dir, "waiting")
	for _, err := os.Stat(waiting); err != nil; _, err = os.Stat(waiting) {
		select {
		case err := <-over:
			return 0, fmt.Errorf("the program did not wait: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	defer os.Remove(waiting)
	time.Sleep(2 * time.Second) // until the program has started up
	const watched = 5 * time.Second
	before, err := l.processorTime()
	if err != nil {
		return 0, err
	}
	time.Sleep(watched)
	after, err := l.processorTime()
	cancel()
	<-over
	return 100 * float64(after-before) / float64(watched), err
}

// processorTime returns the processor time used by all processes of l.viaduct.
func (l *lab) processorTime() (sum time.Duration, err error) {
	names, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return 0, err
	}
	found := false
	for _, name := range names {
		if at, err := os.Readlink(name); err != nil || at != l.viaduct {
			continue
		}
		found = true
		stats, _ := filepath.Glob(filepath.Join(filepath.Dir(name), "task/*/schedstat"))
		for _, s := range stats {
			b, err := os.ReadFile(s)
			if err != nil {
				continue // the thread has ended
			}
			used, _, _ := strings.Cut(string(b), " ")
			n, _ := strconv.ParseInt(used, 10, 64)
			sum += time.Duration(n)
		}
	}
	if !found {
		return 0, errors.New("no process of the command can be seen")
	}
	return sum, nil
}
