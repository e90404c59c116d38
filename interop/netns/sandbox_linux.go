package main

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"syscall"

	"viaduct/interop/internal/link"
)

// inSandbox is set in the environment of the process in the user namespace.
const inSandbox = "VIADUCT_NETNS_SANDBOX"

// sandbox runs this program again in a user namespace if the user is not root. again is then true,
// and err is the result. If a user namespace is not allowed, again is false, and possible will
// return the error.
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
