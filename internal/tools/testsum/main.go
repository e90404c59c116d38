// Testsum reads the output of go test -json, prints a summary (finished packages, the output of
// failures, skipped tests with reasons), and ends with a count:
//
//	go test -json ./... | go run ./internal/tools/testsum
//	...
//	1234 passed, 0 failed, 2 skipped
//
// Before the count testsum names the ten slowest tests of at least 2 seconds.
//
// With -o FILE testsum adds a line "result package test" per test to FILE. With -total it reads
// such lines instead and prints a single count over all lines, each test once: a test with any
// failure counts as failed.
//
// The exit status is 1 if anything failed, including a build or a crash.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

func main() {
	out := flag.String("o", "", "file to add one line per test to")
	total := flag.Bool("total", false, "count such lines instead of reading go test -json")
	flag.Parse()
	var ok bool
	var err error
	if *total {
		ok, err = sum(os.Stdin, os.Stdout)
	} else {
		ok, err = follow(os.Stdin, os.Stdout, *out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// An event is a line of go test -json.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of a build
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

// A test is named by a package and the test's own name, "" for the package as a whole.
type test struct{ pkg, name string }

// A run is the state of reading the output of one go test -json.
type run struct {
	w       io.Writer
	output  map[test]*strings.Builder // by test, until it ends
	build   map[string]*strings.Builder
	results map[test]string                // pass, fail, skip
	skips   map[string]map[string][]string // package, reason, tests
	slow    []took
	failed  bool // a package failed
}

// A took is the duration of a test in seconds.
type took struct {
	test
	seconds float64
}

// These are the limits of the list of slow tests: their number, and their least duration in
// seconds.
const (
	mostSlow = 10
	slowFrom = 2
)

// slowest prints the slowest tests.
func (r *run) slowest() {
	slices.SortFunc(r.slow, func(a, b took) int { return cmp.Compare(b.seconds, a.seconds) })
	for _, t := range r.slow[:min(mostSlow, len(r.slow))] {
		fmt.Fprintf(r.w, "slow %.1fs %s %s\n", t.seconds, t.pkg, t.name)
	}
}

func follow(in io.Reader, w io.Writer, file string) (ok bool, err error) {
	r := &run{w: w, output: make(map[test]*strings.Builder), build: make(map[string]*strings.Builder), results: make(map[test]string), skips: make(map[string]map[string][]string)}
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		var e event
		if err := json.Unmarshal(sc.Bytes(), &e); err != nil {
			fmt.Fprintln(w, sc.Text()) // a line of the go command itself
			continue
		}
		r.event(e)
	}
	if err := sc.Err(); err != nil {
		return false, err
	}
	if file != "" {
		if err := r.save(file); err != nil {
			return false, err
		}
	}
	r.slowest()
	passed, failed, skipped := tally(r.results)
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	return !r.failed && failed == 0, nil
}

func (r *run) event(e event) {
	t := test{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		add(r.build, e.ImportPath, e.Output)
	case "output":
		add(r.output, t, e.Output)
	case "pass", "skip", "fail":
		if e.Test == "" {
			r.packageEnds(e)
			return
		}
		r.results[t] = e.Action
		if e.Elapsed >= slowFrom && !strings.Contains(e.Test, "/") {
			r.slow = append(r.slow, took{t, e.Elapsed})
		}
		switch e.Action {
		case "fail":
			fmt.Fprintf(r.w, "--- FAIL: %s %s\n%s", e.Package, e.Test, indent(text(r.output, t)))
		case "skip":
			r.skip(t, text(r.output, t))
		}
		delete(r.output, t)
	}
}

// skip records a skipped test under its reason: the first line of the output, without the position
// in the source.
func (r *run) skip(t test, output string) {
	reason, _, _ := strings.Cut(strings.TrimSpace(output), "\n")
	if _, after, ok := strings.Cut(reason, ".go:"); ok {
		_, reason, _ = strings.Cut(after, ": ")
	}
	if strings.HasPrefix(reason, "---") || reason == "" {
		reason = "no reason given"
	}
	if r.skips[t.pkg] == nil {
		r.skips[t.pkg] = make(map[string][]string)
	}
	r.skips[t.pkg][reason] = append(r.skips[t.pkg][reason], t.name)
}

// skipsOf prints the skipped tests of a package, a line for each reason.
func (r *run) skipsOf(pkg string) {
	for _, reason := range slices.Sorted(maps.Keys(r.skips[pkg])) {
		tests := r.skips[pkg][reason]
		others := ""
		if n := len(tests) - 1; n > 0 {
			others = fmt.Sprintf(" and %d more", n)
		}
		fmt.Fprintf(r.w, "SKIP %s: %s (%s%s)\n", pkg, reason, tests[0], others)
	}
}

// packageEnds prints the line of a package. For a failed package it also prints the output of tests
// that never ended, because a crash shows there.
func (r *run) packageEnds(e event) {
	t := test{pkg: e.Package}
	r.skipsOf(e.Package)
	if e.Action != "fail" {
		if e.Action == "pass" {
			fmt.Fprintf(r.w, "ok   %s %.1fs\n", e.Package, e.Elapsed)
		}
		delete(r.output, t)
		return
	}
	r.failed = true
	if e.FailedBuild != "" {
		fmt.Fprint(r.w, text(r.build, e.FailedBuild))
	}
	for o := range r.output {
		if o.pkg == e.Package && o.name != "" {
			fmt.Fprintf(r.w, "--- did not end: %s %s\n%s", o.pkg, o.name, indent(text(r.output, o)))
			r.results[o] = "fail"
			delete(r.output, o)
		}
	}
	fmt.Fprintf(r.w, "%sFAIL %s %.1fs\n", text(r.output, t), e.Package, e.Elapsed)
	delete(r.output, t)
}

func add[K comparable](m map[K]*strings.Builder, k K, s string) {
	b := m[k]
	if b == nil {
		b = new(strings.Builder)
		m[k] = b
	}
	b.WriteString(s)
}

// text returns the output of k, without the lines marking only the progress of a test.
func text[K comparable](m map[K]*strings.Builder, k K) string {
	b := m[k]
	if b == nil {
		return ""
	}
	var out strings.Builder
	for line := range strings.Lines(b.String()) {
		if !strings.HasPrefix(line, "=== ") {
			out.WriteString(line)
		}
	}
	return out.String()
}

func indent(s string) string {
	var out strings.Builder
	for line := range strings.Lines(s) {
		out.WriteString("    " + line)
	}
	return out.String()
}

func tally(results map[test]string) (passed, failed, skipped int) {
	for _, r := range results {
		switch r {
		case "pass":
			passed++
		case "fail":
			failed++
		case "skip":
			skipped++
		}
	}
	return passed, failed, skipped
}

// save adds the results to a file, in order.
func (r *run) save(file string) (err error) {
	var lines []string
	for t, result := range r.results {
		lines = append(lines, fmt.Sprintf("%s %s %s\n", result, t.pkg, t.name))
	}
	slices.Sort(lines)
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strings.Join(lines, ""))
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// sum counts lines written by save.
func sum(in io.Reader, w io.Writer) (ok bool, err error) {
	rank := map[string]int{"skip": 1, "pass": 2, "fail": 3}
	results := make(map[test]string)
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		f := strings.SplitN(sc.Text(), " ", 3)
		if len(f) != 3 || rank[f[0]] == 0 {
			return false, fmt.Errorf("no result: %q", sc.Text())
		}
		if t := (test{f[1], f[2]}); rank[f[0]] > rank[results[t]] {
			results[t] = f[0]
		}
	}
	passed, failed, _ := tally(results)
	fmt.Fprintf(w, "%d passed, %d failed\n", passed, failed)
	return failed == 0, sc.Err()
}
