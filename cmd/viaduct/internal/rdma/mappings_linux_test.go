//go:build linux && (amd64 || arm64)

package rdma

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ownMappings returns the mappings of this process.
func ownMappings(t testing.TB) *mappings {
	m, err := openMappings(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Both kinds of query find rights and holes, also in a range of several mappings.
func TestMappings(t *testing.T) {
	b, err := unix.Mmap(-1, 0, 8*pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	at := uint64(uintptr(unsafe.Pointer(&b[0])))
	protect := func(page, prot int) {
		if err := unix.Mprotect(b[page*pageSize:(page+1)*pageSize], prot); err != nil {
			t.Fatal(err)
		}
	}
	protect(2, unix.PROT_READ)
	protect(4, unix.PROT_NONE)
	protect(6, unix.PROT_READ|unix.PROT_EXEC)
	m := ownMappings(t)
	defer m.close()
	ways := map[string]func(int, uint64, func(mapping) bool){"read": readMappings, "query": queryMappings}
	if _, e := query(m.fd, at, new(mapQuery)); e == unix.ENOTTY {
		t.Log("this kernel has no PROCMAP_QUERY: the list is read")
		delete(ways, "query")
	}
	for name, each := range ways {
		m.each = each
		for _, c := range []struct {
			from, to    int // in bytes
			read, write bool
		}{
			{0, 2 * pageSize, true, true},
			{1, 2*pageSize + 1, true, false},
			{0, 4 * pageSize, true, false},
			{3 * pageSize, 4 * pageSize, true, true},
			{0, 5 * pageSize, false, false},
			{5 * pageSize, 8 * pageSize, true, false},
			{7 * pageSize, 8 * pageSize, true, true},
		} {
			r, w := m.hold(at+uint64(c.from), uint64(c.to-c.from), false),
				m.hold(at+uint64(c.from), uint64(c.to-c.from), true)
			if r != c.read || w != c.write {
				t.Errorf("%s: %d to %d: read %v, write %v; want %v, %v", name, c.from, c.to, r, w, c.read, c.write)
			}
		}
		if m.hold(8, 8, false) || m.hold(1<<63, 8, true) {
			t.Errorf("%s: addresses without a mapping are held", name)
		}
	}
}

// On kernels without the query, a range of many mappings is checked by reading the list once.
func TestManyMappings(t *testing.T) {
	const n = 3000
	list, err := os.Create(filepath.Join(t.TempDir(), "maps"))
	if err != nil {
		t.Fatal(err)
	}
	defer list.Close()
	w := bufio.NewWriter(list)
	for i := range n {
		fmt.Fprintf(w, "%x-%x rw-p 00000000 00:00 0 \n", 0x10000000+i*pageSize, 0x10000000+(i+1)*pageSize)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	reads := 0
	m := &mappings{fd: int(list.Fd()), each: func(fd int, addr uint64, visit func(mapping) bool) {
		reads++
		readMappings(fd, addr, visit)
	}}
	if !m.hold(0x10000000, n*pageSize, true) || m.hold(0x10000000, (n+1)*pageSize, true) {
		t.Error("the range is not what is held")
	}
	if reads != 2 {
		t.Errorf("the list was read %d times for two ranges", reads)
	}
}

// Memory made read-only after registration is not written, although the kernel would allow a
// tracer's write.
func TestMemoryReadOnly(t *testing.T) {
	b, err := unix.Mmap(-1, 0, 2*pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	at := uint64(uintptr(unsafe.Pointer(&b[0])))
	fd, err := unix.Open("/proc/self/mem", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	m := &memory{fd: fd, maps: ownMappings(t)}
	defer m.maps.close()
	if err := m.WriteAt([]byte("first"), at); err != nil || string(b[:5]) != "first" {
		t.Fatalf("%q, %v", b[:5], err)
	}
	if err := unix.Mprotect(b[:pageSize], unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	m.maps.written.Store(nil) // expire the permit
	if err := m.WriteAt([]byte("second"), at); err != errFault || string(b[:5]) != "first" {
		t.Errorf("%q, %v; want the first and %v", b[:6], err, errFault)
	}
	if err := m.WriteAt([]byte("behind"), at+pageSize); err != nil || string(b[pageSize:pageSize+6]) != "behind" {
		t.Errorf("%q, %v", b[pageSize:pageSize+6], err)
	}
	if err := m.WriteAt([]byte("over"), at+pageSize-2); err != errFault {
		t.Errorf("over the border: %v, want %v", err, errFault)
	}
}
