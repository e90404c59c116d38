// Package qemu chooses how QEMU runs the guests of the programs in interop.
package qemu

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"time"
)

// An Accelerator determines how QEMU runs a guest's processors.
type Accelerator struct {
	Accel, CPU string // values of the options -accel and -cpu
	CPUs       int
}

// Emulated is the accelerator TCG, QEMU's own translator, always available. The guest gets one
// processor, because with two, siw occasionally sends correct data with a wrong CRC.
var Emulated = Accelerator{"tcg", "max", 1}

// Choose returns KVM if it works, and otherwise Emulated. The existence of /dev/kvm is
// not enough, because an ordinary kernel hangs after decompressing if KVM has no hardware support.
// Therefore the module for the processor must be loaded, and QEMU must start with KVM.
func Choose(ctx context.Context) Accelerator {
	if !exists("/sys/module/kvm_intel") && !exists("/sys/module/kvm_amd") {
		return Emulated
	}
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return Emulated
	}
	f.Close()
	for _, cpu := range []string{"host", "host,-arch-capabilities"} { // some hosts refuse "host"
		if probe(ctx, cpu) {
			return Accelerator{"kvm", cpu, 2}
		}
	}
	return Emulated
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
