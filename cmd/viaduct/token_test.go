package main

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestTokenFile: by RDMA and by HTTP, a server with a token serves clients with the same token. The
// server refuses other clients with an error naming the token, a log line and a metric. Neither
// error, log nor metric contains the token.
func TestTokenFile(t *testing.T) {
	t.Parallel()
	const secret = "correct-horse-battery-staple"
	work, root := t.TempDir(), t.TempDir()
	body := random(t, filepath.Join(root, "f"), 300_000)
	file := func(name, text string) string {
		f := filepath.Join(work, name)
		if err := os.WriteFile(f, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return f
	}
	right, wrong := file("right", secret), file("wrong", secret+"s")
	out := filepath.Join(work, "out")
	srv, urls := start(t, 2, "serve", "--root", root, "--writable", "--token-file", right, "--metrics", "127.0.0.1:0",
		"--listen", "vitcp://127.0.0.1:0/test", "--listen", "tcp://127.0.0.1:0")
	half := filepath.Join(work, "half")
	kept := random(t, half+".part", 1000) // the refusal does not show whether f exists, so that the part stays
	var said strings.Builder
	for _, u := range urls {
		good(t, "get", at(u, "f"), "-o", out, "--token-file", right)
		same(t, out, body)
		good(t, "put", out, at(u, "g"), "--token-file", right)
		for _, args := range [][]string{{"get", at(u, "f"), "-o", out}, {"get", "--resume", at(u, "f"), "-o", half}, {"put", out, at(u, "h")}, {"ls", u}, {"sync", "--parallel", "1", root, at(u, "w")}} {
			for file, want := range map[string]string{"": "a token is needed (--token-file) (give the token of the server by --token-file)",
				wrong: "the token is wrong (--token-file must have the token of the server)"} {
				args := args
				if file != "" {
					args = append(slices.Clone(args), "--retry", "1", "--token-file", file)
				}
				r := run(t, args...)
				if r.code != 1 || !strings.HasSuffix(r.last(), want) || strings.Contains(r.stderr, "trying again") {
					t.Errorf("viaduct %s: exit %d, want 1; stderr %q, want %q", strings.Join(args, " "),
						r.code, r.stderr, want)
				}
				said.WriteString(r.stderr)
			}
		}
	}
	same(t, out, body)
	same(t, half+".part", kept)
	if got := files(t, root); len(got) != 2 {
		t.Errorf("stored without the token: %v", got)
	}
	warned := "the token is readable on the way"
	if r := good(t, "ls", urls[1], "--token-file", right); !strings.Contains(r.stderr, warned) {
		t.Errorf("no warning about tcp: %s", r.stderr)
	}
	if r := good(t, "ls", urls[0], "--token-file", right); r.stderr != "" {
		t.Errorf("vitcp: %s", r.stderr)
	}

	eventually(t, "twenty refusals in the server's log", func() bool { // the lines may come after the answers
		return strings.Count(srv.stderr(), "request refused") >= 20
	})
	srv.waitStderr("metrics url=")
	m, err := http.Get(regexp.MustCompile(`metrics url=(\S+)`).FindStringSubmatch(srv.stderr())[1])
	if err != nil {
		t.Fatal(err)
	}
	defer m.Body.Close()
	text, err := io.ReadAll(m.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, scheme := range []string{"vitcp", "tcp"} {
		for _, kind := range []string{"missing", "wrong"} {
			if !bytes.Contains(text, []byte(`viaduct_token_refusals_total{kind="`+kind+`",transport="`+
				scheme+`"} 5`+"\n")) {
				t.Errorf("%s: not five refusals of %s in the metrics", scheme, kind)
			}
		}
	}
	log := srv.stderr()
	if strings.Count(log, "request refused") != 20 || strings.Count(log, "remote=127.0.0.1") != 20 ||
		!strings.Contains(log, warned) {
		t.Errorf("the server's log:\n%s", log)
	}
	if strings.Contains(log+said.String()+string(text), secret) {
		t.Error("the token shows")
	}

	open := file("open", secret)
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS != "windows" {
		fails(t, 1, "(chmod 600 "+open+")", "serve", "--root", root, "--listen", "vitcp://127.0.0.1:0/x",
			"--token-file", open)
		fails(t, 1, "(chmod 600 "+open+")", "ls", urls[0], "--token-file", open)
	}
	fails(t, 1, "has 5 characters", "ls", urls[0], "--token-file", file("short", "short"))
	_, urls = start(t, 1, "serve", "--root", root, "--listen", "vitcp://127.0.0.1:0/test")
	fails(t, 1, "(start the server with --token-file, or leave it out here)", "ls", urls[0], "--token-file", right)
}
