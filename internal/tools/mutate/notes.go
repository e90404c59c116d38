package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// Notes are a file of the mutants killed by cited tests of an earlier run, so that a long run can
// be done in pieces. Survivors are not in the file: they are tried again, because there may be new
// tests and citations. The user must start a new file after a change of mutated code or of a test.
type notes struct {
	f    *os.File
	seen map[string]result // by key
}

// openNotes reads a file of notes; the file need not exist.
func openNotes(name string) (*notes, error) {
	b, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	n := &notes{seen: make(map[string]result)}
	for line := range strings.Lines(string(b)) {
		w := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 3)
		if len(w) != 3 || w[0] != "cited" || !strings.HasSuffix(line, "\n") {
			continue // the run ended while it wrote this line
		}
		n.seen[w[2]] = result{cited: true, suite: true, by: w[1]}
	}
	if n.f, err = os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
		return nil, err
	}
	if len(b) > 0 && b[len(b)-1] != '\n' {
		_, err = n.f.WriteString("\n")
	}
	return n, err
}

// add records a mutant killed by a cited test.
func (n *notes) add(r result) error {
	if !r.cited {
		return nil
	}
	_, err := fmt.Fprintf(n.f, "cited\t%s\t%s\n", r.by, r.key())
	return err
}

// split returns the results in the notes, and the mutants missing there. An accepted mutant counts
// as a survivor.
func (n *notes) split(mutants []*mutant, acc map[string]string) (done []result, todo []*mutant) {
	for _, m := range mutants {
		r, ok := n.seen[m.key()]
		if _, accepted := acc[m.key()]; ok || accepted {
			r.mutant = m
			done = append(done, r)
		} else {
			todo = append(todo, m)
		}
	}
	return done, todo
}
