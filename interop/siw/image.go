package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

//go:embed guest/init
var guestInit []byte

// An image is the kernel and initial RAM disk of a guest.
type image struct {
	kernel, initrd string
	about          string // versions, one line each
}

// recipe is a part of the image's name in the cache. Change recipe with every change of the image's
// contents except changes of the lists below, so that an old image is not used.
const recipe = "3"

// guestPrograms are copied into the guest with their libraries.
var guestPrograms = []string{"rping", "ib_write_bw", "ib_read_bw", "ib_send_bw", "rdma"}

// storagePrograms are needed by -nvme, and copied into the guest if present on the host.
var storagePrograms = []string{"nvme", "fio", "mke2fs", "e2fsck", "mkfs.xfs", "xfs_repair"}

// guestModules are copied into the guest with all dependencies. crc32c_generic is in C. The module
// for Intel's instructions occasionally returns a wrong value on QEMU's emulated processor.
var guestModules = []string{"virtio_pci", "virtio_net", "virtio_rng", "rdma_ucm", "ib_uverbs", "iw_cm", "rdma_cm", "crc32c_generic",
	"nvme-rdma", "ext4", "xfs", "9p", "9pnet_rdma"}

// ensureImage returns the image in the cache directory. It builds the image if the cache has none.
func ensureImage(ctx context.Context, cache string, logf func(string, ...any)) (*image, error) {
	programs := guestPrograms[:len(guestPrograms):len(guestPrograms)]
	for _, p := range storagePrograms {
		if _, err := find(p); err == nil {
			programs = append(programs, p)
		}
	}
	sum := sha256.Sum256(append([]byte(recipe+strings.Join(programs, " ")+strings.Join(guestModules, " ")+siwParameters), guestInit...))
	dir := filepath.Join(cache, hex.EncodeToString(sum[:6]))
	im := &image{kernel: filepath.Join(dir, "vmlinuz"), initrd: filepath.Join(dir, "initrd.gz")}
	if about, err := os.ReadFile(filepath.Join(dir, "VERSIONS")); err == nil {
		im.about = string(about)
		return im, nil
	}
	if err := need("apt-get", "apt-cache", "dpkg-deb", "gcc", "make", "xz", "strip", "depmod", "modprobe", "busybox", "ldd"); err != nil {
		return nil, err
	}
	if err := need(guestPrograms...); err != nil {
		return nil, err
	}
	b := &builder{cache: cache, dir: dir, logf: logf, begin: time.Now(), programs: programs}
	if err := b.build(ctx, im); err != nil {
		return nil, fmt.Errorf("building the guest: %w", err)
	}
	return im, nil
}

// A builder builds an image. It leaves the packages in the cache directory, and removes their
// unpacked files.
type builder struct {
	cache, dir string
	programs   []string
	work       string // working directory of this build
	release    string // release of the kernel, for example 6.1.0-1-amd64
	logf       func(string, ...any)
	begin      time.Time
}

func (b *builder) build(ctx context.Context, im *image) (err error) {
	if err := os.MkdirAll(b.cache, 0o755); err != nil {
		return err
	}
	if b.work, err = os.MkdirTemp(b.cache, "build."); err != nil {
		return err
	}
	defer os.RemoveAll(b.work)
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"fetching the kernel, its headers and its source", b.fetch},
		{"unpacking", b.unpack},
		{"compiling siw", b.compile},
		{"assembling the RAM disk", b.assemble},
	} {
		b.logf("guest: %s (%.0f s)", step.what, time.Since(b.begin).Seconds())
		if err := step.do(ctx); err != nil {
			return err
		}
	}
	im.about = "kernel " + b.release + "\n"
	if out, err := command(ctx, "", "dpkg-query", "-W", "-f", "${Package} ${Version}\n", "rdmacm-utils", "librdmacm1", "ibverbs-providers", "perftest", "busybox-static"); err == nil {
		im.about += string(out)
	}
	if err := os.WriteFile(b.path("VERSIONS"), []byte(im.about), 0o644); err != nil {
		return err
	}
	if err := os.Mkdir(b.path("out"), 0o755); err != nil {
		return err
	}
	for _, f := range []string{"vmlinuz", "initrd.gz", "VERSIONS"} {
		if err := os.Rename(b.path(f), b.path("out", f)); err != nil {
			return err
		}
	}
	b.prune()
	return os.Rename(b.path("out"), b.dir)
}

// prune removes older images and packages of older kernels from the cache.
func (b *builder) prune() {
	images, _ := filepath.Glob(filepath.Join(b.cache, "*", "VERSIONS"))
	for _, f := range images {
		if dir := filepath.Dir(f); dir != b.work {
			os.RemoveAll(dir)
		}
	}
	keep := make(map[string]bool)
	for _, p := range b.packages() {
		if deb, err := b.deb(p); err == nil {
			keep[deb] = true
		}
	}
	debs, _ := filepath.Glob(filepath.Join(b.cache, "linux-*.deb"))
	for _, deb := range debs {
		if !keep[deb] {
			os.Remove(deb)
		}
	}
}

// path returns a path below the working directory.
func (b *builder) path(elem ...string) string {
	return filepath.Join(append([]string{b.work}, elem...)...)
}

// base returns the kernel release without the flavour, for example 6.1.0-1, and series the first
// two numbers, 6.1.
func (b *builder) base() string { return strings.TrimSuffix(b.release, "-amd64") }
func (b *builder) series() string {
	f := strings.SplitN(b.release, ".", 3)
	return f[0] + "." + f[1]
}

var imagePackage = regexp.MustCompile(`Depends: linux-image-([0-9][^ \n]*-amd64)\n`)

func (b *builder) packages() []string {
	return []string{"linux-image-" + b.release, "linux-headers-" + b.release, "linux-headers-" + b.base() + "-common",
		"linux-kbuild-" + b.series(), "linux-source-" + b.series()}
}

// fetch downloads the packages missing in the cache, and installs nothing.
func (b *builder) fetch(ctx context.Context) error {
	out, err := command(ctx, "", "apt-cache", "depends", "linux-image-amd64")
	if err != nil {
		return skip("apt knows no linux-image-amd64: this needs Debian's package lists (apt-get update)")
	}
	m := imagePackage.FindSubmatch(out)
	if m == nil {
		return skip("apt names no kernel behind linux-image-amd64")
	}
	b.release = string(m[1])
	for _, p := range b.packages() {
		if deb, _ := b.deb(p); deb != "" {
			continue
		}
		if _, err := command(ctx, b.cache, "apt-get", "download", "-q", p); err != nil {
			return skip("cannot download " + p + ": " + err.Error())
		}
	}
	return nil
}

// deb returns the path of a downloaded package, the newest if there are several.
func (b *builder) deb(name string) (string, error) {
	files, err := filepath.Glob(filepath.Join(b.cache, name+"_*.deb"))
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("no package %s in %s", name, b.cache)
	}
	slices.Sort(files)
	return files[len(files)-1], nil
}

func (b *builder) unpack(ctx context.Context) error {
	for _, p := range b.packages()[:4] {
		deb, err := b.deb(p)
		if err != nil {
			return err
		}
		if _, err := command(ctx, "", "dpkg-deb", "-x", deb, b.path("root")); err != nil {
			return err
		}
	}
	// The packaged Makefile includes the common headers at their installed path, so the Makefile is
	// replaced.
	mk := "include " + b.path("root/usr/src/linux-headers-"+b.base()+"-common/Makefile") + "\n"
	if err := os.WriteFile(b.path("root/usr/src/linux-headers-"+b.release+"/Makefile"), []byte(mk), 0o644); err != nil {
		return err
	}
	deb, err := b.deb("linux-source-" + b.series())
	if err != nil {
		return err
	}
	_, err = command(ctx, b.work, "sh", "-c", `dpkg-deb --fsys-tarfile "$1" | tar -xO "./usr/src/linux-source-$2.tar.xz" | tar -xJ --strip-components=1 --wildcards '*/drivers/infiniband/sw/siw/*'`,
		"sh", deb, b.series())
	return err
}

// siwParameters is a script that turns compile-time constants of siw into module parameters, for
// the second of the two modules built by compile. The first module is siw as shipped.
const siwParameters = `
set -e
for v in mpa_crc_required mpa_crc_strict peer_to_peer; do
	sed -i "s/^const bool $v\b/bool $v/" siw_main.c
	sed -i "s/^extern const bool $v\b/extern bool $v/" siw.h
	grep -q "^bool $v" siw_main.c
	echo "module_param($v, bool, 0644);" >> siw_main.c
done
`

// compile builds siw against the unpacked headers: once as shipped, and once with siwParameters.
func (b *builder) compile(ctx context.Context) error {
	source := b.path("drivers/infiniband/sw/siw")
	objects, err := filepath.Glob(filepath.Join(source, "*.c"))
	if err != nil || len(objects) == 0 {
		return errors.New("the kernel source has no siw")
	}
	kbuild := "obj-m := siw.o\nsiw-y :="
	for _, o := range objects {
		kbuild += " " + strings.TrimSuffix(filepath.Base(o), ".c") + ".o"
	}
	for _, module := range []string{"siw", "siw-param"} {
		dir := b.path(module)
		if err := os.CopyFS(dir, os.DirFS(source)); err != nil {
			return err
		}
		if module == "siw-param" {
			if _, err := command(ctx, dir, "sh", "-c", siwParameters); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "Makefile"), []byte(kbuild+"\n"), 0o644); err != nil {
			return err
		}
		if _, err := command(ctx, dir, "make", "-s", "-C", b.path("root/usr/src/linux-headers-"+b.release), "M="+dir, "CC=gcc", "modules"); err != nil {
			return err
		}
		if _, err := command(ctx, dir, "strip", "--strip-debug", "siw.ko"); err != nil {
			return err
		}
	}
	return nil
}

// assemble writes the RAM disk and the kernel.
func (b *builder) assemble(ctx context.Context) error {
	kernel, err := os.ReadFile(b.path("root/boot/vmlinuz-" + b.release))
	if err != nil {
		return err
	}
	if err := os.WriteFile(b.path("vmlinuz"), kernel, 0o644); err != nil {
		return err
	}
	var buf bytes.Buffer
	z, err := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
	if err != nil {
		return err
	}
	t := &tree{a: newArchive(z), done: make(map[string]bool)}
	for _, d := range []string{"bin", "dev", "etc", "etc/libibverbs.d", "lib", "lib/modules", "lib64", "proc", "root", "run", "sys", "tmp", "usr", "usr/bin", "usr/lib"} {
		t.a.dir(d)
	}
	t.a.file("init", 0o755, guestInit)
	t.a.file("etc/passwd", 0o644, []byte("root:x:0:0:root:/:/bin/sh\n"))
	t.a.file("etc/group", 0o644, []byte("root:x:0:\n"))
	t.a.file("etc/hosts", 0o644, []byte("127.0.0.1 localhost\n"))
	t.a.file("etc/nsswitch.conf", 0o644, []byte("hosts: files\npasswd: files\ngroup: files\nservices: files\n"))
	busybox, err := find("busybox")
	if err != nil {
		return err
	}
	t.copy("bin/busybox", busybox)
	for _, p := range b.programs {
		file, err := find(p)
		if err != nil {
			return err
		}
		t.copy("usr/bin/"+p, file)
		t.libraries(ctx, file)
	}
	t.verbs(ctx)
	t.modules(ctx, b)
	if t.err != nil {
		return t.err
	}
	if err := t.a.close(); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(b.path("initrd.gz"), buf.Bytes(), 0o644)
}

// A tree is the guest's file system while being filled. After an error the methods do nothing.
type tree struct {
	a    *archive
	done map[string]bool
	err  error
}

// copy copies a file of the host into the guest as name, unless name was copied before.
func (t *tree) copy(name, file string) {
	if t.err != nil || t.done[name] {
		return
	}
	t.done[name] = true
	data, err := os.ReadFile(file)
	if err != nil {
		t.err = err
		return
	}
	st, err := os.Stat(file)
	if err != nil {
		t.err = err
		return
	}
	for i := range len(name) {
		if name[i] == '/' {
			t.a.dir(name[:i])
		}
	}
	t.a.file(name, st.Mode(), data)
}

var libraryPath = regexp.MustCompile(`(/\S+) \(0x`)

// libraries copies the libraries a program is linked with.
func (t *tree) libraries(ctx context.Context, file string) {
	if t.err != nil {
		return
	}
	out, err := command(ctx, "", "ldd", file)
	if err != nil {
		t.err = err
		return
	}
	for _, m := range libraryPath.FindAllSubmatch(out, -1) {
		lib := string(m[1])
		if strings.Contains(lib, "/ld-linux") {
			t.copy("lib64/"+filepath.Base(lib), lib)
		} else {
			t.copy("usr/lib/"+filepath.Base(lib), lib)
		}
	}
}

// verbs copies siw's user-space driver to the directory searched by libibverbs.
func (t *tree) verbs(ctx context.Context) {
	if t.err != nil {
		return
	}
	drivers, _ := filepath.Glob("/usr/lib/*/libibverbs/libsiw-rdmav*.so")
	if len(drivers) == 0 {
		t.err = skip("no verbs driver for siw (Debian: apt-get install ibverbs-providers)")
		return
	}
	d := drivers[len(drivers)-1]
	t.copy(strings.TrimPrefix(d, "/"), d)
	t.libraries(ctx, d)
	// The C library loads libgcc_s by name when a thread ends.
	if gcc, _ := filepath.Glob("/usr/lib/*/libgcc_s.so.1"); len(gcc) > 0 {
		t.copy("usr/lib/libgcc_s.so.1", gcc[0])
	} else if gcc, _ := filepath.Glob("/lib/*/libgcc_s.so.1"); len(gcc) > 0 {
		t.copy("usr/lib/libgcc_s.so.1", gcc[0])
	}
	t.a.file("etc/libibverbs.d/siw.driver", 0o644, []byte("driver siw\n"))
}

// modules copies the kernel modules with their dependencies, and both builds of siw.
func (t *tree) modules(ctx context.Context, b *builder) {
	if t.err != nil {
		return
	}
	extra := "lib/modules/" + b.release + "/extra"
	if err := os.Mkdir(b.path("root", extra), 0o755); err != nil {
		t.err = err
		return
	}
	if err := os.Link(b.path("siw/siw.ko"), b.path("root", extra, "siw.ko")); err != nil {
		t.err = err
		return
	}
	if _, err := command(ctx, "", "depmod", "-b", b.path("root"), b.release); err != nil {
		t.err = err
		return
	}
	prefix := b.path("root") + "/"
	for _, m := range append([]string{"siw"}, guestModules...) {
		out, err := command(ctx, "", "modprobe", "-d", b.path("root"), "-S", b.release, "--show-depends", m)
		if err != nil && m == "siw" {
			t.err = err
			return
		} else if err != nil {
			continue // this kernel does not have the module
		}
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); len(f) >= 2 && f[0] == "insmod" {
				t.copy(strings.TrimPrefix(f[1], prefix), f[1])
			}
		}
	}
	t.copy("lib/modules/siw.ko", b.path("siw/siw.ko"))
	t.copy("lib/modules/siw-param.ko", b.path("siw-param/siw.ko"))
	for _, f := range []string{"modules.dep", "modules.dep.bin", "modules.alias", "modules.alias.bin", "modules.symbols", "modules.symbols.bin", "modules.builtin", "modules.builtin.bin", "modules.order"} {
		file := filepath.Join(b.path("root"), "lib/modules", b.release, f)
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		t.copy("lib/modules/"+b.release+"/"+f, file)
	}
}
