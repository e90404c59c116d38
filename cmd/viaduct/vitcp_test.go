package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSmallMTU: a file longer than the longest message of a connection arrives completely.
// [V-14] [VIT-3.2-5]
func TestSmallMTU(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"vitcp", "fcvi", "iwarp"} {
		for _, mtu := range []string{"65536", "1000"} {
			t.Run(scheme+" "+mtu, func(t *testing.T) {
				t.Parallel()
				root, out := t.TempDir(), filepath.Join(t.TempDir(), "f")
				body := random(t, filepath.Join(root, "f"), 300_000)
				_, urls := start(t, 1, "serve", "--root", root,
					"--writable", "--listen", listenURL(scheme, "127.0.0.1")+"?mtu="+mtu)
				u, _, _ := strings.Cut(urls[0], "?") // the lower of both ends' mtu applies
				good(t, "get", at(u, "f"), "-o", out)
				same(t, out, body)
				good(t, "put", out, at(u, "g"))
				same(t, filepath.Join(root, "g"), body)
			})
		}
	}
}

// TestServeOnePort: one server listens for two discriminators on one port.
// [VIT-2.2.2.2.1-2]
func TestServeOnePort(t *testing.T) {
	t.Parallel()
	root, work := t.TempDir(), t.TempDir()
	body := random(t, filepath.Join(root, "f"), 1000)
	u := fmt.Sprintf("vitcp://127.0.0.1:%d/", freePort(t))
	_, urls := start(t, 2, "serve", "--root", root, "--listen", u+"a", "--listen", u+"b")
	for _, url := range urls {
		out := filepath.Join(work, "out")
		good(t, "get", at(url, "f"), "-o", out)
		same(t, out, body)
		os.Remove(out)
	}
	fails(t, 1, "in use", "serve", "--root", root, "--listen", u+"c") // the port belongs to another process
}
