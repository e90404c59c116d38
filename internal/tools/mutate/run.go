package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A runner runs tests against mutants.
type runner struct {
	*build
	index   *testIndex
	workers int
	// The time limit of a test is patience plus four times its duration without a mutant.
	patience time.Duration

	citedOnly bool // only cited tests
	own       bool // only tests of the package itself

	mu    sync.Mutex
	tests map[test]*recorded
	lists map[string][]test // by package
	rapid map[string]bool   // by package: whether its tests have the flags of rapid
}

// A recorded is the record of a run of a test without a mutant.
type recorded struct {
	once  sync.Once
	ok    bool
	took  time.Duration
	reach map[int]bool
}

// all returns the tests of a package.
func (r *runner) all(pkg string) ([]test, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l, ok := r.lists[pkg]; ok {
		return l, nil
	}
	prog, err := r.testProgram(pkg)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(prog, "-test.list", testName.String())
	cmd.Dir = filepath.Join(r.root, pkg)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: list of tests: %w", pkg, err)
	}
	var l []test
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); testName.MatchString(line) {
			l = append(l, test{pkg, line})
		}
	}
	r.lists[pkg] = l
	return l, nil
}

// record runs a test without a mutant, once.
func (r *runner) record(t test) *recorded {
	r.mu.Lock()
	rec := r.tests[t]
	if rec == nil {
		rec = new(recorded)
		r.tests[t] = rec
	}
	r.mu.Unlock()
	rec.once.Do(func() {
		if _, err := r.all(t.pkg); err != nil {
			return
		}
		reach := filepath.Join(r.dir, path(t.pkg)+"__"+t.name+".reach")
		for range 2 { // a test that fails once may be flaky
			begin := time.Now()
			_, rec.ok = r.run(t.pkg, []test{t}, 5*time.Minute, "MUTANT_REACH="+reach)
			rec.took = time.Since(begin)
			if rec.ok {
				break
			}
		}
		rec.reach = make(map[int]bool)
		if f, err := os.Open(reach); err == nil {
			for sc := bufio.NewScanner(f); sc.Scan(); {
				if id, err := strconv.Atoi(sc.Text()); err == nil {
					rec.reach[id] = true
				}
			}
			f.Close()
			os.Remove(reach)
		}
	})
	return rec
}

// recordAll records the tests of a package and returns the tests failing without any mutant. Tests
// of other packages may take long to build, so they are recorded only when the package's own tests
// leave a mutant alive. recordAll stops at until, unless until is zero.
func (r *runner) recordAll(pkg string, until time.Time) (broken []test, err error) {
	todo, err := r.all(pkg)
	if err != nil {
		return nil, err
	}
	each(r.workers, todo, func(t test) {
		if !past(until) {
			r.record(t)
		}
	})
	if past(until) {
		return nil, nil
	}
	for _, t := range todo {
		if !r.record(t).ok {
			broken = append(broken, t)
		}
	}
	return broken, nil
}

// suites returns the packages whose tests may kill a mutant: the mutant's own and, unless r.own is
// set, the library packages citing its rows. Of commands and other programs only the citing tests
// count.
func (r *runner) suites(m *mutant) []string {
	out := []string{m.pkg}
	if r.own {
		return out
	}
	for _, t := range r.citedTests(m) {
		if !slices.Contains(out, t.pkg) && !isRoot(t.pkg) {
			out = append(out, t.pkg)
		}
	}
	return out
}

func (r *runner) citedTests(m *mutant) (out []test) {
	for _, row := range m.rows {
		for _, t := range r.index.cited(r.reg, row, m.pkg) {
			if !slices.Contains(out, t) && (!r.own || t.pkg == m.pkg) {
				out = append(out, t)
			}
		}
	}
	return out
}

// A result is the outcome of a mutant.
type result struct {
	*mutant
	cited bool // the cited tests kill it
	suite bool // the tests of the package, or the cited ones, kill it
	by    string
}

// try runs the tests reaching a mutant: first the cited tests of the mutant's package, then the
// other cited tests, then the others.
func (r *runner) try(m *mutant) result {
	res := result{mutant: m}
	cited := r.citedTests(m)
	for _, own := range []bool{true, false} {
		var ts []test
		for _, t := range cited {
			if (t.pkg == m.pkg) == own {
				ts = append(ts, t)
			}
		}
		if by, ok := r.kill(m, r.reaching(m, ts)); ok {
			res.cited, res.suite, res.by = true, true, by
			return res
		}
	}
	if r.citedOnly {
		return res
	}
	var rest []test
	for _, pkg := range r.suites(m) {
		all, _ := r.all(pkg)
		for _, t := range all {
			if !slices.Contains(cited, t) {
				rest = append(rest, t)
			}
		}
	}
	if by, ok := r.kill(m, r.reaching(m, rest)); ok {
		res.suite, res.by = true, by
	}
	return res
}

// reaching returns the tests in ts that can be run and reach a mutant.
func (r *runner) reaching(m *mutant, ts []test) (out []test) {
	for _, t := range ts {
		if rec := r.record(t); rec.ok && rec.reach[m.id] {
			out = append(out, t)
		}
	}
	return out
}

// kill runs tests, quick ones first, and reports whether a test fails. by names the failed test and
// the package.
func (r *runner) kill(m *mutant, ts []test) (by string, killed bool) {
	byPkg := make(map[string][]test)
	for _, t := range ts {
		byPkg[t.pkg] = append(byPkg[t.pkg], t)
	}
	for pkg, ts := range byPkg {
		slices.SortFunc(ts, func(a, b test) int { return int(r.record(a).took - r.record(b).took) })
		for len(ts) > 0 { // the quick ones alone, then the rest
			n, sum := 0, time.Duration(0)
			for n < len(ts) && (n == 0 || sum+r.record(ts[n]).took < time.Second) {
				sum += r.record(ts[n]).took
				n++
			}
			if by, ok := r.fails(m, pkg, ts[:n], sum); ok {
				return pkg + " " + by, true
			}
			ts = ts[n:]
		}
	}
	return "", false
}

// fails reports whether tests fail with a mutant. took is the duration of the tests without a
// mutant. A time-out may be due to the load of the machine. It counts if the tests fail again with
// twice the time, and then pass in time without the mutant; otherwise fails tries again with four
// times the time.
func (r *runner) fails(m *mutant, pkg string, ts []test, took time.Duration) (by string, failed bool) {
	limit, inTime := r.patience+4*took, 2*took+r.patience/5
	for try := 0; ; try++ {
		begin := time.Now()
		by, ok := r.run(pkg, ts, limit<<try, "MUTANT="+strconv.Itoa(m.id))
		if ok {
			return "", false
		}
		if try == 2 || time.Since(begin) <= inTime {
			return by, true
		}
		if try == 1 {
			begin = time.Now()
			if _, ok := r.run(pkg, ts, limit, "MUTANT=0"); ok && time.Since(begin) <= inTime {
				return by, true
			}
		}
	}
}

// run runs tests of a package and reports whether all pass; if not, by names the failed test.
// Afterwards no process or file of the tests is left.
func (r *runner) run(pkg string, ts []test, limit time.Duration, env string) (by string, ok bool) {
	names := make([]string, len(ts))
	for i, t := range ts {
		names[i] = t.name
	}
	tmp, err := os.MkdirTemp(r.dir, "")
	if err != nil {
		return err.Error(), false
	}
	defer os.RemoveAll(tmp)
	ctx, cancel := context.WithTimeout(context.Background(), limit+5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(r.dir, path(pkg)+".test"),
		"-test.run=^("+strings.Join(names, "|")+")$", "-test.failfast", "-test.timeout="+limit.String())
	if r.noFailFile(pkg) {
		cmd.Args = append(cmd.Args, "-rapid.nofailfile")
	}
	cmd.Dir = filepath.Join(r.root, pkg)
	cmd.Env = append(os.Environ(), env, "GOMAXPROCS=2", "TMPDIR="+tmp)
	cmd.WaitDelay = time.Second
	ownGroup(cmd)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	killGroup(cmd)
	if err == nil {
		return "", true
	}
	by = "panic or end of time"
	for line := range strings.Lines(out.String()) {
		if rest, ok := strings.CutPrefix(line, "--- FAIL: "); ok {
			by, _, _ = strings.Cut(rest, " ")
			break
		}
	}
	return by, false
}

// noFailFile reports whether the tests of a package have the flag to stop rapid from writing the
// input of a failure into the tree.
func (r *runner) noFailFile(pkg string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	knows, ok := r.rapid[pkg]
	if !ok {
		usage, _ := exec.Command(filepath.Join(r.dir, path(pkg)+".test"), "-help").CombinedOutput()
		knows = bytes.Contains(usage, []byte("-rapid.nofailfile"))
		r.rapid[pkg] = knows
	}
	return knows
}

func past(t time.Time) bool { return !t.IsZero() && time.Now().After(t) }

// each calls f for every element, n at a time.
func each[T any](n int, list []T, f func(T)) {
	var wg sync.WaitGroup
	next := make(chan T)
	for range n {
		wg.Go(func() {
			for v := range next {
				f(v)
			}
		})
	}
	for _, v := range list {
		next <- v
	}
	close(next)
	wg.Wait()
}

// progress prints a line from time to time.
type progress struct {
	w     io.Writer
	mu    sync.Mutex
	begin time.Time
	last  time.Time
	n, of int
}

func (p *progress) step() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n++
	if time.Since(p.last) > 20*time.Second {
		p.last = time.Now()
		fmt.Fprintf(p.w, "%d of %d mutants, %v\n", p.n, p.of, time.Since(p.begin).Round(time.Second))
	}
}
