package verbs

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/internal/status"
)

func statCommand(e *shell.Env) *cobra.Command {
	var interval time.Duration
	var all bool
	c := &cobra.Command{
		Use:   "stat [PID | URL]",
		Short: "counters and rates of connections of this user's viaduct processes",
		Long: `Print the counters of connections: of one process, of all processes of this user,
or at one address. Each counter has its total and its rate over --interval. The
names are those of "rdma statistic" for counters with the same meaning. Counters
that are zero are omitted unless --all is given.`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			keep, err := statFilter(args)
			if err != nil {
				return err
			}
			if interval < 0 {
				return shell.Usagef("--interval %v is negative", interval)
			}
			return stat(cmd.Context(), e, keep, interval, all)
		},
	}
	c.Flags().DurationVar(&interval, "interval", time.Second, "`TIME` over which rates are measured; 0 means no rates")
	c.Flags().BoolVar(&all, "all", false, "print counters that are zero as well")
	return c
}

// A statKeep selects the connections to print.
type statKeep struct {
	what string
	pid  int
	url  *addr.URL
}

func statFilter(args []string) (statKeep, error) {
	if len(args) == 0 {
		return statKeep{}, nil
	}
	k := statKeep{what: args[0]}
	if n, err := strconv.Atoi(args[0]); err == nil {
		if n <= 0 {
			return k, shell.Usagef("%d is no process number", n)
		}
		k.pid = n
		return k, nil
	}
	u, _, err := parse(args[0])
	if err != nil {
		return k, shell.Usage(fmt.Errorf("%w; a process number or a URL is wanted", err))
	}
	k.url = u
	return k, nil
}

// pick returns the selected processes, with their selected listeners and connections. A process
// without any is left out if an address is selected.
func (k statKeep) pick(ps []status.Process) (out []status.Process) {
	for _, p := range ps {
		if k.pid != 0 && p.PID != k.pid {
			continue
		}
		if k.url != nil {
			p.Listeners = slices.DeleteFunc(slices.Clone(p.Listeners), func(l status.Listener) bool {
				return l.Transport != k.url.Scheme || !k.at(l.URL)
			})
			p.Conns = slices.DeleteFunc(slices.Clone(p.Conns), func(c status.Conn) bool {
				return c.Transport != k.url.Scheme || !k.at(c.Local) && !k.at(c.Remote)
			})
			if len(p.Listeners)+len(p.Conns) == 0 {
				continue
			}
		}
		out = append(out, p)
	}
	return out
}

// at reports whether s is the selected address. The ports must be equal. The hosts must be equal,
// too, unless either is a wildcard.
func (k statKeep) at(s string) bool {
	want, got := k.url.HostPort(), hostPort(s)
	if got == want {
		return true
	}
	cut := func(s string) (host, port string) {
		i := strings.LastIndexByte(s, ':')
		return strings.Trim(s[:max(0, i)], "[]"), s[i+1:]
	}
	wh, wp := cut(want)
	gh, gp := cut(got)
	wild := func(h string) bool { return h == "" || h == "::" || h == "0.0.0.0" }
	return got != "" && wp == gp && (wild(wh) || wild(gh))
}

// A statConn is a connection with rates, for --json.
type statConn struct {
	status.Conn
	Rates map[string]float64 `json:"rates_per_second,omitempty"`
}

// A statProcess is a process whose connections have rates.
type statProcess struct {
	status.Process
	Conns []statConn `json:"connections,omitempty"`
}

func stat(ctx context.Context, e *shell.Env, keep statKeep, interval time.Duration, all bool) error {
	first, err := listProcesses(ctx, true)
	if err != nil {
		return err
	}
	from, at := map[connKey]*status.Conn{}, time.Now()
	ps := first
	if first = keep.pick(first); len(first) > 0 && interval > 0 {
		for i := range first {
			for j := range first[i].Conns {
				from[keyOf(&first[i], &first[i].Conns[j])] = &first[i].Conns[j]
			}
		}
		t := time.NewTimer(interval)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if ps, err = listProcesses(ctx, true); err != nil {
			return err
		}
	}
	took := time.Since(at).Seconds()
	picked := keep.pick(ps)
	if len(picked) == 0 && keep.what != "" {
		return shell.Hint(fmt.Errorf("no viaduct process of this user is %s", keep.what), "see viaduct ps")
	}
	out := make([]statProcess, 0, len(picked))
	for _, p := range picked {
		sp := statProcess{Process: p}
		for _, c := range p.Conns {
			sc := statConn{Conn: c}
			sc.Counters = maps.Clone(c.Counters)
			if sc.Counters == nil {
				sc.Counters = map[string]uint64{}
			}
			sc.Counters["tx_bytes"], sc.Counters["rx_bytes"] = c.SentBytes, c.ReceivedBytes
			if old := from[keyOf(&p, &c)]; old != nil && took > 0 {
				sc.Rates = map[string]float64{}
				for name, n := range sc.Counters {
					was := old.Counters[name]
					switch name {
					case "tx_bytes":
						was = old.SentBytes
					case "rx_bytes":
						was = old.ReceivedBytes
					}
					if n > was {
						sc.Rates[name] = float64(n-was) / took
					}
				}
			}
			sp.Conns = append(sp.Conns, sc)
		}
		sp.Process.Conns = nil
		out = append(out, sp)
	}
	if e.JSON {
		return e.PrintJSON(struct {
			Processes []statProcess `json:"processes"`
		}{out})
	}
	e.Printf("%s", statText(newPaint(e), out, all))
	return nil
}

func statText(paint paint, ps []statProcess, all bool) string {
	if len(ps) == 0 {
		return "no viaduct process of this user has connections or listens\n"
	}
	var b strings.Builder
	now := time.Now()
	for i, p := range ps {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(paint.bold(fmt.Sprintf("%d  %s", p.PID, oneLine(p.Program, 100))) + "\n")
		if p.Problem != "" {
			b.WriteString("  " + paint.red(p.Problem) + "\n")
			continue
		}
		fmt.Fprintf(&b, "  viaduct %s, running for %s, %s of memory, %d goroutines, %d connections\n",
			cmp.Or(p.Version, "?"), ageText(now.Sub(p.Started)), bytesText(float64(p.Memory)), p.Threads, len(p.Conns))
		for _, l := range p.Listeners {
			fmt.Fprintf(&b, "  listening at %s\n", oneLine(l.URL, 200))
		}
		for _, c := range p.Conns {
			b.WriteString("\n")
			b.WriteString("  " + paint.bold(fmt.Sprintf("%s %s %s -> %s", c.Transport, c.Role, c.Local, c.Remote)) + "\n")
			fmt.Fprintf(&b, "    path     %s\n", c.Path)
			if why := c.Reason(); why != "" {
				fmt.Fprintf(&b, "    because  %s\n", oneLine(why, 200))
			}
			fmt.Fprintf(&b, "    state    %s for %s", c.State, ageText(now.Sub(c.Opened)))
			if !c.Active.IsZero() {
				fmt.Fprintf(&b, ", last active %s ago", ageText(now.Sub(c.Active)))
			}
			if c.Memory > 0 {
				fmt.Fprintf(&b, ", %s of buffers", bytesText(float64(c.Memory)))
			}
			b.WriteString("\n")
			if c.Credits >= 0 {
				fmt.Fprintf(&b, "    credits  %d\n", c.Credits)
			}
			rows := [][]string{{"    counter", "total>", "per second>"}}
			for _, name := range slices.Sorted(maps.Keys(c.Counters)) {
				if n := c.Counters[name]; n > 0 || all {
					rate := "-"
					if r := c.Rates[name]; r > 0 {
						rate = strconv.FormatFloat(r, 'f', 1, 64)
					}
					rows = append(rows, []string{"    " + name, fmt.Sprint(n), rate})
				}
			}
			if len(rows) > 1 {
				b.WriteString(shell.Table(rows))
			}
		}
	}
	return b.String()
}
