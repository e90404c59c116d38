package frameio

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"viaduct/internal/regmem"
	"viaduct/internal/testkit"
)

// mappedFile maps a new file of size bytes until the end of the test.
func mappedFile(t *testing.T, size int) (f *os.File, mem []byte) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	mem, err = unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	return f, mem
}

// TestFaultWhileSending: a connection ends if a mapped file shrinks while the file's bytes are
// queued, and nothing else is affected.
func TestFaultWhileSending(t *testing.T) {
	const size = 1 << 20
	everyKind(t, func(t *testing.T, k kind) {
		f, mem := mappedFile(t, size)
		g := regmem.New(regmem.Limits{})
		r, err := g.Register(mem, regmem.Options{Guarded: true})
		if err != nil {
			t.Fatal(err)
		}
		a, b := k.connect(t)
		got := b.expect(t, [][]byte{make([]byte, 50000)})
		a.c.Start(nil)
		b.c.Start(nil)
		send := func(off, n uint64) {
			ref, out := r.Access(r.Base()+off, n, nil, nil, regmem.LocalRead)
			if out != regmem.OK {
				t.Fatal(out)
			}
			a.postRef(ref)
			a.c.Kick()
		}
		send(0, 50000)
		testkit.Await(t, "a frame of the whole file", got)
		if err := f.Truncate(4096); err != nil {
			t.Fatal(err)
		}
		send(size/2, 50000)
		err = testkit.Await(t, "the failure", a.failed)
		if !errors.Is(err, syscall.EFAULT) && !errors.Is(err, regmem.ErrFault) {
			t.Errorf("failed with %v", err)
		}
		if err := g.Deregister(r); err != nil { // no pin is left
			t.Error(err)
		}
	})
}

// TestFaultWhileFilling checks that the protocol gets the error for short frames in unmapped
// memory. Short frames are copied while the batch is filled, when the protocol can still handle the
// error.
func TestFaultWhileFilling(t *testing.T) {
	f, mem := mappedFile(t, 8192)
	g := regmem.New(regmem.Limits{})
	r, err := g.Register(mem, regmem.Options{Guarded: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	ref, _ := r.Access(r.Base(), 100, nil, nil, regmem.LocalRead)
	b := batches.Get().(*Batch)
	if err := b.Data(ref); !errors.Is(err, regmem.ErrFault) {
		t.Errorf("data of a file that is gone: %v", err)
	}
	b.reset()
	batches.Put(b)
	if err := g.Deregister(r); err != nil {
		t.Error(err)
	}
}
