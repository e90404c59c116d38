package figures

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// TestFigures: the tables and pictures of the documents are made from the results, and the other
// pages for strangers have no figure missing in the results.
func TestFigures(t *testing.T) {
	for _, p := range problems(t, root) {
		t.Error(p)
	}
}

// TestFiguresChanged: problems finds each kind of change.
func TestFiguresChanged(t *testing.T) {
	r, err := Read(root)
	if err != nil {
		t.Fatal(err)
	}
	peer, program := cells(r.Peers.Rows[0])[2], cells(r.Run.Rows[0])[2]
	expected := expectations[1].what + " | "
	for _, c := range []struct{ name, file, old, new string }{
		{"a cell of the table of peers", page, "| " + peer + " |", "| 9" + peer + " |"},
		{"a verdict", page, "| MISSED |", "| goal |"},
		{"a cell of the table of programs", page, "| " + program + " |", "| 9" + program + " |"},
		{"a row of what to expect", page, expected, expected + "9"},
		{"a sentence of the page", page, "## In pictures", "It has 50 GB/s.\n\n## In pictures"},
		{"a figure of the README", "README.md", "\n## Start", "\nUp to 99 GB/s, 5.5 us, 60 times UCX, 8 million messages a second.\n\n## Start"},
		{"a point of a picture", "docs/performance/rate.svg", `<path class="line c0" d="M90.0,`, `<path class="line c0" d="M90.0,1`},
		{"the caption of a picture", "docs/performance/latency.svg", "5 rounds", "6 rounds"},
		{"a figure of the results", resultsFile, "3.85", "3.58"},
		{"a row of the results", resultsFile, "| " + peer + " |", "| 9" + peer + " |"},
	} {
		dir := t.TempDir()
		for _, name := range compared(t) {
			b, err := os.ReadFile(filepath.Join(root, name))
			if err != nil {
				t.Fatal(err)
			}
			if name == c.file {
				changed := bytes.Replace(b, []byte(c.old), []byte(c.new), 1)
				if bytes.Equal(b, changed) {
					t.Errorf("%s: %s has no %q", c.name, name, c.old)
				}
				b = changed
			}
			to := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(to, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if len(problems(t, dir)) == 0 {
			t.Errorf("%s is changed, and nothing is found", c.name)
		}
	}
}

// pages are the pages whose figures must all be in the results.
var pages = []string{"README.md", "docs/ci.md", "docs/compare.md"}

// compared returns the names of all files that problems reads.
func compared(t *testing.T) []string {
	t.Helper()
	drawn, err := filepath.Glob(filepath.Join(root, pictureFiles, "*"))
	if err != nil || len(drawn) == 0 {
		t.Fatal(drawn, err)
	}
	files := append([]string{resultsFile, page}, pages...)
	for _, d := range drawn {
		files = append(files, pictureFiles+"/"+filepath.Base(d))
	}
	return files
}

// problems returns the differences between the results below root and the documents there.
func problems(t *testing.T, root string) (all []string) {
	t.Helper()
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			all = append(all, err.Error())
		}
		return b
	}
	r, err := Read(root)
	if err != nil {
		t.Fatal(err)
	}
	want, err := r.documents(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range want {
		if !bytes.Equal(read(name), text) {
			all = append(all, name+" is not what "+resultsFile+" has: run bench/peers.sh --record . --render")
		}
	}
	drawn, _ := filepath.Glob(filepath.Join(root, pictureFiles, "*"))
	for _, d := range drawn {
		if name := pictureFiles + "/" + filepath.Base(d); want[name] == nil {
			all = append(all, name+" is not among the pictures of "+resultsFile)
		}
	}
	short, _, ok := strings.Cut(string(read(page)), "\n## How to repeat it")
	if !ok {
		all = append(all, page+" has no section of how to repeat it")
	}
	for _, name := range append([]string{page}, pages...) {
		text := short
		if name != page {
			text = string(read(name))
		}
		for _, f := range r.strays(text) {
			all = append(all, name+" has the figure \""+f+"\", which is not among the results")
		}
	}
	return all
}
