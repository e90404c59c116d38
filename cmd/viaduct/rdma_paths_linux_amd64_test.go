package main

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// legacyPathCalls adds the calls missing on arm64 and no longer made by libraries of amd64.
func legacyPathCalls(calls map[string]func() error, name string, mode func(uint32, uint64) error, access func(error) error) {
	p, err := unix.BytePtrFromString(name)
	if err != nil {
		panic(err)
	}
	for call, nr := range map[string]uintptr{"stat": unix.SYS_STAT, "lstat": unix.SYS_LSTAT} {
		calls[call] = func() error {
			st := new(unix.Stat_t)
			_, _, e := unix.Syscall(nr, uintptr(unsafe.Pointer(p)), uintptr(unsafe.Pointer(st)), 0)
			if e != 0 {
				return e
			}
			return mode(st.Mode, st.Rdev)
		}
	}
	calls["access"] = func() error {
		if _, _, e := unix.Syscall(unix.SYS_ACCESS, uintptr(unsafe.Pointer(p)), unix.R_OK, 0); e != 0 {
			return access(e)
		}
		return nil
	}
	calls["open"] = func() error {
		fd, _, e := unix.Syscall(unix.SYS_OPEN, uintptr(unsafe.Pointer(p)), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if e != 0 {
			return e
		}
		return unix.Close(int(fd))
	}
	calls["readlink"] = func() error {
		b := make([]byte, 16)
		_, _, e := unix.Syscall(unix.SYS_READLINK, uintptr(unsafe.Pointer(p)), uintptr(unsafe.Pointer(&b[0])), 16)
		if e != unix.EINVAL {
			return errors.Join(errors.New("no error EINVAL"), e)
		}
		return nil
	}
}
