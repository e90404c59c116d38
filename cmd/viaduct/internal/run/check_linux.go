//go:build linux && (amd64 || arm64)

package run

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/mapper"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/internal/notify"
	"viaduct/internal/sockdiag"
	"viaduct/portmap"
)

// Advice for a seccomp profile that forbids a needed call.
const (
	allowSeccomp = "a container's seccomp profile may forbid it: start the container with --security-opt seccomp=unconfined, or with a profile that allows seccomp"
	allowPidfd   = "a container's seccomp profile may forbid it: start the container with --cap-add SYS_PTRACE, or with a profile that allows pidfd_getfd, " +
		"process_vm_readv and process_vm_writev"
)

// Check prints whether this machine permits all operations of viaduct run. service holds the
// findings for [Options.Service]; nil means TCP connections over SDP. If programs cannot be run,
// the error is a *shell.Exit with code 125.
func Check(e *shell.Env, service []Finding) error {
	all := []Finding{checkKernel(), checkUser(), checkYama(), checkContainer()}
	all = append(all, checkStart()...)
	all = append(all, checkProc())
	if service == nil {
		service = []Finding{checkMonitor(), checkIPv6(), checkPortMap()}
	}
	all = append(all, service...)
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
			switch {
			case !f.Good:
				verdict = "NO"
			case f.Warn:
				verdict = "--"
			}
			e.Printf("%-14s %s  %s\n", f.What, verdict, f.Says)
			if f.Do != "" {
				e.Printf("%-14s     %s\n", "", f.Do)
			}
		}
	}
	if bad != "" {
		return &shell.Exit{Code: ExitRun,
			Err: shell.Hint(fmt.Errorf("programs can't be run here: %s", bad), "see above")}
	}
	return nil
}

func checkKernel() Finding {
	f := Finding{What: "kernel"}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		f.Says = err.Error()
		return f
	}
	release := unix.ByteSliceToString(u.Release[:])
	var major, minor int
	fmt.Sscanf(release, "%d.%d", &major, &minor)
	since := func(a, b int) bool { return major > a || major == a && minor >= b }
	f.Good, f.Says = since(5, 14), "Linux "+release
	switch {
	case !f.Good:
		f.Do = "Linux 5.14 or later is needed"
	case !since(6, 6):
		f.Says += "; from 6.6 on notified calls take a third of the time, from 6.9 on threads with descriptor tables of their own are carried too"
	case !since(6, 9):
		f.Says += "; from 6.9 on threads with descriptor tables of their own are carried too"
	}
	return f
}

func checkUser() Finding {
	f := Finding{What: "user", Good: true, Says: "uid " + strconv.Itoa(os.Geteuid())}
	if os.Geteuid() != 0 {
		f.Says += ": processes that made themselves undumpable stay plain TCP"
	}
	return f
}

func checkYama() Finding {
	f := Finding{What: "yama", Good: true, Says: "not in this kernel"}
	b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err != nil {
		return f
	}
	scope := strings.TrimSpace(string(b))
	f.Says = "ptrace_scope " + scope
	switch {
	case scope == "2" && os.Geteuid() != 0:
		f.Good, f.Do = false, "set kernel.yama.ptrace_scope to 1, or run as root"
	case scope == "3":
		f.Good, f.Do = false, "set kernel.yama.ptrace_scope to 1 at boot: 3 can't be changed in a running system"
	}
	return f
}

// checkContainer names the kind of container. Other findings show what the container forbids.
func checkContainer() Finding {
	f := Finding{What: "container", Good: true, Says: "none seen"}
	switch {
	case exists("/.dockerenv"):
		f.Says = "docker"
	case exists("/run/.containerenv"):
		f.Says = "podman"
	case os.Getenv("KUBERNETES_SERVICE_HOST") != "":
		f.Says = "kubernetes"
	case os.Getenv("container") != "":
		f.Says = os.Getenv("container")
	}
	b, err := os.ReadFile("/proc/self/status")
	if err == nil && fieldOf(b, "Seccomp:") == "2" {
		f.Says += "; " + fieldOf(b, "Seccomp_filters:") + " seccomp filters hold here already"
	}
	return f
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// checkStart starts a program and tries each operation needed to carry connections.
func checkStart() []Finding {
	start := Finding{What: "seccomp", Says: "a program's calls can be served"}
	borrow := Finding{What: "descriptors", Says: "were not tried"}
	memory := Finding{What: "memory", Says: "was not tried"}
	child, err := notify.Start(&notify.Command{Path: "/bin/sh", Args: []string{"sh", "-c", ":"},
		Rules: []notify.Rule{{Nr: unix.SYS_OPENAT, Do: notify.Notify}}})
	if err != nil {
		start.Says = err.Error()
		switch {
		case errors.Is(err, notify.ErrNested):
			start.Do = "this is inside another viaduct run"
		case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOSYS):
			start.Do = allowSeccomp
		}
		return []Finding{start, borrow, memory}
	}
	defer child.Listener.Close()
	for {
		c, err := child.Listener.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				start.Good, start.Says = false, err.Error()
			}
			break
		}
		if !start.Good {
			start.Good = true
			tryBorrow(c, &borrow)
			tryMemory(c, &memory)
		}
		c.Continue()
	}
	unix.Wait4(child.Pid, nil, 0, nil)
	return []Finding{start, borrow, memory}
}

func tryBorrow(c *notify.Call, f *Finding) {
	switch fd, err := c.Borrow(0); {
	case err == nil:
		unix.Close(fd)
		fallthrough
	case errors.Is(err, unix.EBADF):
		f.Good, f.Says = true, "a program's sockets can be borrowed"
	default:
		f.Says, f.Do = "a program's sockets can't be borrowed: "+err.Error(), allowPidfd
	}
}

// tryMemory reads a byte of the path the call's second argument points to.
func tryMemory(c *notify.Call, f *Finding) {
	if _, err := c.ReadMem(c.Args[1], make([]byte, 1)); err != nil {
		f.Says, f.Do = "a program's memory can't be read: "+err.Error(), allowPidfd
		return
	}
	f.Good, f.Says = true, "a program's memory can be read"
}

func checkMonitor() Finding {
	f := Finding{What: "sock_diag", Good: true, Says: "listeners that a program closes are noticed"}
	if _, err := sockdiag.Listeners(1); err != nil {
		f.Warn, f.Says = true, "listeners that a program closes are noticed only when a peer comes: "+err.Error()
	}
	return f
}

func checkProc() Finding {
	f := Finding{What: "proc", Good: true, Says: "is that of this pid namespace"}
	if !ownProc() {
		f.Warn, f.Says = true, "is that of another pid namespace: --explain can't name programs, --same-host leaves connections alone"
		f.Do = "mount proc in the namespace, for instance by unshare --mount-proc"
	}
	return f
}

func checkIPv6() Finding {
	f := Finding{What: "ipv6", Good: true, Says: "connections of both families are carried"}
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		f.Warn, f.Says = true, "there is no ::1: connections of IPv6 stay plain TCP"
		return f
	}
	l.Close()
	return f
}

func checkPortMap() Finding {
	f := Finding{What: "portmap", Good: true, Says: fmt.Sprintf("UDP port %d is free for --listen", portmap.Port)}
	c, err := net.ListenPacket("udp", fmt.Sprintf(":%d", portmap.Port))
	if pid := mapper.Of(portmap.Port); err != nil && pid != 0 {
		f.Says = fmt.Sprintf("process %d is the Port Mapper of this host: services of --listen register with it", pid)
		return f
	}
	if err != nil {
		f.Warn, f.Says = true, fmt.Sprintf("--listen can't answer at UDP port %d: %v", portmap.Port, err)
		f.Do = "use --portmap-listen ADDRESS:PORT, or map the ports with viaduct portmap serve"
		return f
	}
	c.Close()
	return f
}

// checkAccess copies a descriptor of the program before the program runs. If the copy is forbidden,
// all connections would stay plain TCP. checkAccess then returns an error with --require, and
// otherwise prints a line for the user.
func (s *supervisor) checkAccess(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err == nil {
		defer unix.Close(fd)
		var got int
		if got, err = unix.PidfdGetfd(fd, 0, 0); err == nil {
			unix.Close(got)
		}
	}
	if err != unix.EPERM && err != unix.EACCES && err != unix.ENOSYS {
		return nil
	}
	if s.o.Require {
		return fmt.Errorf("the program's sockets can't be borrowed: %w", err)
	}
	fmt.Fprintf(os.Stderr, "viaduct run: the program's sockets can't be borrowed (%v): all connections stay plain TCP; see viaduct run --check\n", err)
	return nil
}
