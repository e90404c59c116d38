package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"time"
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

// options of a comparison.
type options struct {
	install  bool
	rounds   int
	seconds  float64
	limit    time.Duration
	only     string
	json     bool
	markdown bool
	update   string
	pictures string
	beside   string
	verbose  bool
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
	fs.DurationVar(&o.limit, "limit", 290*time.Second, "no round begins after this time")
	fs.DurationVar(&o.patience, "patience", 30*time.Second, "how long to wait for a quiet machine, altogether")
	fs.DurationVar(&o.rest, "rest", 0, "pause after each measurement, for the sake of others on the machine")
	fs.StringVar(&o.only, "only", "", "only contests whose title matches this `regexp`")
	fs.BoolVar(&o.json, "json", false, "print JSON")
	fs.BoolVar(&o.markdown, "markdown", false, "print a Markdown table")
	fs.StringVar(&o.update, "update", "", "replace the table in this Markdown `FILE`, between its two marks")
	fs.StringVar(&o.pictures, "pictures", "", "measure for the pictures of docs/performance.md, and draw them into `DIR`")
	fs.StringVar(&o.beside, "beside", "", "compare our own sides with those of another build of this `PROGRAM`, and nothing else")
	fs.BoolVar(&o.verbose, "v", false, "tell on stderr what is being measured")
	fs.StringVar(&o.congestion, "congestion", "reno", "congestion control of every socket, empty for the system's")
	if err := fs.Parse(args); err != nil {
		return err
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
	if o.pictures != "" {
		if err := os.MkdirAll(o.pictures, 0o755); err != nil {
			return err
		}
		for _, p := range t.pictures(m) {
			if title.MatchString(p.title) {
				ps = append(ps, p)
				cs = append(cs, p.contest())
			}
		}
	} else {
		for _, c := range t.contests(m) {
			if title.MatchString(c.title) {
				cs = append(cs, c)
			}
		}
	}
	if o.beside != "" {
		cs = besides(cs, o.beside)
	}
	r.compare(cs, o)
	for name, why := range t.missing {
		fmt.Fprintf(os.Stderr, "peers: %s: %s\n", name, why)
	}
	if o.pictures != "" {
		if err := r.draw(o.pictures, ps); err != nil || !o.json {
			return err
		}
	}
	if o.update != "" {
		if err := r.update(o.update); err != nil {
			return err
		}
	}
	switch {
	case o.json:
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(r)
	case o.markdown:
		return r.markdown(os.Stdout)
	}
	return r.text(os.Stdout)
}

// compare measures all contests: round by round, in each round contest by
// contest and in each contest side by side, so that whatever disturbs the
// machine for a while meets both sides of a ratio.
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
				// Every other round runs the other way round.
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
