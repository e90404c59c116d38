package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"viaduct/interop/internal/qemu"
)

//go:embed guest/init
var guestInit []byte

// guestPrograms are copied into the guest with their libraries.
var guestPrograms = []string{"ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong", "rping", "ucmatose", "udaddy", "ibv_devinfo", "rdma",
	"ib_send_lat", "ib_send_bw", "ib_write_lat", "ib_write_bw", "ib_read_lat", "ib_read_bw", "ib_atomic_lat", "ib_atomic_bw"}

// guestModules are copied into the guest with all dependencies. rxe cannot create a device without
// crc32_generic.
var guestModules = []string{"virtio_pci", "virtio_net", "virtio_rng", "rdma_ucm", "ib_uverbs", "rdma_rxe", "crc32_generic"}

// A skip is the reason why the program cannot run here.
type skip string

func (s skip) Error() string { return string(s) }

func need(programs ...string) error {
	var missing []string
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing = append(missing, p)
		}
	}
	if missing == nil {
		return nil
	}
	return skip("missing: " + strings.Join(missing, " "))
}

func command(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, errs.String())
	}
	return out.Bytes(), nil
}

var imagePackage = regexp.MustCompile(`Depends: (linux-image-([0-9][^ \n]*-amd64))\n`)

// An image is the kernel and initial RAM disk of the guest.
type image struct{ kernel, initrd string }

// buildImage builds the image in dir, and stores the kernel's package in the directory cache. The
// error is a skip if the machine lacks something.
func buildImage(ctx context.Context, cache, dir string) (*image, error) {
	if err := need("apt-get", "apt-cache", "dpkg-deb", "depmod", "modprobe", "busybox", "ldd", "cpio", "gzip"); err != nil {
		return nil, err
	}
	if err := need(guestPrograms...); err != nil {
		return nil, err
	}
	out, err := command(ctx, "", "apt-cache", "depends", "linux-image-amd64")
	m := imagePackage.FindSubmatch(out)
	if err != nil || m == nil {
		return nil, skip("apt knows no linux-image-amd64: this needs Debian's package lists (apt-get update)")
	}
	pkg, release := string(m[1]), string(m[2])
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	debs, _ := filepath.Glob(filepath.Join(cache, pkg+"_*.deb"))
	if debs == nil {
		if _, err := command(ctx, cache, "apt-get", "download", "-q", pkg); err != nil {
			return nil, skip("cannot download " + pkg + ": " + err.Error())
		}
		debs, _ = filepath.Glob(filepath.Join(cache, pkg+"_*.deb"))
	}
	kernel, root := filepath.Join(dir, "kernel"), filepath.Join(dir, "root")
	if _, err := command(ctx, "", "dpkg-deb", "-x", debs[len(debs)-1], kernel); err != nil {
		return nil, err
	}
	if _, err := command(ctx, "", "depmod", "-b", kernel, release); err != nil {
		return nil, err
	}
	memory, err := compileMemory(ctx, dir)
	if err != nil {
		return nil, err
	}
	if err := fillRoot(ctx, root, kernel, release, memory); err != nil {
		return nil, err
	}
	im := &image{filepath.Join(kernel, "boot", "vmlinuz-"+release), filepath.Join(dir, "initrd.gz")}
	_, err = command(ctx, root, "sh", "-c", `find . | cpio -o -H newc --quiet -R 0:0 | gzip -1 >"$0"`, im.initrd)
	return im, err
}

var libraryPath = regexp.MustCompile(`(/\S+) \(0x`)

// fillRoot fills root, the directory of the guest's file system. memory is the path of the
// memory-lending program.
func fillRoot(ctx context.Context, root, kernel, release, memory string) error {
	for _, d := range []string{"bin", "dev", "etc/libibverbs.d", "lib64", "proc", "run", "sys", "tmp", "usr/bin", "usr/lib"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return err
		}
	}
	put := func(name, file string) error {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		to := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		return os.WriteFile(to, b, 0o755)
	}
	program := func(name, file string) error {
		if err := put(name, file); err != nil {
			return err
		}
		out, err := command(ctx, "", "ldd", file)
		if err != nil {
			return err
		}
		for _, m := range libraryPath.FindAllSubmatch(out, -1) {
			lib, dir := string(m[1]), "usr/lib"
			if strings.Contains(lib, "/ld-linux") {
				dir = "lib64"
			}
			if err := put(filepath.Join(dir, filepath.Base(lib)), lib); err != nil {
				return err
			}
		}
		return nil
	}
	for name, text := range map[string]string{"init": string(guestInit), "etc/libibverbs.d/rxe.driver": "driver rxe\n", "etc/passwd": "root:x:0:0:root:/:/bin/sh\n"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o755); err != nil {
			return err
		}
	}
	busybox, _ := exec.LookPath("busybox")
	if err := put("bin/busybox", busybox); err != nil {
		return err
	}
	for _, p := range guestPrograms {
		file, _ := exec.LookPath(p)
		if err := program("usr/bin/"+p, file); err != nil {
			return err
		}
	}
	if err := program("usr/bin/memory", memory); err != nil {
		return err
	}
	threads, _ := filepath.Glob("/lib/*/libgcc_s.so.1") // needed by glibc when a thread ends
	for _, f := range threads {
		if err := put("usr/lib/libgcc_s.so.1", f); err != nil {
			return err
		}
	}
	drivers, _ := filepath.Glob("/usr/lib/*/libibverbs/librxe-rdmav*.so")
	if drivers == nil {
		return skip("no verbs driver for rxe (Debian: apt-get install ibverbs-providers)")
	}
	if err := program(strings.TrimPrefix(drivers[0], "/"), drivers[0]); err != nil {
		return err
	}
	files, _ := filepath.Glob(filepath.Join(kernel, "lib/modules", release, "modules.*"))
	for _, m := range guestModules {
		out, err := command(ctx, "", "modprobe", "-d", kernel, "-S", release, "--show-depends", m)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); len(f) >= 2 && f[0] == "insmod" {
				files = append(files, f[1])
			}
		}
	}
	for _, f := range files {
		if err := put(strings.TrimPrefix(f, kernel+"/"), f); err != nil {
			return err
		}
	}
	return nil
}

// A guest is a running virtual machine.
type guest struct {
	cmd     *exec.Cmd
	exited  chan struct{}
	console string
	address string
	ask     io.Writer     // QEMU's monitor, which speaks QMP: JSON
	answers *json.Decoder // of the monitor
}

// bootLimit is long, because without KVM the processor is emulated.
const bootLimit = 5 * time.Minute

// boot starts a guest at the tap interface, and waits until the guest accepts commands.
func boot(ctx context.Context, im *image, tap, address, dir string) (*guest, error) {
	g := &guest{exited: make(chan struct{}), console: filepath.Join(dir, "console"), address: address}
	acc := qemu.Choose(ctx)
	// The kernel must not report a lockup, nor miss its timer at the start, where only the emulator
	// waited for a processor of the host.
	args := append([]string{"-accel", acc.Accel, "-cpu", acc.CPU}, "-machine", "pc", "-smp", "1", "-m", "384", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-vga", "none",
		"-kernel", im.kernel, "-initrd", im.initrd, "-append", "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check nowatchdog rcupdate.rcu_cpu_stall_suppress=1 rdinit=/init viaduct.ip="+address+"/24",
		"-chardev", "file,id=console,path="+g.console, "-serial", "chardev:console", "-device", "virtio-rng-pci",
		"-netdev", "tap,id=n0,ifname="+tap+",script=no,downscript=no,vnet_hdr=off", "-device", "virtio-net-pci,netdev=n0,romfile=,host_mtu=9000", "-qmp", "stdio")
	g.cmd = exec.CommandContext(ctx, "qemu-system-x86_64", args...)
	g.cmd.Stderr = os.Stderr
	ask, err := g.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	answers, err := g.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := g.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { g.cmd.Wait(); close(g.exited) }()
	g.ask, g.answers = ask, json.NewDecoder(answers)
	if err := g.monitor("qmp_capabilities", nil); err != nil {
		g.stop()
		return nil, err
	}
	for over := time.Now().Add(bootLimit); ; time.Sleep(200 * time.Millisecond) {
		if out, err := g.run(5*time.Second, "ls /dev/infiniband/uverbs0"); err == nil && strings.Contains(out, "uverbs0") {
			return g, nil
		}
		select {
		case <-g.exited:
			return nil, fmt.Errorf("the guest ended:\n%s", g.consoleTail())
		default:
		}
		if time.Now().After(over) {
			g.stop()
			return nil, fmt.Errorf("the guest has no rxe device after %v:\n%s", bootLimit, g.consoleTail())
		}
	}
}

// monitor makes QEMU's monitor execute a command.
func (g *guest) monitor(command string, arguments map[string]any) error {
	request := struct {
		Execute   string         `json:"execute"`
		Arguments map[string]any `json:"arguments,omitempty"`
	}{command, arguments}
	if err := json.NewEncoder(g.ask).Encode(request); err != nil {
		return fmt.Errorf("QEMU's monitor: %s: %w", command, err)
	}
	for {
		var answer struct {
			Return json.RawMessage
			Error  *struct{ Desc string }
		}
		switch err := g.answers.Decode(&answer); {
		case err != nil:
			return fmt.Errorf("QEMU's monitor: %s: %w", command, err)
		case answer.Error != nil:
			return fmt.Errorf("QEMU's monitor: %s: %s", command, answer.Error.Desc)
		case answer.Return != nil:
			return nil
		}
		// The greeting and events have neither field.
	}
}

// capture writes the packets of the guest's network card to file, until endCapture is called.
func (g *guest) capture(file string) error {
	return g.monitor("object-add", map[string]any{"qom-type": "filter-dump", "id": "dump", "netdev": "n0", "maxlen": 9100, "file": file})
}

func (g *guest) endCapture() error {
	return g.monitor("object-del", map[string]any{"id": "dump"})
}

// run runs a shell script in the guest, for at most limit, and returns the output. A status other
// than 0 is an error.
func (g *guest) run(limit time.Duration, script string) (string, error) {
	d := net.Dialer{Timeout: 20 * time.Second}
	c, err := d.Dial("tcp", net.JoinHostPort(g.address, "2323"))
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(limit + 20*time.Second))
	fmt.Fprintf(c, "%d %s\n", int(limit.Seconds()), base64.StdEncoding.EncodeToString([]byte(script)))
	out, err := io.ReadAll(c)
	at := strings.LastIndex(string(out), "status ") // the last occurrence, because programs may print the word too
	said, status, ok := string(out[:max(at, 0)]), strings.TrimPrefix(string(out[max(at, 0):]), "status "), at >= 0
	switch {
	case err != nil:
		return said, fmt.Errorf("guest: %w\n%s", err, said)
	case !ok:
		return said, fmt.Errorf("guest: %q has no status:\n%s", script, said)
	case strings.TrimSpace(status) != "0":
		return said, fmt.Errorf("guest: %q: status %s:\n%s", script, strings.TrimSpace(status), said)
	}
	return said, nil
}

func (g *guest) consoleTail() string {
	b, _ := os.ReadFile(g.console)
	return string(b[max(0, len(b)-2000):])
}

// stop shuts the guest down.
func (g *guest) stop() {
	go g.run(2*time.Second, "poweroff -f") // nothing answers
	select {
	case <-g.exited:
	case <-time.After(20 * time.Second):
		g.cmd.Process.Kill()
		<-g.exited
	}
}
