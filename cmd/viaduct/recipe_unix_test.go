//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// recipes are the server and client pairs of the documents, as shell scripts.
func recipes(t *testing.T) (list []string) {
	t.Helper()
	docs, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatal(err)
	}
	for _, f := range docs {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?s)viaduct run --rdma (?:--\S+ )*-- sh -c '\n(.*?)'\n`).FindAllStringSubmatch(string(b), -1) {
			if strings.Contains(m[1], "&") {
				list = append(list, m[1])
			}
		}
	}
	return list
}

// TestRecipeFails: the recipes for CI fail when either end fails. The programs in them are replaced
// by ones with a given exit status; the server is the one in the background.
func TestRecipeFails(t *testing.T) {
	list := recipes(t)
	if len(list) < 3 {
		t.Fatalf("%d recipes in docs, want those of docs/ci.md and docs/run-rdma.md", len(list))
	}
	dir := t.TempDir()
	script := "#!/bin/sh\ncase \" $* \" in *' -s '*|*' -F ') exit $SERVER;; esac\nexit $CLIENT\n"
	for _, name := range []string{"rping", "ib_write_bw"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "sleep"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, recipe := range list {
		for _, c := range []struct{ server, client string }{{"0", "0"}, {"3", "0"}, {"0", "3"}} {
			cmd := exec.Command("sh", "-c", recipe)
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "SERVER="+c.server, "CLIENT="+c.client)
			out, err := cmd.CombinedOutput()
			if fine := c.server+c.client == "00"; (err == nil) != fine {
				t.Errorf("server ends with %s, client with %s: %v\n%s%s", c.server, c.client, err, recipe, out)
			}
		}
	}
}
