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

// TestOneLogger: log lines of net/http have the same format and level as all other lines, and a
// normal start logs no warning.
func TestOneLogger(t *testing.T) {
	t.Parallel()
	p, urls := start(t, 1, "serve", "--root", t.TempDir(), "--listen", "tcp://127.0.0.1:0",
		"--tls", "--metrics", "127.0.0.1:0", "--log-format", "json", "--log-level", "info")
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

// TestPlainAtTLS: if only one of client and server uses --tls, the client's error says so at once.
func TestPlainAtTLS(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	random(t, filepath.Join(root, "f"), 10)
	for _, scheme := range []string{"vitcp", "iwarp", "sdp", "tcp"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			out := filepath.Join(t.TempDir(), "f")
			listen := listenURL(scheme, "127.0.0.1")
			_, secure := start(t, 1, "serve", "--root", root, "--listen", listen, "--tls")
			_, plain := start(t, 1, "serve", "--root", root, "--listen", listen)
			for _, args := range [][]string{{"get", at(secure[0], "f"), "-o", out}, {"get", "--tls", at(plain[0], "f"), "-o", out}} {
				r := run(t, args...)
				if r.code != 1 || !strings.Contains(r.last(), "--tls") ||
					strings.Contains(r.last(), "Config.") || strings.Contains(r.last(), "timeout") {
					t.Errorf("%q: exit %d, %q", args, r.code, r.last())
				}
			}
		})
	}
}

// TestForbidden: get of a file not readable by the server fails, and the error names status 403.
func TestForbidden(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" || os.Geteuid() == 0 {
		t.Skip("SKIPPED: root may read every file: only TestRefuse of httpfile looks at the status")
	}
	root := t.TempDir()
	os.WriteFile(filepath.Join(root, "f"), nil, 0)
	_, urls := start(t, 1, "serve", "--root", root, "--listen", "tcp://127.0.0.1:0")
	fails(t, 1, "403", "get", at(urls[0], "f"), "-o", filepath.Join(t.TempDir(), "f"))
}
