package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGlob: the server expands patterns in the path of an address. A path element is not a pattern
// if a file or directory has exactly that name.
func TestGlob(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, f := range []string{"a.txt", "b.txt", "c.bin", "d/a.txt", "d/e/a.txt", "d/e/z", "f/a.txt", "x[1]/a.txt", "x[1]/[ab].txt", "x1/a.txt", "ü?.txt"} {
		os.MkdirAll(filepath.Join(root, filepath.Dir(f)), 0o755)
		os.WriteFile(filepath.Join(root, f), []byte(f), 0o644)
	}
	_, urls := start(t, 2, "serve", "--root", root, "--listen", "tcp://127.0.0.1:0",
		"--listen", "vitcp://127.0.0.1:0/t")
	for _, c := range []struct{ pattern, want string }{
		{"*.txt", "a.txt b.txt ü?.txt"}, {"[ac].*", "a.txt c.bin"}, {"*/a.txt", "d/a.txt f/a.txt x1/a.txt x[1]/a.txt"}, {"d/*", "a.txt e/"},
		{"**/a.txt", "a.txt d/a.txt d/e/a.txt f/a.txt x1/a.txt x[1]/a.txt"}, {"d/**", "a.txt e/ e/a.txt e/z"}, {"**/**/z", "d/e/z"},
		{"x[1]/a.txt", "x[1]/a.txt"}, {"x[1]/[ab].txt", "x[1]/[ab].txt"}, {"x[1]", "[ab].txt a.txt"}, {"x[0-9]/*", "x1/a.txt"}, {"%C3%BC%3F.*", "ü?.txt"},
	} {
		u := urls[len(c.pattern)%2]
		var got []string
		for _, en := range document(t, good(t, "ls", at(u, c.pattern), "--json"))["entries"].([]any) {
			m := en.(map[string]any)
			name := m["name"].(string)
			if m["dir"] == true {
				name += "/"
			}
			got = append(got, name)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %s", c.pattern, got, c.want)
		}
	}
	for i, c := range []struct{ args, want string }{
		{"*.txt", "a.txt b.txt ü?.txt"}, {"**/z", "d/e/z"}, {"[df]/* -r", "d/a.txt d/e/a.txt d/e/z f/a.txt"}, {"d/** -r", "a.txt e/a.txt e/z"},
		{"x[1]/[ab].txt", "[ab].txt"},
	} {
		dir := t.TempDir()
		args := strings.Fields(c.args)
		args[0] = at(urls[i%2], args[0])
		d := document(t, good(t, append([]string{"get", "-o", dir, "--json"}, args...)...))
		got := files(t, dir)
		if strings.Join(got, " ") != c.want || d["files"] != nil && d["files"] != float64(len(got)) {
			t.Errorf("%s: %q, %v, want %s", c.args, got, d, c.want)
		}
	}
	fails(t, 1, "nothing at the server matches", "get", at(urls[1], "*.none"))
	fails(t, 1, "nothing at the server matches", "ls", at(urls[0], "*/none/**"))
	fails(t, 1, "not found", "ls", at(urls[0], "none/*"))
	fails(t, 2, "-r fetches", "get", at(urls[1], "[df]"))
	fails(t, 2, "wants a directory", "get", at(urls[0], "*.txt"), "-o", "-")
	fails(t, 2, "lacks its ]", "ls", at(urls[1], "[a"))
}
