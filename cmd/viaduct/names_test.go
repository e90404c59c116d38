package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestNames: members of a fabric, other fabrics and clients find fabrics and hosts by their
// registered names.
func TestNames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	reg := "file:" + filepath.Join(dir, "names")
	start(t, 1, "fabric", "--listen", "127.0.0.1:0", "--registry", reg, "--register", "plant1")
	// plant2 has joined plant1, and serves other members.
	start(t, 1, "fabric", "--listen", "127.0.0.1:0", "--domain", "2", "--registry", reg,
		"--join", "plant1", "--register", "plant2")
	start(t, 1, "echo", "--listen", "fcvi://10.0.0.1/echo?fabric=plant1", "--registry", reg, "--register", "node1")
	p, _ := start(t, 1, "echo", "--listen", "vitcp://127.0.0.1:0/echo", "--registry", reg, "--register", "node7")
	for _, u := range []string{"fcvi://node1/echo?fabric=plant1&self=10.0.0.2", "fcvi://node1/echo?fabric=plant2&self=10.0.0.3", "vitcp://node7/echo"} {
		if r := run(t, "ping", "-c", "1", "--registry", reg, u); r.code != 0 ||
			!strings.Contains(r.stdout, "1 received") {
			t.Errorf("%s: %+v", u, r)
		}
	}
	p.stop(syscall.SIGTERM)
	if b, err := os.ReadFile(filepath.Join(dir, "names")); err != nil || strings.Contains(string(b), "node7") {
		t.Errorf("after its end: %v\n%s", err, b)
	}

	if err := os.WriteFile(filepath.Join(dir, "bad"), []byte("vi node7 nowhere\nfabric plant1 127.0.0.1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{
		{"ping -c 1 --registry file:" + dir + "/bad vitcp://node7/echo", `"nowhere" for host "node7", which is not ADDRESS[:PORT]`},
		{"ping -c 1 --registry file:" + dir + "/bad fcvi://10.0.0.1/echo?fabric=plant1", `"127.0.0.1" for fabric "plant1", which is not ADDRESS:PORT`},
		{"ping -c 1 --registry nonsense vitcp://node7/echo", `"nonsense" is none of`},
		{"fabric --listen 127.0.0.1:0 --join plant1", "is not HOST:PORT"},
		{"fabric --listen 127.0.0.1:0 --register plant1", "--register wants the registry"},
		{"echo --listen vitcp://127.0.0.1:0/x --register n", "--register wants the registry"},
	} {
		if r := run(t, strings.Fields(c.args)...); r.code == 0 || !strings.Contains(r.stderr, c.want) {
			t.Errorf("%s: %+v", c.args, r)
		}
	}
}
