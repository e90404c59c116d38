package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"time"

	"viaduct/internal/figures"
)

func main() {
	var err error
	if len(os.Args) > 1 && os.Args[1] == "drive" {
		err = driveMain(os.Args[2:])
	} else {
		err = compareMain(os.Args[1:])
	}
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
	default:
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// options are the options of a comparison.
type options struct {
	install  bool
	rounds   int
	seconds  float64
	limit    time.Duration
	only     string
	json     bool
	markdown bool
	record   string
	beside   string
	verbose  bool
	render   bool
	patience time.Duration
	rest     time.Duration

	congestion string
}

func compareMain(args []string) error {
	var o options
	fs := flag.NewFlagSet("peers", flag.ContinueOnError)
	fs.BoolVar(&o.install, "install", true, "install missing peers from Debian's packages, if we may")
	fs.IntVar(&o.rounds, "rounds", 5, "interleaved rounds")
	fs.Float64Var(&o.seconds, "seconds", 0.4, "length of one measurement")
	fs.DurationVar(&o.limit, "limit", 0, "no round begins after this time (default 290s, with --record an hour)")
	fs.DurationVar(&o.patience, "patience", 30*time.Second, "how long to wait for a quiet machine, altogether")
	fs.DurationVar(&o.rest, "rest", 0, "pause after each measurement, for the sake of others on the machine")
	fs.StringVar(&o.only, "only", "", "only contests whose title matches this `regexp`")
	fs.BoolVar(&o.json, "json", false, "print JSON")
	fs.BoolVar(&o.markdown, "markdown", false, "print a Markdown table")
	fs.StringVar(&o.record, "record", "", "measure for the pictures too, and put all figures into the results, tables and pictures of the repository at `DIR`")
	fs.BoolVar(&o.render, "render", false, "with --record: measure nothing, and make the tables and pictures from the results that are there")
	fs.StringVar(&o.beside, "beside", "", "compare our own sides with those of another build of this `PROGRAM`, and nothing else")
	fs.BoolVar(&o.verbose, "v", false, "tell on stderr what is being measured")
	fs.StringVar(&o.congestion, "congestion", "reno", "congestion control of every socket, empty for the system's")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if o.render {
		return render(o.record)
	}
	if o.record != "" && o.only+o.beside != "" {
		return errors.New("--record takes everything: it goes with neither --only nor --beside")
	}
	if o.limit == 0 {
		o.limit = 290 * time.Second
		if o.record != "" {
			o.limit = time.Hour
		}
	}
	title, err := regexp.Compile(o.only)
	if err != nil {
		return err
	}
	t, err := equip(o.install && o.beside == "" && os.Geteuid() == 0, o.congestion, o.seconds)
	if err != nil {
		return err
	}
	defer t.close()
	m := measure{Time: time.Duration(o.seconds * float64(time.Second)), Congestion: o.congestion, Level: "delivery"}
	var r report
	r.head(t, m, o.rounds)
	var cs []contest
	var ps []*picture
	for _, c := range t.contests(m) {
		if title.MatchString(c.title) {
			cs = append(cs, c)
		}
	}
	if o.record != "" {
		ps = t.pictures(m)
		for _, p := range ps {
			cs = append(cs, p.contest())
		}
	}
	if o.beside != "" {
		cs = besides(cs, o.beside)
	}
	r.compare(cs, o)
	for name, why := range t.missing {
		fmt.Fprintf(os.Stderr, "peers: %s: %s\n", name, why)
	}
	if o.record != "" {
		if err := r.record(o.record, ps); err != nil {
			return err
		}
	}
	switch {
	case o.json:
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(r)
	case o.markdown:
		_, err := os.Stdout.WriteString(r.table().Markdown())
		return err
	}
	return r.text(os.Stdout)
}

// record stores the figures in the results of the repository at root, and renders the tables and
// pictures of the repository.
func (r *report) record(root string, ps []*picture) error {
	f, err := figures.Read(root)
	if err != nil {
		return err
	}
	f.Peers, f.Pictures = r.table(), r.charts(ps)
	return f.Write(root)
}

// render renders the tables and pictures of the repository at root from the results there.
func render(root string) error {
	if root == "" {
		return errors.New("--render wants --record DIR")
	}
	f, err := figures.Read(root)
	if err != nil {
		return err
	}
	return f.Write(root)
}

// compare measures all contests in rounds. A round runs all contests in turn, and all sides of a
// contest in turn, so that a temporary disturbance of the machine affects both sides of a ratio.
func (r *report) compare(cs []contest, o options) {
	end := time.Now().Add(o.limit)
	c := calm{patience: o.patience}
	why := make([]map[string]string, len(cs))
	for i, ct := range cs {
		why[i] = make(map[string]string)
		r.Samples[ct.title] = make(map[string]samples)
		for _, s := range ct.sides {
			if s.why != "" {
				why[i][s.name] = s.why
			}
		}
	}
	done := 0
	var longest time.Duration
	for round := range o.rounds {
		if round > 0 && time.Now().Add(longest).After(end) {
			break
		}
		start := time.Now()
		for i, ct := range cs {
			c.wait()
			for k := range ct.sides {
				// Every other round runs in reverse order.
				s := ct.sides[k]
				if round%2 == 1 {
					s = ct.sides[len(ct.sides)-1-k]
				}
				if why[i][s.name] != "" {
					continue
				}
				res, err := s.run()
				time.Sleep(o.rest)
				if err != nil {
					why[i][s.name] = err.Error()
					continue
				}
				if o.verbose {
					fmt.Fprintf(os.Stderr, "%s: %s: %+v\n", ct.title, s.name, res)
				}
				r.Samples[ct.title][s.name] = append(r.Samples[ct.title][s.name], res)
			}
		}
		done++
		longest = max(longest, time.Since(start))
	}
	r.Rounds = done
	r.Note, r.Quiet = c.verdict()
	for i, ct := range cs {
		for _, row := range ct.rows {
			r.Lines = append(r.Lines, row.judge(ct.title, r.Samples[ct.title], why[i]))
		}
	}
}
