// Command face prints the exported names of the public packages. It finds three faults: an exported
// name whose type mentions an internal package of the module, even by an alias, because a program
// outside can't look the type up; a comment naming something missing; and a comment naming
// something internal. Face also counts the names: functions, types, methods (including those of
// interfaces), constants and variables, without the fields of structs. An alias counts as a name.
//
//	go run ./internal/tools/face          # the exported names that mention internal types
//	go run ./internal/tools/face -all     # every exported name
//	go run ./internal/tools/face -check   # the number of names; exit 1 if there are more than
//	                                      # the limit, if known.txt is not the list of names
//	                                      # that mention internal types, or if a comment
//	                                      # names what a reader can't look up
//	go run ./internal/tools/face -write   # renew known.txt
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// public are the packages for programs outside the module. A test finds missing packages.
var public = []string{"vi", "vitcp", "fcvi", "iwarp", "sdp", "portmap", "samehost", "registry", "debug", "roce", "nvme"}

// limit is the number of names the public packages may export together, because each must be
// learned and maintained. A name no program needs is unexported, or moved below internal.
const limit = 774

const module = "viaduct"

func main() {
	all := flag.Bool("all", false, "print every exported name")
	check := flag.Bool("check", false, "compare with known.txt")
	write := flag.Bool("write", false, "renew known.txt")
	flag.Parse()
	if err := run(os.Stdout, *all, *check, *write); err != nil {
		fmt.Fprintln(os.Stderr, "face:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, all, check, write bool) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	pkgs, err := load(root)
	if err != nil {
		return err
	}
	var names []name
	for _, pkg := range pkgs {
		names = append(names, face(pkg)...)
	}
	var offences []string
	for _, n := range names {
		if all {
			fmt.Fprintln(w, n)
		}
		if len(n.internal) > 0 {
			offences = append(offences, n.String())
		}
	}
	list := filepath.Join(root, "internal/tools/face/known.txt")
	switch {
	case all:
		return nil
	case write:
		return os.WriteFile(list, []byte(strings.Join(offences, "\n")+"\n"), 0o644)
	case !check:
		fmt.Fprintln(w, strings.Join(offences, "\n"))
		return nil
	}
	total := count(w, names)
	b, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	fresh, gone := compare(strings.Split(strings.TrimSpace(string(b)), "\n"), offences)
	for _, o := range fresh {
		fmt.Fprintf(w, "%s: a program outside cannot name that type\n", o)
	}
	for _, o := range gone {
		fmt.Fprintf(w, "%s: in known.txt and mended; renew the list by -write\n", o)
	}
	if len(fresh)+len(gone) > 0 {
		return fmt.Errorf("%d exported names more, %d less than known.txt", len(fresh), len(gone))
	}
	faults, err := docFaults(root, pkgs)
	if err != nil {
		return err
	}
	for _, f := range faults {
		fmt.Fprintln(w, f)
	}
	if len(faults) > 0 {
		return fmt.Errorf("%d names in comments that a reader can't look up", len(faults))
	}
	return within(total)
}

// within returns an error if there are more names than limit.
func within(total int) error {
	if total > limit {
		return fmt.Errorf("%d exported names, at most %d: unexport what a program outside does not need, or move it below internal", total, limit)
	}
	return nil
}

// count prints how many names each package exports, and returns the sum.
func count(w io.Writer, names []name) (total int) {
	n := map[string]int{}
	for _, x := range names {
		if !x.member {
			pkg, _, _ := strings.Cut(x.path, ".")
			n[pkg]++
			total++
		}
	}
	for _, p := range public {
		fmt.Fprintf(w, "%4d %s\n", n[p], p)
	}
	fmt.Fprintf(w, "%4d of %d\n", total, limit)
	return total
}

// compare returns the names only in now, and the names only in known.
func compare(known, now []string) (fresh, gone []string) {
	for _, o := range now {
		if !slices.Contains(known, o) {
			fresh = append(fresh, o)
		}
	}
	for _, o := range known {
		if o != "" && !slices.Contains(now, o) {
			gone = append(gone, o)
		}
	}
	return fresh, gone
}

// A name is an exported identifier, method or field of a public package.
type name struct {
	path     string   // vi.Provider.Open
	member   bool     // a field of a struct, or a member that an alias gets from its type: not counted
	internal []string // types of internal packages in its type
}

func (n name) String() string {
	if len(n.internal) == 0 {
		return n.path
	}
	return n.path + ": " + strings.Join(n.internal, ", ")
}

func moduleRoot() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	return strings.TrimSpace(string(out)), err
}

// load reads the compiler's export data of the public packages.
func load(root string) (pkgs []*types.Package, err error) {
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Export"}
	for _, p := range public {
		args = append(args, "./"+p)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, stderr.String())
	}
	files := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct{ ImportPath, Export string }
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		files[p.ImportPath] = p.Export
	}
	im := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(files[path]) })
	for _, p := range public {
		pkg, err := im.Import(module + "/" + p)
		if err != nil {
			return nil, err
		}
		pkgs = append(pkgs, pkg)
	}
	return pkgs, nil
}

// face lists the exported names of a package with the mentioned internal types, in alphabetical
// order.
func face(pkg *types.Package) (names []name) {
	add := func(path string, t types.Type, member bool) {
		m := mentions{seen: map[types.Type]bool{}}
		m.walk(t)
		slices.Sort(m.found)
		names = append(names, name{path: path, internal: slices.Compact(m.found), member: member})
	}
	for _, id := range pkg.Scope().Names() {
		o := pkg.Scope().Lookup(id)
		if !o.Exported() {
			continue
		}
		path := pkg.Name() + "." + id
		tn, isType := o.(*types.TypeName)
		if !isType {
			add(path, o.Type(), false)
			continue
		}
		if tn.IsAlias() {
			add(path, types.Unalias(tn.Type()), false)
		} else {
			switch u := tn.Type().Underlying().(type) {
			case *types.Struct, *types.Interface:
				names = append(names, name{path: path})
			default:
				add(path, u, false)
			}
		}
		if s, ok := tn.Type().Underlying().(*types.Struct); ok {
			for f := range s.Fields() {
				if f.Exported() {
					add(path+"."+f.Name(), f.Type(), true)
				}
			}
		}
		if i, ok := tn.Type().Underlying().(*types.Interface); ok {
			for m := range i.Methods() {
				if m.Exported() {
					add(path+"."+m.Name(), m.Type(), tn.IsAlias())
				}
			}
			continue
		}
		ms := types.NewMethodSet(types.NewPointer(tn.Type()))
		for s := range ms.Methods() {
			if s.Obj().Exported() && len(s.Index()) == 1 {
				add(path+"."+s.Obj().Name(), s.Obj().Type(), tn.IsAlias())
			}
		}
	}
	return names
}

// mentions collects the internal types in a type expression. It does not look into named types.
type mentions struct {
	found []string
	seen  map[types.Type]bool
}

func (m *mentions) walk(t types.Type) {
	if t == nil || m.seen[t] {
		return
	}
	m.seen[t] = true
	switch t := t.(type) {
	case *types.Alias:
		// An alias of a public package is reported at the declaration.
		if o := t.Obj(); o.Pkg() == nil || isInternal(o.Pkg().Path()) {
			m.walk(types.Unalias(t))
		}
	case *types.Named:
		m.note(t.Obj())
		for a := range t.TypeArgs().Types() {
			m.walk(a)
		}
	case *types.Pointer:
		m.walk(t.Elem())
	case *types.Slice:
		m.walk(t.Elem())
	case *types.Array:
		m.walk(t.Elem())
	case *types.Chan:
		m.walk(t.Elem())
	case *types.Map:
		m.walk(t.Key())
		m.walk(t.Elem())
	case *types.Signature:
		for v := range t.Params().Variables() {
			m.walk(v.Type())
		}
		for v := range t.Results().Variables() {
			m.walk(v.Type())
		}
	case *types.Struct:
		for f := range t.Fields() {
			m.walk(f.Type())
		}
	case *types.Interface:
		for f := range t.Methods() {
			m.walk(f.Type())
		}
	}
}

func (m *mentions) note(o *types.TypeName) {
	if o.Pkg() != nil && isInternal(o.Pkg().Path()) {
		m.found = append(m.found, strings.TrimPrefix(o.Pkg().Path(), module+"/")+"."+o.Name())
	}
}

func isInternal(path string) bool { return strings.HasPrefix(path, module+"/internal/") }
