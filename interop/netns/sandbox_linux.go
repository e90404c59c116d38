package main

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"syscall"

	"viaduct/interop/internal/link"
)

// inSandbox marks the process that has a user namespace of its own.
const inSandbox = "VIADUCT_NETNS_SANDBOX"

// sandbox runs this program again in a user namespace if the user is not root, and reports that in
// again. If that is not allowed, the program continues, and possible then returns the error.
func sandbox(ctx context.Context) (again bool, err error) {
	if os.Geteuid() == 0 || os.Getenv(inSandbox) != "" {
		return false, nil
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", os.Args[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Env = append(os.Environ(), inSandbox+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if cmd.Start() != nil {
		return false, nil
	}
	return true, cmd.Wait()
}

// possible tries to create a namespace with a device.
func possible() error {
	n := link.New()
	defer n.Close()
	_, err := n.Add(netip.MustParseAddr("10.77.0.1"), 1500, 1)
	return err
}
