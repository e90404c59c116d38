//go:build unix

package main

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"viaduct/cmd/viaduct/internal/conform"
	"viaduct/internal/testkit"
)

// conformReport runs conform --json, checks the exit code want, and returns the report.
func conformReport(t *testing.T, want int, args ...string) (r conform.Report) {
	t.Helper()
	out := run(t, append([]string{"conform", "--json"}, args...)...)
	if err := json.Unmarshal([]byte(lastLine(out.stdout)), &r); err != nil || out.code != want {
		t.Fatalf("conform %v: exit %d, want %d; %v\n%s%s", args, out.code, want, err, out.stdout, out.stderr)
	}
	return r
}

// allPass fails the test unless at least five cases ran, and all cases passed or were skipped for
// lack of --dangerous.
func allPass(t *testing.T, r conform.Report) {
	t.Helper()
	for _, x := range r.Results {
		if x.Verdict != conform.Pass && !(x.Verdict == conform.Skip && strings.Contains(x.Detail, "--dangerous")) {
			t.Errorf("%s (%s): %s %s %s", x.Name, x.Role, x.Verdict, x.Row, x.Detail)
		}
	}
	if len(r.Results) < 5 {
		t.Errorf("only %d cases", len(r.Results))
	}
}

// conformPeers are the servers tested by conform.
var conformPeers = []struct {
	scheme, listen string
	args           []string
}{
	{"iwarp", "iwarp://127.0.0.1:0", []string{"echo", "--listen"}},
	{"vitcp", "vitcp://127.0.0.1:0/x", []string{"echo", "--listen"}},
	{"sdp", "sdp://127.0.0.1:0", []string{"echo", "--listen"}},
	{"fcvi", "fcvi://127.0.0.1:0/x", []string{"echo", "--listen"}},
	{"portmap", "127.0.0.1:0", []string{"portmap", "serve", "--map", "127.0.0.1:80=127.0.0.1:8080", "--listen"}},
}

// TestConform: this build passes all cases, in every protocol and role.
func TestConform(t *testing.T) {
	t.Parallel()
	for _, p := range conformPeers {
		t.Run(p.scheme, func(t *testing.T) {
			t.Parallel()
			_, urls := start(t, 1, append(p.args, p.listen)...)
			allPass(t, conformReport(t, 0, "--dangerous", "--patience", "10s", conformTarget(urls[0])))
		})
	}
	if !testkit.LongRuns() {
		t.Log("the clients are left out: VIADUCT_LONG=1 tests them, which starts a process for each case")
		return
	}
	for _, p := range conformDialers { // the started clients inherit the variable that makes them the command
		t.Run(p.scheme+" active", func(t *testing.T) {
			t.Parallel()
			allPass(t, conformReport(t, 0, "--dangerous", "--patience", "10s", "--listen", "--exec", "exec "+
				os.Args[0]+" "+p.command, p.listen))
		})
	}
}

// conformDialers are the clients tested by conform.
var conformDialers = []struct {
	scheme, listen, command string
}{
	{"iwarp", "iwarp://127.0.0.1:0", "ping {url} -c 4"},
	{"vitcp", "vitcp://127.0.0.1:0/x", "ping {url} -c 4"},
	{"sdp", "sdp://127.0.0.1:0", "ping {url} -c 4"},
	{"fcvi", "fcvi://127.0.0.1:0/x", "ping {url} -c 4"},
	{"portmap", "portmap://127.0.0.1:0", "portmap query 127.0.0.1:80 --server {address}"},
}

// conformTarget returns an address in the form expected by conform: portmap:// for udp://.
func conformTarget(url string) string { return strings.Replace(url, "udp://", "portmap://", 1) }

// TestConformReports checks the formats of the report, and the refusal of invalid arguments.
func TestConformReports(t *testing.T) {
	t.Parallel()
	_, urls := start(t, 1, "echo", "--listen", "iwarp://127.0.0.1:0")
	dir := t.TempDir()
	junit, html := filepath.Join(dir, "x.xml"), filepath.Join(dir, "x.html")
	out := good(t, "conform", urls[0], "--only", "iwarp/reply", "--only", "MPA-4.4-15", "--junit", junit, "--html", html).stdout
	if strings.Count(out, "\n") != 3 || !strings.Contains(out, "2 passed, 0 failed") {
		t.Errorf("printed\n%s", out)
	}
	var suite struct {
		Tests    int `xml:"tests,attr"`
		Testcase []struct {
			Name string `xml:"name,attr"`
		} `xml:"testcase"`
	}
	b, err := os.ReadFile(junit)
	if err != nil || xml.Unmarshal(b, &suite) != nil || suite.Tests != 2 || len(suite.Testcase) != 2 {
		t.Errorf("%v: %s", err, b)
	}
	if b, err = os.ReadFile(html); err != nil || !strings.Contains(string(b), "MPA-4.4-15") ||
		!strings.Contains(string(b), "2 passed") {
		t.Errorf("%v: %s", err, b)
	}
	fails(t, 2, "names no case", "conform", urls[0], "--only", "nonsense")
	fails(t, 2, "no cases", "conform", "tcp://127.0.0.1:1")
	fails(t, 2, "missing", "conform")
	fails(t, 2, "fcvi://, portmap://", "conform", "foo")
	fails(t, 2, "portmap", "conform", "--list", "foo")
	fails(t, 2, "needs --listen", "conform", "--exec", "true", "iwarp://127.0.0.1:1")
	fails(t, 1, "refused", "conform", "iwarp://127.0.0.1:1")
}

// TestConformWait: with --wait the peer may be started after conform, in either role.
func TestConformWait(t *testing.T) {
	t.Parallel()
	for _, p := range []struct {
		url, only string
		peer      []string
	}{
		{fmt.Sprintf("iwarp://127.0.0.1:%d", freePort(t)), "iwarp/reply", []string{"echo", "--listen", "{url}"}},
		{fmt.Sprintf("portmap://127.0.0.1:%d", freePort(t)), "portmap/answer", []string{"portmap", "serve", "--map", "127.0.0.1:80=127.0.0.1:8080", "--listen", "{address}"}},
	} {
		cl, _ := start(t, 0, "conform", p.url, "--only", p.only, "--wait", "1m")
		select {
		case <-cl.done:
			t.Fatalf("conform %s did not wait: %s", p.url, cl.stderr())
		case <-time.After(200 * time.Millisecond): // conform has tried to connect by now
		}
		_, address, _ := strings.Cut(p.url, "://")
		args := slices.Clone(p.peer)
		args[len(args)-1] = strings.NewReplacer("{url}", p.url, "{address}", address).Replace(args[len(args)-1])
		start(t, 1, args...)
		if code := cl.wait(); code != 0 {
			t.Errorf("conform %s: exit %d: %s", p.url, code, cl.stderr())
		}
	}
	cl, urls := start(t, 1, "conform", "--listen", "iwarp://127.0.0.1:0", "--only", "iwarp/request", "--wait", "1m")
	run(t, "ping", urls[0], "-c", "1") // ping ends with the case
	if code := cl.wait(); code != 0 {
		t.Errorf("conform --listen: exit %d: %s", code, cl.stderr())
	}
	fails(t, 1, "refused", "conform", "iwarp://127.0.0.1:1", "--wait", "100ms")
	fails(t, 1, "no Port Mapper answers", "conform", "portmap://127.0.0.1:1", "--wait", "200ms")
	fails(t, 1, "does not dial in time", "conform", "--listen", "sdp://127.0.0.1:0", "--wait", "100ms")
	fails(t, 2, "nothing to --wait for", "conform", "--listen", "sdp://127.0.0.1:0", "--exec", "true", "--wait", "1s")
	fails(t, 2, "negative", "conform", "iwarp://127.0.0.1:1", "--wait", "-1s")
}

// TestConformRows: every requirement named by a case exists.
func TestConformRows(t *testing.T) {
	t.Parallel()
	var known strings.Builder
	files, err := filepath.Glob("../../docs/requirements/*.md")
	if err != nil || len(files) < 4 {
		t.Fatal(err, files)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		known.Write(b)
	}
	var doc struct{ Cases []conform.Case }
	if err := json.Unmarshal([]byte(good(t, "conform", "--list", "--json").stdout), &doc); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/conform.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, scheme := range []string{"iwarp", "vitcp", "sdp", "fcvi", "portmap", "roce"} { // docs/conform.md has the numbers of cases
		row := regexp.MustCompile(fmt.Sprintf(`(?m)^\|.*%s://.* \| %d\b.* \| %d\b.* \|$`, scheme,
			len(conform.Cases(scheme, conform.Passive)), len(conform.Cases(scheme, conform.Active))))
		if !row.Match(page) {
			t.Errorf("docs/conform.md has no row %v", row)
		}
	}
	names := map[string]bool{}
	for _, c := range doc.Cases {
		key := c.Name + " " + string(c.Role)
		if names[key] || c.Text == "" || len(c.Rows) == 0 {
			t.Errorf("case %q twice, or without text or requirement", key)
		}
		names[key] = true
		for _, row := range c.Rows {
			if !strings.Contains(known.String(), "| "+row+" |") {
				t.Errorf("%s names %s, which does not exist", c.Name, row)
			}
		}
	}
}

// conformFaults lists the faults of internal/fault, each with the violated requirement.
var conformFaults = []struct {
	name, scheme, row string
}{
	{"mpa-reply-key", "iwarp", "MPA-7.1.1-3"},
	{"mpa-reserved-bits", "iwarp", "MPA-7.1.1-13"},
	{"mpa-reply-revision", "iwarp", "MPA-7.1.1-15"},
	{"mpa-key-unchecked", "iwarp", "MPA-7.1.1-2"},
	{"mpa-private-unchecked", "iwarp", "MPA-7.1.1-20"},
	{"mpa-crc-made", "iwarp", "MPA-4.1-6"},
	{"mpa-crc-unchecked", "iwarp", "MPA-4.4-15"},
	{"mpa-pad", "iwarp", "MPA-4.1-3"},
	{"mpa-markers", "iwarp", "MPA-4.3-8"},
	{"ddp-reserved-bits", "iwarp", "DDP-4.1-8"},
	{"ddp-version-unchecked", "iwarp", "DDP-4.1-11"},
	{"ddp-first-msn", "iwarp", "DDP-4.3-7"},
	{"ddp-mo", "iwarp", "DDP-5.2-5"},
	{"ddp-msn-unchecked", "iwarp", "DDP-7.1-8"},
	{"ddp-queue-code", "iwarp", "DDP-7.1-1"},
	{"rdmap-version-unchecked", "iwarp", "RDMAP-7.2-3"},
	{"rdmap-invalidate-field", "iwarp", "RDMAP-4.1-9"},
	{"rdmap-terminate-nibbles", "iwarp", "RDMAP-4.8-2"},
	{"rdmap-terminate-length", "iwarp", "RDMAP-4.8-6"},
	{"vitcp-version-unchecked", "vitcp", "VIT-3.1-2"},
	{"vitcp-offset", "vitcp", "VIT-3.1-8"},
	{"vitcp-length", "vitcp", "VIT-3.1-7"},
	{"vitcp-immediate", "vitcp", "VIT-3.1-9"},
	{"vitcp-error-type", "vitcp", "VIT-3.1-ERR-3"},
	{"vitcp-mtu", "vitcp", "VIT-3.2-5"},
	{"sdp-flags", "sdp", "SDP-6.1.2-2"},
	{"sdp-mseq", "sdp", "SDP-6.1.5-1"},
	{"sdp-len", "sdp", "SDP-6.1.4-1"},
	{"sdp-adverts", "sdp", "SDP-6.2.2.3-1"},
	{"sdp-version-unchecked", "sdp", "SDP-6.2.1.1-2"},
	{"fcip-nonce-unchecked", "fcvi", "FCFS-2.4-4"},
	{"fc-crc", "fcvi", "FCFS-2.1-4"},
	{"fcvi-reserved", "fcvi", "FCVI-5.9.5-1"},
	{"fcvi-handle", "fcvi", "FCVI-4-4"},
	{"fcvi-r-ctl", "fcvi", "FCVI-5.1-4"},
	{"fcvi-last-sequence", "fcvi", "FCVI-5.3.2-2"},
	{"fcvi-version-unchecked", "fcvi", "FCVI-6.9-3"},
	{"fcvi-window-unchecked", "fcvi", "FCVI-7.3-3"},
	{"portmap-handle", "portmap", "SDP-7.3.1.8-2"},
	{"portmap-reserved", "portmap", "SDP-7.3.1.5-1"},
	{"portmap-port", "portmap", "SDP-7.3.1.7-1"},
	{"portmap-version-unchecked", "portmap", "SDP-7.3.1.1-1"},
}

// conformDialFaults lists the faults of the dialling side.
var conformDialFaults = []struct {
	name, scheme, row string
}{
	{"rdmap-terminate-nibbles", "iwarp", "RDMAP-4.8-2"},
	{"vitcp-offset", "vitcp", "VIT-3.1-8"},
	{"vitcp-credit", "vitcp", "VIT-3.1-17"},
	{"vitcp-version-unchecked", "vitcp", "VIT-3.1-2"},
	{"sdp-mseq", "sdp", "SDP-6.1.5-1"},
	{"sdp-ack-unchecked", "sdp", "SDP-6.2.2.1-2"},
	{"portmap-reserved", "portmap", "SDP-7.3.1.5-1"},
	{"portmap-version-unchecked", "portmap", "SDP-7.3.1.1-1"},
	{"fcip-echo-unchecked", "fcvi", "FCFS-2.4-3"},
	{"fcip-nonce", "fcvi", "FCFS-2.4-7"},
	{"fc-crc", "fcvi", "FCFS-2.1-4"},
	{"fc-types", "fcvi", "FCVI-7.6-1"},
	{"fcvi-types-unchecked", "fcvi", "FCVI-7.6-4"},
	{"fcvi-name-unchecked", "fcvi", "FCVI-7.4-3"},
	{"fcvi-reserved", "fcvi", "FCVI-5.9.5-1"},
	{"fcvi-r-ctl", "fcvi", "FCVI-5.1-4"},
	{"fcvi-version-unchecked", "fcvi", "FCVI-6.9-3"},
	{"fcvi-window-unchecked", "fcvi", "FCVI-7.3-3"},
	{"fcvi-retry", "fcvi", "FCVI-8.5-2"},
	{"fcvi-unconfirmed", "fcvi", "FCVI-5.3.2-9"},
}

// TestConformFaults runs conform against a build with deliberate faults, a single fault at a time.
// conform must report the violated requirement.
func TestConformFaults(t *testing.T) {
	t.Parallel()
	testkit.Long(t, "20 s")
	if raceDetector {
		t.Skip("the programs with faults are built without the race detector: TestConform has those that are built with it")
	}
	faulty := filepath.Join(t.TempDir(), "viaduct")
	if out, err := exec.Command("go", "build", "-tags", "faults", "-o", faulty, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, 4)
	for _, f := range conformFaults {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			p, url := startFaulty(t, faulty, f.name, f.scheme)
			if p == nil {
				return
			}
			defer func() { p.Process.Kill(); p.Wait() }()
			args := []string{"--only", f.row, conformTarget(url)}
			if f.row == "FCVI-4-4" || f.row == "FCVI-5.1-4" {
				args = args[2:] // --only finds no case by these: all cases check them
			}
			found(t, f.name, f.row, args...)
		})
	}
	for _, f := range conformDialFaults {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			for _, p := range conformDialers {
				if p.scheme == f.scheme {
					found(t, f.name, f.row, "--only", f.row, "--listen", "--exec", "VIADUCT_FAULT="+
						f.name+" exec "+faulty+" "+p.command, p.listen)
				}
			}
		})
	}
	wg.Wait()
}

// found runs conform. conform must exit with 1 and report a failure of the requirement row. A peer on
// a busy machine may be slower than most cases need to wait, so that a second run waits longer.
func found(t *testing.T, fault, row string, args ...string) {
	var missed string
	for _, patience := range []string{"2s", "20s"} {
		out := run(t, append([]string{"conform", "--json", "--patience", patience}, args...)...)
		var r conform.Report
		if err := json.Unmarshal([]byte(lastLine(out.stdout)), &r); err != nil {
			t.Errorf("%s: %v\n%s", fault, err, out.stderr)
			return
		}
		all, named := []string{}, false
		for _, x := range r.Results {
			if x.Verdict == conform.Fail {
				all = append(all, x.Row+" ("+x.Name+": "+x.Detail+")")
				named = named || x.Row == row
			}
		}
		if named && out.code == 1 {
			return
		}
		missed = fmt.Sprintf("exit %d; %s is not among what was found: %s", out.code, row, strings.Join(all, "; "))
		t.Logf("%s, with a patience of %s: %s", fault, patience, missed)
	}
	t.Errorf("%s: %s", fault, missed)
}

// startFaulty starts the server of a scheme with one fault, and returns the server's process and
// address. If the server does not start, the process is nil and the test has failed.
func startFaulty(t *testing.T, binary, fault, scheme string) (*exec.Cmd, string) {
	for _, p := range conformPeers {
		if p.scheme != scheme {
			continue
		}
		c := exec.Command(binary, append(p.args, p.listen)...)
		c.Env = append(os.Environ(), "VIADUCT_FAULT="+fault)
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Error(err)
			return nil, ""
		}
		b := make([]byte, 200)
		n, _ := out.Read(b)
		url, ok := strings.CutPrefix(strings.TrimSpace(string(b[:n])), "listening ")
		if !ok {
			t.Errorf("%s printed %q", fault, b[:n])
			c.Process.Kill()
			c.Wait()
			return nil, ""
		}
		return c, url
	}
	t.Errorf("no peer of %s", scheme)
	return nil, ""
}
