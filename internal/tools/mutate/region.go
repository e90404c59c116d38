package main

import (
	"go/ast"
	"go/token"
	"slices"

	"viaduct/internal/tools/register"
)

// A region is the code of a citation: the function or statement below the comment, or the statement
// before the comment on the same line.
type region struct {
	from, to token.Pos
	rows     []*register.Row
}

// regions returns the regions of the citations in a file, each once.
func regions(fset *token.FileSet, file *ast.File, cites []register.Cite) []region {
	var out []region
	base := fset.File(file.Pos()).Base()
	for _, c := range cites {
		from, to := regionAt(fset, file, token.Pos(base+c.Offset))
		if !from.IsValid() {
			continue
		}
		i := slices.IndexFunc(out, func(r region) bool { return r.from == from && r.to == to })
		if i < 0 {
			i = len(out)
			out = append(out, region{from: from, to: to})
		}
		if !slices.Contains(out[i].rows, c.Row) {
			out[i].rows = append(out[i].rows, c.Row)
		}
	}
	return out
}

// rowsAt returns the rows of all regions around pos.
func rowsAt(rs []region, pos token.Pos) (rows []*register.Row) {
	for _, r := range rs {
		if r.from > pos || pos >= r.to {
			continue
		}
		for _, row := range r.rows {
			if !slices.Contains(rows, row) {
				rows = append(rows, row)
			}
		}
	}
	return rows
}

// regionAt returns the region of a citation at pos, or 0, 0 for a citation that covers no code, for
// example in front of a type.
func regionAt(fset *token.FileSet, file *ast.File, pos token.Pos) (from, to token.Pos) {
	group := commentAt(file, pos)
	if group == nil {
		return 0, 0
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Doc == group {
				return d.Pos(), d.End()
			}
		case *ast.GenDecl:
			if d.Doc == group && d.Tok == token.VAR {
				return d.Pos(), d.End()
			}
		}
	}
	line := func(p token.Pos) int { return fset.Position(p).Line }
	behind, below := line(group.Pos()), line(group.End())+1
	same := startingAt(fset, file, behind, group.Pos())
	switch n := same.(type) {
	case nil:
	case *ast.IfStmt:
		return n.Pos(), n.Body.End()
	case *ast.ForStmt:
		return n.Pos(), n.Body.Lbrace
	case *ast.RangeStmt:
		return n.Pos(), n.Body.Lbrace
	case *ast.SwitchStmt:
		return n.Pos(), n.Body.Lbrace
	case *ast.TypeSwitchStmt:
		return n.Pos(), n.Body.Lbrace
	case *ast.SelectStmt:
		return n.Pos(), n.Body.Lbrace
	case *ast.FuncDecl:
		return n.Pos(), n.End()
	default:
		return n.Pos(), n.End()
	}
	if start := fset.File(pos).LineStart(behind); hasCode(file, start, group.Pos()) {
		return start, group.Pos() // the last line of a longer statement
	}
	if n := startingAt(fset, file, below, token.NoPos); n != nil {
		return n.Pos(), n.End()
	}
	return 0, 0
}

func commentAt(file *ast.File, pos token.Pos) *ast.CommentGroup {
	for _, g := range file.Comments {
		if g.Pos() <= pos && pos < g.End() {
			return g
		}
	}
	return nil
}

// startingAt returns the outermost statement, clause, element of a composite literal, variable or
// function that starts in a line, or nil. If before is valid, the node must start in front of it.
func startingAt(fset *token.FileSet, file *ast.File, line int, before token.Pos) (found ast.Node) {
	ast.Inspect(file, func(n ast.Node) bool {
		if n == nil || found != nil {
			return false
		}
		switch d := n.(type) {
		case *ast.GenDecl:
			if d.Tok != token.VAR {
				return false
			}
			return true
		case *ast.File, *ast.BlockStmt, *ast.DeclStmt, *ast.CommentGroup, *ast.FuncType, *ast.FieldList, *ast.Ident:
			return true
		}
		if fset.Position(n.Pos()).Line == line && (!before.IsValid() || n.Pos() < before) {
			found = n
			return false
		}
		return true
	})
	return found
}

// hasCode reports whether a node begins or ends between two positions.
func hasCode(file *ast.File, from, to token.Pos) (yes bool) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n.(type) {
		case nil, *ast.CommentGroup, *ast.Comment:
			return false
		}
		if n.Pos() >= from && n.Pos() < to || n.End() > from && n.End() <= to {
			yes = true
		}
		return !yes && n.Pos() < to && n.End() > from
	})
	return yes
}
