package main

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"viaduct/cmd/viaduct/internal/transport"
)

func TestTransfer(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, scheme, listen string) {
		root, work := t.TempDir(), t.TempDir()
		body := random(t, filepath.Join(root, "big file"), 3<<20+12345)
		random(t, filepath.Join(root, "empty"), 0)
		_, urls := start(t, 1, "serve", "--root", root, "--writable", "--listen", listen)
		u := urls[0]
		in := func(name string) string { return filepath.Join(work, name) }

		good(t, "get", at(u, "big%20file"), "-o", in("copy"))
		same(t, in("copy"), body)
		good(t, "get", at(u, "empty"), "-o", in("nothing"))
		same(t, in("nothing"), nil)

		sum := sha256.Sum256(body)
		d := document(t, good(t, "get", at(u, "big%20file"), "-o", in("copy"), "--json"))
		if d["sha256"] != hex.EncodeToString(sum[:]) || d["bytes"] != float64(len(body)) ||
			d["verified"] != true || d["transport"] != scheme {
			t.Errorf("%v", d)
		}
		if r := good(t, "get", at(u, "big%20file"), "-o", "-"); r.stdout != string(body) {
			t.Errorf("%d bytes on stdout", len(r.stdout))
		}

		good(t, "put", in("copy"), at(u, "a/b/stored"))
		same(t, filepath.Join(root, "a/b/stored"), body)
		random(t, in("small"), 5)
		good(t, "put", in("small"), at(u, "a/b/stored")) // replaces the stored file
		d = document(t, good(t, "put", in("nothing"), at(u, "a/"), "--json"))
		same(t, filepath.Join(root, "a/nothing"), nil)
		if d["size"] != 0.0 || d["verified"] != true {
			t.Errorf("%v", d)
		}

		fails(t, 1, "not found", "get", at(u, "none"), "-o", in("x"))
		fails(t, 1, "bad path", "get", at(u, "a%2F..%2F..%2Fetc%2Fpasswd"), "-o", in("x"))
		fails(t, 1, "is a directory", "put", in("small"), at(u, "a/b"))
		fails(t, 1, "no such file", "put", in("none"), at(u, "x"))
		if got := files(t, work); len(got) != 3 {
			t.Errorf("the working directory holds %v", got)
		}
		if got := files(t, root); strings.Join(got, " ") != "a/b/stored a/nothing big file empty" {
			t.Errorf("the root holds %v", got)
		}
	})
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	for _, scheme := range transport.Names() {
		root := t.TempDir()
		_, urls := start(t, 1, "serve", "--root", root, "--listen", listenURL(scheme, "127.0.0.1"))
		fails(t, 1, "read-only", "put", os.Args[0], at(urls[0], "x"))
		if got := files(t, root); len(got) != 0 {
			t.Errorf("%s: the root holds %v", scheme, got)
		}
	}
}

func TestResume(t *testing.T) {
	t.Parallel()
	for _, scheme := range schemes() {
		t.Run(scheme, func(t *testing.T) {
			root, work := t.TempDir(), t.TempDir()
			body := random(t, filepath.Join(root, "f"), 2<<20+7)
			_, urls := start(t, 1, "serve", "--root", root, "--listen", listenURL(scheme, "127.0.0.1"))
			u, out := at(urls[0], "f"), filepath.Join(work, "out")
			write := func(name string, b []byte) {
				if err := os.WriteFile(name, b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			offset := func(r result) float64 { return document(t, r)["offset"].(float64) }

			write(out+".part", body[:1<<20])
			if n := offset(good(t, "get", u, "-o", out, "--resume", "--json")); n != 1<<20 {
				t.Errorf("went on from %v", n)
			}
			same(t, out, body)
			if n := offset(good(t, "get", u, "-o", out, "--resume", "--json")); n != float64(len(body)) { // complete
				t.Errorf("went on from %v", n)
			}
			same(t, out, body)
			write(out, body[:5]) // an incomplete file with the final name
			if n := offset(good(t, "get", u, "-o", out, "--resume", "--json")); n != 5 {
				t.Errorf("went on from %v", n)
			}
			same(t, out, body)

			// The existing part belongs to another file. The result must not mix the two.
			write(out+".part", append([]byte("X"), body[1:1<<20]...))
			d := document(t, good(t, "get", u, "-o", out, "--resume", "--json"))
			if d["offset"] != 0.0 || d["bytes"] != float64(len(body)) {
				t.Errorf("%v", d)
			}
			same(t, out, body)
			write(out+".part", make([]byte, len(body)+1)) // a part that is longer than the file
			good(t, "get", u, "-o", out, "--resume")
			same(t, out, body)
			if strings.Contains(strings.Join(files(t, work), " "), "part") {
				t.Errorf("left %v", files(t, work))
			}
		})
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	work := t.TempDir()
	for _, scheme := range transport.Names() {
		u := strings.Replace(listenURL(scheme, "127.0.0.1"), ":0", ":1", 1)
		fails(t, 1, "", "get", at(u, "x"), "-o", filepath.Join(work, "x"))
		fails(t, 1, "", "ping", u, "-c", "1")
	}
	if got := files(t, work); len(got) != 0 {
		t.Errorf("left %v", got)
	}
	_, urls := start(t, 1, "serve", "--root", work, "--listen", "vitcp://127.0.0.1:0/right")
	fails(t, 1, "check the discriminator", "get", strings.Replace(urls[0], "right", "wrong", 1)+"/x",
		"-o", filepath.Join(work, "x"))
}

// TestKill: if client or server is killed in the middle of a put, the server has no partial file.
func TestKill(t *testing.T) {
	t.Parallel()
	for _, scheme := range schemes() {
		for _, victim := range []string{"client", "server"} {
			t.Run(scheme+"/"+victim, func(t *testing.T) {
				root, work := t.TempDir(), t.TempDir()
				src := filepath.Join(work, "src")
				f, err := os.Create(src)
				if err != nil {
					t.Fatal(err)
				}
				if err := f.Truncate(192 << 20); err != nil { // sparse: costs nothing here
					t.Fatal(err)
				}
				f.Close()
				// On a fast disk the transfer may finish before the kill. The test accepts an early
				// finish.
				srv, urls := start(t, 1, "serve", "--root", root,
					"--writable", "--listen", listenURL(scheme, "127.0.0.1"), "--log-level", "info")
				cl, _ := start(t, 0, "put", src, at(urls[0], "d/x"))
				if isStream(scheme) {
					eventually(t, "the directory of the upload",
						func() bool { _, err := os.Stat(filepath.Join(root, "d")); return err == nil })
				} else {
					srv.waitStderr("mode=write")
				}
				if victim == "client" {
					cl.cmd.Process.Kill()
					cl.wait()
					srv.stop(syscall.SIGTERM)
				} else {
					srv.cmd.Process.Kill()
					srv.wait()
					if code := cl.wait(); code == 0 {
						t.Log("the transfer was over before the server was killed")
					}
				}
				for _, name := range files(t, root) {
					st, err := os.Stat(filepath.Join(root, name))
					if err != nil || name != "d/x" || st.Size() != 192<<20 {
						t.Errorf("left behind: %s", name)
					}
				}
			})
		}
	}
}

// TestInterrupt: an interrupted get suggests --resume, and leaves no file with the final name.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	root, work := t.TempDir(), t.TempDir()
	if f, err := os.Create(filepath.Join(root, "f")); err != nil || f.Truncate(1<<40) != nil {
		t.Fatal(err)
	}
	_, urls := start(t, 1, "serve", "--root", root, "--listen", "vitcp://127.0.0.1:0/x")
	out := filepath.Join(work, "out")
	cl, _ := start(t, 0, "get", urls[0]+"/f", "-o", out)
	eventually(t, "a part", func() bool { st, err := os.Stat(out + ".part"); return err == nil && st.Size() > 0 })
	if code := cl.stop(syscall.SIGTERM); code != 1 {
		t.Errorf("exit %d", code)
	}
	if s := cl.stderr(); !strings.Contains(s, "interrupted") || !strings.Contains(s, "--resume") {
		t.Errorf("%s", s)
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("an incomplete file has the final name")
	}
}

// TestSignals: every listening command ends cleanly.
func TestSignals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var all []string
	for _, s := range transport.Names() {
		all = append(all, "--listen", listenURL(s, "127.0.0.1"))
	}
	n := len(all) / 2
	for _, c := range []struct {
		n    int
		args []string
	}{
		{n, append([]string{"serve", "--root", dir}, all...)},
		{n, append([]string{"echo"}, all...)},
		{1, []string{"proxy", "--listen", "tcp://127.0.0.1:0", "--to", "tcp://127.0.0.1:1"}},
		{1, []string{"portmap", "serve", "--listen", "127.0.0.1:0"}},
		{1, []string{"rping", "-s", "-p", "0", "-a", "127.0.0.1"}},
	} {
		for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
			p, _ := start(t, c.n, c.args...)
			if code := p.stop(s); code != 0 {
				t.Errorf("viaduct %s: exit %d after %v\n%s", c.args[0], code, s, p.stderr())
			}
		}
	}
	p, _ := start(t, 0, "nc", "-l", "tcp://127.0.0.1:0")
	p.waitStderr("listening tcp://")
	if code := p.stop(syscall.SIGTERM); code != 1 || !strings.Contains(p.stderr(), "interrupted") {
		t.Errorf("nc: exit %d, %s", code, p.stderr())
	}
}
