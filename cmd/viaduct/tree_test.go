package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"viaduct/internal/testkit"
)

// sow creates small files in dirs directories, a file of long bytes, and an empty file.
func sow(t *testing.T, root string, dirs, files, long int) {
	t.Helper()
	for d := range dirs {
		dir := filepath.Join(root, fmt.Sprintf("d%d", d%10), fmt.Sprintf("dir %d", d))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for f := range files / dirs {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%d", f)), []byte(fmt.Sprintf("%d of %d%s", f, d, strings.Repeat("x", f*37%900))), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	random(t, filepath.Join(root, "long"), long)
	random(t, filepath.Join(root, "empty"), 0)
}

// alike compares the names and contents of two directories.
func alike(t *testing.T, a, b string) {
	t.Helper()
	want, got := files(t, a), files(t, b)
	if strings.Join(want, "\n") != strings.Join(got, "\n") {
		t.Fatalf("%d files in %s, %d in %s: %.300q", len(want), a, len(got), b, got)
	}
	for _, f := range want {
		x, err := os.ReadFile(filepath.Join(a, f))
		if err != nil {
			t.Fatal(err)
		}
		y, err := os.ReadFile(filepath.Join(b, f))
		if err != nil || !bytes.Equal(x, y) {
			t.Fatalf("%s differs (%v)", f, err)
		}
	}
}

// TestTree: directories are copied to the server and back over every transport. Existing files are
// skipped on request, and sync can print the plan.
func TestTree(t *testing.T) {
	t.Parallel()
	from := t.TempDir()
	sow(t, from, 12, 120, 700<<10)
	for _, scheme := range schemes() {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			testkit.NeedHost(t, "[::1]")
			tree(t, scheme, listenURL(scheme, "[::1]"), from)
		})
	}
}

func tree(t *testing.T, scheme, listen, from string) {
	root, work := t.TempDir(), t.TempDir()
	_, urls := start(t, 1, "serve", "--root", root, "--writable", "--listen", listen)
	u := urls[0]

	d := document(t, good(t, "put", "-r", from, at(u, "tree"), "--json"))
	if d["files"] != 122.0 || d["alike"] != 0.0 || d["transport"] != scheme {
		t.Errorf("%v", d)
	}
	alike(t, from, filepath.Join(root, "tree", filepath.Base(from)))
	r := good(t, "sync", from, at(u, "tree/"+filepath.Base(from)))
	if !strings.Contains(r.stdout, "sync 0 files, 0 bytes") || !strings.Contains(r.stdout, "122 were there already") {
		t.Error(r.stdout)
	}

	back := filepath.Join(work, "back")
	if r := good(t, "get", "-r", at(u, "tree/"+filepath.Base(from)), "-o", back); strings.Count(r.stdout, "\n") != 123 {
		t.Errorf("%d lines: %.200s", strings.Count(r.stdout, "\n"), r.stdout)
	}
	alike(t, from, back)
	os.WriteFile(filepath.Join(back, "d1/dir 1/f3"), []byte("other"), 0o644)
	os.Remove(filepath.Join(back, "d1/dir 1/f4"))
	if d := document(t, good(t, "get", "-r", at(u, "tree/"+filepath.Base(from)), "-o", back, "--resume", "--json")); d["alike"].(float64) < 119 || d["files"].(float64) > 3 {
		t.Errorf("%v", d) // an empty file is copied again
	}
	alike(t, from, back)

	random(t, filepath.Join(back, "new"), 100)
	if r := good(t, "sync", "--dry-run", back, at(u, "tree/"+filepath.Base(from))); !strings.Contains(r.stdout, "new\n") || !strings.Contains(r.stdout, "would move 1 files, 100 bytes") {
		t.Error(r.stdout)
	}
	if _, err := os.Stat(filepath.Join(root, "tree", filepath.Base(from), "new")); err == nil {
		t.Error("--dry-run stored a file")
	}

	good(t, "put", filepath.Join(back, "new"), filepath.Join(back, "empty"), at(u, "several"))
	if got := files(t, filepath.Join(root, "several")); strings.Join(got, " ") != "empty new" {
		t.Errorf("%q", got)
	}
	ls := good(t, "ls", at(u, "several"))
	if ls.stdout != fmt.Sprintf("%15d empty\n%15d new\n", 0, 100) {
		t.Errorf("%q", ls.stdout)
	}
	if l := document(t, good(t, "ls", "-r", u, "--json")); len(l["entries"].([]any)) != 122+2+12+10+3 {
		t.Errorf("%d entries", len(l["entries"].([]any)))
	}
	fails(t, 1, "not found", "ls", at(u, "none"))
	fails(t, 1, "director", "ls", at(u, "several/new"))
	fails(t, 2, "-r stores", "put", from, filepath.Join(back, "new"), at(u, "x"))
	fails(t, 2, "--parallel", "sync", from, at(u, "x"), "--parallel", "0")
}

// TestTreeInterrupted: a copy ended by a signal, or by the end of either process, leaves only
// complete files on the server. Run again, the command copies the missing files.
func TestTreeInterrupted(t *testing.T) {
	t.Parallel()
	// The names are so long that the pipe of stdout does not take them all: the client cannot end
	// before the test has read them.
	from := filepath.Join(t.TempDir(), strings.Repeat("long", 50))
	sow(t, from, 20, 600, 2<<20)
	total := len(files(t, from))
	for _, scheme := range []string{"vitcp", "iwarp", "sdp"} {
		for _, how := range []string{"SIGINT", "kill the client", "kill the server"} {
			t.Run(scheme+"/"+how, func(t *testing.T) {
				t.Parallel()
				root := t.TempDir()
				server, urls := start(t, 1, "serve", "--root", root,
					"--writable", "--listen", listenURL(scheme, "127.0.0.1"))
				client := beginKeeping(t, 0, func(*exec.Cmd) {}, "put", "-r", "--parallel", "2", from, at(urls[0], "t"))
				t.Cleanup(client.drain)
				for range total / 5 {
					client.line()
				}
				switch how {
				case "SIGINT":
					began := time.Now()
					client.cmd.Process.Signal(syscall.SIGINT)
					client.drain()
					if code := client.wait(); code == 0 {
						t.Log("it was done before the signal was noticed")
					} else if took := time.Since(began); took > patience/2 {
						t.Errorf("SIGINT ended it after %v", took)
					}
				case "kill the client":
					client.cmd.Process.Kill()
					client.drain()
					client.wait()
				case "kill the server":
					server.stop(syscall.SIGKILL)
					client.drain()
					if code := client.wait(); code != 1 || !strings.Contains(client.stderr(), "--resume") {
						t.Errorf("exit %d: %s", code, client.stderr())
					}
					_, urls = start(t, 1, "serve", "--root", root,
						"--writable", "--listen", listenURL(scheme, "127.0.0.1"))
				}
				d := document(t, good(t, "put", "-r", "--resume", from, at(urls[0], "t"), "--json"))
				if n := d["files"].(float64) + d["alike"].(float64); n != float64(total) ||
					d["alike"].(float64) < float64(total/5-10) {
					t.Errorf("%v of %d files", d, total)
				}
				eventually(t, "nothing else at the server", func() bool { return len(files(t, root)) == total })
				alike(t, from, filepath.Join(root, "t", filepath.Base(from)))
			})
		}
	}
}

// TestTreeHostile: a client refuses names by which a server could make the client write outside the
// target.
func TestTreeHostile(t *testing.T) {
	t.Parallel()
	lengthy(t, "5 s")
	for _, name := range []string{"../evil", "/evil", "a/b", "..", ".", ""} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"entries":[{"name":`+strconv.Quote(name)+`,"size":1}]}`)
		}))
		dir := t.TempDir()
		fails(t, 1, "which is no name", "get", "-r", "tcp://"+l.Addr().String()+"/x", "-o", filepath.Join(dir, "in"))
		if got := files(t, dir); len(got) != 0 {
			t.Errorf("%q wrote %q", name, got)
		}
		l.Close()
	}
	// Nor does the client write through an existing link in the target.
	if runtime.GOOS == "windows" {
		return
	}
	root, dir, out := t.TempDir(), t.TempDir(), t.TempDir()
	os.Mkdir(filepath.Join(root, "sub"), 0o755)
	random(t, filepath.Join(root, "sub/f"), 10)
	os.Symlink(out, filepath.Join(dir, "sub"))
	_, urls := start(t, 1, "serve", "--root", root, "--listen", "tcp://127.0.0.1:0")
	if r := run(t, "get", "-r", urls[0], "-o", dir); r.code != 1 {
		t.Errorf("exit %d", r.code)
	}
	if got := files(t, out); len(got) != 0 {
		t.Errorf("a link led to %q", got)
	}
}

// TestTreeDiskFull: copying a directory to a full disk fails with the error "no space". Files
// copied so far are complete, and the copy continues once there is room.
func TestTreeDiskFull(t *testing.T) {
	t.Parallel()
	lengthy(t, "10 s")
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		t.Skip("SKIPPED: only root on Linux can mount a small file system")
	}
	disk := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", disk).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: mount: %v: %s", err, out)
	}
	t.Cleanup(func() { exec.Command("umount", disk).Run() })
	from := t.TempDir()
	sow(t, from, 4, 40, 1<<20)
	random(t, filepath.Join(from, "zz"), 4<<20)
	for _, scheme := range []string{"vitcp", "iwarp", "sdp"} {
		root := filepath.Join(disk, scheme)
		os.Mkdir(root, 0o755)
		_, urls := start(t, 1, "serve", "--root", root, "--writable", "--listen", listenURL(scheme, "127.0.0.1"))
		fails(t, 1, "no space", "sync", from, urls[0])
		if got := files(t, root); len(got) > 42 {
			t.Errorf("%s: %d files", scheme, len(got))
		}
		if out, err := exec.Command("mount", "-o", "remount,size=30m", disk).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		good(t, "sync", from, urls[0])
		alike(t, from, root)
		os.RemoveAll(root)
		eventually(t, "room on the small disk", func() bool { // the server may still hold the last file
			return exec.Command("mount", "-o", "remount,size=3m", disk).Run() == nil
		})
	}
}
