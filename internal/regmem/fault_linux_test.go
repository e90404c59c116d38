package regmem

import (
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFault truncates a mapped file. Only the transfers that access the lost pages must fail.
func TestFault(t *testing.T) {
	page := os.Getpagesize()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(int64(2 * page)); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	g := New(Limits{})
	r, err := g.Register(mem, Options{Guarded: true})
	if err != nil {
		t.Fatal(err)
	}
	w, err := g.Bind(r, uint64(page), uint64(page), Options{Rights: Local})
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 2*page)
	try := func(r *Region, off, n int) error {
		t.Helper()
		ref, out := g.Access(r.Handle(), r.Base()+uint64(off), uint64(n), nil, nil, Local)
		if out != OK {
			t.Fatal(out)
		}
		defer ref.Release()
		if !ref.Guarded() {
			t.Error("the region is not guarded")
		}
		read := Copy(buf, ref.B(), true)
		write := Copy(ref.B(), buf[:n], true)
		if !errors.Is(read, write) {
			t.Errorf("read %v, write %v", read, write)
		}
		return read
	}
	for range 2 {
		if err := errors.Join(try(r, 0, 2*page), try(w, 0, page)); err != nil {
			t.Errorf("a file of full length: %v", err)
		}
		if err := f.Truncate(int64(page)); err != nil {
			t.Fatal(err)
		}
		if err := try(r, 0, page); err != nil {
			t.Errorf("what is left of the file: %v", err)
		}
		for _, err := range []error{try(r, page-1, 2), try(r, page, 1), try(w, 0, page)} {
			if !errors.Is(err, ErrFault) {
				t.Errorf("what is gone: %v", err)
			}
		}
		if err := f.Truncate(int64(2 * page)); err != nil { // extends the file again
			t.Fatal(err)
		}
	}
	if err := errors.Join(g.Deregister(w), g.Deregister(r)); err != nil {
		t.Error(err)
	}
}

// TestCopyLastFault: CopyLast returns a fault of guarded memory as an error, and panics for a fault
// of other memory. [VIA-4.2-5]
func TestCopyLastFault(t *testing.T) {
	gone, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(gone)
	for n := range 20 {
		if err := CopyLast(gone, make([]byte, n), true); n > 0 && !errors.Is(err, ErrFault) || n == 0 && err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() == nil {
			t.Error("a fault of memory that is not guarded was an error")
		}
	}()
	err = CopyLast(gone, make([]byte, 8), false)
	t.Error(err)
}
