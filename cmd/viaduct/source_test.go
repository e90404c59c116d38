//go:build unix

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestPutStream: put stores a stream of unknown length up to the end, and stores nothing if the
// client ends before the stream.
func TestPutStream(t *testing.T) {
	t.Parallel()
	for _, scheme := range schemes() {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			root, work := t.TempDir(), t.TempDir()
			_, urls := start(t, 1, "serve", "--root", root, "--writable", "--max-file", "8M",
				"--listen", listenURL(scheme, "127.0.0.1"))
			u := urls[0]
			for _, n := range []int{0, 1, 1 << 20, 5<<20 + 77} {
				body := random(t, filepath.Join(work, "f"), n)
				r := runFrom(t, io.MultiReader(bytes.NewReader(body)), "put", "-", at(u, "d/s"), "--json")
				if d := document(t, r); r.code != 0 || d["bytes"] != float64(n) ||
					d["size"] != float64(n) || d["verified"] != true {
					t.Fatalf("%d bytes: exit %d, %v, %s", n, r.code, d, r.stderr)
				}
				same(t, filepath.Join(root, "d/s"), body)
			}

			// put reads from the pipe written by get.
			fifo := filepath.Join(work, "fifo")
			if err := syscall.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			put, _ := start(t, 0, "put", fifo, at(u, "piped/"))
			good(t, "get", at(u, "d/s"), "-o", fifo)
			if code := put.wait(); code != 0 {
				t.Errorf("exit %d: %s", code, put.stderr())
			}
			want, _ := os.ReadFile(filepath.Join(root, "d/s"))
			same(t, filepath.Join(root, "piped/fifo"), want)

			for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
				p, _ := start(t, 0, "put", "-", at(u, "cut"))
				p.in.Write(make([]byte, 2<<20+1)) // without the end of the stream
				if code := p.stop(s); code == 0 || s == syscall.SIGINT && !strings.Contains(p.stderr(), "interrupted") {
					t.Errorf("%v: exit %d, %s", s, code, p.stderr())
				}
			}
			r := runFrom(t, io.LimitReader(zeros{}, 9<<20), "put", "-", at(u, "long"))
			if r.code != 1 || !strings.Contains(r.last(), "too large") || !strings.Contains(r.last(), "--max-file") {
				t.Errorf("exit %d, %s", r.code, r.last())
			}
			eventually(t, "nothing else at the server",
				func() bool { return strings.Join(files(t, root), " ") == "d/s piped/fifo" })
			fails(t, 2, "has no name", "put", "-", at(u, "d/"))
			fails(t, 2, "- goes with neither", "put", "-", filepath.Join(work, "f"), at(u, "d"))

			_, urls = start(t, 1, "serve", "--root", root, "--listen", listenURL(scheme, "127.0.0.1"))
			p, _ := start(t, 0, "put", "-", at(urls[0], "x")) // the server refuses before any byte is sent
			if code := p.wait(); code != 1 || !strings.Contains(p.stderr(), "--writable") {
				t.Errorf("exit %d, %s", code, p.stderr())
			}
		})
	}
}
