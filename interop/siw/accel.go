package main

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"time"
)

// An accelerator determines how QEMU runs the guest's processors.
type accelerator struct {
	accel, cpu string
	cpus       int
}

// emulated is the accelerator TCG, QEMU's own translator, always available. The guest gets one
// processor, because with two, siw occasionally sends correct data with a wrong CRC.
var emulated = accelerator{"tcg", "max", 1}

// chooseAccelerator returns KVM if it works, and otherwise emulated. The existence of /dev/kvm is
// not enough, because an ordinary kernel hangs after decompressing if KVM has no hardware support.
// Therefore the module for the processor must be loaded, and QEMU must start with KVM.
func chooseAccelerator(ctx context.Context) accelerator {
	if !exists("/sys/module/kvm_intel") && !exists("/sys/module/kvm_amd") {
		return emulated
	}
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return emulated
	}
	f.Close()
	for _, cpu := range []string{"host", "host,-arch-capabilities"} { // some hosts refuse "host"
		if probe(ctx, cpu) {
			return accelerator{"kvm", cpu, 2}
		}
	}
	return emulated
}

// probe reports whether QEMU starts with KVM and the given processor. It starts QEMU with the
// guest's processors stopped, and makes QEMU quit.
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
