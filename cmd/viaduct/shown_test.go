//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A session runs commands of a page of the documentation, with free ports instead of the printed
// ports.
type session struct {
	t     *testing.T
	sh    string
	path  string // PATH with viaduct, which is this test binary
	ports map[string]string
}

func newSession(t *testing.T) *session {
	t.Helper()
	s := &session{t: t, sh: program(t, "sh"), ports: map[string]string{}}
	bin := t.TempDir()
	self, err := filepath.Abs(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(bin, "viaduct")); err != nil {
		t.Fatal(err)
	}
	s.path = bin + ":" + os.Getenv("PATH")
	return s
}

var shownPort = regexp.MustCompile(`\b7\d\d\d\b`)

// free replaces each port of a shown command by the same free port in the whole session.
func (s *session) free(command string) string {
	return shownPort.ReplaceAllStringFunc(command, func(p string) string {
		if s.ports[p] == "" {
			s.ports[p] = fmt.Sprint(freePort(s.t))
		}
		return s.ports[p]
	})
}

// run runs a script until the first failing command. out is stdout and stderr together.
func (s *session) run(dir, script string) (out string, err error) {
	c := exec.CommandContext(s.t.Context(), s.sh, "-e", "-c", script)
	c.Dir = dir
	c.Env = append(os.Environ(), "PATH="+s.path, asCommand+"=1", "GORACE=atexit_sleep_ms=0 exitcode=66")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var b strings.Builder
	c.Stdout, c.Stderr = &b, &b
	c.WaitDelay = patience
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	stop := time.AfterFunc(3*patience, func() { c.Cancel() }) // a script has dozens of commands
	err = c.Run()
	stop.Stop()
	syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // end processes that the script has left
	return b.String(), err
}

// TestReadme runs the commands of README.md without changes, in one directory.
func TestReadme(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(t)
	var lines []string
	for l := range strings.Lines(string(text)) {
		if c, ok := strings.CutPrefix(l, "    viaduct "); ok {
			lines = append(lines, s.free("viaduct "+c))
		}
	}
	if len(lines) < 3 {
		t.Fatalf("%d commands in README.md", len(lines))
	}
	for round := range 3 { // repeated, because a race does not show each time
		work := t.TempDir()
		random(t, filepath.Join(work, "FILE"), 100_000)
		for _, l := range lines {
			if out, err := s.run(work, l); err != nil {
				t.Errorf("round %d: %s: %v\n%s", round, l, err, out)
			}
		}
	}
}

// Patterns for output that varies between runs: numbers except requirement numbers, and widths of
// columns.
var (
	anyHex    = regexp.MustCompile(`\b(0x[0-9a-f]+|[0-9a-f]{8})\b`)
	anyNumber = regexp.MustCompile(`\[[A-Z][A-Z0-9.-]+\]|\d+(\.\d+)*( (us|ms|s)\b)?`)
	anyRate   = regexp.MustCompile(`\d[\d.]* ([KMGT]i)?B/s`)
	anyWidth  = regexp.MustCompile(` +|-{2,}`)
)

func likeness(line string) string {
	line = anyRate.ReplaceAllString(line, "0 B/s")
	line = anyNumber.ReplaceAllStringFunc(anyHex.ReplaceAllString(line, "0"), func(s string) string {
		if s[0] == '[' {
			return s
		}
		return "0"
	})
	return strings.TrimSpace(anyWidth.ReplaceAllStringFunc(line, func(s string) string { return s[:1] }))
}

// asShown reports whether the printed lines match the shown lines, apart from numbers. A line of
// three dots stands for any number of lines.
func asShown(shown, printed []string) bool {
	if len(shown) == 0 {
		return len(printed) == 0
	}
	if shown[0] == "..." {
		for i := range len(printed) + 1 {
			if asShown(shown[1:], printed[i:]) {
				return true
			}
		}
		return false
	}
	return len(printed) > 0 && likeness(shown[0]) == likeness(printed[0]) && asShown(shown[1:], printed[1:])
}

// withoutNudges drops the empty RDMA Writes after the first empty Write of a conversation: on a
// slow machine an Initiator sends another empty Write, so that the Responder may answer. [I-10]
func withoutNudges(printed []string) []string {
	seen := false
	return slices.DeleteFunc(printed, func(line string) bool {
		empty := strings.HasSuffix(line, "> rdmap RDMA Write ddp.stag=0x1 ddp.to=0x0 bytes=0") ||
			strings.Contains(line, "- RDMA Write  bytes 0 -")
		again := empty && seen
		seen = seen || empty
		return again
	})
}

// overTCP returns the shown lines for a listener that is slow, as on a busy machine: its connection
// goes over TCP.
func overTCP(shown []string) (all []string) {
	for _, l := range shown {
		all = append(all, strings.ReplaceAll(l, ", through shared memory", ""))
	}
	return all
}

// TestGuideCommands runs the sessions in the pages of docs (blocks of the language console), and
// compares the output. Each page has a separate directory. The output of background commands is
// ignored.
func TestGuideCommands(t *testing.T) {
	t.Parallel()
	needs := map[string][]string{
		"programs": {"python3", "curl", "rping"},
		"operate":  {"curl", "openssl"},
	}
	found, err := filepath.Glob("../../docs/guide/*.md")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, file := range append(found, more...) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "\n```console\n") {
			continue
		}
		seen++
		page := strings.TrimSuffix(filepath.Base(file), ".md")
		t.Run(page, func(t *testing.T) {
			if page == "programs" && runtime.GOOS != "linux" {
				t.Skip("SKIPPED: viaduct run is for Linux")
			}
			for _, p := range needs[page] {
				program(t, p)
			}
			s := newSession(t)
			work, outs := t.TempDir(), t.TempDir()
			var script strings.Builder
			var commands []string
			var shown [][]string
			in := false
			for l := range strings.Lines(string(text)) {
				l = strings.TrimSuffix(l, "\n")
				switch c, isCommand := strings.CutPrefix(l, "$ "); {
				case l == "```console" || in && l == "```":
					in = !in
				case in && isCommand:
					fmt.Fprintf(&script, "{ %s\n} >'%s/%d' 2>&1\n", s.free(c), outs, len(commands))
					commands, shown = append(commands, c), append(shown, nil)
				case in && len(commands) == 0:
					t.Fatalf("%s: %q follows no command", page, l)
				case in:
					shown[len(shown)-1] = append(shown[len(shown)-1], l)
				}
			}
			if len(commands) < 5 {
				t.Fatalf("%s shows %d commands", page, len(commands))
			}
			if _, err := s.run(work, script.String()); err != nil {
				t.Errorf("%s: %v\n%s", page, err, script.String())
			}
			for i, c := range commands {
				b, err := os.ReadFile(fmt.Sprintf("%s/%d", outs, i))
				if err != nil {
					t.Errorf("%s was not run", c)
					continue
				}
				printed := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
				if len(b) == 0 {
					printed = nil
				}
				printed = withoutNudges(printed)
				if !strings.HasSuffix(c, "&") && !asShown(shown[i], printed) && !asShown(overTCP(shown[i]), printed) {
					t.Errorf("%s prints\n%s\nand not\n%s", c, b, strings.Join(shown[i], "\n"))
				}
			}
		})
	}
	if seen < 3 {
		t.Errorf("%d pages with sessions", seen)
	}
}
