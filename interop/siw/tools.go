package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A skip is the reason why the program, or a part of the program, cannot run here.
type skip string

func (s skip) Error() string { return string(s) }

// systemPath lists directories of programs possibly missing in a user's PATH.
var systemPath = []string{"/usr/sbin", "/sbin", "/usr/local/sbin"}

// find returns the path of a program, and an error if the program is not installed.
func find(program string) (string, error) {
	if p, err := exec.LookPath(program); err == nil {
		return p, nil
	}
	for _, d := range systemPath {
		p := filepath.Join(d, program)
		if st, err := os.Stat(p); err == nil && st.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", skip("no program " + program)
}

// debianPackage maps programs to the packages that contain them.
var debianPackage = map[string]string{
	"qemu-system-x86_64": "qemu-system-x86",
	"busybox":            "busybox-static",
	"gcc":                "gcc",
	"make":               "make",
	"xz":                 "xz-utils",
	"strip":              "binutils",
	"depmod":             "kmod",
	"modprobe":           "kmod",
	"rdma":               "iproute2",
	"rping":              "rdmacm-utils",
	"ib_write_bw":        "perftest",
	"ib_read_bw":         "perftest",
	"ib_send_bw":         "perftest",
	"tshark":             "tshark",
	"nvme":               "nvme-cli",
	"fio":                "fio",
	"mke2fs":             "e2fsprogs",
	"e2fsck":             "e2fsprogs",
	"mkfs.xfs":           "xfsprogs",
	"xfs_repair":         "xfsprogs",
	"apt-get":            "apt",
	"apt-cache":          "apt",
	"dpkg-deb":           "dpkg",
	"ldd":                "libc-bin",
}

// need checks that programs are installed. The error is a skip naming all missing programs and
// their packages.
func need(programs ...string) error {
	var missing, packages []string
	for _, p := range programs {
		if _, err := find(p); err != nil {
			missing = append(missing, p)
			if d := debianPackage[p]; d != "" {
				packages = append(packages, d)
			}
		}
	}
	if missing == nil {
		return nil
	}
	return skip(fmt.Sprintf("missing: %s (Debian: apt-get install %s)", strings.Join(missing, " "), strings.Join(packages, " ")))
}

// command runs a program in dir and returns the output. An error contains the end of the output.
func command(ctx context.Context, dir, program string, args ...string) ([]byte, error) {
	path, err := find(program)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "PATH="+os.Getenv("PATH")+":"+strings.Join(systemPath, ":"))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, tail(errs.String()+out.String(), 20))
	}
	return out.Bytes(), nil
}

// tail returns the last n lines of s.
func tail(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
