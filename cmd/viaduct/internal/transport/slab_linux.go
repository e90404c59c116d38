package transport

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// slabsReused reports whether unused slabs cost no memory, so that the pool keeps unused slabs.
const slabsReused = true

// mapLazily returns n bytes of memory whose pages are allocated at the first access. It turns huge
// pages off, because each message would then cost 2 MiB.
func mapLazily(n int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	unix.Madvise(b, unix.MADV_NOHUGEPAGE)
	return b, nil
}

// giveBack returns the whole pages in b to the kernel. They read as zeros afterwards.
func giveBack(b []byte) {
	page := os.Getpagesize()
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (page - 1)
	if len(b) < skip+page {
		return
	}
	b = b[skip:]
	unix.Madvise(b[:len(b)&^(page-1)], unix.MADV_DONTNEED)
}
