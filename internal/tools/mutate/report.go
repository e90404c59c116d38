package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	page         = "docs/mutation.md"
	acceptedFile = "internal/tools/mutate/accepted.txt"

	wantCited = 95 // percent of the mutants of cited lines
	wantSuite = 98
)

// Figures are the results of a package.
type figures struct {
	pkg      string
	of       int // number of all mutants of the package
	results  []result
	accepted []result // survive for a recorded reason
	why      []string // the reasons
	survive  []result // neither the cited tests nor the package's tests kill them
	uncited  []result // the package's tests kill them, the cited ones do not
	stale    []string // accepted, but killed
	partial  bool     // only the cited tests ran
}

func (f *figures) count(acc map[string]string) {
	for _, r := range f.results {
		why, ok := acc[r.key()]
		switch {
		case r.suite && ok:
			f.stale = append(f.stale, r.key())
			fallthrough
		case r.suite:
			if !r.cited {
				f.uncited = append(f.uncited, r)
			}
		case ok:
			f.accepted = append(f.accepted, r)
			f.why = append(f.why, why)
		default:
			f.survive = append(f.survive, r)
		}
	}
}

// counted returns the number of mutants tests should kill.
func (f *figures) counted() int { return len(f.results) - len(f.accepted) }

func (f *figures) suite() int { return f.counted() - len(f.survive) }
func (f *figures) cited() int { return f.suite() - len(f.uncited) }

func percent(n, of int) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(of))
}

// how returns a short text for the result of a mutant.
func (r *result) how() string {
	switch {
	case r.cited:
		return "cited: " + r.by
	case r.suite:
		return "suite: " + r.by
	}
	return "survives"
}

func (f *figures) print(w io.Writer) {
	for _, r := range f.uncited {
		fmt.Fprintf(w, "cited test misses %s, %s does not\n", r.listing(), r.by)
	}
	for _, r := range f.survive {
		fmt.Fprintf(w, "survives %s\n", r.listing())
	}
	for _, k := range f.stale {
		fmt.Fprintf(w, "accepted, but killed: %s\n", k)
	}
	fmt.Fprintf(w, "%s: %d of %d mutants run, %d accepted; cited tests kill %s", f.pkg, len(f.results), f.of, len(f.accepted), percent(f.cited(), f.counted()))
	if !f.partial {
		fmt.Fprintf(w, ", the package's tests %s", percent(f.suite(), f.counted()))
	}
	fmt.Fprintln(w)
}

func rowNames(m *mutant) string {
	var out []string
	for _, r := range m.rows {
		out = append(out, r.ID)
	}
	return strings.Join(out, " ")
}

// verdict prints the sum of all packages and returns the exit status: 1 if the tests kill less than
// wanted.
func verdict(w io.Writer, all []figures) int {
	var counted, cited, suite int
	for i := range all {
		f := &all[i]
		counted += f.counted()
		cited += f.cited()
		suite += f.suite()
	}
	fmt.Fprintf(w, "all: %d mutants counted; cited tests kill %s (%d %% wanted), the packages' tests %s (%d %% wanted)\n",
		counted, percent(cited, counted), wantCited, percent(suite, counted), wantSuite)
	if 100*cited < wantCited*counted || 100*suite < wantSuite*counted {
		return 1
	}
	return 0
}

// Known holds the figures of a package on the page.
type known struct {
	cited  float64         // fraction of its mutants that the cited tests kill
	run    int             // number of mutants behind cited
	all    bool            // whether these were all mutants
	missed map[string]bool // the mutants that the cited tests do not kill
}

// judgeSample compares a sample with the page and returns the exit status. It ignores a missed
// mutant listed as missed on the page. It allows as many other misses as chance explains. For a
// package with all mutants on the page, it allows for small changes of the code; otherwise it uses
// the rate on the page.
func judgeSample(w io.Writer, all []figures, page map[string]known) int {
	const changed = 0.98
	status := 0
	for i := range all {
		f := &all[i]
		k, ok := page[f.pkg]
		p, spread := k.cited, 1.0
		switch {
		case !ok:
			p = wantCited / 100.0
		case k.all:
			p = changed
		default:
			spread += float64(f.counted()) / float64(k.run) // the rate itself has a random error
		}
		n := f.counted()
		var missed []string
		for _, r := range slices.Concat(f.uncited, f.survive) {
			if k.missed[pageKey(r.mutant)] {
				n--
			} else {
				missed = append(missed, r.key())
			}
		}
		mean := float64(n) * (1 - p)
		if most := mean + 3*math.Sqrt(mean*p*spread) + 1; float64(len(missed)) > most {
			fmt.Fprintf(w, "%s: the cited tests miss %d of %d mutants that the page does not list, at most %.0f were to be expected\n", f.pkg, len(missed), n, math.Floor(most))
			status = 1
		}
	}
	return status
}

// readKnown reads the figures of the page.
func readKnown(file string) map[string]known {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	out := make(map[string]known)
	rows, sections := parsePage(string(b))
	for name, line := range rows {
		c := strings.Split(line, "|")
		if len(c) < 8 {
			continue
		}
		of, err1 := strconv.Atoi(strings.TrimSpace(c[2]))
		run, err2 := strconv.Atoi(strings.TrimSpace(c[3]))
		cited, err3 := strconv.ParseFloat(strings.Trim(c[5], " %"), 64)
		if err1 != nil || err2 != nil || err3 != nil {
			continue
		}
		k := known{cited: cited / 100, run: run, all: run == of, missed: make(map[string]bool)}
		for item := range strings.Lines(sections[name]) {
			what, rest, _ := strings.Cut(item, ": `")
			if key, _, ok := strings.Cut(rest, "`"); ok && (what == "- survives" || what == "- missed") {
				k.missed[key] = true
			}
		}
		out[name] = k
	}
	return out
}

// readAccepted reads the accepted survivors. A line has the mutant as printed by the tool, two
// hyphens, and the reason.
func readAccepted(file string) (map[string]string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	acc := make(map[string]string)
	sc := bufio.NewScanner(bytes.NewReader(b))
	for line := 1; sc.Scan(); line++ {
		text := strings.TrimSpace(sc.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		key, why, ok := strings.Cut(text, " -- ")
		if !ok || why == "" {
			return nil, fmt.Errorf("%s:%d: no reason", filepath.Base(file), line)
		}
		acc[key] = why
	}
	return acc, sc.Err()
}

const pageHead = `# Mutation testing

This page shows how well the tests guard the lines that keep the requirements. The tool
` + "`internal/tools/mutate`" + ` changes the code at each citation in one small way at a time: a condition
becomes always or never true, an operand is left out, a boundary moves, an operator, number or flag
becomes another, a statement is left out, an error is not returned. Then the tool runs the tests
that cite the same rows, and after them the tests of the package and of packages that cite these
rows. A test that fails kills the mutant. ` + "`go run ./internal/tools/mutate -write`" + ` writes the page,
package by package; do not edit it.

Accepted mutants change nothing that a test could see, for the reason given. They are not counted.

The cited tests should kill 95 % of the mutants, and all tests 98 %. The lists below the table name
the survivors: tests are missing there, or nothing needs the code. "Missed" mutants are killed only
by tests that do not cite the row. If fewer mutants were run than there are, a seed chose them at
random; changes of other code do not change the choice.

`

const tableHead = `| package | mutants | run | accepted | killed by the cited tests | killed by the package's tests |
|---|---|---|---|---|---|
`

// writePage replaces the lines and sections of the given packages in the page, and keeps those of
// other packages.
func writePage(file string, all []figures) error {
	rows, sections := make(map[string]string), make(map[string]string)
	if b, err := os.ReadFile(file); err == nil {
		rows, sections = parsePage(string(b))
	}
	for i := range all {
		f := &all[i]
		if f.of == 0 {
			continue
		}
		rows[f.pkg] = fmt.Sprintf("| %s | %d | %d | %d | %s | %s |", f.pkg, f.of, len(f.results), len(f.accepted), percent(f.cited(), f.counted()), percent(f.suite(), f.counted()))
		delete(sections, f.pkg)
		if s := f.section(); s != "" {
			sections[f.pkg] = s
		}
	}
	var out strings.Builder
	out.WriteString(pageHead + tableHead)
	names := make([]string, 0, len(rows))
	for p := range rows {
		names = append(names, p)
	}
	slices.Sort(names)
	for _, p := range names {
		out.WriteString(rows[p] + "\n")
	}
	for _, p := range names {
		if s := sections[p]; s != "" {
			out.WriteString("\n## " + p + "\n\n" + s)
		}
	}
	return os.WriteFile(file, []byte(out.String()), 0o644)
}

// section lists the survivors of a package.
func (f *figures) section() string {
	var b strings.Builder
	for _, r := range f.survive {
		fmt.Fprintf(&b, "- survives: `%s`\n  (%s)\n", pageKey(r.mutant), rowNames(r.mutant))
	}
	for _, r := range f.uncited {
		fmt.Fprintf(&b, "- missed: `%s`\n  (%s)\n", pageKey(r.mutant), rowNames(r.mutant))
	}
	for i, r := range f.accepted {
		fmt.Fprintf(&b, "- accepted: `%s`:\n  %s\n", pageKey(r.mutant), f.why[i])
	}
	return b.String()
}

// pageKey returns the key of a mutant in a form for use between backquotes.
func pageKey(m *mutant) string { return strings.ReplaceAll(m.key(), "`", "'") }

func parsePage(text string) (rows, sections map[string]string) {
	rows, sections = make(map[string]string), make(map[string]string)
	parts := strings.Split(text, "\n## ")
	for line := range strings.Lines(parts[0]) {
		if name, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " |"); ok && strings.HasPrefix(line, "| ") && name != "package" {
			rows[name] = strings.TrimSpace(line)
		}
	}
	for _, p := range parts[1:] {
		name, body, _ := strings.Cut(p, "\n")
		sections[name] = strings.TrimRight(strings.TrimLeft(body, "\n"), "\n") + "\n"
	}
	return rows, sections
}
