package verbs

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/internal/status"
)

func psCommand(e *shell.Env) *cobra.Command {
	var watch bool
	var interval time.Duration
	c := &cobra.Command{
		Use:   "ps [--watch]",
		Short: "list the connections of this user's viaduct processes",
		Long: `List the listeners and connections of this user's viaduct processes, with the
path of each connection and its reason. The processes include programs under
"viaduct run" and programs that open a status socket (package debug).

A process that does not answer within half a second is listed as such. SENT and
RECEIVED are payload since the start of the connection, with --watch also per
second.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval < 100*time.Millisecond {
				return shell.Usagef("--interval %v is shorter than 100ms", interval)
			}
			if watch {
				return psWatch(cmd.Context(), e, interval)
			}
			ps, err := listProcesses(cmd.Context(), false)
			if err != nil {
				return err
			}
			if e.JSON {
				return e.PrintJSON(psDocument{ps})
			}
			v := psView{now: time.Now(), paint: newPaint(e)}
			e.Printf("%s", v.render(ps, terminalSize(e)))
			return nil
		},
	}
	c.Flags().BoolVar(&watch, "watch", false, "update the list, with rates, until interrupted")
	c.Flags().DurationVar(&interval, "interval", 2*time.Second, "with --watch, the `TIME` between updates")
	return c
}

// A psDocument is the document printed with --json.
type psDocument struct {
	Processes []status.Process `json:"processes"`
}

// listProcesses returns the processes shown by "viaduct ps": all except the caller. The list is
// empty, not nil, if there are none. counters includes the counters of connections.
func listProcesses(ctx context.Context, counters bool) ([]status.Process, error) {
	ps, err := status.List(ctx, "", counters)
	if err != nil && ctx.Err() == nil {
		return nil, shell.Hint(err, "remove it, or set XDG_RUNTIME_DIR to a directory of your own")
	}
	if ps == nil {
		ps = []status.Process{}
	}
	return ps, err
}

// psWatch draws the list every interval until ctx ends. It then returns nil. With --json each list
// is a document on one line.
func psWatch(ctx context.Context, e *shell.Env, interval time.Duration) error {
	v := psView{paint: newPaint(e)}
	onTerminal := v.paint.terminal
	tick := time.NewTicker(interval)
	defer tick.Stop()
	if onTerminal {
		e.Printf("\x1b[?25l") // hide the cursor
		defer e.Printf("\x1b[?25h")
	}
	for {
		ps, err := listProcesses(ctx, false)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		v.now = time.Now()
		switch {
		case e.JSON:
			err = e.PrintEvent(psDocument{ps})
		case onTerminal:
			size := terminalSize(e)
			text := v.render(ps, size)
			lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
			if room := size.rows - 1; size.rows > 2 && len(lines) > room {
				lines = append(lines[:room-1], fmt.Sprintf("... and %d lines more", len(lines)-room+1))
			}
			e.Printf("\x1b[H%s\x1b[K\n\x1b[J", strings.Join(lines, "\x1b[K\n"))
		default:
			e.Printf("%s\n", v.render(ps, terminalSize(e)))
		}
		if err != nil {
			return err
		}
		v.remember(ps)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// A size is the size of a terminal. A value of 0 means unlimited.
type size struct{ columns, rows int }

func terminalSize(e *shell.Env) size {
	if f, ok := e.Stdout.(*os.File); ok {
		if w, h, err := term.GetSize(int(f.Fd())); err == nil {
			return size{w, h}
		}
	}
	return size{}
}

// A paint colours text on a terminal, unless NO_COLOR is set.
type paint struct {
	terminal, colour bool
}

func newPaint(e *shell.Env) paint {
	f, ok := e.Stdout.(*os.File)
	ok = ok && term.IsTerminal(int(f.Fd())) && !e.JSON
	return paint{ok, ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

func (p paint) bold(s string) string { return p.with("1", s) }
func (p paint) red(s string) string  { return p.with("31", s) }
func (p paint) dim(s string) string  { return p.with("2", s) }

func (p paint) with(code, s string) string {
	if !p.colour {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// A connKey identifies a connection in successive lists.
type connKey struct {
	pid     int
	started int64
	id      uint64
}

// A psView draws lists and remembers the previous list.
type psView struct {
	now    time.Time
	paint  paint
	before time.Time
	counts map[connKey][2]uint64
}

func keyOf(p *status.Process, c *status.Conn) connKey {
	return connKey{p.PID, p.Started.UnixNano(), c.ID}
}

func (v *psView) remember(ps []status.Process) {
	v.before, v.counts = v.now, make(map[connKey][2]uint64, len(v.counts))
	for i := range ps {
		for j := range ps[i].Conns {
			c := &ps[i].Conns[j]
			v.counts[keyOf(&ps[i], c)] = [2]uint64{c.SentBytes, c.ReceivedBytes}
		}
	}
}

// rate returns the bytes per second since the previous list, or "-" for a connection absent from
// the previous list.
func (v *psView) rate(p *status.Process, c *status.Conn) (sent, received string) {
	old, ok := v.counts[keyOf(p, c)]
	if s := v.now.Sub(v.before).Seconds(); ok && s > 0 {
		per := func(now, before uint64) string { return bytesText(float64(now-min(now, before))/s) + "/s" }
		return per(c.SentBytes, old[0]), per(c.ReceivedBytes, old[1])
	}
	return "-", "-"
}

// render draws a list as wide as the terminal. If a line is too long, the last column, the reason,
// is shortened first.
func (v *psView) render(ps []status.Process, size size) string {
	if len(ps) == 0 {
		return "no viaduct process of this user has connections or listens\n"
	}
	rates := !v.before.IsZero()
	head := []string{"PID>", "PROGRAM", "KIND", "LOCAL", "REMOTE", "PATH", "STATE", "AGE>", "SENT>", "RECEIVED>"}
	if rates {
		head = append(head, "SENT/S>", "RECV/S>")
	}
	head = append(head, "CREDIT>", "QUEUED>", "WHY")
	rows := [][]string{head}
	row := func(p *status.Process, kind, local, remote, path, state, age, sent, received, srate,
		rrate, credits, queued, why string) {
		r := []string{fmt.Sprint(p.PID), oneLine(p.Program, 24), kind, local, remote, path, state, age, sent, received}
		if rates {
			r = append(r, srate, rrate)
		}
		rows = append(rows, append(r, credits, queued, why))
	}
	for i := range ps {
		p := &ps[i]
		switch {
		case p.Problem != "":
			row(p, "-", "-", "-", "-", "no answer", "-", "-", "-", "-", "-", "-", "-", p.Problem)
			continue
		case len(p.Listeners)+len(p.Conns) == 0:
			row(p, "idle", "-", "-", "-", "-", ageText(v.now.Sub(p.Started)), "-", "-", "-", "-", "-", "-", "")
		}
		for _, l := range p.Listeners {
			row(p, "listen", l.URL, "-", l.Transport, "listening", ageText(v.now.Sub(l.Opened)),
				"-", "-", "-", "-", "-", "-", "")
		}
		for j := range p.Conns {
			c := &p.Conns[j]
			sr, rr := v.rate(p, c)
			credits := "-"
			if c.Credits >= 0 {
				credits = fmt.Sprint(c.Credits)
			}
			kind := cmp.Or(c.Role, "-")
			row(p, kind, cmp.Or(c.Local, "-"), cmp.Or(c.Remote, "-"), c.Path, c.State, ageText(v.now.Sub(c.Opened)),
				bytesText(float64(c.SentBytes)), bytesText(float64(c.ReceivedBytes)), sr, rr,
				credits, fmt.Sprint(c.Queued), c.Reason())
		}
	}
	states := make([]string, len(rows))
	for i, r := range rows {
		states[i] = r[6]
	}
	if size.columns > 0 {
		rows = narrow(rows, size.columns)
	}
	var b strings.Builder
	for i, line := range strings.Split(strings.TrimSuffix(shell.Table(rows), "\n"), "\n") {
		if size.columns > 0 {
			line = oneLine(line, size.columns)
		}
		switch {
		case i == 0:
			line = v.paint.bold(line)
		case states[i] == "no answer" || states[i] == "error":
			line = v.paint.red(line)
		case states[i] == "ended" || states[i] == "closed" || states[i] == "peer closed":
			line = v.paint.dim(line)
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// leftOut are the columns a narrow terminal omits, in this order. Before that, the reason at the
// end of the line is cut, down to whyRoom. Without LOCAL, the address of a listener is shown in the
// column of the remote addresses.
var leftOut = []string{"QUEUED>", "CREDIT>", "AGE>", "LOCAL", "PROGRAM", "RECEIVED>", "SENT>"}

const whyRoom = 12

func narrow(rows [][]string, columns int) [][]string {
	for _, name := range leftOut {
		widest := 0 // without the last column
		for i := range rows[0][:len(rows[0])-1] {
			w := 0
			for j, r := range rows {
				if c := r[i]; j == 0 {
					w = len(strings.TrimSuffix(c, ">"))
				} else {
					w = max(w, utf8.RuneCountInString(c))
				}
			}
			widest += w + 2
		}
		if widest+whyRoom <= columns {
			break
		}
		at := slices.Index(rows[0], name)
		if name == "LOCAL" {
			rows = oneAddress(rows)
		}
		out := make([][]string, len(rows))
		for j, r := range rows {
			out[j] = slices.Concat(r[:at], r[at+1:])
		}
		rows = out
	}
	return rows
}

// oneAddress merges REMOTE and LOCAL into one column. Rows without a remote address show the local
// address.
func oneAddress(rows [][]string) [][]string {
	local, remote := slices.Index(rows[0], "LOCAL"), slices.Index(rows[0], "REMOTE")
	rows = slices.Clone(rows)
	for i, r := range rows {
		r = slices.Clone(r)
		if i == 0 {
			r[remote] = "ADDRESS"
		} else if r[remote] == "-" {
			r[remote] = r[local]
		}
		rows[i] = r
	}
	return rows
}

// oneLine returns s without line ends and control characters, cut to n characters.
func oneLine(s string, n int) string {
	rs := []rune(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s))
	if len(rs) > n {
		rs = append(rs[:max(0, n-1)], '…')
	}
	return string(rs)
}

func ageText(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(max(0, d).Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}

// bytesText returns a number of bytes in three or four digits.
func bytesText(n float64) string {
	unit := "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if n < 1024 {
			break
		}
		n, unit = n/1024, u
	}
	if unit == "B" || n >= 100 {
		return fmt.Sprintf("%.0f %s", n, unit)
	}
	return fmt.Sprintf("%.1f %s", n, unit)
}

// hostPort returns the HOST:PORT of an address, or "" without a port.
func hostPort(s string) string {
	if _, rest, ok := strings.Cut(s, "://"); ok {
		s = rest
	}
	s, _, _ = strings.Cut(s, "/")
	s, _, _ = strings.Cut(s, "?")
	if _, _, err := net.SplitHostPort(s); err != nil {
		return ""
	}
	return s
}
