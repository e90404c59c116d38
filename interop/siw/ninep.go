package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// ninep makes the guest's kernel mount a directory served by examples/9p, and read all files there.
func (d *disk) ninep(ctx context.Context) error {
	server := filepath.Join(d.runner.dir, "9p")
	build := exec.CommandContext(ctx, "go", "build", "-o", server, "viaduct/examples/9p")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building examples/9p: %w: %s", err, out)
	}
	root := filepath.Join(d.runner.dir, "tree")
	want, err := plantTree(root)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, server, root)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	out, err := d.guest.run(ctx, 5*time.Minute, "set -e\nmodprobe 9p\n"+d.guide.command("modprobe 9pnet_rdma")+`
i=0
until `+d.guide.command("mount -t 9p", "SERVER", "10.0.2.2")+`; do i=$((i+1)); [ $i -lt 120 ]; sleep 0.5; done
cp -r /mnt /tmp/copy
if cat /mnt/none 2>/dev/null; then exit 1; fi
umount /mnt; cd /tmp/copy; find . -type f | sort | xargs sha256sum`)
	if err != nil {
		return err
	}
	if out != want {
		return fmt.Errorf("the guest read\n%s, want\n%s", out, want)
	}
	return nil
}

// plantTree creates a tree of files of many sizes, and returns the output of sha256sum for the
// files.
func plantTree(root string) (string, error) {
	for i, n := range []int{0, 1, 511, 4096, 65525, 65526, 1 << 20, 3<<20 + 7} {
		dir := filepath.Join(root, fmt.Sprintf("d%d", i%3), "sub")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", err
		}
		b := bytes.Repeat([]byte{byte(i), 2, 3, 5, 7, 11, 13}, n/7+1)[:n]
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("file%d", n)), b, 0o644); err != nil {
			return "", err
		}
	}
	for i := range 300 { // more names than fit into one message
		if err := os.WriteFile(filepath.Join(root, "d0", fmt.Sprintf("%0200d", i)), nil, 0o644); err != nil {
			return "", err
		}
	}
	var sums strings.Builder
	err := filepath.WalkDir(root, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(name)
		rel, _ := filepath.Rel(root, name)
		fmt.Fprintf(&sums, "%x  ./%s\n", sha256.Sum256(b), rel)
		return err
	})
	return sums.String(), err
}
