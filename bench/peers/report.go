package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"viaduct/internal/figures"
)

// samples are the results of a side, one per round.
type samples []result

// spread returns the median, minimum and maximum of a quantity.
func (s samples) spread(q quantity) (median, least, greatest float64) {
	if len(s) == 0 {
		return 0, 0, 0
	}
	v := s.values(q)
	slices.Sort(v)
	return middle(v), v[0], v[len(v)-1]
}

// values returns the quantity q of each round.
func (s samples) values(q quantity) []float64 {
	v := make([]float64, len(s))
	for i, r := range s {
		v[i] = q.of(r)
	}
	return v
}

// middle returns the median of the sorted v.
func middle(v []float64) float64 { return (v[(len(v)-1)/2] + v[len(v)/2]) / 2 }

// beside returns the median of the ratios of s to other, round by round. The machine may change
// from round to round, but a change affects both sides of one round. The ratio of two separate
// medians could compare different states of the machine.
func (s samples) beside(other samples, q quantity) float64 {
	v, w := s.values(q), other.values(q)
	v = v[:min(len(v), len(w))]
	for i := range v {
		v[i] /= w[i]
	}
	slices.Sort(v)
	return middle(v)
}

// A line is a row with figures.
type line struct {
	Contest string  `json:"contest"`
	Metric  string  `json:"metric"`
	Ours    string  `json:"ours"`
	Value   string  `json:"value"`
	Theirs  string  `json:"theirs,omitempty"`
	Their   string  `json:"their_value,omitempty"`
	Ratio   float64 `json:"ratio,omitempty"`
	Best    float64 `json:"best,omitempty"`  // ratio of ours to theirs, each in its best round
	Range   string  `json:"range,omitempty"` // minimum and maximum of our rounds
	Goal    string  `json:"goal,omitempty"`
	Floor   string  `json:"floor,omitempty"`
	Verdict string  `json:"verdict"`
}

// The verdicts.
const (
	goalMet  = "goal"
	floorMet = "floor"
	missed   = "MISSED"
	shown    = ""
)

// judge returns the line of a row, from the samples of each side or the reason why a side has none.
func (r row) judge(title string, got map[string]samples, why map[string]string) line {
	l := line{Contest: title, Metric: r.metric, Ours: r.ours, Theirs: r.theirs}
	sign := map[bool]string{true: "<= ", false: ">= "}[r.least]
	limit := func(v float64) string {
		if r.theirs == "" {
			return sign + r.what.format(v)
		}
		return fmt.Sprintf("%s%.4g", sign, v)
	}
	if r.goal > 0 {
		l.Goal, l.Floor = limit(r.goal), limit(r.floor)
	}
	for _, name := range []string{r.ours, r.theirs} {
		if why[name] != "" {
			l.Verdict = "not available: " + why[name]
			return l
		}
	}
	mine, least, greatest := got[r.ours].spread(r.what)
	l.Value = r.what.format(mine)
	l.Range = r.what.format(least) + " to " + r.what.format(greatest)
	x := mine
	if r.theirs != "" {
		their, low, high := got[r.theirs].spread(r.what)
		l.Their = r.what.format(their)
		if their == 0 || mine == 0 {
			l.Verdict = "not available: no result"
			return l
		}
		l.Ratio = got[r.ours].beside(got[r.theirs], r.what)
		if l.Best = greatest / high; r.least {
			l.Best = least / low
		}
		x = l.Ratio
	}
	better := func(limit float64) bool { return r.least && x <= limit || !r.least && x >= limit }
	switch {
	case r.goal == 0:
		l.Verdict = shown
	case better(r.goal):
		l.Verdict = goalMet
	case better(r.floor):
		l.Verdict = floorMet
	default:
		l.Verdict = missed
	}
	return l
}

// A report holds all results of a run.
type report struct {
	Date       string   `json:"date"`
	Machine    string   `json:"machine"`
	Congestion string   `json:"congestion"`
	Rounds     int      `json:"rounds"`
	Peers      []string `json:"peers"`
	Quiet      bool     `json:"quiet"`
	Note       string   `json:"note"`
	Lines      []line   `json:"rows"`

	Samples map[string]map[string]samples `json:"samples"` // by contest and side
}

func (r *report) head(t *toolbox, m measure, rounds int) {
	r.Date = time.Now().UTC().Format("2006-01-02")
	r.Machine = machine()
	r.Congestion = m.Congestion
	if r.Congestion == "" {
		r.Congestion = "system default"
	}
	r.Rounds = rounds
	r.Peers = t.versions
	r.Samples = make(map[string]map[string]samples)
}

// counts returns the number of lines with each verdict.
func (r *report) counts() map[string]int {
	n := make(map[string]int)
	for _, l := range r.Lines {
		v, _, _ := strings.Cut(l.Verdict, ":")
		n[v]++
	}
	return n
}

func (r *report) summary() string {
	n := r.counts()
	delete(n, shown)
	var parts []string
	for _, v := range slices.Sorted(maps.Keys(n)) {
		parts = append(parts, fmt.Sprintf("%s %d", v, n[v]))
	}
	return strings.Join(parts, ", ")
}

// text writes the report for people at a terminal.
func (r *report) text(w io.Writer) error {
	fmt.Fprintf(w, "%s\n%s; congestion control %s; %d rounds, medians\n", r.Date, r.Machine, r.Congestion, r.Rounds)
	fmt.Fprintf(w, "peers: %s\n", strings.Join(r.Peers, ", "))
	title := ""
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, l := range r.Lines {
		if l.Contest != title {
			tw.Flush()
			title = l.Contest
			fmt.Fprintf(w, "\n%s\n", title)
		}
		fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			l.Ours, l.Value, beside(l), ratio(l.Ratio), ratio(l.Best), l.Goal, l.Floor, l.Verdict)
	}
	tw.Flush()
	_, err := fmt.Fprintf(w, "\nColumns: ours, median; theirs, median; median of the ratios of each round; ratio of the best rounds; goal; floor; verdict.\n%s\n%s\n", r.summary(), r.Note)
	return err
}

// table returns the table for a document.
func (r *report) table() figures.Table {
	t := figures.Table{
		About: []string{
			fmt.Sprintf("Measured %s on %s.", r.Date, r.Machine),
			fmt.Sprintf("Congestion control %s on every socket, %d interleaved rounds, medians.", r.Congestion, r.Rounds),
			fmt.Sprintf("Peers: %s.", strings.Join(r.Peers, ", ")), r.Note},
		Head:  figures.Row("what", "ours", "", "compared with", "", "ratio", "best rounds", "goal", "floor", "verdict"),
		Below: []string{r.summary() + "."},
	}
	for _, l := range r.Lines {
		verdict, _, _ := strings.Cut(l.Verdict, ":") // without the reason, which may name files of this machine
		t.Rows = append(t.Rows, figures.Row(l.Contest+": "+l.Metric, l.Ours, l.Value, l.Theirs, l.Their, ratio(l.Ratio), ratio(l.Best), l.Goal, l.Floor, verdict))
	}
	return t
}

func beside(l line) string {
	if l.Theirs == "" {
		return l.Metric
	}
	return strings.TrimSpace(l.Theirs + " " + l.Their)
}

func ratio(v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", v)
}
