package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"viaduct/cmd/viaduct/internal/transport"
)

// TestLogForms: addresses are text in every event, an event without an error has no error
// attribute, and an orderly end is not logged as a break.
func TestLogForms(t *testing.T) {
	t.Parallel()
	for _, scheme := range transport.Names() {
		t.Run(scheme, func(t *testing.T) {
			srv, urls := start(t, 1, "echo", "--listen", listenURL(scheme, "127.0.0.1"),
				"--log-level", "debug", "--log-format", "json")
			r := good(t, "ping", urls[0], "-c", "2", "-i", "0", "--log-level", "debug", "--log-format", "json")
			srv.waitStderr(`"msg":"disconnected"`)
			if code := srv.stop(syscall.SIGTERM); code != 0 {
				t.Errorf("exit %d", code)
			}
			seen := map[string]int{}
			for l := range strings.Lines(r.stderr + srv.stderr()) {
				var e map[string]any
				if err := json.Unmarshal([]byte(l), &e); err != nil {
					t.Errorf("%s: %v", l, err)
					continue
				}
				for _, k := range []string{"local", "remote"} {
					switch at := e[k].(type) {
					case nil:
					case string:
						if at != "" {
							seen[k]++
						}
					default:
						t.Errorf("%s is no text: %s", k, l)
					}
				}
				if v, ok := e["err"]; ok && v == nil {
					t.Errorf("an error that is none: %s", l)
				}
				if e["level"] == "WARN" || e["msg"] == "connection broken" {
					t.Errorf("an orderly end: %s", l)
				}
			}
			local := scheme != "fcvi" && scheme != "tcp" // these log only the peer's address
			if seen["remote"] == 0 || (seen["local"] > 0) != local {
				t.Errorf("addresses are told in %v events", seen)
			}
			if scheme == "vitcp" && !strings.Contains(srv.stderr(), `"msg":"peer disconnected"`) {
				t.Error("no event of the peer's disconnection")
			}
		})
	}
}

// TestFilesQuiet: neither clients that store, list and fetch, nor a server stopped afterwards, log
// a warning.
func TestFilesQuiet(t *testing.T) {
	t.Parallel()
	lengthy(t, "5 s")
	dir := t.TempDir()
	random(t, filepath.Join(dir, "f"), 100_000)
	for _, scheme := range transport.Names() {
		srv, urls := start(t, 1, "serve", "--root", t.TempDir(),
			"--writable", "--listen", listenURL(scheme, "127.0.0.1"), "--log-level", "info")
		var said strings.Builder
		for _, args := range [][]string{{"put", filepath.Join(dir, "f"), at(urls[0], "f")}, {"ls", at(urls[0], "")}, {"get", at(urls[0], "f"), "-o", filepath.Join(dir, "g")}} {
			said.WriteString(good(t, append(args, "--log-level", "info")...).stderr)
		}
		if code := srv.stop(syscall.SIGTERM); code != 0 {
			t.Errorf("%s: exit %d", scheme, code)
		}
		if s := said.String() + srv.stderr(); strings.Contains(s, "level=WARN") || strings.Contains(s, "level=ERROR") {
			t.Errorf("%s: %s", scheme, s)
		}
	}
}

// TestHints: the advice of an error fits the cause. A refused put names --writable, a missing file
// the path, and an unreadable local file no port.
func TestHints(t *testing.T) {
	t.Parallel()
	for _, scheme := range transport.Names() {
		root, work := t.TempDir(), t.TempDir()
		random(t, filepath.Join(work, "f"), 10)
		_, urls := start(t, 1, "serve", "--root", root, "--listen", listenURL(scheme, "127.0.0.1"))
		fails(t, 1, "--writable", "put", filepath.Join(work, "f"), at(urls[0], "x"))
		if r := run(t, "get", at(urls[0], "none"), "-o", filepath.Join(work, "x")); r.code != 1 ||
			strings.Contains(r.last(), "--writable") || !strings.Contains(r.last(), "check the path") {
			t.Errorf("%s: %s", scheme, r.last())
		}
	}
	if runtime.GOOS != "windows" && os.Getuid() != 0 { // root may read every file
		secret := filepath.Join(t.TempDir(), "f")
		random(t, secret, 10)
		os.Chmod(secret, 0)
		if r := run(t, "put", secret, "tcp://127.0.0.1:1/x"); r.code != 1 || strings.Contains(r.last(), "1023") {
			t.Errorf("%s", r.last())
		}
	}
}

// TestBackslash: where / separates path elements, a backslash is an ordinary character of a name.
func TestBackslash(t *testing.T) {
	t.Parallel()
	if filepath.Separator == '\\' {
		t.Skip("SKIPPED: a backslash separates here")
	}
	for _, scheme := range transport.Names() {
		root, work := t.TempDir(), t.TempDir()
		body := random(t, filepath.Join(work, `a\b`), 1000)
		_, urls := start(t, 1, "serve", "--root", root, "--writable", "--listen", listenURL(scheme, "127.0.0.1"))
		good(t, "put", filepath.Join(work, `a\b`), at(urls[0], ""))
		same(t, filepath.Join(root, `a\b`), body)
		good(t, "get", at(urls[0], `a%5Cb`), "-o", filepath.Join(work, "back"))
		same(t, filepath.Join(work, "back"), body)
	}
}
