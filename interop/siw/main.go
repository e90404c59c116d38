package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"viaduct/interop/internal/qemu"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	o := &options{}
	flag.BoolVar(&o.verbose, "v", false, "say more, and show the guest's console at the end")
	flag.StringVar(&o.keep, "keep", "", "directory to keep captures and consoles in")
	flag.StringVar(&o.cache, "cache", "", "directory of built guests (default: viaduct/siw in the user's cache directory)")
	flag.StringVar(&o.viaduct, "viaduct", "", "viaduct to test (default: built from this module)")
	flag.IntVar(&o.count, "count", 100, "round trips at each size")
	flag.BoolVar(&o.imageOnly, "image", false, "build the guest and stop")
	flag.BoolVar(&o.rdma, "rdma", false, "rping alone, with rdma-core's under viaduct run --rdma on the host")
	flag.BoolVar(&o.conformOnly, "conform", false, "run viaduct conform alone")
	flag.BoolVar(&o.nvmeOnly, "nvme", false, "have the guest's kernel use viaduct nvme serve as a disk, and nothing else")
	flag.DurationVar(&o.soak, "soak", 0, "with -nvme: write and verify 1 GiB too, then a little at a time for so long, with resets and restarts")
	flag.BoolVar(&o.record, "record", false, "renew the recorded conversations in interop/testdata and stop")
	flag.DurationVar(&o.limit, "timeout", 20*time.Minute, "time for everything but building the guest")
	require := flag.Bool("require", false, "fail if something is missing, instead of skipping")
	flag.Parse()
	err := o.run(ctx)
	stop()
	var s skip
	switch {
	case err == nil:
	case errors.As(err, &s) && !*require:
		fmt.Printf("\n*** SKIPPED: %v ***\n*** Nothing was tested against the kernel's iWARP. ***\n", err)
	default:
		fmt.Fprintln(os.Stderr, "siw:", err)
		os.Exit(1)
	}
}

type options struct {
	verbose, imageOnly, record, conformOnly, rdma, nvmeOnly bool

	keep, cache, viaduct string
	count                int
	limit, soak          time.Duration
}

func (o *options) logf(format string, a ...any) { fmt.Printf(format+"\n", a...) }

func (o *options) run(ctx context.Context) error {
	if err := need("qemu-system-x86_64"); err != nil {
		return err
	}
	if o.cache == "" {
		c, err := os.UserCacheDir()
		if err != nil {
			return err
		}
		o.cache = filepath.Join(c, "viaduct", "siw")
	}
	begin := time.Now()
	im, err := ensureImage(ctx, o.cache, o.logf)
	if err != nil {
		return err
	}
	o.logf("guest: ready in %.1f s: %s", time.Since(begin).Seconds(), strings.ReplaceAll(strings.TrimSpace(im.about), "\n", ", "))
	if o.imageOnly {
		return nil
	}
	dir := o.keep
	if dir == "" {
		if dir, err = os.MkdirTemp("", "viaduct-siw."); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	} else if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	limit := o.limit
	if o.soak > 0 {
		limit += o.soak + soakLarge + roundLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	acc := qemu.Choose(ctx)
	o.logf("guest: processor by %s", acc.Accel)
	if o.record {
		return o.recordAll(ctx, im, acc, dir)
	}
	return o.test(ctx, im, acc, dir)
}

// test runs all conversations with one guest at a time, and then checks the captures.
func (o *options) test(ctx context.Context, im *image, acc qemu.Accelerator, dir string) error {
	if o.viaduct == "" {
		o.viaduct = filepath.Join(dir, "viaduct")
		build := exec.CommandContext(ctx, "go", "build", "-o", o.viaduct, "viaduct/cmd/viaduct")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("building viaduct: %w", err)
		}
	}
	r := &runner{options: o, image: im, acc: acc, dir: dir, begin: time.Now()}
	all := r.all
	if o.nvmeOnly {
		all = r.nvme
	}
	err := all(ctx)
	if r.guest != nil {
		r.guest.stop()
		if o.verbose {
			o.logf("--- the guest's console ends with:\n%s", r.guest.consoleTail(40))
		}
	}
	if err != nil {
		return err
	}
	if !o.nvmeOnly {
		if err := r.dissect(ctx); err != nil {
			r.fail(err)
		}
	}
	if r.failures > 0 {
		return fmt.Errorf("%d of %d checks failed", r.failures, r.checks)
	}
	o.logf("\n%d passed, 0 failed: %.1f s", r.checks, time.Since(r.begin).Seconds())
	return nil
}
