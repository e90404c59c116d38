//go:build linux && (amd64 || arm64)

package run

import (
	"testing"

	"viaduct/internal/notify"
)

// A connect counts as the one that was answered, made again, if the same thread makes it
// with the same arguments, once, and has made no other call of its end since.
func TestPairRepeats(t *testing.T) {
	args := [6]uint64{5, 0x1000, 16}
	told := &notify.Call{ID: 1, TID: 7, Args: args}
	for _, c := range []struct {
		what string
		call notify.Call
		on   bool // another call came before
		want bool
	}{
		{"made again", notify.Call{ID: 2, TID: 7, Args: args}, false, true},
		{"another thread's", notify.Call{ID: 2, TID: 8, Args: args}, false, false},
		{"to another address", notify.Call{ID: 2, TID: 7, Args: [6]uint64{5, 0x2000, 16}}, false, false},
		{"behind another call", notify.Call{ID: 2, TID: 7, Args: args}, true, false},
	} {
		p := new(pair)
		ps := &pairs{m: map[uint64]*pair{9: p}}
		ps.used.Store(true)
		p.told.Store(told)
		if c.on {
			ps.goesOn(9)
		}
		ps.goesOn(10) // another socket's
		if got := p.repeats(&c.call); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
		if p.repeats(&c.call) {
			t.Errorf("%s: twice", c.what)
		}
	}
}
