package transport

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// slabsReused tells that slabs cost nothing while no connection has them.
const slabsReused = true

// mapLazily returns n bytes that take memory only where they are touched. Huge pages
// would make that 2 MiB for each message.
func mapLazily(n int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	unix.Madvise(b, unix.MADV_NOHUGEPAGE)
	return b, nil
}

// giveBack gives the whole pages in b back to the system; they read as zeros then.
func giveBack(b []byte) {
	page := os.Getpagesize()
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (page - 1)
	if len(b) < skip+page {
		return
	}
	b = b[skip:]
	unix.Madvise(b[:len(b)&^(page-1)], unix.MADV_DONTNEED)
}
