package main

import (
	"cmp"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"viaduct/internal/tools/register"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("mutate", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var (
		pkgs    = flags.String("pkg", "", "comma-separated packages, as iwarp,internal/wire/mpa (default: all with citations)")
		sample  = flags.Duration("sample", 0, "take mutants at random, of packages at random, for about this long")
		most    = flags.Int("n", 0, "take at most so many mutants of a package, at random")
		seed    = flags.Uint64("seed", 0, "the seed of a sample")
		write   = flags.Bool("write", false, "renew the figures of these packages in "+page)
		only    = flags.String("only", "", "a regular expression: only the mutants whose line of -list matches")
		list    = flags.Bool("list", false, "list the mutants and run nothing")
		own     = flags.Bool("own", false, "run only the tests of the package itself: quicker where the commands cite its rows")
		cited   = flags.Bool("cited", false, "run only the tests that cite the rows of a mutant: quicker, for work on them")
		verbose = flags.Bool("v", false, "print every mutant and what killed it, as it is found")
		noted   = flags.String("notes", "", "note in `FILE` what cited tests kill, and do not try it again: to do in pieces what takes long")
		workers = flags.Int("j", 2, "test programs run at a time")
	)
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "mutate: unexpected argument %q\n", flags.Arg(0))
		return 2
	}
	fail := func(err error) int {
		fmt.Fprintln(stderr, "mutate:", err)
		return 1
	}
	if *write && (*only != "" || *cited) {
		fmt.Fprintln(stderr, "mutate: -write renews whole packages, by all tests: not what -only selects, nor with -cited")
		return 2
	}
	selected, err := regexp.Compile(*only)
	if err != nil {
		fmt.Fprintln(stderr, "mutate: -only:", err)
		return 2
	}
	root, err := register.ModuleRoot()
	if err != nil {
		return fail(err)
	}
	reg, _, err := register.Load(root)
	if err != nil {
		return fail(err)
	}
	acc, err := readAccepted(filepath.Join(root, acceptedFile))
	if err != nil {
		return fail(err)
	}
	wanted := citedPackages(reg)
	if *pkgs != "" {
		wanted = strings.Split(*pkgs, ",")
	}
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	rng := rand.New(rand.NewPCG(*seed, 0))
	if *sample > 0 {
		fmt.Fprintf(stdout, "sample of seed %d\n", *seed)
		if *pkgs == "" { // a package without figures on the page can't be compared
			measured := readKnown(filepath.Join(root, page))
			wanted = slices.DeleteFunc(wanted, func(p string) bool { _, ok := measured[p]; return !ok })
			if len(wanted) == 0 {
				return fail(fmt.Errorf("%s has no figures of any package", page))
			}
		}
		rng.Shuffle(len(wanted), func(i, j int) { wanted[i], wanted[j] = wanted[j], wanted[i] })
	}
	var book *notes
	var bookErr error
	if *noted != "" {
		if book, err = openNotes(*noted); err != nil {
			return fail(err)
		}
		defer book.f.Close()
	}
	begin := time.Now()
	var all []figures
	for i, p := range wanted {
		if *sample > 0 && time.Since(begin) > *sample/2 {
			break // building the next package may take long
		}
		sub := filepath.Join(dir, fmt.Sprint(i))
		if err := os.Mkdir(sub, 0o700); err != nil {
			return fail(err)
		}
		r, err := prepare(root, sub, reg, p, *workers, stderr)
		if err != nil {
			return fail(err)
		}
		r.citedOnly, r.own = *cited || *sample > 0, *own // a sample runs the cited tests only
		mutants := slices.DeleteFunc(slices.Clone(r.mutants[1:]), func(m *mutant) bool { return !selected.MatchString(m.listing()) })
		if *list {
			for _, m := range mutants {
				fmt.Fprintln(stdout, m.listing())
			}
			continue
		}
		var until time.Time
		of := len(mutants)
		if *sample > 0 || *most > 0 {
			draw(mutants, *seed)
		}
		if *most > 0 {
			mutants = mutants[:min(of, *most)]
		}
		if *sample > 0 {
			until = begin.Add(*sample)
		}
		var done []result
		if book != nil {
			done, mutants = book.split(mutants, acc)
		}
		found := func(res result) {
			if book != nil {
				bookErr = cmp.Or(bookErr, book.add(res))
			}
			if *verbose {
				fmt.Fprintf(stdout, "%s %s\n", res.listing(), res.how())
			}
		}
		f, err := r.judge(p, mutants, until, found, stderr)
		if err = cmp.Or(err, bookErr); err != nil {
			return fail(err)
		}
		f.of, f.results = of, append(f.results, done...)
		slices.SortFunc(f.results, func(a, b result) int { return a.id - b.id })
		f.count(acc)
		f.print(stdout)
		all = append(all, f)
		os.RemoveAll(sub)
	}
	if *list {
		return 0
	}
	if *write {
		if err := writePage(filepath.Join(root, page), all); err != nil {
			return fail(err)
		}
	}
	if *sample > 0 {
		return judgeSample(stdout, all, readKnown(filepath.Join(root, page)))
	}
	return verdict(stdout, all)
}

// draw sorts mutants into a random order. The order of two mutants depends only on their keys and
// the seed, so that changes of other code do not change a sample.
func draw(mutants []*mutant, seed uint64) {
	at := func(m *mutant) uint64 {
		h := fnv.New64a()
		fmt.Fprintf(h, "%s %d", m.key(), seed)
		return rand.NewPCG(h.Sum64(), seed).Uint64()
	}
	slices.SortFunc(mutants, func(a, b *mutant) int { return cmp.Compare(at(a), at(b)) })
}

// prepare builds the mutants of a package.
func prepare(root, dir string, reg *register.Register, pkg string, workers int, log io.Writer) (*runner, error) {
	out, err := goCommand(root, "list", "-m")
	if err != nil {
		return nil, err
	}
	b := &build{root: root, module: strings.TrimSpace(out), dir: dir, reg: reg, pkgs: []string{pkg}, dropped: make(map[string]bool)}
	if err := b.rewrite(log); err != nil {
		return nil, err
	}
	return &runner{
		build: b, index: &testIndex{root: root, dirs: make(map[string]*testDir)}, workers: workers, patience: 5 * time.Second,
		tests: make(map[test]*recorded), lists: make(map[string][]test), rapid: make(map[string]bool),
	}, nil
}

func goCommand(root string, args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	out, err := cmd.Output()
	return string(out), err
}

// judge runs the mutants of a package, no longer than until, unless until is zero. It calls found
// with each result, never two at once. The figures are not counted yet.
func (r *runner) judge(pkg string, mutants []*mutant, until time.Time, found func(result), log io.Writer) (figures, error) {
	f := figures{pkg: pkg, of: len(mutants), partial: r.citedOnly}
	if len(mutants) == 0 {
		return f, nil
	}
	if !r.citedOnly { // citedOnly needs few recordings
		broken, err := r.recordAll(pkg, until)
		if err != nil {
			return f, err
		}
		for _, t := range broken {
			fmt.Fprintf(log, "%s %s fails with switches in the code, and is left out\n", t.pkg, t.name)
		}
	}
	var mu sync.Mutex
	p := progress{w: log, begin: time.Now(), last: time.Now(), of: len(mutants)}
	each(r.workers, mutants, func(m *mutant) {
		if past(until) {
			return
		}
		res := r.try(m)
		p.step()
		mu.Lock()
		defer mu.Unlock()
		f.results = append(f.results, res)
		found(res)
	})
	slices.SortFunc(f.results, func(a, b result) int { return a.id - b.id })
	return f, nil
}
