package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// dataFrom returns the offset of the next data of a file from at on, or the end of the file. The
// bytes between are zeros.
func dataFrom(f *os.File, at int64) int64 {
	if n, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA); err == nil {
		return n
	} else if err == unix.ENXIO { // there is no data up to the end
		if n, err := f.Seek(0, io.SeekEnd); err == nil {
			return max(at, n)
		}
	}
	return at
}

// bytesRead returns the number of bytes a process has read so far, and false if the number is not
// known.
func bytesRead(pid int) (int64, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0, false
	}
	var n int64
	_, err = fmt.Sscanf(string(b), "rchar: %d", &n)
	return n, err == nil
}

// A disk is a separate file system, so that a test can fill the disk.
type disk struct{ dir, ballast string }

// newDisk mounts a file system of n bytes at dir: in memory, or in a sparse file if n is large.
func newDisk(dir string, n int64) (*disk, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	mount := exec.Command("mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%d,nr_inodes=0", n), "tmpfs", dir)
	if n > 1<<30 {
		image := dir + ".image"
		if err := os.WriteFile(image, nil, 0o600); err != nil {
			return nil, err
		}
		if err := os.Truncate(image, n); err != nil {
			return nil, err
		}
		if out, err := exec.Command("mkfs.ext4", "-q", "-F", "-m", "0", image).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("mkfs.ext4: %w: %s", err, out)
		}
		mount = exec.Command("mount", "-o", "loop", image, dir)
	}
	if out, err := mount.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mount: %w: %s", err, out)
	}
	return &disk{dir, filepath.Join(dir, "ballast")}, nil
}

// leave writes a file of ballast so large that n bytes of the disk stay free, or returns an error
// if fewer are free.
func (d *disk) leave(n int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(d.dir, &st); err != nil {
		return err
	}
	f, err := os.OpenFile(d.ballast, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if take := int64(st.Bavail)*st.Bsize - n; take > 0 {
		return unix.Fallocate(int(f.Fd()), 0, 0, take)
	}
	return fmt.Errorf("the disk has less than %d bytes", n)
}

// makeRoom removes the ballast of leave.
func (d *disk) makeRoom() error { return os.Remove(d.ballast) }

func (d *disk) close() {
	if out, err := exec.Command("umount", d.dir).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "copy: umount: %v: %s", err, out)
	}
	os.Remove(d.dir + ".image")
}
