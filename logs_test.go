package viaduct_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// attributes has the keys of all logged attributes, with their meanings. A meaning has the same key
// in all packages; add a new key here before it is used.
var attributes = map[string]string{
	"transport": "a scheme of addresses",
	"local":     "address of this side",
	"remote":    "address of the other side, whatever it is: a peer, a server, a mapper",
	"peer":      "name of the other side of an FCIP link",
	"calling":   "VI address of the side that connects",
	"called":    "VI address of the side that is connected to",
	"service":   "TCP address that is asked for",
	"sdp":       "TCP address that speaks SDP for it",
	"url":       "where something is served",

	"err":   "what went wrong; not there if nothing did",
	"why":   "a reason that is no error",
	"after": "the pause before another attempt", "left": "how many attempts are",
	"code": "of an asynchronous error of VI", "resource": "what that error is about",

	"level": "of reliability of a VI", "flow": "control of descriptors of a VI", "mtu": "longest message in bytes", "reads": "RDMA Reads outstanding",
	"rev": "revision of MPA", "crc": "MPA's is on", "ird": "RDMA Reads that are served", "ord": "RDMA Reads that are asked for",
	"mulpdu": "longest ULPDU in bytes",
	"path":   "how bytes go, or a file at the server", "algorithm": "of congestion control",
	"mode": "of SDP, or of a request for a file", "sending": "the direction of that mode", "msg": "a message of SDP",
	"from": "state before", "to": "state after",

	"file": "of this host", "op": "of the memory service", "method": "of HTTP", "offset": "in bytes", "bytes": "of a file", "sha256": "of a file",
	"services": "how many", "connections": "how many",
	"kind": "of names in a registry", "name": "in a registry", "value": "of a name in a registry", "lease": "how long a registration outlives its process",
	"queue": "of NVMe, its number", "controller": "of NVMe", "namespace": "of NVMe", "depth": "of a queue", "command": "of NVMe, its opcode",
	"status": "of NVMe", "device": "of RDMA", "gid": "of a RoCE device", "busy_percent": "of the processors, by other programs",
	"stale":   "only the last known names",
	"tls-pin": "the value of the flag of this name",
	"what":    "was read anew: a token, a certificate",
}

// logging maps the methods of *slog.Logger, and of the command's own logger, to the index of the
// message; -1 for With, because With has no message.
var logging = map[string]int{"Debug": 0, "Info": 0, "Notice": 0, "Warn": 0, "Error": 0,
	"DebugContext": 1, "InfoContext": 1, "WarnContext": 1, "ErrorContext": 1, "Log": 2, "LogAttrs": 2, "With": -1}

// TestLogAttributes: every event is a constant text without a full stop, the keys of the attributes
// are in the list above, and every key of the list is used. No error has a method LogValue, whose
// group would add keys such as err.remote: errors are logged as text.
func TestLogAttributes(t *testing.T) {
	used := map[string]bool{}
	isError, isGroup := map[string]bool{}, map[string]token.Pos{} // by the types' directories and names
	events := 0
	file := token.NewFileSet()
	word := regexp.MustCompile(`^[a-z][a-z0-9_-]*$`)
	literal := func(e ast.Expr) (string, bool) {
		l, ok := e.(*ast.BasicLit)
		if !ok || l.Kind != token.STRING {
			return "", false
		}
		s, err := strconv.Unquote(l.Value)
		return s, err == nil
	}
	key := func(e ast.Expr) {
		at := file.Position(e.Pos())
		k, ok := literal(e)
		switch {
		case !ok:
			t.Errorf("%v: the key of an attribute is no constant", at)
		case attributes[k] == "":
			t.Errorf("%v: no attribute is called %q; the list in logs_test.go says what there is", at, k)
		}
		used[k] = true
	}
	one := func(call *ast.CallExpr, at int) {
		if at >= len(call.Args) {
			return
		}
		if at < 0 {
			if k, ok := literal(call.Args[0]); !ok || !word.MatchString(k) {
				return // a method With of another type
			}
		} else if m, ok := literal(call.Args[at]); !ok {
			return // a method of another type
		} else if len(call.Args) > at+1 && strings.HasSuffix(m, ".") {
			t.Errorf("%v: the event %q ends with a full stop", file.Position(call.Pos()), m)
		} else {
			events++
		}
		for i := at + 1; i < len(call.Args); {
			arg := call.Args[i]
			if c, ok := arg.(*ast.CallExpr); ok { // a call such as slog.String
				if s, ok := c.Fun.(*ast.SelectorExpr); ok {
					if x, ok := s.X.(*ast.Ident); ok && x.Name == "slog" {
						key(c.Args[0])
						i++
						continue
					}
				}
			}
			key(arg)
			i += 2
		}
	}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != "." || d.Name() == "testdata" || d.Name() == "vitest" || d.Name() == "testkit" || path == "internal/tools"):
			return fs.SkipDir // nothing below these directories logs
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(file, path, src, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range f.Decls {
			m, ok := d.(*ast.FuncDecl)
			if !ok || m.Recv == nil {
				continue
			}
			typ := filepath.Dir(path) + "." + strings.TrimPrefix(types.ExprString(m.Recv.List[0].Type), "*")
			switch m.Name.Name {
			case "Error":
				isError[typ] = true
			case "LogValue":
				isGroup[typ] = m.Pos()
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if s, ok := call.Fun.(*ast.SelectorExpr); ok {
					if at, ok := logging[s.Sel.Name]; ok && len(call.Args) > 0 {
						one(call, at)
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for typ, at := range isGroup {
		if isError[typ] {
			t.Errorf("%v: %s is an error and is not logged as text", file.Position(at), typ)
		}
	}
	if len(isError) < 20 {
		t.Errorf("%d errors were found", len(isError))
	}
	if events < 50 {
		t.Errorf("%d events were found", events)
	}
	for k := range attributes {
		if !used[k] {
			t.Errorf("nothing logs the attribute %q any more", k)
		}
	}
}
