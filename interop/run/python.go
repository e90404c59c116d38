//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// The trial of this file checks that each of Python's own tests of network modules has the same
// result with and without run.

// pythonModules are the tested modules.
var pythonModules = []string{"test_socket", "test_ftplib", "test_asyncore", "test_ssl", "test_httplib", "test_httpservers", "test_imaplib", "test_smtplib",
	"test_xmlrpc", "test_selectors", "test_logging"}

const (
	pythonName = "Python's own tests"
	// pythonLimit bounds a run of all modules, which takes 30 seconds on a quiet machine.
	pythonLimit = 10 * time.Minute
	// pythonCarried is the least number of carried connections; about 1,700 is normal.
	pythonCarried = 1000
	// pythonTries is how often a module is tried whose tests differ, because many tests have
	// time-outs of a second or less, too short on a busy machine.
	pythonTries = 5
	// vsockTests hang on machines with a silent hypervisor.
	vsockTests = "test.test_socket.ThreadedVSOCKSocketStreamTest.*"
	// resetTests expect bytes and a reset at the peer when close returns. Over loopback that is so,
	// but no network promises it, and a carried connection needs some time.
	resetTests = "test.test_ssl.TestPreHandshakeClose.test_preauth_data_to_*"
)

// tests maps each test to a result: passed, failed or skipped.
type tests map[string]string

// differences returns the sorted names of the tests whose results in t and others differ.
func (t tests) differences(others tests) (names []string) {
	all := maps.Clone(t)
	maps.Copy(all, others)
	for name := range all {
		if t[name] != others[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// moduleOf returns the module of a test named test.MODULE.CLASS.METHOD.
func moduleOf(test string) string {
	parts := strings.Split(test, ".")
	return parts[min(1, len(parts)-1)]
}

// comparePython runs all tests with and without run at the same time, and compares the results.
func (l *lab) comparePython() error {
	python := find("python3")
	if python == "" {
		return skipped("not installed: python3")
	}
	if exec.Command(python, "-c", "import test.libregrtest, test.test_socket").Run() != nil {
		return skipped("the tests of " + python + " are not installed (apt-get install libpython3.11-testsuite)")
	}
	alone, carried, err := l.bothPython(python, pythonModules)
	if err != nil {
		return err
	}
	if len(alone) == 0 {
		return errors.New("no test ran")
	}
	differ := carried.differences(alone)
	for range pythonTries - 1 {
		if len(differ) == 0 {
			break
		}
		fmt.Printf("again, since they differ: %s\n", strings.Join(differ, " "))
		var modules []string
		for _, name := range differ {
			if m := moduleOf(name); !slices.Contains(modules, m) {
				modules = append(modules, m)
			}
		}
		if alone, carried, err = l.bothPython(python, modules); err != nil {
			return err
		}
		now := carried.differences(alone)
		differ = slices.DeleteFunc(differ, func(name string) bool { return !slices.Contains(now, name) })
	}
	if len(differ) == 0 {
		return nil
	}
	told := ""
	for _, name := range differ {
		told += fmt.Sprintf("\n%s: %q, without run %q", name, carried[name], alone[name])
	}
	return fmt.Errorf("%d tests differ:%s", len(differ), told)
}

// bothPython runs the tests of modules without run (alone) and with run (carried).
func (l *lab) bothPython(python string, modules []string) (alone, carried tests, err error) {
	mapper, explain := "127.0.0.1:"+freePort(), l.path("explain")
	run := []string{l.viaduct, "run", "--json", "--explain=" + explain, "--listen", "any", "--portmap-listen", mapper, "--portmap", mapper,
		"--to", "127.0.0.0/8=portmap", "--", python}
	var wg sync.WaitGroup
	var aerr, cerr error
	wg.Go(func() { alone, aerr = l.python([]string{python}, modules) })
	wg.Go(func() { carried, cerr = l.python(run, modules) })
	wg.Wait()
	if err := errors.Join(aerr, cerr); err != nil {
		return nil, nil, err
	}
	var n int64
	for _, e := range events(explain) {
		if e.Summary != nil {
			n = e.Summary["carried"]
		}
	}
	if len(modules) == len(pythonModules) {
		fmt.Printf("%d tests of Python, %d connections carried\n", len(alone), n)
		if n < pythonCarried {
			return nil, nil, fmt.Errorf("%d connections were carried, want %d", n, pythonCarried)
		}
	}
	return alone, carried, nil
}

// python runs the tests of modules by command, which starts Python.
func (l *lab) python(command, modules []string) (tests, error) {
	dir, err := l.folder("python")
	if err != nil {
		return nil, err
	}
	file := l.path("xml")
	ctx, cancel := context.WithTimeout(l.ctx, pythonLimit)
	defer cancel()
	argv := append(slices.Clone(command), "-m", "test", "-j4", "--timeout=500", "--tempdir="+dir, "--junit-xml="+file, "-i", vsockTests, "-i", resetTests)
	c := l.command(ctx, append(argv, modules...)...)
	c.Dir = dir
	out, err := c.CombinedOutput() // the file has the failed tests
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: %w\n%s", argv, ctx.Err(), out)
	}
	b, rerr := os.ReadFile(file)
	if rerr != nil {
		return nil, fmt.Errorf("%s: %w\n%s", argv, errors.Join(err, rerr), out)
	}
	return parseTests(b)
}

// parseTests parses the contents of a file in the format of JUnit.
func parseTests(b []byte) (tests, error) {
	var all struct {
		Suites []struct {
			Cases []struct {
				Name    string    `xml:"name,attr"`
				Skipped *struct{} `xml:"skipped"`
				Failure *struct{} `xml:"failure"`
				Error   *struct{} `xml:"error"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	t := tests{}
	for _, s := range all.Suites {
		for _, c := range s.Cases {
			switch {
			case c.Failure != nil || c.Error != nil:
				t[c.Name] = "failed"
			case c.Skipped != nil:
				t[c.Name] = "skipped"
			default:
				t[c.Name] = "passed"
			}
		}
	}
	return t, nil
}
