package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// A document is what one key of citations stands for.
type document struct {
	Key   string // as in [SDP-9.1-1]
	Title string
	File  string // the matrix or the list of decisions, in docs/requirements
	Rows  []*row
}

// A row is one requirement, or one recorded decision.
type row struct {
	ID       string
	Section  string // ID without its running number; for a decision its key
	Number   int
	Level    string // empty for a decision
	Text     string
	Reason   string // why it needs no code and no test, or no test
	Untested bool   // Reason speaks of the test only

	Code, Tests []place
}

// A place is where a citation stands.
type place struct {
	File string // slash-separated, from the root of the module
	Decl string // the function or type around it; empty at file level
}

// needsCode and needsTest report what is still missing.
func (r *row) needsCode() bool { return len(r.Code) == 0 && (r.Reason == "" || r.Untested) }
func (r *row) needsTest() bool { return len(r.Tests) == 0 && r.Reason == "" }

// documents are the keys in the order of reports. Rows come from the files.
var documents = []document{
	{Key: "VIA", Title: "VI Architecture", File: "vi-requirements.md"},
	{Key: "VIT", Title: "VI/TCP", File: "vitcp-requirements.md"},
	{Key: "V", Title: "VI/TCP decisions", File: "vitcp-decisions.md"},
	{Key: "FCVI", Title: "FC-VI", File: "fcvi-requirements.md"},
	{Key: "FCFS", Title: "Fibre Channel", File: "fcvi-requirements.md"},
	{Key: "MPA", Title: "MPA (RFC 5044)", File: "iwarp-requirements.md"},
	{Key: "MPA2", Title: "MPA start-up (RFC 6581)", File: "iwarp-requirements.md"},
	{Key: "DDP", Title: "DDP (RFC 5041)", File: "iwarp-requirements.md"},
	{Key: "RDMAP", Title: "RDMAP (RFC 5040)", File: "iwarp-requirements.md"},
	{Key: "RDMAPX", Title: "RDMAP extensions (RFC 7306)", File: "iwarp-requirements.md"},
	{Key: "SEC", Title: "RDMA security (RFC 5042)", File: "iwarp-requirements.md"},
	{Key: "I", Title: "iWARP decisions", File: "iwarp-decisions.md"},
	{Key: "SDP", Title: "SDP (draft-pinkerton-iwarp-sdp-01)", File: "sdp-requirements.md"},
	{Key: "D", Title: "SDP decisions", File: "sdp-decisions.md"},
}

// A register is every row there is.
type register struct {
	docs []document
	byID map[string]*row
	key  map[string]bool
}

var (
	rowLine      = regexp.MustCompile(`^\| ([A-Z][A-Z0-9]*)-([A-Z0-9][A-Za-z0-9.-]*)-(\d+) \|`)
	decisionLine = regexp.MustCompile(`^### ([A-Z])-(\d+) (.+)$`)
	notBinding   = regexp.MustCompile(`(?i)^n/a\b[: ]*`)
)

// readRegister reads the matrices and decisions in dir.
func readRegister(dir string) (*register, error) {
	g := &register{byID: make(map[string]*row), key: make(map[string]bool)}
	for _, d := range documents {
		d.Rows = nil
		b, err := os.ReadFile(filepath.Join(dir, d.File))
		if err != nil {
			return nil, err
		}
		columns := map[string]int{}
		sc := bufio.NewScanner(bytes.NewReader(b))
		sc.Buffer(nil, 1<<20)
		for line := 1; sc.Scan(); line++ {
			text := sc.Text()
			if strings.HasPrefix(text, "| id |") {
				columns = header(text)
				continue
			}
			var r *row
			if m := rowLine.FindStringSubmatch(text); m != nil && m[1] == d.Key {
				if r, err = parseRow(m, text, columns); err != nil {
					return nil, fmt.Errorf("%s:%d: %w", d.File, line, err)
				}
			} else if m := decisionLine.FindStringSubmatch(text); m != nil && m[1] == d.Key {
				n, _ := strconv.Atoi(m[2])
				r = &row{ID: m[1] + "-" + m[2], Section: m[1], Number: n, Text: m[3]}
			} else {
				continue
			}
			if g.byID[r.ID] != nil {
				return nil, fmt.Errorf("%s:%d: %s stands twice", d.File, line, r.ID)
			}
			g.byID[r.ID] = r
			d.Rows = append(d.Rows, r)
		}
		if err := sc.Err(); err != nil {
			return nil, fmt.Errorf("%s: %w", d.File, err)
		}
		if len(d.Rows) == 0 {
			return nil, fmt.Errorf("%s: no rows with key %s", d.File, d.Key)
		}
		g.docs = append(g.docs, d)
		g.key[d.Key] = true
	}
	return g, nil
}

// cells splits a table line.
func cells(line string) []string {
	line = strings.Trim(line, "|")
	c := strings.Split(line, "|")
	for i := range c {
		c[i] = strings.TrimSpace(c[i])
	}
	return c
}

func header(line string) map[string]int {
	m := make(map[string]int)
	for i, c := range cells(line) {
		if strings.HasPrefix(c, "how to observe") {
			c = "observe"
		}
		m[c] = i
	}
	return m
}

func parseRow(m []string, line string, columns map[string]int) (*row, error) {
	c := cells(line)
	if len(c) != len(columns) {
		return nil, fmt.Errorf("%d cells under a header of %d", len(c), len(columns))
	}
	n, err := strconv.Atoi(m[3])
	if err != nil {
		return nil, err
	}
	r := &row{
		ID:      m[1] + "-" + m[2] + "-" + m[3],
		Section: m[1] + "-" + m[2],
		Number:  n,
		Level:   c[columns["level"]],
		Text:    c[columns["requirement"]],
	}
	if o := c[columns["observe"]]; notBinding.MatchString(o) {
		r.Reason = o
	}
	return r, nil
}

var exceptionLine = regexp.MustCompile(`^([A-Z][A-Z0-9]*-(?:[A-Za-z0-9-]|\.[A-Za-z0-9])+)(?:\.\.(\d+))?: (.+)$`)

// readExceptions reads the lines of exceptions.md into the register and
// returns what is wrong with them.
func (g *register) readExceptions(file string) (problems []string, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	name := filepath.Base(file)
	sc := bufio.NewScanner(bytes.NewReader(b))
	for line := 1; sc.Scan(); line++ {
		m := exceptionLine.FindStringSubmatch(strings.TrimPrefix(sc.Text(), "- "))
		if m == nil {
			continue
		}
		complain := func(format string, a ...any) {
			problems = append(problems, fmt.Sprintf("%s:%d: ", name, line)+fmt.Sprintf(format, a...))
		}
		word, _, _ := strings.Cut(m[3], " ")
		switch strings.TrimRight(word, ",:;.") {
		case "n/a", "deviates", "untested":
		default:
			complain("the reason for %s begins with %q, not with n/a, deviates or untested", m[1], word)
			continue
		}
		rows, bad := g.run(m[1], m[2])
		if bad != "" {
			complain("%s names nothing", bad)
		}
		for _, r := range rows {
			r.Reason, r.Untested = m[3], strings.HasPrefix(m[3], "untested")
		}
	}
	return problems, sc.Err()
}

// run returns the row id, or with last the rows from id to the one of that
// number in the same section; bad is the first id that does not exist.
func (g *register) run(id, last string) (rows []*row, bad string) {
	first := g.byID[id]
	if first == nil {
		return nil, id
	}
	if last == "" {
		return []*row{first}, ""
	}
	to, err := strconv.Atoi(last)
	if err != nil || to < first.Number {
		return nil, id + ".." + last
	}
	for n := first.Number; n <= to; n++ {
		id := fmt.Sprintf("%s-%d", first.Section, n)
		if first.Level == "" {
			id = fmt.Sprintf("%s-%02d", first.Section, n)
		}
		r := g.byID[id]
		if r == nil {
			return rows, id
		}
		rows = append(rows, r)
	}
	return rows, ""
}
