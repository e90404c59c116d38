//go:build linux && (amd64 || arm64)

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// asRDMAPaths makes the test binary a program that accesses the files of RDMA with every system
// call with a path argument.
const asRDMAPaths = "VIADUCT_TEST_RDMA_PATHS"

// Every call with a path finds the RDMA files: by absolute paths, by paths relative to directories,
// and through symbolic links.
func TestRDMAPathCalls(t *testing.T) {
	t.Parallel()
	r := good(t, "run", "--rdma", "--", "env", calm, asRDMAPaths+"="+t.TempDir(), os.Args[0])
	if r.stdout != "done\n" {
		t.Errorf("%s%s", r.stdout, r.stderr)
	}
}

// Programs can list, enter and test the directories of RDMA.
func TestRDMAPathPrograms(t *testing.T) {
	t.Parallel()
	link := t.TempDir() + "/link"
	for _, c := range []struct{ name, script, want string }{
		{"list", "ls /sys/class/infiniband /dev/infiniband; ls -d /sys/class/infiniband_verbs/uverbs0", "/dev/infiniband:\nrdma_cm\nuverbs0\n\n/sys/class/infiniband:\nsiw0\n/sys/class/infiniband_verbs/uverbs0\n"},
		{"list long", "ls -l /dev/infiniband | cut -c1-10,20-", ""},
		{"test", "for f in -w -r -c -e; do test $f /dev/infiniband/rdma_cm || echo not $f; done; test -x /dev/infiniband/uverbs0 || test -w /sys/class/infiniband || test -e /dev/infiniband/uverbs1 || echo ok", "ok\n"},
		{"enter", "cd /sys/class/infiniband && ls && cd siw0/ports/1 && cat state && pwd -P && cd ../.. && cat node_type && cd ../.. && ls -d infiniband net && pwd -P", "siw0\n4: ACTIVE\n/sys/class/infiniband/siw0/ports/1\n4: RNIC\ninfiniband\nnet\n/sys/class\n"},
		{"enter devices", "cd /dev/infiniband && test -c uverbs0 && test -w rdma_cm && cat ../../sys/class/infiniband/siw0/node_desc && (cd .. && pwd -P)", "Software iWARP stack\n/dev\n"},
		{"link", "ln -s /sys/class/infiniband " + link + " && cat " + link + "/siw0/ports/1/link_layer && cd ${0%/*} && cat link/siw0/hw_rev", "Ethernet\n0\n"},
		{"find", "find /dev/infiniband -type c | sort; find /sys/class/infiniband -name state", "/dev/infiniband/rdma_cm\n/dev/infiniband/uverbs0\n/sys/class/infiniband/siw0/ports/1/state\n"},
		{"write", "(echo x > /sys/class/infiniband/siw0/node_desc) 2>/dev/null || echo refused", "refused\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := good(t, "run", "--rdma", "--", "sh", "-c", c.script, link)
			if c.want == "" {
				if !strings.Contains(r.stdout, "crw-rw-rw-") || strings.Count(r.stdout, "\n") != 3 || r.stderr != "" {
					t.Errorf("%q %s", r.stdout, r.stderr)
				}
				return
			}
			if r.stdout != c.want {
				t.Errorf("%q, want %q\n%s", r.stdout, c.want, r.stderr)
			}
		})
	}
}

// rdmaPaths tries every call; dir is a directory for symbolic links.
func rdmaPaths(dir string) error {
	root, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	class, err := unix.Open("/sys/class/infiniband", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	link := dir + "/link"
	if err := unix.Symlink("/sys/class", link); err != nil {
		return err
	}
	for _, f := range []struct {
		at   int
		name string
		dev  uint64 // device number, or 0 if the file is no device
		dir  bool
	}{
		{unix.AT_FDCWD, "/dev/infiniband/uverbs0", unix.Mkdev(231, 192), false},
		{unix.AT_FDCWD, "/dev/infiniband/rdma_cm", unix.Mkdev(10, 121), false},
		{root, "dev/infiniband/uverbs0", unix.Mkdev(231, 192), false},
		{class, "../../../dev/infiniband/rdma_cm", unix.Mkdev(10, 121), false},
		{unix.AT_FDCWD, "/sys/class/infiniband/siw0/node_guid", 0, false},
		{unix.AT_FDCWD, "/sys/class/net/../infiniband/./siw0//node_guid", 0, false},
		{root, "sys/class/infiniband/siw0/node_guid", 0, false},
		{class, "siw0/node_guid", 0, false},
		{class, "../infiniband_verbs/uverbs0/device/numa_node", 0, false},
		{unix.AT_FDCWD, link + "/infiniband/siw0/node_guid", 0, false},
		{unix.AT_FDCWD, "/proc/self/root/sys/class/misc/rdma_cm/abi_version", 0, false},
		{unix.AT_FDCWD, "/dev/infiniband", 0, true},
		{root, "sys/class/infiniband_verbs", 0, true},
		{class, ".", 0, true},
	} {
		for name, call := range pathCallsOf(f.at, f.name, f.dev, f.dir) {
			if err := call(); err != nil {
				return fmt.Errorf("%s of %s: %w", name, f.name, err)
			}
		}
	}
	if err := rdmaPathErrors(dir); err != nil {
		return err
	}
	fmt.Println("done")
	return nil
}

// pathCallsOf returns the calls on a file, each with a check of the result.
func pathCallsOf(at int, name string, dev uint64, dir bool) map[string]func() error {
	mode := func(m uint32, rdev uint64) error {
		want := uint32(unix.S_IFREG)
		switch {
		case dir:
			want = unix.S_IFDIR
		case dev != 0:
			want = unix.S_IFCHR
		}
		if m&unix.S_IFMT != want || dev != 0 && rdev != dev {
			return fmt.Errorf("mode %#o, device %#x", m, rdev)
		}
		return nil
	}
	access := func(err error) error {
		if dev == 0 && !dir && err == unix.EACCES {
			return nil // files of sysfs exist and are read-only
		}
		return err
	}
	flags := unix.O_RDONLY
	if dev != 0 {
		flags = unix.O_RDWR
	}
	opened := func(fd int, err error) error {
		if err == nil {
			err = unix.Close(fd)
		}
		return err
	}
	calls := map[string]func() error{
		"openat": func() error { return opened(unix.Openat(at, name, flags|unix.O_CLOEXEC, 0)) },
		"openat2": func() error {
			return opened(unix.Openat2(at, name, &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC)}))
		},
		"fstatat": func() error {
			var st unix.Stat_t
			return errors.Join(unix.Fstatat(at, name, &st, 0), mode(st.Mode, st.Rdev))
		},
		"fstatat of a link": func() error {
			var st unix.Stat_t
			return errors.Join(unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW), mode(st.Mode, st.Rdev))
		},
		"statx": func() error {
			var st unix.Statx_t
			err := unix.Statx(at, name, 0, unix.STATX_BASIC_STATS, &st)
			return errors.Join(err, mode(uint32(st.Mode), unix.Mkdev(st.Rdev_major, st.Rdev_minor)))
		},
		"faccessat": func() error {
			if dir {
				return unix.Faccessat(at, name, unix.R_OK|unix.X_OK, 0)
			}
			return access(unix.Faccessat(at, name, unix.R_OK|unix.W_OK, 0))
		},
		"faccessat2": func() error {
			if err := unix.Faccessat2(at, name, unix.R_OK, unix.AT_EACCESS); err != unix.ENOSYS {
				return err
			}
			return nil
		},
		"readlinkat": func() error {
			if _, err := unix.Readlinkat(at, name, make([]byte, 16)); err != unix.EINVAL {
				return fmt.Errorf("%v, want %v", err, unix.EINVAL)
			}
			return nil
		},
	}
	if at == unix.AT_FDCWD {
		calls["statfs"] = func() error { return unix.Statfs(name, new(unix.Statfs_t)) }
		calls["getxattr"] = func() error {
			if _, err := unix.Getxattr(name, "user.none", make([]byte, 16)); err != unix.ENODATA {
				return fmt.Errorf("%v, want %v", err, unix.ENODATA)
			}
			return nil
		}
		calls["inotify_add_watch"] = func() error {
			fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			wd, err := unix.InotifyAddWatch(fd, name, unix.IN_ATTRIB)
			if err != nil {
				return err
			}
			_, err = unix.InotifyRmWatch(fd, uint32(wd))
			return err
		}
		legacyPathCalls(calls, name, mode, access)
		if dir {
			calls["chdir"] = func() error {
				if err := unix.Chdir(name); err != nil {
					return err
				}
				if got, err := unix.Getwd(); err != nil || got != name {
					return fmt.Errorf("getcwd: %s, %v", got, err)
				}
				return unix.Chdir("/")
			}
		}
	}
	if dir {
		calls["getdents"] = func() error {
			fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if n, err := unix.Getdents(fd, make([]byte, 4096)); err != nil || n <= 48 { // . and .. take 48 bytes
				return fmt.Errorf("%d bytes, %v", n, err)
			}
			return errors.Join(unix.Fchdir(fd), unix.Chdir("/"))
		}
	}
	return calls
}

// rdmaPathErrors tries missing paths and forbidden operations, and checks the error of each.
func rdmaPathErrors(dir string) error {
	loop := dir + "/loop-infiniband"
	if err := unix.Symlink(loop, loop); err != nil {
		return err
	}
	for _, c := range []struct {
		name  string
		flags int
		want  error
	}{
		{"/dev/infiniband/uverbs7", unix.O_RDWR, unix.ENOENT},
		{"/sys/class/infiniband/siw1", unix.O_RDONLY, unix.ENOENT},
		{"/sys/class/infinibands", unix.O_RDONLY, unix.ENOENT},
		{"/sys/class/infiniband/siw0/node_guid", unix.O_RDWR, unix.EACCES},
		{"/sys/class/infiniband/siw0", unix.O_RDWR, unix.EISDIR},
		{"/sys/class/infiniband/siw0/node_guid", unix.O_RDONLY | unix.O_DIRECTORY, unix.ENOTDIR},
		{"/dev/infiniband/uverbs0", unix.O_RDONLY | unix.O_DIRECTORY, unix.ENOTDIR},
		{"/sys/class/infiniband_verbs/uverbs0/device", unix.O_RDONLY | unix.O_NOFOLLOW, unix.ELOOP},
		{loop, unix.O_RDONLY, unix.ELOOP},
	} {
		if fd, err := unix.Open(c.name, c.flags|unix.O_CLOEXEC, 0); err != c.want {
			return fmt.Errorf("open %s with %#x: %d, %v; want %v", c.name, c.flags, fd, err, c.want)
		}
	}
	b := make([]byte, 100)
	if n, err := unix.Readlink("/sys/class/infiniband_verbs/uverbs0/device", b); err != nil ||
		string(b[:n]) != "../../infiniband/siw0/device" {
		return fmt.Errorf("readlink: %q, %v", b[:max(n, 0)], err)
	}
	return nil
}
