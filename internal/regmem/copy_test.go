package regmem

import (
	"errors"
	"runtime/debug"
	"testing"
)

func TestCopy(t *testing.T) {
	for _, guarded := range []bool{false, true} {
		dst := []byte{9, 9, 9, 9}
		if err := Copy(dst, []byte{1, 2, 3}, guarded); err != nil || string(dst) != "\x01\x02\x03\x09" {
			t.Errorf("guarded %t: %v, %v", guarded, dst, err)
		}
	}
}

// TestGuardPassesPanics checks that Guard passes on every panic except a memory fault.
func TestGuardPassesPanics(t *testing.T) {
	defer func() {
		if e := recover(); e != "mine" {
			t.Errorf("recovered %v", e)
		}
		if debug.SetPanicOnFault(false) {
			t.Error("Guard left faults as panics")
		}
	}()
	Guard(func() { panic("mine") })
}

// TestGuardPassesNilPointers checks that Guard passes on the panic of a nil pointer, because a nil
// pointer is a bug of this program and not a fault of guarded memory.
func TestGuardPassesNilPointers(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a nil pointer was swallowed")
		}
	}()
	var p *[100]byte
	err := Guard(func() { p[5] = 1 })
	t.Errorf("a nil pointer became %v", err)
	_ = errors.Is(err, ErrFault)
}
