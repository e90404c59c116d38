package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/cmd/viaduct/internal/verbs"
	"viaduct/internal/notify"
	"viaduct/internal/shm"
	"viaduct/internal/testkit"
)

// asCommand is an environment variable that makes the test binary the viaduct command, so that
// tests start real processes, with the race detector if the tests use it.
const asCommand = "VIADUCT_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	notify.MaybeStub()
	if asProgram() {
		return
	}
	if os.Getenv(asCommand) != "" {
		os.Exit(verbs.Main())
	}
	keepInherited()
	// Tests running at the same time share the process's limit on memory for shared rings, and the
	// connections of TestEchoWaves alone reach the default limit.
	shm.SetLimit(4 * shm.DefaultLimit)
	// Tests mostly wait for other processes, so run twice as many tests as there are processors.
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		f.Value.Set(strconv.Itoa(2 * runtime.GOMAXPROCS(0)))
	}
	os.Exit(m.Run())
}

// lengthy skips a long test of hostile programs, many repetitions or slow clocks, except at full
// length and with the race detector, where .ci/run runs it. takes is the duration of the test, for
// example "10 s".
func lengthy(t *testing.T, takes string) {
	t.Helper()
	if !raceDetector {
		testkit.Long(t, takes)
	}
}

// patience bounds the wait for events that normally take moments.
const patience = 2 * testkit.Patience

func command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, os.Args[0], args...)
	// By default, the race detector makes every process sleep for a second before the exit.
	c.Env = append(os.Environ(), asCommand+"=1", "GORACE=atexit_sleep_ms=0 exitcode=66 "+os.Getenv("GORACE"))
	c.WaitDelay = 5 * time.Second
	return c
}

// A result holds the output and the exit code of a command.
type result struct {
	stdout, stderr string
	code           int
}

// last returns the last line of stderr.
func (r result) last() string {
	return lastLine(r.stderr)
}

func lastLine(s string) string {
	s = strings.TrimRight(s, "\n")
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// run runs a command without input until the command exits.
func run(t *testing.T, args ...string) result {
	t.Helper()
	return runFrom(t, strings.NewReader(""), args...)
}

// runFrom is run with stdin as the input. Unless tests run at full length, the verbs in contained
// run within the test process, because starting a process takes several times as long as most
// commands.
func runFrom(t *testing.T, stdin io.Reader, args ...string) result {
	t.Helper()
	if !testkit.LongRuns() && len(args) > 0 && slices.Contains(contained, args[0]) && !slices.Contains(args, "--exec") {
		return runHereFrom(t, stdin, args...)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := command(ctx, args...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr, c.Stdin = &out, &errs, stdin
	c.WaitDelay = patience // the output may be copied late, too
	err := c.Run()
	if ctx.Err() != nil {
		t.Fatalf("viaduct %s did not end:\n%q\n%s", strings.Join(args, " "), lastBytes(out.String()), errs.String())
	}
	r := result{out.String(), errs.String(), c.ProcessState.ExitCode()}
	if _, isExit := err.(*exec.ExitError); err != nil && !isExit {
		t.Fatal(err)
	}
	return r
}

// lastBytes returns the end of a long output, which shows where a command that does not end stands.
func lastBytes(s string) string { return s[max(0, len(s)-4000):] }

// contained are the verbs that neither change their own process nor start another process.
var contained = []string{
	"completion", "config", "conform", "decode", "get", "help", "ladder", "ls", "man", "ping", "put", "registry", "stat", "sync", "version", "vipl", "wireshark",
}

// runHere runs a short command within the test process.
func runHere(t *testing.T, args ...string) result {
	t.Helper()
	return runHereFrom(t, strings.NewReader(""), args...)
}

func runHereFrom(t *testing.T, stdin io.Reader, args ...string) result {
	t.Helper()
	var out, errs lockedText
	e := &shell.Env{Stdin: stdin, Stdout: &out, Stderr: &errs, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	code := verbs.Run(ctx, e, args)
	if ctx.Err() != nil {
		t.Fatalf("viaduct %s did not end:\n%q\n%s", strings.Join(args, " "), lastBytes(out.String()), errs.String())
	}
	return result{out.String(), errs.String(), code}
}

// A lockedText is an io.Writer for several goroutines, collecting all written text.
type lockedText struct {
	mu sync.Mutex
	b  strings.Builder // guarded by mu
}

func (o *lockedText) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *lockedText) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// good runs a command and fails the test if the command fails.
func good(t *testing.T, args ...string) result {
	t.Helper()
	r := run(t, args...)
	if r.code != 0 {
		t.Fatalf("viaduct %s: exit %d\n%.1000q\n%s", strings.Join(args, " "), r.code, r.stdout, r.stderr)
	}
	return r
}

// fails runs a command and checks the exit code. The last line on stderr must contain reason and
// end with advice in parentheses.
func fails(t *testing.T, code int, reason string, args ...string) {
	t.Helper()
	r := run(t, args...)
	if r.code != code || !strings.HasPrefix(r.last(), "viaduct") || !strings.Contains(r.last(), reason) ||
		!strings.HasSuffix(r.last(), ")") {
		t.Errorf("viaduct %s: exit %d, want %d; last line %q, want %q in it", strings.Join(args, " "),
			r.code, code, r.last(), reason)
	}
}

// maxLines is the number of lines of stdout a proc keeps for a test. With more lines the process
// would block. A ping with an interval of 1 ms prints fewer lines within patience.
const maxLines = 1 << 17

// A proc is a running command.
type proc struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  chan string // lines of stdout
	mu   sync.Mutex
	errs strings.Builder // guarded by mu
	done chan struct{}
}

// start starts a command, waits until the command listens, and returns the n printed addresses. The
// process is killed at the end of the test.
func start(t *testing.T, n int, args ...string) (*proc, []string) {
	t.Helper()
	return startWith(t, func(*exec.Cmd) {}, n, args...)
}

// startWith is start for a command modified by prepare.
func startWith(t *testing.T, prepare func(*exec.Cmd), n int, args ...string) (*proc, []string) {
	t.Helper()
	p := begin(t, prepare, args...)
	var urls []string
	for len(urls) < n {
		u, ok := strings.CutPrefix(p.line(), "listening ")
		if !ok {
			t.Fatalf("no listening line\n%s", p.stderr())
		}
		urls = append(urls, u)
	}
	return p, urls
}

// begin starts a command after prepare has modified it, and does not wait for the exit.
func begin(t *testing.T, prepare func(*exec.Cmd), args ...string) *proc {
	t.Helper()
	return beginKeeping(t, maxLines, prepare, args...)
}

// beginKeeping is begin for a command that blocks when the test has not read the given number of
// lines of stdout, and those in the pipe. The lines must be read before the command can end: see
// drain.
func beginKeeping(t *testing.T, lines int, prepare func(*exec.Cmd), args ...string) *proc {
	t.Helper()
	p := &proc{t: t, cmd: command(context.Background(), args...), out: make(chan string, lines),
		done: make(chan struct{})}
	prepare(p.cmd)
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		sc := bufio.NewScanner(stdout)
		sc.Buffer(nil, 1<<24)
		for sc.Scan() {
			p.out <- sc.Text()
		}
		close(p.out)
	})
	wg.Go(func() {
		sc := bufio.NewScanner(stderr)
		for sc.Scan() {
			p.mu.Lock()
			p.errs.WriteString(sc.Text() + "\n")
			p.mu.Unlock()
		}
	})
	go func() { wg.Wait(); p.cmd.Wait(); close(p.done) }()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("stderr of viaduct %s:\n%s", strings.Join(args, " "), p.stderr())
		}
	})
	return p
}

func (p *proc) line() string {
	p.t.Helper()
	select {
	case l, ok := <-p.out:
		if !ok {
			p.t.Fatalf("the process ended\n%s", p.stderr())
		}
		return l
	case <-time.After(patience):
		p.t.Fatalf("no line came\n%s", p.stderr())
		return ""
	}
}

// drain drops the remaining lines of stdout.
func (p *proc) drain() {
	go func() {
		for range p.out {
		}
	}()
}

func (p *proc) stderr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.errs.String()
}

// waitStderr waits until stderr contains a text.
func (p *proc) waitStderr(text string) {
	p.t.Helper()
	eventually(p.t, "log line with "+text, func() bool { return strings.Contains(p.stderr(), text) })
}

// stop sends a signal, waits for the end of the process, and returns the exit code.
func (p *proc) stop(s syscall.Signal) int {
	p.t.Helper()
	p.cmd.Process.Signal(s)
	return p.wait()
}

func (p *proc) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		p.t.Fatalf("the process does not end\n%s", p.stderr())
		return -1
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// each runs f for every transport of this build over IPv4, and for the first transport over IPv6
// too. At full length, every transport uses both address families.
func each(t *testing.T, f func(t *testing.T, scheme, listen string)) {
	for n, scheme := range transport.Names() {
		for _, host := range []string{"127.0.0.1", "[::1]"} {
			if n == 0 || host == "127.0.0.1" || testkit.LongRuns() {
				t.Run(scheme+"/"+host, func(t *testing.T) {
					testkit.NeedHost(t, host)
					f(t, scheme, listenURL(scheme, host))
				})
			}
		}
	}
}

// schemes returns the transports for a test of behaviour common to all transports. At full length,
// schemes returns all transports, otherwise a message and a stream transport.
func schemes() []string {
	if testkit.LongRuns() {
		return transport.Names()
	}
	return []string{"iwarp", "sdp"}
}

func listenURL(scheme, host string) string {
	u := scheme + "://" + host + ":0"
	if hasDisc(scheme) {
		u += "/test"
	}
	return u
}

func hasDisc(scheme string) bool  { return scheme == "vitcp" || scheme == "fcvi" }
func isStream(scheme string) bool { return scheme == "tcp" || scheme == "sdp" }

// withQuery adds a parameter to an address.
func withQuery(u, q string) string {
	if strings.Contains(u, "?") {
		return u + "&" + q
	}
	return u + "?" + q
}

// at appends a path to an address, before the query.
func at(u, path string) string {
	base, query, ok := strings.Cut(u, "?")
	if ok {
		query = "?" + query
	}
	return base + "/" + path + query
}

func random(t *testing.T, path string, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return b
}

func same(t *testing.T, path string, want []byte) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes, %v, want %d equal ones", path, len(got), err, len(want))
	}
}

// files returns the sorted paths of all files below dir, relative to dir, including hidden files.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, p)
			names = append(names, rel)
		}
		return nil
	})
	slices.Sort(names)
	return names
}

func document(t *testing.T, r result) map[string]any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(r.stdout))
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("stdout is no JSON: %v\n%s", err, r.stdout)
	}
	if _, err := d.Token(); err != io.EOF {
		t.Fatalf("more than one document on stdout:\n%s", r.stdout)
	}
	return v
}
