package viaduct_test

import (
	"bytes"
	"context"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"viaduct/internal/testkit"
)

// TestGuide: each program on a page of docs/guide equals the file of examples named in the
// program's first comment, and the guide shows every example. At full length the programs run, and
// must print the text after the program on the page.
func TestGuide(t *testing.T) {
	pages, err := filepath.Glob("docs/guide/*.md")
	if err != nil || len(pages) < 7 {
		t.Fatalf("pages: %v, %v", pages, err)
	}
	prints := map[string]string{} // text that the page shows as output, by name of the program
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		rest := string(text)
		for {
			_, block, ok := strings.Cut(rest, "```go\n")
			if !ok {
				break
			}
			program, after, ok := strings.Cut(block, "```\n")
			rest = after
			name, isCommand := strings.CutPrefix(program, "// Command ")
			name, _, _ = strings.Cut(name, " ")
			out, shown := strings.CutPrefix(after, "\n```text\n")
			out, _, ended := strings.Cut(out, "```\n")
			if !ok || !isCommand || !shown || !ended {
				t.Errorf("%s: a block that is not a command with what it prints:\n%.200s", page, program)
				continue
			}
			file, err := os.ReadFile(filepath.Join("examples", name, "main.go"))
			if err != nil || string(file) != program {
				t.Errorf("%s: the program is not examples/%s/main.go (%v)", page, name, err)
			}
			if !strings.Contains(string(text), "`go run ./examples/"+name+"` ([file](../../examples/"+
				name+"/main.go))") {
				t.Errorf("%s does not say how examples/%s is run", page, name)
			}
			prints[name] = out
		}
	}
	bin := t.TempDir()
	build := []string{"build", "-o", bin}
	files, err := filepath.Glob("examples/*/main.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		name := filepath.Base(filepath.Dir(f))
		switch name {
		case "first", // shown in README.md
			"roce",       // needs two processes; its own test runs them
			"nvme", "9p": // need a kernel; interop/siw runs them
			continue
		}
		if _, ok := prints[name]; !ok {
			t.Errorf("examples/%s is on no page of docs/guide", name)
			delete(prints, name)
		}
		build = append(build, "./"+filepath.Dir(f))
	}
	if !testkit.LongRuns() {
		t.Logf("%d programs were compared with their pages: VIADUCT_LONG=1 also runs them, which takes 20 s to link",
			len(prints))
		return
	}
	if out, err := exec.Command("go", build...).CombinedOutput(); err != nil {
		t.Fatalf("go %v: %v\n%s", build, err, out)
	}
	port := regexp.MustCompile(`127\.0\.0\.1:\d+`)
	var wg sync.WaitGroup
	for name, want := range prints {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*testkit.Patience)
			defer cancel()
			var out, errs bytes.Buffer
			c := exec.CommandContext(ctx, filepath.Join(bin, name))
			c.Stdout, c.Stderr = &out, &errs
			err := c.Run()
			got := port.ReplaceAllString(out.String(), "127.0.0.1:0")
			if want = port.ReplaceAllString(want, "127.0.0.1:0"); err != nil || got != want {
				t.Errorf("examples/%s: %v\n%s\nprints\n%s\nand not\n%s", name, err, errs.String(), got, want)
			}
		})
	}
	wg.Wait()
}

// TestOutside: README.md's commands build and run a program in a separate module, outside of the
// tree.
func TestOutside(t *testing.T) {
	testkit.Long(t, "10 s")
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(readme), "\n### In a module of your own\n")
	section, _, _ = strings.Cut(section, "\n#")
	var script strings.Builder
	for l := range strings.Lines(section) {
		if c, ok := strings.CutPrefix(l, "    "); ok {
			script.WriteString(c)
		}
	}
	if !strings.Contains(script.String(), "=../viaduct\n") {
		t.Fatalf("README.md says\n%s", script.String())
	}
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skipf("SKIPPED: there is no shell: %v", err)
	}
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	mine := t.TempDir()
	// The copied go.sum has the sums. Otherwise go mod tidy would ask the network.
	sums, err := os.ReadFile("go.sum")
	if err == nil {
		err = os.WriteFile(filepath.Join(mine, "go.sum"), sums, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*testkit.Patience)
	defer cancel()
	c := exec.CommandContext(ctx, sh, "-e", "-c", strings.ReplaceAll(script.String(), "../viaduct", root))
	c.Dir = mine
	c.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	var errs bytes.Buffer
	c.Stderr = &errs
	if out, err := c.Output(); err != nil || string(out) != "hello, memory\n" {
		t.Errorf("it prints %q, %v\n%s", out, err, errs.String())
	}
}

// TestExamples: each public package has an Example for the whole package, and every example has a
// comment and an output to compare.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("*/doc.go")
	if err != nil || len(files) < 7 {
		t.Fatalf("%d packages, %v", len(files), err)
	}
	for _, f := range append(files, "samehost/samehost.go") {
		dir := filepath.Dir(f)
		tests, err := filepath.Glob(dir + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		var parsed []*ast.File
		for _, name := range tests {
			p, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			parsed = append(parsed, p)
		}
		first := false
		for _, e := range doc.Examples(parsed...) {
			first = first || e.Name == ""
			if e.Output == "" || e.Doc == "" {
				t.Errorf("%s: Example%s says nothing, or nothing compares what it prints", dir, e.Name)
			}
		}
		if !first {
			t.Errorf("package %s has no Example", dir)
		}
	}
}
