package samehost

import (
	"errors"
	"runtime"
	"testing"
)

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

func TestAlloc(t *testing.T) {
	b, err := Alloc(100)
	if runtime.GOOS != "linux" {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Error(err)
		}
		return
	}
	if err != nil || len(b) != 100 {
		t.Fatal(len(b), err)
	}
	b[99] = 1
	if err := Free(b); err != nil {
		t.Error(err)
	}
	if err := Free(b); err == nil {
		t.Error("given back twice")
	}
}
