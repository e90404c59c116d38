// Package register reads the requirement matrices of docs/requirements, the decisions, the
// exceptions, and all citations in the Go files of the module. The documentation of command cite
// defines a citation.
package register

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// A Document is the source named by a key of citations.
type Document struct {
	Key   string // as in [SDP-9.1-1]
	Title string
	File  string // the matrix or the list of decisions, in docs/requirements
	Rows  []*Row
}

// A Row is a requirement or a recorded decision.
type Row struct {
	ID      string
	Section string // ID without its running number; for a decision its key
	Number  int
	Level   string // empty for a decision
	Source  string // how the row is known, from the matrix's column of that name; empty without one
	Text    string
	Class   Class  // from exceptions.md or the matrix
	Reason  string // why, beginning with the word of Class; empty for an ordinary row

	Code, Tests, Fakes []Place // each place once
}

// A Cite is a citation in a Go file.
type Cite struct {
	Row *Row
	Place
	Test, Fake bool
	Offset     int    // byte offset in the file
	Name       string // the whole string if it names a test case; empty for a comment
}

// A Class tells apart how rows are kept.
type Class uint8

const (
	Ordinary  Class = iota // kept by code, guarded by a test
	Excepted               // not applicable to this implementation: neither code nor test
	Deviating              // deliberately kept otherwise than written: code and test are optional
	Untested               // kept by code, but no test can show it
)

// A Place is the position of a citation.
type Place struct {
	File   string // slash-separated, from the root of the module
	Decl   string // the function or type around it; empty at file level
	Helper bool   // it stands in a test file, but not in a test
}

// NeedsCode and NeedsTest report whether code or a test is still missing.
func (r *Row) NeedsCode() bool {
	return len(r.Code) == 0 && (r.Class == Ordinary || r.Class == Untested)
}
func (r *Row) NeedsTest() bool { return len(r.Tests) == 0 && r.Class == Ordinary }

// Lacks returns what the row lacks for its class, or "" for a complete row.
func (r *Row) Lacks() string {
	code := "no code"
	if len(r.Fakes) > 0 {
		code = "no code but a fake"
	}
	switch c, t := r.NeedsCode(), r.NeedsTest(); {
	case c && t:
		return code + ", no test"
	case c:
		return code
	case t:
		return "no test"
	}
	return ""
}

// Documents are the keys in the order of reports. Rows come from the files.
var Documents = []Document{
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
	{Key: "ROCE", Title: "RoCEv2", File: "roce-requirements.md"},
	{Key: "R", Title: "RoCEv2 decisions", File: "roce-decisions.md"},
	{Key: "NVME", Title: "NVMe over RDMA", File: "nvme-requirements.md"},
}

// A Register holds all rows.
type Register struct {
	Docs []Document // in the order of reports
	ByID map[string]*Row
	Key  map[string]bool // the keys of Docs
	// Cites are the citations in the order of files.
	Cites []Cite
}

var (
	rowLine      = regexp.MustCompile(`^\| ([A-Z][A-Z0-9]*)-([A-Z0-9][A-Za-z0-9.-]*)-(\d+) \|`)
	decisionLine = regexp.MustCompile(`^### ([A-Z])-(\d+) (.+)$`)
	notBinding   = regexp.MustCompile(`(?i)^n/a\b[: ]*`)
)

// Load reads the register of the module at root, with exceptions and citations. It also returns the
// problems found in the exceptions and citations.
func Load(root string) (g *Register, problems []string, err error) {
	dir := filepath.Join(root, "docs", "requirements")
	if g, err = Read(dir); err != nil {
		return nil, nil, err
	}
	if problems, err = g.ReadExceptions(filepath.Join(dir, "exceptions.md")); err != nil {
		return nil, nil, err
	}
	found, err := g.Scan(root)
	return g, append(problems, found...), err
}

// ModuleRoot finds the directory with go.mod at or above the current directory.
func ModuleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		_, err := os.Stat(filepath.Join(dir, "go.mod"))
		if err == nil {
			return dir, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no go.mod at or above the current directory")
		}
		dir = up
	}
}

// Read reads the matrices and decisions in dir.
func Read(dir string) (*Register, error) {
	g := &Register{ByID: make(map[string]*Row), Key: make(map[string]bool)}
	for _, d := range Documents {
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
			var r *Row
			if m := rowLine.FindStringSubmatch(text); m != nil && m[1] == d.Key {
				if r, err = parseRow(m, text, columns); err != nil {
					return nil, fmt.Errorf("%s:%d: %w", d.File, line, err)
				}
			} else if m := decisionLine.FindStringSubmatch(text); m != nil && m[1] == d.Key {
				n, _ := strconv.Atoi(m[2])
				r = &Row{ID: m[1] + "-" + m[2], Section: m[1], Number: n, Text: m[3]}
			} else {
				continue
			}
			if g.ByID[r.ID] != nil {
				return nil, fmt.Errorf("%s:%d: %s stands twice", d.File, line, r.ID)
			}
			g.ByID[r.ID] = r
			d.Rows = append(d.Rows, r)
		}
		if err := sc.Err(); err != nil {
			return nil, fmt.Errorf("%s: %w", d.File, err)
		}
		if len(d.Rows) == 0 {
			return nil, fmt.Errorf("%s: no rows with key %s", d.File, d.Key)
		}
		g.Docs = append(g.Docs, d)
		g.Key[d.Key] = true
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

func parseRow(m []string, line string, columns map[string]int) (*Row, error) {
	c := cells(line)
	if len(c) != len(columns) {
		return nil, fmt.Errorf("%d cells under a header of %d", len(c), len(columns))
	}
	n, err := strconv.Atoi(m[3])
	if err != nil {
		return nil, err
	}
	r := &Row{
		ID:      m[1] + "-" + m[2] + "-" + m[3],
		Section: m[1] + "-" + m[2],
		Number:  n,
		Level:   c[columns["level"]],
		Text:    c[columns["requirement"]],
	}
	if i, ok := columns["source"]; ok {
		r.Source = c[i]
	}
	if o := c[columns["observe"]]; notBinding.MatchString(o) {
		r.Class, r.Reason = Excepted, o
	}
	return r, nil
}

var (
	exceptionLine = regexp.MustCompile(`^([A-Z][A-Z0-9]*-(?:[A-Za-z0-9-]|\.[A-Za-z0-9])+)(?:\.\.(\d+))?: (.+)$`)
	deviation     = regexp.MustCompile(`^deviates \(([^)]+)\): .+ Peer: .+$`)
	classes       = map[string]Class{"n/a": Excepted, "deviates": Deviating, "untested": Untested}
)

// ReadExceptions reads the lines of exceptions.md into the register. It returns the problems of
// lines without a row, a class or another part.
func (g *Register) ReadExceptions(file string) (problems []string, err error) {
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
		c, ok := classes[strings.TrimRight(word, ",:;.")]
		if !ok {
			complain("the reason for %s begins with %q, not with n/a, deviates or untested", m[1], word)
			continue
		}
		if c == Deviating {
			if bad := g.deviation(m[3]); bad != "" {
				complain("%s: %s", m[1], bad)
			}
		}
		rows, bad := g.run(m[1], m[2])
		if bad != "" {
			complain("%s names nothing", bad)
		}
		for _, r := range rows {
			r.Class, r.Reason = c, m[3]
		}
	}
	return problems, sc.Err()
}

// deviation returns what a reason of the class deviating lacks: the decision behind the deviation,
// or what a peer notices.
func (g *Register) deviation(reason string) string {
	m := deviation.FindStringSubmatch(reason)
	if m == nil {
		return `a deviation reads "deviates (DECISION): what is done instead, and why. Peer: what a peer notices."`
	}
	for _, w := range wordSep.Split(m[1], -1) {
		if w != "fc-vi.md" && g.ByID[w] == nil {
			return fmt.Sprintf("(%s) names no decision and no row", w)
		}
	}
	return ""
}

// run returns the row id or, if last is set, the rows from id to number last of the same section.
// bad is the first missing id.
func (g *Register) run(id, last string) (rows []*Row, bad string) {
	first := g.ByID[id]
	if first == nil {
		return nil, id
	}
	if last == "" {
		return []*Row{first}, ""
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
		r := g.ByID[id]
		if r == nil {
			return rows, id
		}
		rows = append(rows, r)
	}
	return rows, ""
}
