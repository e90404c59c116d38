//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// asRDMANumbers makes the test binary a program that opens devices and channels. The value is the
// number of files to open.
const asRDMANumbers = "VIADUCT_TEST_RDMA_NUMBERS"

// A program can open as many devices and channels as the descriptor limit allows, whether the limit
// was low at the start, was lowered by a shell, or could be raised by the program. Beyond the
// limit, the program gets EMFILE, and the user gets the reason once.
func TestRDMANumbers(t *testing.T) {
	t.Parallel()
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, outside, inside string
		open, want            int
		needs                 uint64 // the hard limit
	}{
		{"many", "true", "true", 300, 300, 4096},
		{"soft limit", "true", "ulimit -Sn 256", 300, 300, 4096},
		{"lowered", "true", "ulimit -n 512", 70, 60, 1024},
		{"low at the start", "ulimit -n 512", "true", 70, 60, 512},
		{"very low", "ulimit -n 64", "true", 70, 28, 64},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if l.Max < c.needs {
				t.Skipf("SKIPPED: the hard limit of descriptors is %d, this needs %d", l.Max, c.needs)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := command(ctx, "run", "--rdma", "--", "sh", "-c", c.inside+` && exec env `+calm+` "$0=$1" "$2"`,
				asRDMANumbers, fmt.Sprint(c.open), os.Args[0])
			cmd.Args = slices.Concat([]string{"sh", "-c", c.outside + ` && exec "$0" "$@"`}, cmd.Args)
			cmd.Path = "/bin/sh"
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v\n%s", err, errs.String())
			}
			want := fmt.Sprintf("%d open\n", c.want)
			if out.String() != want {
				t.Errorf("%q, want %q\n%s", out.String(), want, errs.String())
			}
			if told := strings.Count(errs.String(), "EMFILE"); told > 1 || (told == 1) != (c.want < c.open) {
				t.Errorf("told %d times: %s", told, errs.String())
			}
		})
	}
}

// rdmaNumbers opens devices and channels in turn, and sends a command to the last device.
func rdmaNumbers(arg string) error {
	var n, opened int
	if _, err := fmt.Sscan(arg, &n); err != nil {
		return err
	}
	var before, after unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		return err
	}
	h := &rdmaAbuser{}
	var err error
	if h.scratch, err = unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return err
	}
	for i := range n {
		fd, err := unix.Open([]string{"/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"}[i%2],
			unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err == unix.EMFILE {
			break
		}
		if err != nil {
			return err
		}
		if i%2 == 0 {
			h.uverbs = fd
		}
		opened++
	}
	if err := h.command(abi.GetContext, 16, h.at(0)); err != nil {
		return fmt.Errorf("descriptor %d: %w", h.uverbs, err)
	}
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &after); err != nil || after != before {
		return fmt.Errorf("the limit was %v and is %v: %w", before, after, err)
	}
	fmt.Printf("%d open\n", opened)
	return nil
}
