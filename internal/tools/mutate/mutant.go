package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strconv"
	"strings"

	"viaduct/internal/tools/register"
)

// A mutant is a small change of the code, with a switch.
type mutant struct {
	id   int
	pkg  string // path of the package, relative to the module
	file string // from the root of the module
	line int
	fn   string // the function that contains the code, or "-"
	op   string // the kind of change
	text string // the code to be changed, in one line
	nth  int    // index among the mutants with the same file, fn, op and text
	rows []*register.Row
}

// key names a mutant such that changes elsewhere do not affect the name.
func (m *mutant) key() string {
	k := fmt.Sprintf("%s %s: %s: %s", m.file, m.fn, m.op, m.text)
	if m.nth > 0 {
		k += fmt.Sprintf(" #%d", m.nth+1)
	}
	return k
}

// listing returns the line for a mutant: place, key and rows.
func (m *mutant) listing() string {
	return fmt.Sprintf("%s:%d: %s [%s]", m.file, m.line, m.key(), rowNames(m))
}

// A mutator adds every mutant of a file to the file, each with a switch. It inserts no line ends,
// so that line numbers do not change.
type mutator struct {
	fset    *token.FileSet
	file    *ast.File
	src     []byte
	info    *types.Info
	pkg     *types.Package
	regions []region
	next    func(mutant) int // registers a mutant, and returns its id, or 0 to skip it
	proto   mutant
	stack   []ast.Node
	fn      *ast.FuncDecl
	opens   map[int][]string
	closes  map[int][]string
	repl    map[int]replacement
	seen    map[string]int
}

type replacement struct {
	n    int // bytes
	text string
}

func (m *mutator) offset(p token.Pos) int { return m.fset.Position(p).Offset }

// rewrite returns the file with the mutants.
func (m *mutator) rewrite() []byte {
	m.opens, m.closes, m.repl, m.seen = map[int][]string{}, map[int][]string{}, map[int]replacement{}, map[string]int{}
	for _, d := range m.file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Body == nil || isForPeople(d) {
				continue
			}
			m.fn = d
			m.walk(d.Body)
		case *ast.GenDecl:
			if d.Tok == token.VAR {
				m.fn = nil
				for _, s := range d.Specs {
					for _, v := range s.(*ast.ValueSpec).Values {
						m.walk(v)
					}
				}
			}
		}
	}
	var out bytes.Buffer
	for i := 0; i <= len(m.src); i++ {
		for _, s := range m.closes[i] {
			out.WriteString(s)
		}
		for _, s := range m.opens[i] {
			out.WriteString(s)
		}
		if r, ok := m.repl[i]; ok {
			out.WriteString(r.text)
			i += r.n - 1
			continue
		}
		if i < len(m.src) {
			out.WriteByte(m.src[i])
		}
	}
	return out.Bytes()
}

// isForPeople reports whether a function renders a value for logs and errors; no requirement covers
// such texts.
func isForPeople(d *ast.FuncDecl) bool {
	switch d.Name.Name {
	case "String", "GoString", "LogValue", "Error", "Format":
		return true
	}
	return false
}

// walk visits a node and all children, parents first, so that the brackets of a parent are outside
// the children's.
func (m *mutator) walk(n ast.Node) {
	ast.Inspect(n, func(n ast.Node) bool {
		if n == nil {
			m.stack = m.stack[:len(m.stack)-1]
			return true
		}
		if !m.visit(n) {
			return false
		}
		m.stack = append(m.stack, n)
		return true
	})
}

// parent returns the i-th node around the current node, 0 for the nearest.
func (m *mutator) parent(i int) ast.Node {
	if i = len(m.stack) - 1 - i; i >= 0 {
		return m.stack[i]
	}
	return nil
}

// enter registers a mutant of the node and returns its id. It returns 0 if no citation covers the
// node, or if the mutant is skipped.
func (m *mutator) enter(n ast.Node, op string) int {
	rows := rowsAt(m.regions, n.Pos())
	if rows == nil {
		return 0
	}
	mu := m.proto
	mu.line = m.fset.Position(n.Pos()).Line
	mu.fn, mu.op, mu.rows = "-", op, rows
	if m.fn != nil {
		mu.fn = funcName(m.fn)
	}
	mu.text = strings.Join(strings.Fields(string(m.src[m.offset(n.Pos()):m.offset(n.End())])), " ")
	if i := strings.Index(mu.text, "//"); i >= 0 {
		mu.text = mu.text[:i]
	}
	if len(mu.text) > 70 {
		mu.text = strings.ToValidUTF8(mu.text[:70], "") + "..."
	}
	k := mu.fn + op + mu.text
	mu.nth = m.seen[k]
	m.seen[k]++
	return m.next(mu)
}

// wrap writes open before a node and closing after it, inside the brackets of earlier calls for the
// same node.
func (m *mutator) wrap(n ast.Node, open, closing string) {
	from, to := m.offset(n.Pos()), m.offset(n.End())
	m.opens[from] = append(m.opens[from], open)
	m.closes[to] = append([]string{closing}, m.closes[to]...)
}

// call puts a node into a call of a switch: f(id, node).
func (m *mutator) call(n ast.Node, op, f string) {
	if id := m.enter(n, op); id != 0 {
		m.wrap(n, fmt.Sprintf("%s(%d, ", f, id), ")")
	}
}

// visit makes the mutants of a node and reports whether to visit the children.
func (m *mutator) visit(n ast.Node) bool {
	if e, ok := n.(ast.Expr); ok {
		if tv, ok := m.info.Types[e]; ok && (tv.IsType() || tv.Value != nil) {
			if tv.Value != nil {
				m.constant(e, tv)
			}
			return false
		}
	}
	m.statement(n)
	switch n := n.(type) {
	case *ast.CallExpr:
		return !isLog(n) && !m.isText(n)
	case *ast.Field, *ast.FuncType:
		return false
	case *ast.IfStmt:
		if c, ok := n.Cond.(*ast.CallExpr); ok && isLog(c) {
			return false // the other arguments are for the log
		}
		if isFault(n.Cond) {
			m.stack = append(m.stack, n)
			if n.Else != nil {
				m.walk(n.Else)
			}
			m.stack = m.stack[:len(m.stack)-1]
			return false
		}
		m.condition(n.Cond)
	case *ast.ForStmt:
		if n.Cond != nil {
			m.call(n.Cond, "never", "zzFalse")
		}
	case *ast.CaseClause:
		if len(n.List) == 1 && isFault(n.List[0]) {
			return false
		}
		if s, ok := m.parent(1).(*ast.SwitchStmt); ok && s.Tag == nil {
			for _, e := range n.List {
				m.condition(e)
			}
		}
	case *ast.ReturnStmt:
		for _, e := range n.Results {
			if t := m.info.TypeOf(e); t != nil && t == types.Universe.Lookup("error").Type() {
				m.call(e, "no error", "zzNil")
			}
		}
	case *ast.BinaryExpr:
		if isFault(n) {
			return false
		}
		m.binary(n)
	}
	return true
}

// faultNames are the import names of package fault.
var faultNames = []string{"fault", "faults", "deliberate"}

// isFault reports whether a condition needs a deliberate fault of package fault. Such a condition
// is never true here, because the tested builds have no faults.
func isFault(e ast.Expr) bool {
	switch e := ast.Unparen(e).(type) {
	case *ast.BinaryExpr:
		return e.Op == token.LAND && (isFault(e.X) || isFault(e.Y))
	case *ast.CallExpr:
		s, ok := e.Fun.(*ast.SelectorExpr)
		if !ok {
			return false
		}
		p, ok := s.X.(*ast.Ident)
		return ok && slices.Contains(faultNames, p.Name) && s.Sel.Name == "On"
	}
	return false
}

// isNoFault reports whether an operand is true because there is no deliberate fault.
func isNoFault(e ast.Expr) bool {
	u, ok := ast.Unparen(e).(*ast.UnaryExpr)
	return ok && u.Op == token.NOT && isFault(u.X)
}

// condition makes the mutants of a condition as a whole: never true, and always true. The mutants
// of the operands already cover "always" for a conjunction and "never" for a disjunction.
func (m *mutator) condition(e ast.Expr) {
	if tv := m.info.Types[e]; tv.Value != nil {
		return
	}
	b, _ := ast.Unparen(e).(*ast.BinaryExpr)
	if b == nil || b.Op != token.LOR {
		m.call(e, "never", "zzFalse")
	}
	if b == nil || b.Op != token.LAND {
		m.call(e, "always", "zzTrue")
	}
}

// failing reports whether a return statement returns an error, or false, after other results.
func (m *mutator) failing(s *ast.ReturnStmt) bool {
	if len(s.Results) < 2 {
		return false
	}
	last := s.Results[len(s.Results)-1]
	t := m.info.TypeOf(last)
	if id, ok := last.(*ast.Ident); ok && id.Name == "false" {
		return true
	}
	return t != nil && types.Implements(t, types.Universe.Lookup("error").Type().Underlying().(*types.Interface)) && !m.info.Types[last].IsNil()
}

var boundary = map[token.Token]string{token.LSS: "zzLess", token.LEQ: "zzLessEq", token.GTR: "zzGreater", token.GEQ: "zzGreaterEq"}
var arithmetic = map[token.Token]string{token.ADD: "zzAdd", token.SUB: "zzSub", token.AND: "zzAnd", token.OR: "zzOr", token.AND_NOT: "zzAndNot"}

func (m *mutator) binary(n *ast.BinaryExpr) {
	switch n.Op {
	case token.LAND, token.LOR:
		f := "zzTrue"
		if n.Op == token.LOR {
			f = "zzFalse"
		}
		for _, e := range []ast.Expr{n.X, n.Y} {
			if b, ok := ast.Unparen(e).(*ast.BinaryExpr); ok && b.Op == n.Op || m.info.Types[e].Value != nil || isFault(e) || isNoFault(e) {
				continue
			}
			m.call(e, "without operand", f)
		}
		return
	case token.EQL, token.NEQ:
		if !m.inCondition(n) {
			m.call(n, "not", "zzNot")
		}
		return
	}
	f := boundary[n.Op]
	op := "boundary"
	if f == "" {
		f, op = arithmetic[n.Op], "other operator"
	}
	if f == "" || !isInteger(m.info.TypeOf(n.X)) || !isInteger(m.info.TypeOf(n.Y)) {
		return
	}
	if id := m.enter(n, op); id != 0 {
		m.wrap(n, fmt.Sprintf("%s(%d, ", f, id), ")")
		m.repl[m.offset(n.OpPos)] = replacement{len(n.Op.String()), ","}
	}
}

// inCondition reports whether the mutants of an enclosing condition already cover a comparison.
func (m *mutator) inCondition(n ast.Expr) bool {
	var child ast.Node = n
	for i := 0; ; i++ {
		switch p := m.parent(i).(type) {
		case *ast.ParenExpr:
		case *ast.BinaryExpr:
			return p.Op == token.LAND || p.Op == token.LOR
		case *ast.IfStmt:
			return p.Cond == child
		case *ast.ForStmt:
			return p.Cond == child
		case *ast.CaseClause:
			return true
		default:
			return false
		}
		child = m.parent(i)
	}
}

// constant makes a mutant of an integer returned, stored, passed on, or compared with by a case.
func (m *mutator) constant(e ast.Expr, tv types.TypeAndValue) {
	switch p := m.parent(0).(type) {
	case *ast.ReturnStmt:
		if m.failing(p) && e != p.Results[len(p.Results)-1] {
			return // a value returned with an error has no meaning
		}
	case *ast.SliceExpr, *ast.CompositeLit, *ast.IndexExpr:
	case *ast.KeyValueExpr:
		if p.Key == e {
			return
		}
	case *ast.AssignStmt:
		if p.Tok == token.SHL_ASSIGN || p.Tok == token.SHR_ASSIGN {
			return
		}
	case *ast.CaseClause:
		if block, ok := m.parent(1).(*ast.BlockStmt); !ok || doesNothing(p, block) {
			return
		}
	case *ast.BinaryExpr:
		if p.Op != token.SHL && p.Op != token.SHR || p.Y != e {
			return
		}
	case *ast.CallExpr:
		if id, ok := p.Fun.(*ast.Ident); ok && (id.Name == "make" || id.Name == "panic") || isLog(p) || m.isText(p) {
			return
		}
	default:
		return
	}
	if b, ok := tv.Type.Underlying().(*types.Basic); ok && b.Info()&types.IsBoolean != 0 {
		if _, ok := e.(*ast.Ident); ok && tv.Type == types.Typ[types.Bool] || b.Kind() == types.UntypedBool {
			m.call(e, "not", "zzNot")
		}
		return
	}
	if !isInteger(tv.Type) {
		return
	}
	name, ok := m.typeName(tv.Type)
	if !ok {
		return
	}
	op, f := "next number", "zzInc"
	if isFlag(e, tv) {
		op, f = "next flag", "zzShift"
	}
	if id := m.enter(e, op); id != 0 {
		m.wrap(e, fmt.Sprintf("%s[%s](%d, ", f, name, id), ")")
	}
}

// isFlag reports whether a constant may be a bit of a set. The next number keeps the bit and adds
// the lowest bit, so the mutant makes no difference if the lowest bit is set anyway, as in a status
// with "done".
func isFlag(e ast.Expr, tv types.TypeAndValue) bool {
	switch e.(type) {
	case *ast.Ident, *ast.SelectorExpr:
	default:
		return false
	}
	_, named := tv.Type.(*types.Named)
	v, ok := constant.Uint64Val(tv.Value)
	return named && ok && v >= 4 && v&(v-1) == 0
}

// doesNothing reports whether the values of a switch clause make no difference: the clause, every
// later one and the default do nothing.
func doesNothing(c *ast.CaseClause, block *ast.BlockStmt) bool {
	for _, s := range block.List {
		o, ok := s.(*ast.CaseClause)
		if !ok || (o.List == nil || o.Pos() >= c.Pos()) && len(o.Body) > 0 {
			return false
		}
	}
	return true
}

// typeName spells a type with the imports of the file. ok is false if the file does not import the
// package of the type.
func (m *mutator) typeName(t types.Type) (name string, ok bool) {
	if b, ok := t.(*types.Basic); ok && b.Info()&types.IsUntyped != 0 {
		t = types.Default(t)
	}
	ok = true
	name = types.TypeString(t, func(p *types.Package) string {
		if p == m.pkg {
			return ""
		}
		for _, i := range m.file.Imports {
			if path, _ := strconv.Unquote(i.Path.Value); path == p.Path() {
				if i.Name != nil {
					return i.Name.Name
				}
				return p.Name()
			}
		}
		ok = false
		return ""
	})
	return name, ok
}

// statement makes the mutant that leaves a statement out.
func (m *mutator) statement(n ast.Node) {
	switch p := m.parent(0).(type) {
	case *ast.BlockStmt:
	case *ast.CaseClause:
	case *ast.CommClause:
		if p.Comm == n {
			return
		}
	default:
		return
	}
	switch s := n.(type) {
	case *ast.AssignStmt:
		if s.Tok == token.DEFINE || allBlank(s.Lhs) {
			return
		}
	case *ast.IncDecStmt, *ast.SendStmt:
	case *ast.ExprStmt:
		c, ok := s.X.(*ast.CallExpr)
		if !ok || isLog(c) || isLock(c) {
			return
		}
	default:
		return
	}
	if id := m.enter(n, "without"); id != 0 {
		m.wrap(n, fmt.Sprintf("if !zzIs(%d) { ", id), " }")
	}
}

func allBlank(es []ast.Expr) bool {
	for _, e := range es {
		if id, ok := e.(*ast.Ident); !ok || id.Name != "_" {
			return false
		}
	}
	return true
}

func isInteger(t types.Type) bool {
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsInteger != 0
}

// isLog reports whether a call writes a log or makes the text of an error.
func isLog(c *ast.CallExpr) bool {
	s, ok := c.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	switch s.Sel.Name {
	case "log", "Debug", "Info", "Warn", "Log", "LogAttrs", "DebugContext", "InfoContext", "WarnContext", "Enabled", "Errorf", "Sprintf":
		return true
	}
	return false
}

// isText reports whether a call formats a text by a function of the package, similar to fmt.Errorf.
func (m *mutator) isText(c *ast.CallExpr) bool {
	id, ok := c.Fun.(*ast.Ident)
	if !ok || !strings.HasSuffix(id.Name, "f") {
		return false
	}
	sig, ok := m.info.TypeOf(id).(*types.Signature)
	if !ok || !sig.Variadic() {
		return false
	}
	n := sig.Params().Len()
	_, any := sig.Params().At(n - 1).Type().(*types.Slice).Elem().Underlying().(*types.Interface)
	return any && n > 1 && types.Identical(sig.Params().At(n-2).Type(), types.Typ[types.String])
}

// isLock reports whether no mutant may remove a call: without a lock, Done or panic the program
// would only hang or crash, and no test checks an effect of prints and Helper.
func isLock(c *ast.CallExpr) bool {
	switch f := c.Fun.(type) {
	case *ast.Ident:
		return f.Name == "panic" || f.Name == "print" || f.Name == "println"
	case *ast.SelectorExpr:
		switch f.Sel.Name {
		case "Lock", "Unlock", "RLock", "RUnlock", "Done", "Helper":
			return true
		}
	}
	return false
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
		case *ast.IndexExpr:
			t = u.X
		case *ast.IndexListExpr:
			t = u.X
		case *ast.Ident:
			return u.Name + "." + d.Name.Name
		default:
			return d.Name.Name
		}
	}
}

// switches is the template of a file added to the rewritten package. With mutant 0 no mutant is
// active. A recording run appends to a file the number of each mutant the tests reach with values
// where the mutant makes a difference. It does so at once, because a test program may be killed or
// may exit in the middle of a test.
const switches = `package %s

import (
	zzcmp "cmp"
	zzos "os"
	zzstrconv "strconv"
	zzatomic "sync/atomic"
)

var (
	zzOn, _ = zzstrconv.Atoi(zzos.Getenv("MUTANT"))
	zzReach = zzOpen()
	zzSeen  [%d]zzatomic.Bool
)

func zzOpen() *zzos.File {
	name := zzos.Getenv("MUTANT_REACH")
	if name == "" {
		return nil
	}
	f, err := zzos.OpenFile(name, zzos.O_APPEND|zzos.O_CREATE|zzos.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	return f
}

func zzIs(id int) bool {
	if zzReach != nil && !zzSeen[id].Load() && zzSeen[id].CompareAndSwap(false, true) {
		zzReach.WriteString(zzstrconv.Itoa(id) + "\n")
	}
	return id == zzOn
}

type zzInt interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr
}

func zzTrue[T ~bool](id int, v T) T  { return v || T(zzIs(id)) }
func zzFalse[T ~bool](id int, v T) T { return v && !T(zzIs(id)) }
func zzNot[T ~bool](id int, v T) T   { return v != T(zzIs(id)) }
func zzNil(id int, err error) error {
	if err != nil && zzIs(id) {
		return nil
	}
	return err
}
func zzInc[T zzInt](id int, v T) T {
	if zzIs(id) {
		return v + 1
	}
	return v
}
func zzShift[T zzInt](id int, v T) T {
	if zzIs(id) {
		return v << 1
	}
	return v
}
func zzLess[T zzcmp.Ordered](id int, a, b T) bool      { return a < b || a == b && zzIs(id) }
func zzLessEq[T zzcmp.Ordered](id int, a, b T) bool    { return a < b || a == b && !zzIs(id) }
func zzGreater[T zzcmp.Ordered](id int, a, b T) bool   { return a > b || a == b && zzIs(id) }
func zzGreaterEq[T zzcmp.Ordered](id int, a, b T) bool { return a > b || a == b && !zzIs(id) }
func zzAdd[T zzInt](id int, a, b T) T {
	if zzIs(id) {
		return a - b
	}
	return a + b
}
func zzSub[T zzInt](id int, a, b T) T {
	if zzIs(id) {
		return a + b
	}
	return a - b
}
func zzAnd[T zzInt](id int, a, b T) T {
	if zzIs(id) {
		return a | b
	}
	return a & b
}
func zzOr[T zzInt](id int, a, b T) T {
	if zzIs(id) {
		return a & b
	}
	return a | b
}
func zzAndNot[T zzInt](id int, a, b T) T {
	if zzIs(id) {
		return a & b
	}
	return a &^ b
}
`
