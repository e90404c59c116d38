// Memcheck runs a program with libvipl under valgrind and reports the errors of the C code:
//
//	go run ./internal/tools/memcheck [-v] PROGRAM ARGS...
//
// Half of the library is Go, whose runtime reads uninitialised memory on purpose: it copies growing
// stacks, reuses stacks of ended goroutines, and passes uninitialised memory to system calls.
// Valgrind reports all of these reads. Suppressing them by the name of a function or of a system
// call would also hide the same mistake of C code, so no suppressions are used. An error is left
// out only if
//
//   - it was found in the Go half: the innermost function of the first stack is Go's, and
//   - the memory and the value are not those of our C code, of the library or the program: the stack
//     where the memory was allocated or freed does not name it, nor does the stack where an
//     uninitialised value came from.
//
// The C code that called the Go half does not count. The stack of the error seldom shows it, because
// the Go half has stacks of its own; but where the runtime works on the thread's stack, it may.
//
// So the report includes an uninitialised byte of the program in a system call of the Go half, and
// freed memory of the program read by the Go half. Omitted errors are counted by kind and, for a
// system call, by argument; -v lists the functions at fault.
//
// The exit status is 9 if something is reported, and otherwise the program's.
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

// reported is the exit status if valgrind reports an error.
const reported = 9

func run(args []string, verbose bool) (status int, err error) {
	dir, err := os.MkdirTemp("", "memcheck-*")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "errors.xml")
	// Valgrind runs one thread at a time. Without a fair lock a polling thread can keep the others
	// from running for a minute.
	cmd := exec.Command("valgrind", append([]string{
		"--xml=yes", "--xml-file=" + file, "--error-limit=no", "--leak-check=no", "--track-origins=yes", "--num-callers=40",
		"--max-stackframe=20000000", "--child-silent-after-fork=yes", "--fair-sched=yes",
	}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Valgrind always reports a processor with RDTSCP. On a processor without RDTSCP, as in some
	// virtual machines, valgrind ends the program at the instruction.
	cmd.Env = append(os.Environ(), "GODEBUG="+strings.TrimPrefix(os.Getenv("GODEBUG")+",cpu.rdtscp=off", ","))
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			return 0, err
		}
		status = max(exit.ExitCode(), 1) // -1: ended by a signal
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

// A frame is a function of a stack.
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

// A problem is an error reported by valgrind.
type problem struct {
	Kind   string   `xml:"kind"`
	What   string   `xml:"what"`
	XWhat  string   `xml:"xwhat>text"`
	Stacks []stack  `xml:"stack"` // the stack of the error, then one for each entry of About that has a stack
	About  []string `xml:"auxwhat"`
	XAbout []string `xml:"xauxwhat>text"`
}

// leftOut counts the omitted errors.
type leftOut map[string]map[string]int // by kind, then by function

// read divides the errors of a report into reported and omitted errors.
func read(r io.Reader) (found []problem, left leftOut, err error) {
	left = make(leftOut)
	d := xml.NewDecoder(r)
	ended := false
	for {
		t, err := d.Token()
		if err == io.EOF && ended {
			return found, left, nil
		}
		if err != nil { // a truncated report proves nothing
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
			case strings.HasPrefix(p.Kind, "Leak_"): // valgrind always prints leaks in XML, and this tool does not search for them
			case !p.inGo() || p.ours():
				found = append(found, p)
			default:
				left.add(p)
			}
		case xml.EndElement:
			ended = ended || t.Name.Local == "valgrindoutput"
		}
	}
}

// library is the name of the object with both halves.
const library = "libvipl.so"

// isGo reports whether a frame belongs to the Go half: the file is a Go file, or assembler of the
// runtime. A function generated by the compiler has no file, but a name with a dot, unlike C
// functions without a file.
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

// isOurs reports whether a frame belongs to our C code: the library's C half, or the program. The
// program is every object except the library and the system's.
func (f frame) isOurs() bool {
	switch {
	case strings.HasPrefix(f.Object, library):
		// The code of cgo connects the two halves and counts as neither.
		return strings.HasSuffix(f.File, ".c") && !strings.HasPrefix(f.File, "gcc_") && !strings.HasPrefix(f.File, "_cgo_") && !strings.HasSuffix(f.File, ".cgo2.c")
	case f.File == "":
		return false // generated at run time, or the system's without debugging information
	}
	for _, s := range []string{"libc.", "libc-", "ld-", "libpthread", "libdl", "vgpreload_"} {
		if strings.HasPrefix(f.Object, s) {
			return false
		}
	}
	return true
}

// base strips the directories of files and objects, because compilers record directories
// differently.
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

// ours reports whether the memory or the value of an error in the Go half is that of our C code.
func (p *problem) ours() bool {
	return slices.ContainsFunc(p.Stacks[1:], func(s stack) bool { return slices.ContainsFunc(s.Frames, frame.isOurs) })
}

// title returns the description of the error.
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
