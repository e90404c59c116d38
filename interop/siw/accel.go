package main

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"time"
)

// An accelerator is how QEMU runs the guest's processors.
type accelerator struct {
	accel, cpu string
	cpus       int
}

// emulated is always there: QEMU's own translator. With two processors siw now
// and then sends right data with a wrong CRC there, so the guest gets one.
var emulated = accelerator{"tcg", "max", 1}

// chooseAccelerator takes KVM where it truly works. That /dev/kvm exists says
// little: there are KVM back ends without hardware help on which an ordinary
// kernel hangs after decompressing, so the module of the processor's maker has
// to be loaded, and then QEMU has to come up with it.
func chooseAccelerator(ctx context.Context) accelerator {
	if !exists("/sys/module/kvm_intel") && !exists("/sys/module/kvm_amd") {
		return emulated
	}
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return emulated
	}
	f.Close()
	for _, cpu := range []string{"host", "host,-arch-capabilities"} { // some hosts refuse a register of the first
		if probe(ctx, cpu) {
			return accelerator{"kvm", cpu, 2}
		}
	}
	return emulated
}

// probe starts QEMU with KVM, stopped, and asks it to quit.
func probe(ctx context.Context, cpu string) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-machine", "pc", "-accel", "kvm", "-cpu", cpu, "-m", "32",
		"-nodefaults", "-display", "none", "-S", "-monitor", "stdio")
	cmd.Stdin = strings.NewReader("quit\n")
	return cmd.Run() == nil
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
