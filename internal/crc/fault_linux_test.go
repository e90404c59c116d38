package crc

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"viaduct/internal/regmem"
)

// TestFault checks that Update of a truncated file in mapped memory causes an error under
// regmem.Guard, and does not end the program.
func TestFault(t *testing.T) {
	const size = 4 << 16
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.Truncate(size)
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Skip(err)
	}
	defer unix.Munmap(b)
	f.Truncate(size / 2)
	if err := regmem.Guard(func() { Castagnoli.Update(0, b[:size/2]) }); err != nil {
		t.Errorf("what is there: %v", err)
	}
	if err := regmem.Guard(func() { Castagnoli.Update(0, b) }); err == nil {
		t.Error("what is not there has a CRC")
	}
}
