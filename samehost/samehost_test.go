package samehost

import "testing"

func TestPolicy(t *testing.T) {
	for _, p := range []Policy{Off, Auto, Require} {
		if got, err := Parse(p.String()); got != p || err != nil {
			t.Errorf("%v: %v, %v", p, got, err)
		}
	}
	for _, s := range []string{"", "on", "Auto", "Policy(3)"} {
		if p, err := Parse(s); err == nil {
			t.Errorf("%q is %v", s, p)
		}
	}
	if got := Policy(3).String(); got != "Policy(3)" {
		t.Error(got)
	}
}

func TestPath(t *testing.T) {
	if s := (Path{SharedMemory: true}).String(); s != "shared memory" {
		t.Error(s)
	}
	if s := (Path{Why: "other host"}).String(); s != "tcp: other host" {
		t.Error(s)
	}
}
