package attend

import (
	"fmt"
	"strings"
	"testing"

	"viaduct/internal/testkit"
)

// TestMatrix compares the matrix of all states and events, and the drawing of the arrows, with
// golden files. A changed arrow is a changed line.
func TestMatrix(t *testing.T) {
	var m strings.Builder
	for s := range State(states) {
		for e := range Event(events) {
			to, do := next(s, e)
			if to == s && do == Nothing {
				fmt.Fprintf(&m, "%-10s %-10s -\n", s, e)
				continue
			}
			fmt.Fprintf(&m, "%-10s %-10s -> %-10s %s\n", s, e, to, do)
		}
	}
	testkit.Golden(t, "matrix.golden", []byte(m.String()))
	var d strings.Builder
	d.WriteString("digraph attention {\n")
	for _, a := range arrows {
		fmt.Fprintf(&d, "\t%s -> %s [label=%q];\n", a.from, a.to,
			strings.TrimSuffix(fmt.Sprintf("%s / %s", a.on, a.do), " / "))
	}
	d.WriteString("}\n")
	testkit.Golden(t, "arrows.dot", []byte(d.String()))
}

// TestArrows: each arrow is listed once, Close leads from every state to Closed, and no arrow leads
// away from Closed.
func TestArrows(t *testing.T) {
	type key struct {
		from State
		on   Event
	}
	seen := map[key]bool{}
	for _, a := range arrows {
		if k := (key{a.from, a.on}); seen[k] {
			t.Errorf("%v, %v stands twice", a.from, a.on)
		} else {
			seen[k] = true
		}
		if a.from == Closed {
			t.Errorf("%v leads away from Closed", a.on)
		}
	}
	for s := range State(states) {
		if to, _ := next(s, Close); to != Closed {
			t.Errorf("%v, Close leads to %v", s, to)
		}
	}
}
