package regmem

import (
	"bytes"
	"errors"
	"math"
	"testing"
	"unsafe"
)

// A testSpace is a Space whose memory begins at address farBase.
type testSpace struct{ mem []byte }

const farBase = 0x7f0000000000

var errSpace = errors.New("no such memory")

func (s *testSpace) at(addr uint64, n int) ([]byte, error) {
	if addr < farBase || addr-farBase > uint64(len(s.mem)) || uint64(n) > uint64(len(s.mem))-(addr-farBase) {
		return nil, errSpace
	}
	return s.mem[addr-farBase:][:n], nil
}

func (s *testSpace) ReadAt(p []byte, addr uint64) error {
	b, err := s.at(addr, len(p))
	copy(p, b)
	return err
}

func (s *testSpace) WriteAt(p []byte, addr uint64) error {
	b, err := s.at(addr, len(p))
	copy(b, p)
	return err
}

// farRegionAt returns a region of n far bytes whose addresses begin at base, like regionAt.
func farRegionAt(base uint64, n int) *Region {
	r := regionAt(base, n)
	r.mem, r.space, r.at = nil, &testSpace{make([]byte, n)}, farBase
	return r
}

// TestSpace checks that far bytes are copied from and to exactly the checked address.
func TestSpace(t *testing.T) {
	s := &testSpace{[]byte("0123456789abcdef")}
	g := New(Limits{})
	r, err := g.RegisterSpace(s, farBase+2, 10, Options{Rights: RemoteRead | RemoteWrite})
	if err != nil {
		t.Fatal(err)
	}
	ref, out := g.Access(r.Handle(), farBase+4, 3, nil, nil, RemoteRead)
	if out != OK || !ref.Far() || ref.B() != nil || ref.Len() != 3 {
		t.Fatalf("%v, far %v, %d bytes", out, ref.Far(), ref.Len())
	}
	got := make([]byte, 3)
	if err := ref.CopyTo(got); err != nil || string(got) != "456" {
		t.Errorf("%q, %v", got, err)
	}
	for i, f := range []func([]byte) error{ref.CopyFrom, ref.CopyLastFrom} {
		s.mem[4] = 'x'
		if err := f([]byte("AB")); err != nil || !bytes.HasPrefix(s.mem, []byte("0123AB6")) {
			t.Errorf("%d: %q, %v", i, s.mem, err)
		}
	}
	ref.Release()

	w, err := g.Bind(r, 8, 2, Options{Rights: RemoteRead, ZeroBased: true})
	if err != nil {
		t.Fatal(err)
	}
	ref, out = g.Access(w.Handle(), 1, 1, nil, nil, RemoteRead)
	if err := ref.CopyTo(got); out != OK || err != nil || got[0] != 'b' {
		t.Errorf("window: %v, %v, %q", out, err, got[:1])
	}
	s.mem = s.mem[:3]
	if err := ref.CopyTo(got); err != errSpace {
		t.Errorf("after the memory has gone: %v", err)
	}
	ref.Release()
	if err := g.Deregister(w); err != nil {
		t.Error(err)
	}
	if err := g.Deregister(r); err != nil {
		t.Error(err)
	}
	for _, c := range []struct{ base, n uint64 }{{0, 0}, {1, math.MaxUint64}, {math.MaxUint64, 2}} {
		if _, err := g.RegisterSpace(s, c.base, c.n, Options{}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%d bytes at %#x: %v", c.n, c.base, err)
		}
	}
}

// TestRefSize checks that a Ref has at most four words, because the compiler keeps only structs of
// up to four words in registers.
func TestRefSize(t *testing.T) {
	if n, most := unsafe.Sizeof(Ref{}), 4*unsafe.Sizeof(uintptr(0)); n > most {
		t.Errorf("a Ref has %d bytes, the compiler keeps at most %d in registers", n, most)
	}
}
