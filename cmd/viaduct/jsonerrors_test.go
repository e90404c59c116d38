package main

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestJSONFailure: a command with --json that fails prints a document that says why, and
// the same reason on stderr.
func TestJSONFailure(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	l.Close()
	for _, c := range []struct {
		status float64
		args   []string
	}{
		{1, []string{"ping", "tcp://" + at}},
		{1, []string{"get", "vitcp://" + at + "/x/f", "-o", filepath.Join(t.TempDir(), "f")}},
		{2, []string{"ping"}},
		{2, []string{"ping", "--no-such-flag", "tcp://" + at}},
		{2, []string{"no-such-verb"}},
		{1, []string{"serve", "--root", filepath.Join(t.TempDir(), "none"), "--listen", "tcp://127.0.0.1:0"}},
	} {
		r := run(t, append(c.args, "--json")...)
		d := document(t, r)
		if text, _ := d["error"].(string); float64(r.code) != c.status || d["status"] != c.status || text == "" || d["advice"] == "" {
			t.Errorf("%q: exit %d, %v", c.args, r.code, d)
		}
		if !strings.HasPrefix(r.last(), "viaduct") {
			t.Errorf("%q: last line %q", c.args, r.last())
		}
	}
}

// TestJSONListening: what listens says so in JSON with --json.
func TestJSONListening(t *testing.T) {
	root := t.TempDir()
	for _, args := range [][]string{{"echo"}, {"serve", "--root", root}, {"proxy", "--to", "tcp://127.0.0.1:1"}} {
		p, _ := start(t, 0, append(args, "--listen", "tcp://127.0.0.1:0", "--json")...)
		var v struct{ Listening string }
		if line := p.line(); json.Unmarshal([]byte(line), &v) != nil || !strings.HasPrefix(v.Listening, "tcp://127.0.0.1:") {
			t.Errorf("%q printed %q", args, line)
		}
	}
}

// TestOneLogger: what net/http logs has the format and the level of the rest, and a normal
// start logs no warning.
func TestOneLogger(t *testing.T) {
	p, urls := start(t, 1, "serve", "--root", t.TempDir(), "--listen", "tcp://127.0.0.1:0", "--tls", "--metrics", "127.0.0.1:0", "--log-format", "json", "--log-level", "info")
	c, err := net.Dial("tcp", strings.TrimPrefix(urls[0], "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	c.Write([]byte("GET / HTTP/1.0\r\n\r\n"))
	p.waitStderr("TLS handshake error")
	c.Close()
	for line := range strings.Lines(p.stderr()) {
		var v struct{ Level string }
		if err := json.Unmarshal([]byte(line), &v); err != nil || v.Level == "WARN" {
			t.Errorf("%v, level %q: %s", err, v.Level, line)
		}
	}
}

// TestPlainAtTLS: a client without --tls at a server with it, and the other way round, is
// told so at once.
func TestPlainAtTLS(t *testing.T) {
	root := t.TempDir()
	random(t, filepath.Join(root, "f"), 10)
	out := filepath.Join(t.TempDir(), "f")
	for _, scheme := range []string{"vitcp", "iwarp", "sdp", "tcp"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			listen := listenURL(scheme, "127.0.0.1")
			_, secure := start(t, 1, "serve", "--root", root, "--listen", listen, "--tls")
			_, plain := start(t, 1, "serve", "--root", root, "--listen", listen)
			for _, args := range [][]string{{"get", at(secure[0], "f"), "-o", out}, {"get", "--tls", at(plain[0], "f"), "-o", out}} {
				r := run(t, args...)
				if r.code != 1 || !strings.Contains(r.last(), "--tls") || strings.Contains(r.last(), "Config.") || strings.Contains(r.last(), "timeout") {
					t.Errorf("%q: exit %d, %q", args, r.code, r.last())
				}
			}
		})
	}
}

// TestForbidden: a file that the server may not read is 403 over HTTP, and told as such.
func TestForbidden(t *testing.T) {
	if runtime.GOOS == "windows" || os.Geteuid() == 0 {
		t.Skip("SKIPPED: root may read every file: only TestRefuse of httpfile looks at the status")
	}
	root := t.TempDir()
	os.WriteFile(filepath.Join(root, "f"), nil, 0)
	_, urls := start(t, 1, "serve", "--root", root, "--listen", "tcp://127.0.0.1:0")
	fails(t, 1, "403", "get", at(urls[0], "f"), "-o", filepath.Join(t.TempDir(), "f"))
}
