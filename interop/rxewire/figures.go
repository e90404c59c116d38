//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

//go:embed testdata/udp.c
var udpProgram string

// A figure is a measurement by a server and a client.
type figure struct {
	what string
	goal string
	most bool // the greatest value is the best
	// base is the index of the figure that this one is compared with, or -1.
	base    int
	measure func(ctx context.Context, l *lab) (float64, error)
}

// udpWaiting and udpPolling are indices in figures.
const (
	udpWaiting = 2
	udpPolling = 3
)

var figures = []figure{
	{"package roce: RC Writes of 64 KiB, MTU 4096, GB/s", "0.4, floor 0.25", true, -1, worker("write")},
	{"ib_write_bw: RC Writes of 64 KiB, MTU 4096, GB/s", "0.4, floor 0.25", true, -1, tool("ib_write_bw -s 65536 -m 4096 -n 5000", 3, 1<<20/1e9)},
	{"UDP in C: 8 bytes one way, waiting, us", "", false, -1, udp("wait")},
	{"UDP in C: 8 bytes one way, polling, us", "", false, -1, udp("poll")},
	{"package roce: Send of 8 bytes one way, waiting, us", "1.5 times UDP", false, udpWaiting, worker("wait")},
	{"package roce: Send of 8 bytes one way, polling, us", "1.5 times UDP", false, udpPolling, worker("poll")},
	{"ib_send_lat: Send of 8 bytes one way, polling, us", "", false, udpPolling, tool("ib_send_lat -s 8 -n 5000", 4, 1)},
	{"ib_send_lat -e: Send of 8 bytes one way, waiting, us", "", false, udpWaiting, tool("ib_send_lat -e -s 8 -n 5000", 4, 1)},
}

// measure runs all figures in turns, and prints the best and the median of the rounds, and the median
// of the ratios within the rounds.
func measure(ctx context.Context, p plan) error {
	if err := need("ip", "cc", "ib_write_bw", "ib_send_lat"); err != nil {
		return err
	}
	l, err := newLab(ctx, p.seed)
	if err != nil {
		return err
	}
	defer l.close()
	if err := l.wire(ctx); err != nil {
		return err
	}
	source := filepath.Join(l.dir, "udp.c")
	if err := os.WriteFile(source, []byte(udpProgram), 0o644); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "cc", "-O2", "-o", filepath.Join(l.dir, "udp"), source).CombinedOutput(); err != nil {
		return fmt.Errorf("cc: %w\n%s", err, out)
	}
	all := make([][]float64, len(figures))
	for range p.runs {
		for i, f := range figures {
			v := 0.0
			if p.only.MatchString(f.what) || slices.ContainsFunc(figures, func(g figure) bool { return g.base == i && p.only.MatchString(g.what) }) {
				if v, err = f.measure(ctx, l); err != nil {
					return fmt.Errorf("%s: %w", f.what, err)
				}
			}
			all[i] = append(all[i], v)
		}
	}
	fmt.Printf("%d rounds\n%-56s %-16s %8s %8s %8s\n", p.runs, "figure", "goal", "best", "median", "ratio")
	for i, f := range figures {
		if all[i][0] == 0 {
			continue
		}
		ratio := ""
		if f.base >= 0 {
			var ratios []float64
			for r, v := range all[i] {
				ratios = append(ratios, v/all[f.base][r])
			}
			slices.Sort(ratios)
			ratio = fmt.Sprintf("%.2f", ratios[len(ratios)/2])
		}
		sorted := slices.Sorted(slices.Values(all[i]))
		best := sorted[0]
		if f.most {
			best = sorted[len(sorted)-1]
		}
		fmt.Printf("%-56s %-16s %8.2f %8.2f %8s\n", f.what, f.goal, best, sorted[len(sorted)/2], ratio)
	}
	return nil
}

// wire connects the namespaces by a veth pair, and changes the addresses of the ends to those of the
// pair.
func (l *lab) wire(ctx context.Context) error {
	far := exec.CommandContext(ctx, "cat") // ip finds the other namespace by a process
	hold, err := far.StdinPipe()
	if err != nil {
		return err
	}
	if err := l.ends[1].Do(far.Start); err != nil {
		return err
	}
	defer func() { hold.Close(); far.Wait() }()
	for i, script := range []string{
		fmt.Sprintf("ip link add wire mtu %d type veth peer name wire mtu %[1]d netns %d", frame, far.Process.Pid),
		"", // the peer exists now
	} {
		e := l.ends[i]
		own := fmt.Sprintf("10.79.0.%d", i+1)
		cmd := exec.CommandContext(ctx, "sh", "-e", "-c", script+"\nip addr add "+own+"/24 dev wire\nip link set wire up")
		err := e.Do(func() error {
			out, err := cmd.CombinedOutput()
			if err != nil {
				err = skip(fmt.Sprintf("no veth pair: %v\n%s", err, out))
			}
			return err
		})
		if err != nil {
			return err
		}
		if err := e.addr.UnmarshalText([]byte(own)); err != nil {
			return err
		}
	}
	return nil
}

// both runs a server and a client, and returns the output of the client. The server ends by itself,
// or is ended when the client has ended.
func (l *lab) both(ctx context.Context, server func(context.Context, *end) (*process, error), ready func(*process) error,
	client func(context.Context, *end) (*process, error)) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := server(ctx, l.ends[0])
	if err != nil {
		return "", err
	}
	defer func() { cancel(); <-s.ended }()
	if err := ready(s); err != nil {
		return "", err
	}
	c, err := client(ctx, l.ends[1])
	if err != nil {
		return "", err
	}
	if c.status() != 0 {
		return "", fmt.Errorf("%w\n%s", c.err, &c.out)
	}
	return c.out.String(), nil
}

// number returns the only word of a program's output.
func number(out string, err error) (float64, error) {
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(out), 64)
}

// worker returns a function that measures with two processes that use package roce.
func worker(what string) func(context.Context, *lab) (float64, error) {
	return func(ctx context.Context, l *lab) (float64, error) {
		start := func(args ...string) func(context.Context, *end) (*process, error) {
			return func(ctx context.Context, e *end) (*process, error) {
				return e.start(ctx, "/proc/self/exe", append([]string{"worker", what, e.addr.String()}, args...)...)
			}
		}
		return number(l.both(ctx, start(), func(s *process) error {
			port, _ := strconv.Atoi(workerPort)
			return l.ends[0].listens(ctx, port, s)
		}, start(l.ends[0].addr.String())))
	}
}

// udp returns a function that measures with the program in C, whose readers "poll" or "wait".
func udp(how string) func(context.Context, *lab) (float64, error) {
	return func(ctx context.Context, l *lab) (float64, error) {
		start := func(role string) func(context.Context, *end) (*process, error) {
			return func(ctx context.Context, e *end) (*process, error) {
				return e.start(ctx, filepath.Join(l.dir, "udp"), role, l.ends[0].addr.String(), "7176", how)
			}
		}
		return number(l.both(ctx, start("serve"), func(s *process) error { return l.ends[0].bound(ctx, 7176, s) }, start("call")))
	}
}

var perftestLine = regexp.MustCompile(`(?m)^ *\d+ +\d+ +[\d.]+ .*$`)

// tool returns a function that runs a tool of perftest under viaduct run at both ends, and returns a
// column of the client's table times scale.
func tool(line string, column int, scale float64) func(context.Context, *lab) (float64, error) {
	return func(ctx context.Context, l *lab) (float64, error) {
		l.port++
		port := firstPort + l.port%10000
		call := line + fmt.Sprintf(" -F -x 1 -p %d", port)
		out, err := l.both(ctx, func(ctx context.Context, e *end) (*process, error) { return l.device(ctx, e, call) },
			func(s *process) error { return l.ends[0].listens(ctx, port, s) },
			func(ctx context.Context, e *end) (*process, error) {
				return l.device(ctx, e, call+" "+l.ends[0].addr.String())
			})
		if err != nil {
			return 0, err
		}
		words := strings.Fields(perftestLine.FindString(out))
		if len(words) <= column {
			return 0, fmt.Errorf("no figures in %q", out)
		}
		v, err := strconv.ParseFloat(words[column], 64)
		return v * scale, err
	}
}
