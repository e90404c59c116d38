//go:build linux && (amd64 || arm64)

package rdma

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Finding is the result of a test of Check. Good is set if the test has passed. Warn is set if
// programs can be run, but with limits. Says describes the result, and Do the remedy, if any.
type Finding struct {
	What       string
	Good, Warn bool
	Says, Do   string
}

// Check tests whether programs under a Service with the devices can run on this machine.
func Check(devices []Device) []Finding {
	all := []Finding{checkLimit(unix.Getrlimit), checkNetlink(), checkPayload(), checkLease(),
		checkLibraries("/"), checkDevices("/")}
	for _, d := range devices {
		if isRoCE(d.Name) {
			all = append(all, checkWire(d))
		}
	}
	return all
}

// checkLimit checks whether the limit of descriptors leaves numbers for devices and event channels.
// get is unix.Getrlimit, except in tests.
func checkLimit(get func(int, *unix.Rlimit) error) Finding {
	limit := descriptorLimit(get).Max
	n := newNumbers(limit).count(limit)
	f := Finding{What: "limit", Good: n > 0,
		Says: fmt.Sprintf("of %d descriptors that a program may have, %d can be devices and event channels", limit, n)}
	if n < belowMost {
		f.Warn, f.Do = f.Good, fmt.Sprintf("raise the hard limit: ulimit -Hn %d", 2*belowLimit)
	}
	return f
}

// checkNetlink opens a NETLINK_USERSOCK socket, because programs get such a socket instead of
// RDMA's netlink socket.
func checkNetlink() Finding {
	f := Finding{What: "netlink", Good: true, Says: "devices can be listed"}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_USERSOCK)
	if err != nil {
		f.Good, f.Says = false, "there is no netlink socket of users, by which devices are listed: "+err.Error()
		f.Do = "a container's seccomp profile may forbid it: allow socket of the family AF_NETLINK"
		return f
	}
	unix.Close(fd)
	return f
}

// checkPayload reads and writes memory through /proc/self/mem, because a program's payload is
// accessed through /proc/PID/mem.
func checkPayload() Finding {
	f := Finding{What: "payload", Good: true, Says: "registered memory can be read and written"}
	fd, err := unix.Open("/proc/self/mem", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(fd)
		v := new(uint64)
		at := int64(uintptr(unsafe.Pointer(v)))
		if _, err = unix.Pwrite(fd, []byte{1}, at); err == nil {
			_, err = unix.Pread(fd, make([]byte, 8), at)
		}
	}
	if err != nil {
		f.Good, f.Says = false, "registered memory can't be read and written: /proc/self/mem: "+err.Error()
		f.Do = "/proc has to be mounted for writing, without the kernel's parameter proc_mem.restrict_write"
	}
	return f
}

// checkLease creates a memfd like the memfd of an open device, and requests a lease. A lease shows
// that the program has closed the device.
func checkLease() Finding {
	f := Finding{What: "rings", Good: true, Says: "queues can be shared with programs"}
	a, theirs, err := newArena(&ringQuota{most: 1})
	if err != nil {
		f.Good, f.Says = false, "the memory of queues can't be shared: "+err.Error()
		f.Do = "a container's seccomp profile may forbid it: allow memfd_create"
		return f
	}
	unix.Close(theirs)
	defer a.close()
	if !a.orphaned() {
		f.Warn, f.Says = true, "a device that a program closes is noticed only when the program ends: leases are refused"
	}
	return f
}

// checkLibraries looks for the distribution's libraries below root. They are optional, because a
// program may bring private copies.
func checkLibraries(root string) Finding {
	f := Finding{What: "libraries", Good: true,
		Says: "libibverbs, librdmacm and the providers of siw and rxe are installed"}
	var missing []string
	for _, l := range []struct{ name, what string }{
		{"libibverbs.so.1", "libibverbs"}, {"librdmacm.so.1", "librdmacm"}, {"libibverbs/libsiw-rdmav*.so", "the provider of siw"},
		{"libibverbs/librxe-rdmav*.so", "the provider of rxe (--device rxe0)"},
	} {
		found := false
		for _, dir := range []string{"usr/lib/*-linux-gnu", "usr/lib64", "usr/lib", "usr/local/lib", "usr/local/lib64"} {
			m, _ := filepath.Glob(filepath.Join(root, dir, l.name))
			found = found || len(m) > 0
		}
		if !found {
			missing = append(missing, l.what)
		}
	}
	if len(missing) > 0 {
		f.Warn, f.Says = true, "not installed: "+strings.Join(missing, ", ")
		f.Do = "install them (Debian: apt-get install libibverbs1 librdmacm1 ibverbs-providers; Fedora: dnf install libibverbs librdmacm); programs and containers may bring their own"
	}
	return f
}

// checkDevices warns about RDMA devices of the kernel below root, because programs do not see the
// kernel's devices.
func checkDevices(root string) Finding {
	f := Finding{What: "kernel devices", Good: true, Says: "none"}
	if all, err := os.ReadDir(filepath.Join(root, "sys/class/infiniband")); err == nil && len(all) > 0 {
		var names []string
		for _, d := range all {
			names = append(names, d.Name())
		}
		f.Warn, f.Says = true, "programs under run --rdma do not see "+strings.Join(names, ", ")
	}
	return f
}
