//go:build linux && (amd64 || arm64)

package run

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/internal/notify"
)

// A finding is what --check says of one thing.
type finding struct {
	What string `json:"what"`
	Good bool   `json:"good"`
	Says string `json:"says"`
	Do   string `json:"do,omitempty"`
}

// Check says what this machine allows. The exit code is 125 if programs can't be
// run.
func Check(e *shell.Env) error {
	all := []finding{checkKernel(), checkYama(), checkStart()}
	bad := ""
	for _, f := range all {
		if !f.Good && bad == "" {
			bad = f.What
		}
	}
	if e.JSON {
		if err := e.PrintJSON(all); err != nil {
			return err
		}
	} else {
		for _, f := range all {
			verdict := "ok"
			if !f.Good {
				verdict = "NO"
			}
			e.Printf("%-14s %s  %s\n", f.What, verdict, f.Says)
			if f.Do != "" {
				e.Printf("%-14s     %s\n", "", f.Do)
			}
		}
	}
	if bad != "" {
		return &shell.Exit{Code: ExitRun, Err: shell.Hint(fmt.Errorf("programs can't be run here: %s", bad), "see above")}
	}
	return nil
}

func checkKernel() finding {
	f := finding{What: "kernel"}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		f.Says = err.Error()
		return f
	}
	release := unix.ByteSliceToString(u.Release[:])
	var major, minor int
	fmt.Sscanf(release, "%d.%d", &major, &minor)
	f.Good, f.Says = major > 5 || major == 5 && minor >= 14, "Linux "+release
	switch {
	case !f.Good:
		f.Do = "Linux 5.14 or later is needed"
	case major < 6 || major == 6 && minor < 9:
		f.Says += "; from 6.9 on threads with descriptor tables of their own are carried too"
	}
	return f
}

func checkYama() finding {
	f := finding{What: "yama", Good: true, Says: "not in this kernel"}
	b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err != nil {
		return f
	}
	scope := strings.TrimSpace(string(b))
	f.Says = "ptrace_scope " + scope
	if scope > "1" && os.Geteuid() != 0 {
		f.Good, f.Do = false, "set kernel.yama.ptrace_scope to 1, or run as root"
	}
	return f
}

// checkStart runs a program, which this process's own copy is, and looks into it.
func checkStart() finding {
	f := finding{What: "seccomp", Says: "a program's calls can be served, and its sockets borrowed"}
	child, err := notify.Start(&notify.Command{Path: "/bin/sh", Args: []string{"sh", "-c", ":"},
		Rules: []notify.Rule{{Nr: unix.SYS_EXIT_GROUP, Do: notify.Notify}}})
	if err != nil {
		f.Says = err.Error()
		switch {
		case errors.Is(err, notify.ErrNested):
			f.Do = "this is inside another viaduct run"
		case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOSYS):
			f.Do = "a container's seccomp profile may forbid it: allow seccomp, or run the container with --security-opt seccomp=unconfined"
		}
		return f
	}
	defer child.Listener.Close()
	served := false
	for {
		c, err := child.Listener.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				f.Says = err.Error()
			}
			break
		}
		fd, err := c.Borrow(0)
		switch {
		case err == nil:
			unix.Close(fd)
			served = true
		case errors.Is(err, unix.EBADF):
			served = true
		default:
			f.Says = "descriptors can't be borrowed: " + err.Error()
			f.Do = "a container's seccomp profile may forbid pidfd_getfd: allow it, or add the capability SYS_PTRACE"
		}
		c.Continue()
	}
	unix.Wait4(child.Pid, nil, 0, nil)
	f.Good = served
	return f
}
