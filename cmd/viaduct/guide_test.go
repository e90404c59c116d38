package main

import (
	"flag"
	"os"
	"strings"
	"testing"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/verbs"
)

var renew = flag.Bool("renew", false, "write the generated parts of docs/guide anew")

// TestGuideURLs: the operator's page has exactly the table of parameters the parser uses.
func TestGuideURLs(t *testing.T) {
	t.Parallel()
	const file, begin, end = "../../docs/guide/operate.md", "-run TestGuideURLs -renew -->\n", "<!-- /the tables -->"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(page), begin)
	_, tail, ended := strings.Cut(rest, end)
	if !ok || !ended {
		t.Fatalf("%s has no place for the tables", file)
	}
	want := head + begin + "\n" + verbs.URLsMarkdown() + end + tail
	if want == string(page) {
		return
	}
	if !*renew {
		t.Fatalf("%s is not up to date: go test ./cmd/viaduct -run TestGuideURLs -renew", file)
	}
	if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestHelpURLs: the help has every transport, and every parameter with the default and a sentence.
func TestHelpURLs(t *testing.T) {
	t.Parallel()
	r := good(t, "help", "urls")
	for _, s := range addr.Schemes {
		if !strings.Contains(r.stdout, "\n  "+s.Form()+" ") ||
			!strings.Contains(r.stdout, "\nParameters of "+s.Name+":") {
			t.Errorf("%s is missing", s.Name)
		}
		_, of, _ := strings.Cut(r.stdout, "\nParameters of "+s.Name+":")
		of, _, _ = strings.Cut(of, "\n\n")
		if s.Name == "fcvi" { // the text of fcvi refers to the parameters of vitcp
			_, vi, _ := strings.Cut(r.stdout, "\nParameters of vitcp:")
			of += vi
		}
		said := strings.Join(strings.Fields(of), " ")
		for _, p := range s.Params {
			if !strings.Contains(of, "\n  "+p.Name+"="+p.Form()+"  [default ") || !strings.Contains(said, p.About) {
				t.Errorf("%s: nothing about %s", s.Name, p.Name)
			}
		}
	}
	for _, l := range strings.Split(r.stdout, "\n") {
		if len(l) > 90 {
			t.Errorf("a line of %d columns: %s", len(l), l)
		}
	}
	if r := good(t, "help"); !strings.Contains(r.stdout, "urls") {
		t.Error("the help does not tell of its topic")
	}
}
