package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A disk is a target under test and the guest that uses it.
type disk struct {
	*runner
	file   string // file that the target serves as namespace 1; namespace 2 is memory
	dir    string // directory of files that are added and removed as further namespaces
	at     string // port of the target; "" before the first start
	target *exec.Cmd
	guide  guide
}

// nvme runs the checks with our target as a disk of the guest's kernel.
func (r *runner) nvme(ctx context.Context) error {
	if err := need(storagePrograms...); err != nil {
		return err
	}
	if err := r.boot(ctx); err != nil {
		return err
	}
	page, err := readGuide(ctx)
	if err != nil {
		return err
	}
	d := &disk{runner: r, file: filepath.Join(r.dir, "disk"), dir: filepath.Join(r.dir, "disks"), guide: page}
	size := int64(384 << 20) // xfs needs at least 300 MiB
	if r.soak > 0 {
		size = soakDisk
	}
	if err := errors.Join(sparse(d.file, size), os.MkdirAll(d.dir, 0o755)); err != nil {
		return err
	}
	if err := d.start(ctx); err != nil {
		return err
	}
	defer d.stop()
	if _, err := r.guest.run(ctx, 3*time.Minute, debian); err != nil {
		return skip("the guest lacks a module: " + err.Error())
	}
	if _, err := r.guest.run(ctx, 3*time.Minute, "set -e\n"+page.command("modprobe siw")+"\n"+page.command("rdma link add")+"\n"+page.command("modprobe nvme-rdma")); err != nil {
		return err
	}
	for _, c := range d.checks() {
		ok := r.check("nvme: "+c.what, func() error {
			_, err := r.guest.run(ctx, c.limit, "set -e\n"+c.script)
			return err
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if ok && c.after != nil {
			ok = r.check("nvme: "+c.what+": the target", func() error { return c.after(ctx) })
		}
		if !ok {
			d.diagnose(ctx)
			if r.failures == maxFailures {
				return nil
			}
		}
	}
	r.check("9p: a tree is mounted and compared", func() error { return d.ninep(ctx) })
	return nil
}

// sparse creates a file of size bytes, or changes the size of an existing file.
func sparse(name string, size int64) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

// start starts the target, at the port of the previous target, if any.
func (d *disk) start(ctx context.Context) error {
	args := strings.Fields(d.guide.command("viaduct nvme serve", "disk.img", d.file, ":4420", "127.0.0.1:"+d.at))
	d.target = exec.CommandContext(ctx, d.viaduct, append(args[1:], d.dir)...)
	d.target.Stderr = os.Stderr
	out, err := d.target.StdoutPipe()
	if err != nil {
		return err
	}
	if err := d.target.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return fmt.Errorf("viaduct nvme serve: %w", err)
	}
	d.at = strings.TrimSpace(line[strings.LastIndexByte(line, ':')+1:])
	return nil
}

func (d *disk) stop() {
	d.target.Process.Signal(syscall.SIGTERM)
	d.target.Wait()
}

// diagnose prints the kernel log of the guest.
func (d *disk) diagnose(ctx context.Context) {
	out, _ := d.guest.run(ctx, 20*time.Second, "dmesg | tail -40; cat /sys/class/nvme/nvme*/state 2>/dev/null")
	d.logf("%s", out)
}

// A diskCheck is a script for the guest, and a function after to check the result. after may be
// nil.
type diskCheck struct {
	what   string
	limit  time.Duration
	script string
	after  func(context.Context) error
}

const (
	nqn     = "nqn.2026-11.viaduct:disk"
	diskDev = "/dev/nvme0n1"
	hostID  = "0f01fb42-9f7f-4856-b0b3-51e60b8de349"

	// debian creates the files of Debian's packages needed by the programs, and loads modules a
	// mount would load.
	debian = "set -e; mkdir -p /mnt /etc/nvme /dev/shm; ln -s mke2fs /usr/bin/mkfs.ext4\n" +
		"echo " + hostID + " >/etc/nvme/hostid; echo nqn.2014-08.org.nvmexpress:uuid:" + hostID + " >/etc/nvme/hostnqn\n" +
		"modprobe nvme-rdma; modprobe ext4; modprobe xfs"

	// live waits until the guest's controller is connected.
	live = "i=0; while [ \"$(cat /sys/class/nvme/nvme0/state)\" != live ] && [ $i -lt 1200 ]; do sleep 0.1; i=$((i+1)); done; [ \"$(cat /sys/class/nvme/nvme0/state)\" = live ]\n"
)

// fio returns a command to write to the disk and verify the data.
func fio(name, options string) string {
	return "fio --name=" + name + " --filename=" + diskDev + " --direct=1 --ioengine=libaio --verify=xxhash --verify_fatal=1 " + options + " >/tmp/fio 2>&1 || { tail -30 /tmp/fio; exit 1; }\n"
}

// blocks are fio options for blocks of all sizes.
const blocks = "--rw=randwrite --bsrange=512-1M --blockalign=512 "

// fileSystem returns a script that makes and mounts a file system, copies files there, drops the
// caches, and compares the files.
func (d *disk) fileSystem(mkfs, mount, check string) string {
	return mkfs + "\n" + mount + "\ncp /bin/busybox /tmp/r /mnt/; mkdir /mnt/d; cp /tmp/r /mnt/d/; sync; echo 3 >/proc/sys/vm/drop_caches\n" +
		"cmp /tmp/r /mnt/r; cmp /tmp/r /mnt/d/r; cmp /bin/busybox /mnt/busybox; " + d.guide.command("umount") + "\n" +
		check + " " + diskDev + " >/tmp/check 2>&1 || { cat /tmp/check; exit 1; }\n"
}

func (d *disk) checks() []diskCheck {
	connect := d.guide.command("nvme connect", "SERVER", "10.0.2.2", "4420", d.at) + " -i 2 --reconnect-delay=1 --keep-alive-tmo=5\n"
	ready := "i=0; until [ -b " + diskDev + " ] && [ -b /dev/nvme0n2 ]; do sleep 0.1; i=$((i+1)); [ $i -lt 1200 ]; done\n"
	checks := []diskCheck{
		{"discover", 5 * time.Minute, fmt.Sprintf("nvme discover -t rdma -a 10.0.2.2 -s %s >/tmp/d 2>&1 || { cat /tmp/d; exit 1; }\ngrep -q 'subnqn: *%s' /tmp/d && grep -q 'rdma_prtype: iwarp' /tmp/d", d.at, nqn), nil},
		{"connect over two queues", 5 * time.Minute, connect + ready + "dmesg | grep 'mapped 2/0/0'\n" +
			"nvme id-ctrl /dev/nvme0 >/dev/null && nvme id-ns " + diskDev + " >/dev/null && nvme smart-log /dev/nvme0 >/dev/null && nvme effects-log /dev/nvme0 >/dev/null", nil},
		{"ext4, with files read back after the caches were dropped", 5 * time.Minute,
			"dd if=/dev/urandom of=/tmp/r bs=64k count=64 2>/dev/null\n" + d.fileSystem(d.guide.command("mkfs.ext4"), d.guide.command("mount "+diskDev), "/usr/bin/e2fsck -fn"), nil},
		{"xfs, the same", 5 * time.Minute, d.fileSystem("/usr/bin/mkfs.xfs -q -f "+diskDev, "mount -t xfs "+diskDev+" /mnt", "/usr/bin/xfs_repair -n"), nil},
		{"fio of 128 MiB, 512 bytes to 1 MiB at depths 1, 16 and 128", 10 * time.Minute,
			fio("shallow", blocks+"--size=16M --iodepth=1") +
				fio("mixed", blocks+"--size=64M --iodepth=16") +
				fio("deep", blocks+"--size=48M --iodepth=128"), nil},
		{"a disk is added, resized and removed", 5 * time.Minute, "[ ! -e /dev/nvme0n3 ]", d.events},
		{"discard and write-zeroes read back as zeroes", 5 * time.Minute, "dd if=/dev/urandom of=" + diskDev + " bs=1M count=4 oflag=direct 2>/dev/null\n" +
			"blkdiscard -o 0 -l 1048576 " + diskDev + " && nvme write-zeroes " + diskDev + " -s 4096 -c 2047 >/dev/null\n" +
			"dd if=" + diskDev + " bs=1M count=4 iflag=direct of=/tmp/z 2>/dev/null; dd if=/dev/zero of=/tmp/zero bs=1M count=1 2>/dev/null\n" +
			"dd if=/tmp/z bs=1M count=1 2>/dev/null | cmp - /tmp/zero; dd if=/tmp/z bs=1M skip=2 count=1 2>/dev/null | cmp - /tmp/zero\n" +
			"if dd if=/tmp/z bs=1M skip=1 count=1 2>/dev/null | cmp -s - /tmp/zero; then echo 'what was not discarded is zero'; exit 1; fi", nil},
		{"20 resets under verified input and output", 10 * time.Minute, "(" + fio("reset", "--rw=randwrite --bs=16k --size=16M --iodepth=8 --loops=3") + ") & f=$!\n" +
			"for n in $(seq 20); do sleep 0.2; nvme reset /dev/nvme0 || true; " + live + "done\nwait $f", nil},
		{"the target killed and restarted under verified input and output", 5 * time.Minute,
			"rm -f /tmp/done; (" + fio("killed", "--rw=randwrite --bs=16k --size=32M --iodepth=8") + "echo $? >/tmp/done) >/dev/null 2>&1 &", d.kill},
	}
	return append(append(checks, d.soakChecks()...), diskCheck{
		"disconnect", 5 * time.Minute, d.guide.command("nvme disconnect") + "; dmesg | grep -E 'WARNING|BUG:|Call Trace' && exit 1; true", d.nothingLeft,
	})
}

// kill kills the target while the guest writes, restarts the target, and waits until the guest has
// verified the written data.
func (d *disk) kill(ctx context.Context) error {
	time.Sleep(2 * time.Second) // by then the guest is writing
	if err := d.restart(ctx); err != nil {
		return err
	}
	_, err := d.guest.run(ctx, 10*time.Minute, "i=0; while [ ! -e /tmp/done ] && [ $i -lt 4000 ]; do sleep 0.1; i=$((i+1)); done; cat /tmp/fio; [ \"$(cat /tmp/done)\" = 0 ]")
	return err
}

// events adds a disk to the running target, enlarges the disk, and removes the disk. The connected
// guest must detect each change.
func (d *disk) events(ctx context.Context) error {
	file := filepath.Join(d.dir, "third")
	for _, step := range []struct {
		what   string
		do     func() error
		script string // succeeds once the guest has detected the change
	}{
		{"added", func() error { return sparse(file, 64<<20) }, `[ "$(cat /sys/block/nvme0n3/size 2>/dev/null)" = 131072 ] && [ -b /dev/nvme0n3 ]`},
		{"resized", func() error { return sparse(file, 96<<20) }, `[ "$(cat /sys/block/nvme0n3/size)" = 196608 ]`},
		{"written", nil, "dd if=/tmp/r of=/dev/nvme0n3 bs=1M seek=90 oflag=direct 2>/dev/null && dd if=/dev/nvme0n3 bs=1M skip=90 count=4 iflag=direct 2>/dev/null | cmp - /tmp/r"},
		{"removed", func() error { return os.Remove(file) }, "[ ! -e /sys/block/nvme0n3 ] && [ -b " + diskDev + " ] && [ -b /dev/nvme0n2 ]"},
	} {
		if step.do != nil {
			if err := errors.Join(step.do(), d.target.Process.Signal(syscall.SIGHUP)); err != nil {
				return err
			}
		}
		wait := "i=0; until " + step.script + "; do i=$((i+1)); [ $i -lt 1200 ] || { ls /sys/block; exit 1; }; sleep 0.1; done"
		if _, err := d.guest.run(ctx, 5*time.Minute, wait); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

// nothingLeft waits until "viaduct ps" lists no stream of the target.
func (d *disk) nothingLeft(ctx context.Context) error {
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		out, err := exec.CommandContext(ctx, d.viaduct, "ps").Output()
		if err != nil {
			return err
		}
		left := ""
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "accept") && strings.Contains(line, ":"+d.at) {
				left += line
			}
		}
		if left == "" {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("streams are left:\n%s", left)
		}
	}
}
