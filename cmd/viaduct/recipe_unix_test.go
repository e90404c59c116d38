//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// A recipe is a command from the documents to run a server and a client.
type recipe struct {
	page    string
	command string // viaduct run ... sh -c '...'
	script  string // the argument of sh -c
}

// recipeCommand matches a recipe whose script begins on a new line.
var recipeCommand = regexp.MustCompile(`(?s)viaduct run --rdma (?:[^\s']+ )*-- sh -c '\n(.*?)'\n`)

func recipes(t *testing.T) (list []recipe) {
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
		for _, m := range recipeCommand.FindAllStringSubmatch(string(b), -1) {
			if strings.Contains(m[1], "&") {
				list = append(list, recipe{filepath.Base(f), m[0], m[1]})
			}
		}
	}
	if len(list) < 4 {
		t.Fatalf("%d recipes in docs, want those of docs/ci.md and docs/run-rdma.md", len(list))
	}
	return list
}

// awaitListener writes a script that replaces sleep(1). The script waits until a socket listens at
// a port, because a server on a busy machine may need longer to listen than the second in the
// documents.
func awaitListener(t *testing.T, dir, port string) {
	t.Helper()
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\nuntil grep -q ':%04X [0-9A-F]*:0000 0A' /proc/net/tcp /proc/net/tcp6; do /bin/sleep 0.05; done\n", n)
	// A process started by another test meanwhile would inherit the file, open for writing, and the
	// kernel refuses to run such a file.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(filepath.Join(dir, "sleep"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestRecipes runs the recipes, and the first commands of README.md, at free ports. The output of
// README.md's commands must match the page.
func TestRecipes(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: viaduct run is for Linux")
	}
	try := func(t *testing.T, command string) string {
		port := fmt.Sprint(freePort(t))
		seen := false
		for _, name := range []string{"rping", "ib_write_bw", "ibv_rc_pingpong"} {
			if strings.Contains(command, name+" ") {
				program(t, name)
				command, seen = strings.ReplaceAll(command, name+" ", name+" -p "+port+" "), true
			}
		}
		if !seen {
			t.Fatalf("no program that this test knows is in %s", command)
		}
		s := newSession(t)
		dir := t.TempDir()
		awaitListener(t, dir, port)
		s.path = dir + ":" + s.path
		out, err := s.run(dir, command)
		if err != nil {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
		return out
	}
	for _, r := range recipes(t) {
		t.Run(r.page, func(t *testing.T) {
			t.Parallel()
			try(t, r.command)
		})
	}
	t.Run("README.md", func(t *testing.T) {
		t.Parallel()
		text, err := os.ReadFile("../../README.md")
		if err != nil {
			t.Fatal(err)
		}
		_, shown, _ := strings.Cut(string(text), "\n$ ./viaduct run --rdma ")
		shown, _, _ = strings.Cut(shown, "\n```")
		command, want, ok := strings.Cut(shown, "\n")
		if !ok {
			t.Fatal("README.md no longer begins with viaduct run --rdma")
		}
		got := try(t, "viaduct run --rdma "+command)
		var printed []string
		for l := range strings.Lines(got) {
			if strings.HasPrefix(l, "ping data: ") { // other lines concern the end of the connection
				printed = append(printed, strings.TrimSpace(l))
			}
		}
		if strings.Join(printed, "\n") != want {
			t.Errorf("%s prints\n%s\nand not\n%s", command, got, want)
		}
	})
}

// TestRecipeFails: the recipes for CI fail when either end fails. Scripts with a given exit status
// replace the programs. The server is the program in the background.
func TestRecipeFails(t *testing.T) {
	list := recipes(t)
	dir := t.TempDir()
	script := "#!/bin/sh\ncase \" $* \" in *' -s '*|*' -F '|*' -g 1 ') exit $SERVER;; esac\nexit $CLIENT\n"
	for _, name := range []string{"rping", "ib_write_bw", "ibv_rc_pingpong"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "sleep"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, r := range list {
		for _, c := range []struct{ server, client string }{{"0", "0"}, {"3", "0"}, {"0", "3"}} {
			cmd := exec.Command("sh", "-c", r.script)
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "SERVER="+c.server, "CLIENT="+c.client)
			out, err := cmd.CombinedOutput()
			if fine := c.server+c.client == "00"; (err == nil) != fine {
				t.Errorf("server ends with %s, client with %s: %v\n%s%s", c.server, c.client, err, r.script, out)
			}
		}
	}
}
