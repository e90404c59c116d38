package decode

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Filter selects messages. The zero value selects all.
type Filter struct{ terms []term }

type term struct {
	key, op, value string
}

// operators lists the operators, longer operators first, because "<" is also a prefix of "<=".
var operators = []string{"!=", "<=", ">=", "=", "~", "<", ">"}

// ParseFilter parses terms separated by blanks. A message passes only if all terms are fulfilled. A
// term is "wrong" (the message has a violation) or KEY OPERATOR VALUE without blanks. KEY is proto,
// name, conn, dir, src, dst, frame, wrong (an id), or a field. If the message does not have the
// field, only "!=" is fulfilled. "~" tests whether the value of KEY contains VALUE. "<", ">", "<="
// and ">=" compare numbers. Words are compared without regard to case.
func ParseFilter(s string) (*Filter, error) {
	f := new(Filter)
	for w := range strings.FieldsSeq(s) {
		if w == "wrong" {
			f.terms = append(f.terms, term{key: w})
			continue
		}
		at, op := len(w), ""
		for _, o := range operators {
			if i := strings.Index(w, o); i > 0 && i < at {
				at, op = i, o
			}
		}
		if op == "" || at+len(op) == len(w) {
			return nil, fmt.Errorf("filter term %q: want wrong, or KEY, one of %s, and VALUE",
				w, strings.Join(operators, " "))
		}
		t := term{w[:at], op, w[at+len(op):]}
		if strings.ContainsAny(op, "<>") {
			if _, err := strconv.ParseUint(t.value, 0, 64); err != nil {
				return nil, fmt.Errorf("filter term %q: %q is no number", w, t.value)
			}
		}
		f.terms = append(f.terms, t)
	}
	return f, nil
}

// Wants reports whether m fulfils every term.
func (f *Filter) Wants(m *Message) bool {
	for _, t := range f.terms {
		if !t.holds(m) {
			return false
		}
	}
	return true
}

func (t term) holds(m *Message) bool {
	var v string
	switch t.key {
	case "wrong":
		if t.op == "" {
			return len(m.Wrong) > 0
		}
		is := slices.ContainsFunc(m.Wrong, func(w Wrong) bool { return strings.EqualFold(w.ID, t.value) })
		return is == (t.op != "!=")
	case "proto":
		v = m.Proto
	case "name":
		v = strings.ReplaceAll(m.Name, " ", "")
		t.value = strings.ReplaceAll(t.value, "_", "")
	case "conn":
		v = strconv.Itoa(m.Conn)
	case "frame":
		v = strconv.Itoa(m.Frame)
	case "dir":
		v = m.dir()
	case "src":
		v = m.Src.String()
	case "dst":
		v = m.Dst.String()
	default:
		var ok bool
		if v, ok = m.Get(t.key); !ok {
			return t.op == "!="
		}
	}
	switch t.op {
	case "=":
		return strings.EqualFold(v, t.value)
	case "!=":
		return !strings.EqualFold(v, t.value)
	case "~":
		return strings.Contains(strings.ToLower(v), strings.ToLower(t.value))
	}
	a, err := strconv.ParseUint(v, 0, 64)
	b, _ := strconv.ParseUint(t.value, 0, 64)
	switch {
	case err != nil:
		return false
	case t.op == "<":
		return a < b
	case t.op == ">":
		return a > b
	case t.op == "<=":
		return a <= b
	}
	return a >= b
}
