package register

import (
	"fmt"
	"go/ast"
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
)

// Scan reads every Go file and every C test under root, and adds their citations to the register.
// It returns problems as lines "file:line: ...".
func (g *Register) Scan(root string) (problems []string, err error) {
	err = filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if file != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "vendor" || rel == "internal/tools") {
				return fs.SkipDir
			}
			return nil
		}
		scan := g.scanFile
		switch {
		case strings.HasSuffix(rel, ".c") && isTest(rel):
			scan = g.scanC
		case !strings.HasSuffix(rel, ".go"):
			return nil
		}
		p, err := scan(file, rel)
		problems = append(problems, p...)
		return err
	})
	return problems, err
}

// A source is a file being read.
type source struct {
	g        *Register
	fset     *token.FileSet
	file     *ast.File
	rel      string
	test     bool
	decl     string // in C, the current function
	problems []string
}

// isTest reports whether citations in a file count as tests: test files, the interop programs, and
// packages of test suites, named like nettest or vitest.
func isTest(rel string) bool {
	return strings.HasSuffix(rel, "_test.go") || strings.HasPrefix(rel, "interop/") || strings.HasSuffix(path.Dir(rel), "test")
}

// isFake reports whether a file belongs to a fake: a package below a test suite, a package named
// like msgfake, or the test kit. Citations in a fake count neither as code nor as a test.
func isFake(rel string) bool {
	if strings.HasSuffix(rel, "_test.go") {
		return false
	}
	dir := path.Dir(rel)
	return strings.HasSuffix(path.Dir(dir), "test") || strings.HasSuffix(dir, "fake") || path.Base(dir) == "testkit"
}

func (g *Register) scanFile(file, rel string) (problems []string, err error) {
	s := &source{g: g, fset: token.NewFileSet(), rel: rel}
	s.test = isTest(rel)
	s.file, err = parser.ParseFile(s.fset, file, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return []string{fmt.Sprintf("%s: does not parse: %v", rel, err)}, nil
	}
	for _, group := range s.file.Comments {
		for _, c := range group.List {
			s.comment(c.Pos(), c.Text)
		}
	}
	if s.test {
		ast.Inspect(s.file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if v, err := strconv.Unquote(lit.Value); err == nil {
					s.name(lit.Pos(), v)
					s.comment(lit.Pos(), v) // t.Errorf("[SDP-12.4-3] ...")
				}
			}
			return true
		})
	}
	return s.problems, nil
}

var (
	cComment  = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	cFunction = regexp.MustCompile(`(?m)^[a-z][^;={}()]*?(\w+)\([^;{}]*\)\s*\{$`)
)

// scanC reads a test in C, with tags in the failing functions.
func (g *Register) scanC(file, rel string) (problems []string, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	s := &source{g: g, fset: token.NewFileSet(), file: new(ast.File), rel: rel, test: true}
	f := s.fset.AddFile(rel, -1, len(b))
	f.SetLinesForContent(b)
	functions := cFunction.FindAllSubmatchIndex(b, -1)
	for _, c := range cComment.FindAllIndex(b, -1) {
		for len(functions) > 0 && functions[0][0] < c[0] {
			s.decl = string(b[functions[0][2]:functions[0][3]])
			functions = functions[1:]
		}
		s.comment(f.Pos(c[0]), string(b[c[0]:c[1]]))
	}
	return s.problems, nil
}

var (
	bracket  = regexp.MustCompile(`\[([A-Z][A-Z0-9]*)([- ])([^\[\]]*)\]`)
	wordSep  = regexp.MustCompile(`[\s,;]+`)
	rowWord  = regexp.MustCompile(`^([A-Z][A-Z0-9]*)-([A-Z0-9][A-Za-z0-9.-]*)-(\d+)$`)
	testName = regexp.MustCompile(`^(Test|Fuzz|Example|Benchmark)([^a-z]|$)`)
	decWord  = regexp.MustCompile(`^([VID])-\d\d+$`)
	section  = regexp.MustCompile(`^[0-9A-Z][0-9A-Za-z.-]*$`)
)

// comment enters the tags of a comment into the register.
func (s *source) comment(pos token.Pos, text string) {
	for _, m := range bracket.FindAllStringSubmatchIndex(text, -1) {
		key, sep := text[m[2]:m[3]], text[m[4]:m[5]]
		at := pos + token.Pos(m[0])
		if sep == " " {
			s.sectionTag(at, key, text[m[6]:m[7]])
			if s.g.Key[key] {
				s.rowTags(at, text[m[6]:m[7]])
			}
			continue
		}
		whole := text[m[2]:m[7]]
		if !s.g.Key[key] {
			if rowWord.MatchString(wordSep.Split(whole, 2)[0]) {
				s.complain(at, "[%s]: no document has the key %s", whole, key)
			}
			continue
		}
		s.rowTags(at, whole)
	}
}

// rowTags enters the rows among the words of a tag.
func (s *source) rowTags(at token.Pos, words string) {
	last := ""
	for _, w := range wordSep.Split(words, -1) {
		last = s.rowTag(at, w, last)
	}
}

// sectionTag checks the tag of a section. Such a tag names no row.
func (s *source) sectionTag(at token.Pos, key, rest string) {
	if !s.g.Key[key] || len(key) == 1 {
		return
	}
	if first := wordSep.Split(rest, 2)[0]; !section.MatchString(first) {
		s.complain(at, "[%s %s]: %q is not a section", key, rest, first)
	}
}

// rowTag enters a word of a tag and returns the word's section; last is the section of the previous
// word, for words such as -3.
func (s *source) rowTag(at token.Pos, w, last string) string {
	if w == "" {
		return last
	}
	parts := strings.Split(w, "/")
	for i, p := range parts {
		id, to, _ := strings.Cut(p, "..")
		switch {
		case strings.HasPrefix(id, "-") && last != "":
			id = last + id
		case i > 0 && last != "" && isNumber(id):
			id = last + "-" + id
		}
		key, _, ok := strings.Cut(id, "-")
		if !ok || !s.g.Key[key] {
			return last // a word of prose
		}
		if t := strings.LastIndexByte(to, '-'); t >= 0 { // SDP-9.1-1..SDP-9.1-4
			if to[:t] != id[:strings.LastIndexByte(id, '-')] {
				s.complain(at, "[%s]: the range runs from one section into another", w)
				return last
			}
			to = to[t+1:]
		}
		rows, bad := s.g.run(id, to)
		if bad != "" {
			s.complain(at, "[%s]: %s names nothing", w, bad)
		}
		for _, r := range rows {
			s.enter(at, r, "")
		}
		last = id[:strings.LastIndexByte(id, '-')]
	}
	return last
}

func isNumber(s string) bool {
	_, err := strconv.Atoi(s)
	return err == nil
}

// name enters the rows at the beginning of a string in a test.
func (s *source) name(pos token.Pos, text string) {
	for _, w := range wordSep.Split(text, -1) {
		m := rowWord.FindStringSubmatch(w)
		if (m == nil || !s.g.Key[m[1]]) && !decWord.MatchString(w) {
			return
		}
		r := s.g.ByID[w]
		if r == nil {
			s.complain(pos, "%q: %s names nothing", text, w)
			continue
		}
		s.enter(pos, r, text)
	}
}

func (s *source) enter(pos token.Pos, r *Row, name string) {
	p := Place{File: s.rel, Decl: s.declAt(pos)}
	list := &r.Code
	switch {
	case isFake(s.rel):
		list = &r.Fakes
	case s.test:
		list = &r.Tests
		p.Helper = strings.HasSuffix(s.rel, "_test.go") && s.isHelper(pos)
	}
	if !slices.Contains(*list, p) {
		*list = append(*list, p)
	}
	s.g.Cites = append(s.g.Cites, Cite{Row: r, Place: p, Test: s.test, Fake: isFake(s.rel), Offset: s.fset.Position(pos).Offset, Name: name})
}

// isHelper reports whether pos is in a function other than a test, or at the function's comment.
// Tables of tests are variables and not helpers.
func (s *source) isHelper(pos token.Pos) bool {
	for _, d := range s.file.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && s.around(d, d.Doc, pos) {
			return d.Recv != nil || !testName.MatchString(d.Name.Name)
		}
	}
	return false
}

func (s *source) complain(pos token.Pos, format string, a ...any) {
	s.problems = append(s.problems, fmt.Sprintf("%s:%d: ", s.rel, s.fset.Position(pos).Line)+fmt.Sprintf(format, a...))
}

// declAt names the declaration around pos, comment included.
func (s *source) declAt(pos token.Pos) string {
	if s.decl != "" {
		return s.decl
	}
	for _, d := range s.file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if s.around(d, d.Doc, pos) {
				return funcName(d)
			}
		case *ast.GenDecl:
			if s.around(d, d.Doc, pos) {
				if name := s.specAt(d, pos); name != "" {
					return name
				}
				return s.listed(d, pos)
			}
		}
	}
	return s.below(pos)
}

var (
	namedTag = regexp.MustCompile(`(\w+) \[`)
	tagsOnly = regexp.MustCompile(`^//( \[[^\[\]]+\])+$`)
)

// listed returns the name before a tag in a list at the end of a group, as "Port [SDP-16-1],
// MessageLen [SDP-7.3-1].". The list exists because go doc shows the comments of the elements, but
// not the comment at the end.
func (s *source) listed(d *ast.GenDecl, pos token.Pos) string {
	var before strings.Builder
	g := s.group(pos)
	if g == nil {
		return ""
	}
	for _, c := range g.List {
		if c.End() <= pos {
			before.WriteString(c.Text + "\n")
		} else if c.Pos() <= pos {
			before.WriteString(c.Text[:pos-c.Pos()+1])
		}
	}
	found := namedTag.FindAllStringSubmatch(before.String(), -1)
	if len(found) == 0 {
		return ""
	}
	name := found[len(found)-1][1]
	for _, sp := range d.Specs {
		switch sp := sp.(type) {
		case *ast.TypeSpec:
			if sp.Name.Name == name {
				return name
			}
		case *ast.ValueSpec:
			if slices.ContainsFunc(sp.Names, func(n *ast.Ident) bool { return n.Name == name }) {
				return name
			}
		}
	}
	return ""
}

// below returns the declaration under a comment of tags alone. An empty line keeps the comment out
// of the documentation.
func (s *source) below(pos token.Pos) string {
	g := s.group(pos)
	if g == nil || !tagsOnly.MatchString(g.List[len(g.List)-1].Text) {
		return ""
	}
	line := func(p token.Pos) int { return s.fset.Position(p).Line }
	for _, d := range s.file.Decls {
		d, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		from := d.Pos()
		if d.Doc != nil {
			from = d.Doc.Pos()
		}
		if line(from) == line(g.End())+2 {
			return s.specAt(d, from)
		}
	}
	return ""
}

// group returns the comment around pos, or nil if pos is in a string.
func (s *source) group(pos token.Pos) *ast.CommentGroup {
	for _, g := range s.file.Comments {
		if g.Pos() <= pos && pos < g.End() {
			return g
		}
	}
	return nil
}

// around reports whether pos is in d, in d's comment, or after d on the last line.
func (s *source) around(d ast.Decl, doc *ast.CommentGroup, pos token.Pos) bool {
	from := d.Pos()
	if doc != nil {
		from = doc.Pos()
	}
	return from <= pos && pos <= s.lineEnd(d.End())
}

// lineEnd moves a position to the end of the line, where a comment may stand.
func (s *source) lineEnd(pos token.Pos) token.Pos {
	f := s.fset.File(pos)
	if n := f.Line(pos); n < f.LineCount() {
		return f.LineStart(n+1) - 1
	}
	return token.Pos(f.Base() + f.Size())
}

func funcName(d *ast.FuncDecl) string {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return d.Name.Name
	}
	t := d.Recv.List[0].Type
	for {
		switch u := t.(type) {
		case *ast.StarExpr:
			t = u.X
			continue
		case *ast.IndexExpr:
			t = u.X
			continue
		case *ast.IndexListExpr:
			t = u.X
			continue
		case *ast.Ident:
			return u.Name + "." + d.Name.Name
		}
		return d.Name.Name
	}
}

// specAt returns the name of the type, constant or variable of a declaration at or after pos. For a
// comment above a group the first name is returned.
func (s *source) specAt(d *ast.GenDecl, pos token.Pos) string {
	for _, sp := range d.Specs {
		if pos > s.lineEnd(sp.End()) {
			continue
		}
		switch sp := sp.(type) {
		case *ast.TypeSpec:
			return sp.Name.Name
		case *ast.ValueSpec:
			return sp.Names[0].Name
		}
	}
	return ""
}
