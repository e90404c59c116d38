// Memcheck runs a program that uses libvipl under valgrind and reports the errors that are
// the C code's:
//
//	go run ./internal/tools/memcheck [-v] PROGRAM ARGS...
//
// Half of the library is Go, whose runtime reads memory that was not written, on purpose:
// it copies stacks that grow, reuses stacks of goroutines that ended, and hands system
// calls what lies there. Valgrind knows nothing of it and reports it. Suppressions by
// the name of a function or of a system call would hide the same mistake of C code with it.
// So none are used. An error is left out only if
//
//   - it was found in the Go half, which means that the innermost function of its first
//     stack is Go's, and
//   - no stack of it names C code that is ours, the library's or the program's: neither the
//     stack of the error itself, nor that of where its memory was allocated or freed, nor of
//     where a value without contents came from.
//
// An uninitialised byte of the program that reaches a system call of the Go half is
// reported therefore, as is memory that the program has freed and the Go half reads. What is
// left out is counted by what was found and, for a system call, by its argument; -v lists
// the functions that it was found in.
//
// The exit status is 9 if something is reported, else that of the program.
package main

import (
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	verbose := flag.Bool("v", false, "list where what is left out was found")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: memcheck [-v] PROGRAM ARGS...")
		os.Exit(2)
	}
	status, err := run(flag.Args(), *verbose)
	if err != nil {
		fmt.Fprintln(os.Stderr, "memcheck:", err)
		os.Exit(2)
	}
	os.Exit(status)
}

// reported is the exit status if valgrind has found something.
const reported = 9

func run(args []string, verbose bool) (status int, err error) {
	dir, err := os.MkdirTemp("", "memcheck-*")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "errors.xml")
	// Valgrind runs one thread at a time. Without a fair lock a thread that polls can keep the
	// others from running for a minute.
	cmd := exec.Command("valgrind", append([]string{
		"--xml=yes", "--xml-file=" + file, "--error-limit=no", "--leak-check=no", "--track-origins=yes", "--num-callers=40",
		"--max-stackframe=20000000", "--child-silent-after-fork=yes", "--fair-sched=yes",
	}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Valgrind tells the program that the processor has RDTSCP also where it has not, as in
	// some virtual machines, and ends the program at the instruction there.
	cmd.Env = append(os.Environ(), "GODEBUG="+strings.TrimPrefix(os.Getenv("GODEBUG")+",cpu.rdtscp=off", ","))
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			return 0, err
		}
		status = max(exit.ExitCode(), 1) // -1: by a signal
	}
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	found, left, err := read(f)
	if err != nil {
		return 0, fmt.Errorf("what valgrind has written: %w", err)
	}
	for _, e := range found {
		e.print(os.Stderr)
	}
	left.print(os.Stderr, verbose)
	if len(found) > 0 {
		status = reported
	}
	return status, nil
}

// A frame is one of a stack.
type frame struct {
	Object   string `xml:"obj"`
	Function string `xml:"fn"`
	File     string `xml:"file"`
	Line     int    `xml:"line"`
}

// A stack has the innermost function first.
type stack struct {
	Frames []frame `xml:"frame"`
}

// A problem is an error as valgrind tells it.
type problem struct {
	Kind   string   `xml:"kind"`
	What   string   `xml:"what"`
	XWhat  string   `xml:"xwhat>text"`
	Stacks []stack  `xml:"stack"` // of the error, then one for each of About that has one
	About  []string `xml:"auxwhat"`
	XAbout []string `xml:"xauxwhat>text"`
}

// leftOut counts what is not reported.
type leftOut map[string]map[string]int // by what, then by function

// read sorts the errors of a report.
func read(r io.Reader) (found []problem, left leftOut, err error) {
	left = make(leftOut)
	d := xml.NewDecoder(r)
	ended := false
	for {
		t, err := d.Token()
		if err == io.EOF && ended {
			return found, left, nil
		}
		if err != nil { // a report that breaks off says nothing about the rest
			return nil, nil, err
		}
		switch t := t.(type) {
		case xml.StartElement:
			if t.Name.Local != "error" {
				continue
			}
			var p problem
			if err := d.DecodeElement(&p, &t); err != nil {
				return nil, nil, err
			}
			p.base()
			switch {
			case strings.HasPrefix(p.Kind, "Leak_"): // XML has them whatever is asked for; they are not looked for here
			case p.ours() || !p.inGo():
				found = append(found, p)
			default:
				left.add(p)
			}
		case xml.EndElement:
			ended = ended || t.Name.Local == "valgrindoutput"
		}
	}
}

// library is the name of the object that has both halves.
const library = "libvipl.so"

// isGo reports whether a frame is of the Go half, which its file tells: one of Go, or of the
// assembler of its runtime. What the compiler makes by itself has none, and a name that no
// function of C has without one.
func (f frame) isGo() bool {
	if !strings.HasPrefix(f.Object, library) {
		return false
	}
	switch f.File {
	case "":
		return strings.Contains(f.Function, ".")
	case "<autogenerated>":
		return true
	}
	return strings.HasSuffix(f.File, ".go") || strings.HasSuffix(f.File, ".s")
}

// isOurs reports whether a frame is of C code that is ours: of the library's C half, or of
// the program, whatever is neither the library nor the system's.
func (f frame) isOurs() bool {
	switch {
	case strings.HasPrefix(f.Object, library):
		// What cgo makes, or brings with it, leads from one half to the other.
		return strings.HasSuffix(f.File, ".c") && !strings.HasPrefix(f.File, "gcc_") && !strings.HasPrefix(f.File, "_cgo_") && !strings.HasSuffix(f.File, ".cgo2.c")
	case f.File == "":
		return false // code that is made at run time, or the system's without debugging information
	}
	for _, s := range []string{"libc.", "libc-", "ld-", "libpthread", "libdl", "vgpreload_"} {
		if strings.HasPrefix(f.Object, s) {
			return false
		}
	}
	return true
}

// base leaves of files and objects what they are called: compilers differ in what they say of
// directories.
func (p *problem) base() {
	for _, s := range p.Stacks {
		for i := range s.Frames {
			f := &s.Frames[i]
			if f.Object = filepath.Base(f.Object); f.File != "" {
				f.File = filepath.Base(f.File)
			}
		}
	}
}

func (p *problem) inGo() bool {
	return len(p.Stacks) > 0 && len(p.Stacks[0].Frames) > 0 && p.Stacks[0].Frames[0].isGo()
}

func (p *problem) ours() bool {
	return slices.ContainsFunc(p.Stacks, func(s stack) bool { return slices.ContainsFunc(s.Frames, frame.isOurs) })
}

// title is what was found.
func (p *problem) title() string { return p.What + p.XWhat }

func (p *problem) print(w io.Writer) {
	fmt.Fprintf(w, "memcheck: ERROR: %s\n", p.title())
	about := append(slices.Clone(p.About), p.XAbout...)
	for i, s := range p.Stacks {
		if i > 0 && i <= len(about) {
			fmt.Fprintf(w, "memcheck:   %s\n", about[i-1])
		}
		for _, f := range s.Frames {
			fmt.Fprintf(w, "memcheck:     %s (%s:%d)\n", f.Function, f.File, f.Line)
		}
	}
}

func (l leftOut) add(p problem) {
	what := p.title()
	if l[what] == nil {
		l[what] = make(map[string]int)
	}
	l[what][p.Stacks[0].Frames[0].Function]++
}

func (l leftOut) print(w io.Writer, verbose bool) {
	for _, what := range slices.Sorted(maps.Keys(l)) {
		n := 0
		for _, k := range l[what] {
			n += k
		}
		fmt.Fprintf(w, "memcheck: left out, in the Go half alone: %d times %q\n", n, what)
		if !verbose {
			continue
		}
		for _, f := range slices.Sorted(maps.Keys(l[what])) {
			fmt.Fprintf(w, "memcheck:     %s: %d\n", f, l[what][f])
		}
	}
}
