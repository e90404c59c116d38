package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// completed returns the output of the verb __complete: completions of the last word, each on a
// line.
func completed(t *testing.T, words ...string) string {
	t.Helper()
	return good(t, append([]string{"__complete"}, words...)...).stdout
}

// TestCompletion: addresses, their parameters and values, lists and fixed words are completed. File
// operands are completed as files.
func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		line    string // words separated by |, of which the last one is completed
		has, no string // beginnings of lines that must and must not be printed, separated by spaces
	}{
		{"pi", "ping", "serve"},
		{"completion|", "bash zsh fish", "powershell"},
		{"ping|", "vitcp:// iwarp:// sdp:// fcvi:// tcp:// :6", ""},
		{"ping|vi", "vitcp:// :6", "iwarp://"},
		{"ping|iwarp://", "iwarp://127.0.0.1: iwarp://[::1]:", "vitcp"},
		{"ping|sdp://h:1?", "sdp://h:1?portmap= sdp://h:1?crc=", "sdp://h:1?mtu="},
		{"echo|--listen|sdp://h:1?", "sdp://h:1?crc=", "sdp://h:1?portmap= sdp://h:1?hello="},
		{"ping|vitcp://h/d?reliability=", "vitcp://h/d?reliability=delivery", "vitcp://h/d?flow"},
		{"ping|vitcp://h/d?flow=on&", "vitcp://h/d?flow=on&mtu=", "vitcp://h/d?flow=on&flow="},
		{"put|", ":0", "vitcp://"},
		{"put|f|s", "sdp://", "tcp://"},
		{"decode|", ":0", "vitcp://"},
		{"bench|--ops|write,r", "write,read write,rate", "write,write"},
		{"bench|--transports|t", "tcp", "vitcp"},
		{"ping|--log-level|", "debug warn", "text"},
		{"serve|--root|", ":16", "vitcp://"},
		{"proxy|--to|tc", "tcp://", "vitcp://"},
		{"version|", ":4", "vitcp://"},
		{"portmap|q", "query", "serve"},
	} {
		out := "\n" + completed(t, strings.Split(c.line, "|")...)
		for _, w := range strings.Fields(c.has) {
			if !strings.Contains(out, "\n"+w) {
				t.Errorf("%s: no %s in %q", c.line, w, out)
			}
		}
		for _, w := range strings.Fields(c.no) {
			if strings.Contains(out, "\n"+w) {
				t.Errorf("%s: %s in %q", c.line, w, out)
			}
		}
	}
	fails(t, 2, "one of bash, fish, zsh", "completion", "csh")
}

// TestCompletionRunning: addresses of listening processes are completed, with ports and names.
func TestCompletionRunning(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	_, urls := start(t, 2, "echo", "--listen", "vitcp://127.0.0.1:0/here?mtu=64K", "--listen", "tcp://:0")
	want, _, _ := strings.Cut(urls[0], "?")
	// On a busy machine, the process may take longer to answer than a completion waits.
	offered := func(word, want string) {
		t.Helper()
		eventually(t, word+" to be completed to "+want, func() bool {
			return strings.Contains(completed(t, "ping", word), want)
		})
	}
	for _, word := range []string{"vi", "vitcp://127.0.0.1:", want[:len(want)-7]} {
		offered(word, want+"\t")
	}
	offered("tcp://l", "tcp://localhost:"+urls[1][strings.LastIndex(urls[1], ":")+1:])
	if out := completed(t, "echo", "--listen", "vi"); strings.Contains(out, want) {
		t.Errorf("an address that is taken is offered to listen on: %q", out)
	}
}

// shellWith returns the path of a shell, and an environment where viaduct is this test binary.
// shellWith skips the test if the shell is not installed.
func shellWith(t *testing.T, shell string) (path string, env []string) {
	t.Helper()
	path, err := exec.LookPath(shell)
	if err != nil {
		t.Skipf("SKIPPED: there is no %s", shell)
	}
	dir := t.TempDir()
	self, err := filepath.Abs(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, "viaduct")); err != nil {
		t.Fatal(err)
	}
	return path, append(os.Environ(), asCommand+"=1", "PATH="+dir+":"+os.Getenv("PATH"),
		"HOME="+dir, "XDG_RUNTIME_DIR="+dir, // the empty run directory hides other processes
		"TERM=dumb", "GORACE=atexit_sleep_ms=0")
}

// TestCompletionBash types command lines into an interactive bash and checks the completions.
func TestCompletionBash(t *testing.T) {
	t.Parallel()
	path, env := shellWith(t, "bash")
	c := exec.CommandContext(t.Context(), path, "--norc", "--noprofile", "-i")
	c.Env = append(env, "PS1=> ", "INPUTRC=/dev/null")
	show := typing(t, c, ". <(viaduct completion bash); echo re''ady\n", "ready")
	for _, w := range []struct{ typed, shown string }{
		{"viaduct pi\t", "viaduct ping "},
		{"vi\t", "vitcp://"},
		{"localhost/d?reli\t", "vitcp://localhost/d?reliability="},
		{"d\t", "reliability=delivery"},
		{"\\&mt\t", `\&mtu=`},
		{"\x15viaduct ping 'vitcp://h/d?mtu=1&win\t", `&window=`},
		{"\x15viaduct serve --root /et\t", `/etc`},
	} {
		show(w.typed, w.shown)
	}
}

// typing starts c on a new terminal, types the text first, and waits until the terminal shows the
// text shown. The returned function does the same with more text.
func typing(t *testing.T, c *exec.Cmd, first, shown string) func(typed, shown string) {
	t.Helper()
	master, slave := terminal(t)
	c.Stdin, c.Stdout, c.Stderr = slave, slave, slave
	c.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	screen := make(chan string, 100)
	go func() {
		defer close(screen)
		for b := make([]byte, 4096); ; {
			n, err := master.Read(b)
			if err != nil {
				return
			}
			screen <- string(b[:n])
		}
	}()
	all := ""
	show := func(typed, shown string) {
		t.Helper()
		if _, err := master.WriteString(typed); err != nil {
			t.Fatal(err)
		}
		for end := time.After(patience); !strings.Contains(all, shown); {
			select {
			case s, ok := <-screen:
				if !ok {
					t.Fatalf("the shell ended: %q", all)
				}
				all += s
			case <-end:
				t.Fatalf("typed %q, want %q on the screen: %q", typed, shown, all)
			}
		}
	}
	show(first, shown)
	return show
}

// TestCompletionFish checks the completions fish computes with viaduct's script.
func TestCompletionFish(t *testing.T) {
	t.Parallel()
	path, env := shellWith(t, "fish")
	c := exec.CommandContext(t.Context(), path,
		"-N", "-c", "viaduct completion fish | source; complete -C 'viaduct ping vi'; complete -C 'viaduct ping vitcp://h/d?reliability='")
	c.Env = env
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "vitcp://") ||
		!strings.Contains(string(out), "reliability=delivery") {
		t.Errorf("%v: %q", err, out)
	}
}

// TestCompletionZsh types command lines into an interactive zsh and checks the completions.
func TestCompletionZsh(t *testing.T) {
	t.Parallel()
	lengthy(t, "5 s")
	path, env := shellWith(t, "zsh")
	c := exec.CommandContext(t.Context(), path, "-f", "-i")
	c.Env = append(env, "PS1=> ", "INPUTRC=/dev/null")
	show := typing(t, c, "autoload -U compinit; compinit -u -D; viaduct completion zsh >$HOME/v; . $HOME/v; echo re''ady\n", "ready")
	show("viaduct pi\t", "viaduct ping")
	show("vi\t", "vitcp://")
}

// overstruck matches a character and the backspace before its repetition. Programs send bold and
// underlined letters to terminals in this form.
var overstruck = regexp.MustCompile(".\b")

// TestMan: every verb has a manual page, and groff and mandoc report no error in any page.
func TestMan(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1000000000")
	dir := t.TempDir()
	good(t, "man", dir)
	pages, _ := filepath.Glob(filepath.Join(dir, "man[17]", "viaduct*.[17]"))
	for _, want := range []string{"man1/viaduct.1", "man1/viaduct-serve.1", "man1/viaduct-portmap-serve.1", "man7/viaduct-urls.7"} {
		if _, err := os.Stat(filepath.Join(dir, want)); err != nil {
			t.Error(err)
		}
	}
	if len(pages) < 22 {
		t.Errorf("%d pages", len(pages))
	}
	b, _ := os.ReadFile(filepath.Join(dir, "man1/viaduct-run.1"))
	_, rest, _ := strings.Cut(string(b), ".SH NAME\n")
	name, rest, _ := strings.Cut(rest, ".SH SYNOPSIS\n")
	synopsis, _, _ := strings.Cut(rest, ".SH DESCRIPTION\n")
	for _, part := range []string{name, synopsis} {
		if !strings.Contains(part, `\-\-rdma`) {
			t.Errorf("NAME or SYNOPSIS of viaduct-run(1) does not name --rdma: %s", part)
		}
	}
	judged := false
	for _, judge := range [][]string{{"groff", "-ww", "-b", "-z", "-man", "-Tutf8", "-Kutf8"}, {"mandoc", "-Tlint", "-Wwarning"}} {
		if _, err := exec.LookPath(judge[0]); err != nil {
			continue
		}
		judged = true
		for _, p := range pages {
			if out, err := exec.Command(judge[0], append(judge[1:], p)...).CombinedOutput(); err != nil ||
				len(out) > 0 {
				t.Errorf("%s of %s: %v\n%s", judge[0], filepath.Base(p), err, out)
			}
		}
	}
	if !judged {
		t.Skip("SKIPPED: there is neither groff nor mandoc")
	}
	if _, err := exec.LookPath("mandoc"); err != nil {
		return
	}
	out, err := exec.Command("mandoc", "-Tascii", "-O", "width=78", filepath.Join(dir, "man1/viaduct-ping.1")).Output()
	for _, want := range []string{"viaduct-ping - measure", "viaduct ping URL [-c COUNT]", "--wait TIME", "EXIT STATUS", "EXAMPLES", "viaduct ping iwarp://server", "viaduct-urls(7)"} {
		if text := overstruck.ReplaceAllString(string(out), ""); err != nil || !strings.Contains(text, want) {
			t.Errorf("%v: no %q in\n%s", err, want, text)
		}
	}
}
