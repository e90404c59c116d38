package viaduct_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// pages returns the names of the pages written by people. Generated pages are checked by their
// generators.
func pages(t *testing.T) (names []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/guide/*.md", "docs/lab/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %d pages, %v", pattern, len(found), err)
		}
		for _, name := range found {
			names = append(names, filepath.ToSlash(name))
		}
	}
	return slices.DeleteFunc(names, func(name string) bool {
		return name == "CHANGELOG.md" || name == "docs/conformance.md" || name == "docs/mutation.md"
	})
}

// read returns the lines of a page.
func read(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "\n")
}

// A codeBlock is a block of code of a page.
type codeBlock struct {
	at       int    // line number of the first line
	language string // of a fence; empty if the block is indented
	mark     string // text of the HTML comment before the block; empty if there is none
	lines    []string
}

// codeBlocks returns the blocks of code of a page, and the lines of the page with the lines of the
// blocks empty.
func codeBlocks(lines []string) (blocks []codeBlock, prose []string) {
	var mark string
	var open *codeBlock
	prose = slices.Clone(lines)
	inList := false
	for i, l := range lines {
		fence, isFence := strings.CutPrefix(l, "```")
		indented, isIndented := strings.CutPrefix(l, "    ")
		switch {
		case open != nil && open.language != "":
			prose[i] = ""
			if isFence {
				open = nil
			} else {
				open.lines = append(open.lines, l)
			}
			continue
		case isFence:
			blocks = append(blocks, codeBlock{at: i + 2, language: fence, mark: mark})
			if open = &blocks[len(blocks)-1]; fence == "" {
				open.language = "text"
			}
		case isIndented && open != nil:
			open.lines = append(open.lines, indented)
		case isIndented && !inList && i > 0 && lines[i-1] == "":
			blocks = append(blocks, codeBlock{at: i + 1, mark: mark, lines: []string{indented}})
			open = &blocks[len(blocks)-1]
		case l == "":
			continue
		default:
			open, mark = nil, ""
			if said, ok := strings.CutPrefix(l, "<!-- "); ok {
				mark = strings.TrimSuffix(said, " -->")
			} else if !isIndented {
				inList = strings.HasPrefix(l, "- ") || strings.HasPrefix(l, "* ") ||
					strings.HasPrefix(l, "  ") && inList
			}
			continue
		}
		prose[i], mark = "", ""
	}
	return blocks, prose
}

var (
	pageLink   = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	codeSpan   = regexp.MustCompile("`([^`]+)`")
	notAnchor  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	filePath   = regexp.MustCompile(`^[\w.*-]+(/[\w.*-]+)*/?$`)
	testName   = regexp.MustCompile(`^(Test|Fuzz|Benchmark)[A-Z]\w*$`)
	testFunc   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Z]\w*)\(`)
	goArgument = regexp.MustCompile(`\bgo (?:run|test|build) (?:-[\w=]+ )*(\./[\w./-]+)`)
)

// anchors returns the fragments for links to the headings of a page.
func anchors(prose []string) map[string]bool {
	known := map[string]bool{}
	for _, l := range prose {
		if title, ok := strings.CutPrefix(strings.TrimLeft(l, "#"), " "); ok && strings.HasPrefix(l, "#") {
			known[strings.ReplaceAll(notAnchor.ReplaceAllString(strings.ToLower(title), ""), " ", "-")] = true
		}
	}
	return known
}

// TestPageLinks: the files, directories and headings linked from the pages exist.
func TestPageLinks(t *testing.T) {
	for _, page := range pages(t) {
		_, prose := codeBlocks(read(t, page))
		for i, l := range prose {
			for _, m := range pageLink.FindAllStringSubmatch(codeSpan.ReplaceAllString(l, "``"), -1) {
				target, fragment, _ := strings.Cut(m[1], "#")
				if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
					continue
				}
				file := page
				if target != "" {
					file = path.Join(path.Dir(page), target)
				}
				if _, err := os.Stat(file); err != nil {
					t.Errorf("%s:%d: the link to %s: %v", page, i+1, m[1], err)
				} else if fragment != "" && strings.HasSuffix(file, ".md") {
					if _, there := codeBlocks(read(t, file)); !anchors(there)[fragment] {
						t.Errorf("%s:%d: %s has no heading for #%s", page, i+1, file, fragment)
					}
				}
			}
		}
	}
}

// A tree holds the names pages may use: of files, directories and test functions.
type tree struct {
	files []string // slash-separated
	tests map[string]bool
	cases string // the source of viaduct conform, which has the names of its cases
}

func readTree(t *testing.T) tree {
	t.Helper()
	all := tree{tests: map[string]bool{}}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == ".git" || d.Name() == "dist" {
			if err == nil && d.IsDir() {
				err = fs.SkipDir
			}
			return err
		}
		all.files = append(all.files, filepath.ToSlash(name))
		isCases := strings.HasPrefix(filepath.ToSlash(name), "cmd/viaduct/internal/conform/")
		if !strings.HasSuffix(name, "_test.go") && !isCases || d.IsDir() {
			return nil
		}
		text, err := os.ReadFile(name)
		if isCases {
			all.cases += string(text)
		}
		for _, m := range testFunc.FindAllSubmatch(text, -1) {
			all.tests[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// has reports whether name, a path or a pattern, is a file or directory relative to the top of the
// tree or to dir, or the end of any path.
func (all tree) has(name, dir string) bool {
	name = strings.TrimSuffix(strings.TrimPrefix(name, "./"), "/")
	for _, pattern := range []string{name, path.Join(dir, name)} {
		if found, err := filepath.Glob(pattern); err == nil && len(found) > 0 {
			return true
		}
	}
	return slices.ContainsFunc(all.files, func(f string) bool {
		if strings.HasSuffix(f, "/"+name) {
			return true
		}
		ok, err := path.Match(name, path.Base(f))
		return err == nil && ok
	})
}

// isCase reports whether viaduct conform has a case called name, with or without the name's first
// element, the protocol.
func (all tree) isCase(name string) bool {
	_, rest, _ := strings.Cut(name, "/")
	return strings.Contains(all.cases, strconv.Quote(name)) || strings.Contains(all.cases, strconv.Quote(rest))
}

// TestPageNames: the files, directories and tests named on the pages exist. Laboratory notes may
// name removed files and tests.
func TestPageNames(t *testing.T) {
	all := readTree(t)
	top := func(name string) bool { // a directory at the top of the tree
		first, _, ok := strings.Cut(strings.TrimPrefix(name, "./"), "/")
		info, err := os.Stat(first)
		return ok && first != "." && first != ".." && err == nil && info.IsDir()
	}
	for _, page := range pages(t) {
		if strings.HasPrefix(page, "docs/lab/") {
			continue
		}
		for i, l := range read(t, page) {
			for _, m := range goArgument.FindAllStringSubmatch(l, -1) {
				if name := strings.TrimRight(m[1], "./"); name != "" && !strings.HasSuffix(name, "NAME") &&
					!all.has(name, ".") {
					t.Errorf("%s:%d: there is no %s", page, i+1, m[1])
				}
			}
			for _, m := range codeSpan.FindAllStringSubmatch(l, -1) {
				name := m[1]
				switch {
				case testName.MatchString(name):
					if !all.tests[name] {
						t.Errorf("%s:%d: there is no test %s", page, i+1, name)
					}
				case filePath.MatchString(name) && (top(name) || strings.HasSuffix(name, ".go")):
					if !all.has(name, path.Dir(page)) && !all.isCase(name) {
						t.Errorf("%s:%d: there is no %s", page, i+1, name)
					}
				}
			}
		}
	}
}

// TestWhereToLook: each name in a row of the table of ARCHITECTURE.md occurs in a file or directory
// of the row.
func TestWhereToLook(t *testing.T) {
	all := readTree(t)
	word := regexp.MustCompile(`\w+`)
	rows := 0
	for i, l := range read(t, "ARCHITECTURE.md") {
		if !strings.HasPrefix(l, "| ") || strings.HasPrefix(l, "| to find ") ||
			strings.HasPrefix(l, "| state ") || !strings.Contains(l, "`") {
			continue
		}
		var source strings.Builder
		var names []string
		files := 0
		for _, m := range codeSpan.FindAllStringSubmatch(l, -1) {
			found := slices.DeleteFunc(slices.Clone(all.files), func(f string) bool {
				return !strings.HasSuffix(f, ".go") ||
					f != m[1] && path.Dir(f) != m[1] && path.Dir(f) != "internal/wire/"+m[1] &&
						!strings.HasSuffix(f, "/"+m[1])
			})
			if len(found) == 0 {
				names = append(names, m[1])
			}
			for _, f := range found {
				text, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				files++
				source.Write(text)
			}
		}
		if files == 0 {
			continue
		}
		rows++
		for _, name := range names {
			for _, part := range word.FindAllString(name, -1) {
				if !regexp.MustCompile(`\b` + part + `\b`).MatchString(source.String()) {
					t.Errorf("ARCHITECTURE.md:%d: %s is in no file of its row", i+1, name)
				}
			}
		}
	}
	if rows < 15 {
		t.Errorf("%d rows", rows)
	}
}

// programs are the first words of lines recognized as commands.
var programs = []string{
	"viaduct", "./viaduct", "go", "sudo", "set", "bench/peers.sh", "bench/run.sh", "capi/build.sh", "capi/test/run.sh", "packaging/build.sh",
	"CGO_ENABLED=0", "cc", "curl", "openssl", "timeout", "systemctl", "podman", "docker", "nvme", "mount", "modprobe", "truncate", "install",
	"pg_dump", "rdma", ".ci/run", "git",
}

// commands returns the command lines of a block.
func (b codeBlock) commands() (list []string) {
	if b.language == "go" || b.language == "yaml" {
		return nil
	}
	for _, l := range b.lines {
		prompt, command, ok := strings.Cut(l, "$ ")
		if !ok || strings.Contains(prompt, " ") {
			if command = l; b.language == "console" || b.language == "text" {
				continue
			}
		}
		if first, _, _ := strings.Cut(strings.TrimSpace(command), " "); slices.Contains(programs, first) {
			list = append(list, command)
		}
	}
	return list
}

// notRun are the allowed reasons for not running a command in a test.
var notRun = []string{"two hosts", "root", "installs software", "needs other software", "long",
	"synopsis", "the reader's own program"}

// TestPageCommands: a test runs each command on a page, or the block gives a reason why no test
// does. The comment before the block is one of
//
//	<!-- run by TestNAME -->     or a program of the tree, such as .ci/run
//	<!-- not run: two hosts -->  or another reason of notRun
//
// Three kinds of blocks need no comment: blocks of the language console, which TestGuideCommands of
// cmd/viaduct runs, recipes, which TestRecipes runs, and the blocks of README.md.
func TestPageCommands(t *testing.T) {
	all := readTree(t)
	recipe := regexp.MustCompile(`(?m)viaduct run --rdma (\S+ )*-- sh -c '$`)
	seen := 0
	for _, page := range pages(t) {
		if strings.HasPrefix(page, "docs/lab/") {
			continue
		}
		blocks, _ := codeBlocks(read(t, page))
		for _, b := range blocks {
			list := b.commands()
			if len(list) == 0 {
				if b.mark != "" && (strings.HasPrefix(b.mark, "run by ") || strings.HasPrefix(b.mark, "not run: ")) {
					t.Errorf("%s:%d: %q is said of a block without a command", page, b.at, b.mark)
				}
				continue
			}
			seen += len(list)
			by, isRun := strings.CutPrefix(b.mark, "run by ")
			why, isNotRun := strings.CutPrefix(b.mark, "not run: ")
			switch {
			case isRun:
				if !all.tests[by] && !all.has(by, ".") {
					t.Errorf("%s:%d: there is no %s", page, b.at, by)
				}
			case isNotRun:
				if !slices.Contains(notRun, why) {
					t.Errorf("%s:%d: %q is no reason not to run a command: %q", page, b.at, why, notRun)
				}
			case b.language == "console", page == "README.md", recipe.MatchString(strings.Join(b.lines, "\n")):
			default:
				t.Errorf("%s:%d: nothing runs %q: run it in a test, or say before the block why not",
					page, b.at, list[0])
			}
		}
	}
	if seen < 60 {
		t.Errorf("%d commands found on all pages", seen)
	}
}

// TestPageFragments: the Go code on the pages can be parsed, as a file or as statements.
func TestPageFragments(t *testing.T) {
	for _, page := range pages(t) {
		blocks, _ := codeBlocks(read(t, page))
		for _, b := range blocks {
			if b.language != "go" {
				continue
			}
			source := strings.Join(b.lines, "\n")
			if !strings.Contains(source, "\npackage ") {
				source = fmt.Sprintf("package p\nfunc _() {\n%s\n}", source)
			}
			if _, err := parser.ParseFile(token.NewFileSet(), page, source, parser.SkipObjectResolution); err != nil {
				t.Errorf("%s:%d: %v", page, b.at, err)
			}
		}
	}
}
