//go:build unix

package main

import (
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// oddNames are a plain name, and names with invalid UTF-8, a line break, a quote or a percent sign.
var oddNames = []string{"caf\xe9", "caf\xea", "d\xff/f\xfe", "line\nbreak", "quote\"", "100%", "plain"}

// sowOdd creates a file with each odd name and different content. It skips the test if the file
// system refuses a name.
func sowOdd(t *testing.T, root string) {
	t.Helper()
	for _, n := range oddNames {
		p := filepath.Join(root, n)
		os.MkdirAll(filepath.Dir(p), 0o755)
		if err := os.WriteFile(p, []byte("the bytes of "+n), 0o644); err != nil {
			t.Skipf("SKIPPED: the file system has no name %q: %v", n, err)
		}
	}
}

// TestAnyName: files of any name reach the server and come back unchanged over every transport. A
// second sync transfers no file, and the listing has one line per file.
func TestAnyName(t *testing.T) {
	t.Parallel()
	from := t.TempDir()
	sowOdd(t, from)
	for _, scheme := range schemes() {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			root, back := t.TempDir(), t.TempDir()
			_, urls := start(t, 1, "serve", "--root", root, "--writable", "--listen", listenURL(scheme, "127.0.0.1"))
			u := urls[0]
			r := good(t, "sync", from, at(u, "t"))
			alike(t, from, filepath.Join(root, "t"))
			if lines := strings.Split(strings.TrimSpace(r.stdout), "\n"); len(lines) != len(oddNames)+1 ||
				!slices.Contains(lines, `"line\nbreak"`) || !slices.Contains(lines, `"caf\xe9"`) {
				t.Errorf("%q", lines)
			}
			if d := document(t, good(t, "sync", from, at(u, "t"), "--json")); d["files"] != 0.0 ||
				d["alike"] != float64(len(oddNames)) {
				t.Errorf("again: %v", d)
			}
			if r := good(t, "ls", "-r", at(u, "t")); strings.Count(r.stdout, "\n") != len(oddNames)+1 ||
				!strings.Contains(r.stdout, `"d\xff/f\xfe"`) {
				t.Errorf("%q", r.stdout)
			}
			good(t, "get", "-r", at(u, "t"), "-o", back)
			alike(t, from, back)

			one := filepath.Join(t.TempDir(), "caf\xe8")
			body := random(t, one, 1000)
			d := document(t, good(t, "put", one, at(u, "one/"), "--json"))
			same(t, filepath.Join(root, "one/caf\xe8"), body)
			if enc, ok := d["file"].(map[string]any); !ok || enc["base64"] == nil {
				t.Errorf("file %v", d["file"])
			}
			os.Remove(one)
			good(t, "get", at(u, "one/"+url.PathEscape("caf\xe8")), "-o", one)
			same(t, one, body)
		})
	}
}

// TestLeftOut: put, sync and get leave out pipes, broken links and links to directories. The
// commands count and name these, copy all other files, and exit with 1.
func TestLeftOut(t *testing.T) {
	t.Parallel()
	from, outside := t.TempDir(), t.TempDir()
	random(t, filepath.Join(from, "f"), 100)
	random(t, filepath.Join(outside, "g"), 100)
	for link, to := range map[string]string{"nothing": "missing", "loop": "loop", "dir": outside, "out": filepath.Join(outside, "g"), "in": "f"} {
		if err := os.Symlink(to, filepath.Join(from, link)); err != nil {
			t.Skipf("SKIPPED: no symbolic links: %v", err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(from, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, scheme := range []string{"vitcp", "tcp"} {
		t.Run(scheme, func(t *testing.T) {
			root := t.TempDir()
			_, urls := start(t, 1, "serve", "--root", root, "--writable", "--listen", listenURL(scheme, "127.0.0.1"))
			fails(t, 1, "4 left out", "sync", from, at(urls[0], "a"))
			if got := files(t, filepath.Join(root, "a")); !slices.Equal(got, []string{"f", "in", "out"}) {
				t.Errorf("%q", got)
			}
			r := run(t, "put", "-r", from, at(urls[0], "b"), "--json")
			d := document(t, r)
			if out, _ := d["left_out"].([]any); r.code != 1 || len(out) != 4 || d["files"] != 3.0 {
				t.Errorf("exit %d: %v", r.code, d)
			}
			fails(t, 1, "1 left out", "put", "-r", "--no-follow", from, at(urls[0], "c"))
			if got := files(t, filepath.Join(root, "c")); !slices.Equal(got, []string{filepath.Base(from) + "/f"}) {
				t.Errorf("%q", got)
			}

			// Unlike put, the server does not follow a link leading out of the served directory.
			_, urls = start(t, 1, "serve", "--root", from, "--listen", listenURL(scheme, "127.0.0.1"))
			back := t.TempDir()
			fails(t, 1, "5 left out", "get", "-r", urls[0], "-o", back)
			if got := files(t, back); !slices.Equal(got, []string{"f", "in"}) {
				t.Errorf("%q", got)
			}
			if r := good(t, "ls", urls[0]); !strings.Contains(r.stdout, "- pipe\n") ||
				strings.Count(r.stdout, "\n") != 7 {
				t.Errorf("%q", r.stdout)
			}
		})
	}
}

// TestPutLinkToDirectory: put -r of a link copies the directory under the name of the link.
func TestPutLinkToDirectory(t *testing.T) {
	t.Parallel()
	from, root := t.TempDir(), t.TempDir()
	random(t, filepath.Join(from, "f"), 100)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(from, link); err != nil {
		t.Skipf("SKIPPED: no symbolic links: %v", err)
	}
	_, urls := start(t, 1, "serve", "--root", root, "--writable", "--listen", "vitcp://127.0.0.1:0/d")
	good(t, "put", "-r", link, urls[0])
	alike(t, from, filepath.Join(root, "link"))
}
