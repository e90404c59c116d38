//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"viaduct/interop/internal/link"
)

// A lab is the command, and two namespaces.
type lab struct {
	dir, viaduct string
	net          *link.Network
	ends         [2]*end // the server's namespace and the client's
	port         int     // number of TCP ports used
}

// An end is a network namespace.
type end struct {
	*link.Port
	addr netip.Addr
}

// frame is the MTU of both namespaces, for a path MTU of 4096.
const frame = 9000

func newLab(ctx context.Context, seed uint64) (*lab, error) {
	l := &lab{net: link.New()}
	for i := range l.ends {
		addr := netip.AddrFrom4([4]byte{10, 78, 0, byte(1 + i)})
		port, err := l.net.Add(addr, frame, seed)
		if err != nil {
			l.close()
			return nil, skip("no network namespaces: " + err.Error())
		}
		l.ends[i] = &end{port, addr}
	}
	var err error
	if l.dir, err = os.MkdirTemp("", "viaduct-interop-rxewire"); err == nil {
		l.viaduct = filepath.Join(l.dir, "viaduct")
		c := exec.CommandContext(ctx, "go", "build", "-o", l.viaduct, "viaduct/cmd/viaduct")
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		var out []byte
		if out, err = c.CombinedOutput(); err != nil {
			err = fmt.Errorf("build: %w\n%s", err, out)
		}
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *lab) close() {
	l.net.Close()
	if l.dir != "" {
		os.RemoveAll(l.dir)
	}
}

// A process is a running process in a namespace.
type process struct {
	cmd   *exec.Cmd
	out   bytes.Buffer // valid after the end
	ended chan struct{}
	err   error     // valid after the end
	at    time.Time // time of the end
}

// start starts a program in the namespace e.
func (e *end) start(ctx context.Context, name string, args ...string) (*process, error) {
	p := &process{cmd: exec.CommandContext(ctx, name, args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Cancel = func() error { return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGTERM) }
	p.cmd.WaitDelay = 10 * time.Second
	if err := e.Do(p.cmd.Start); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		p.at = time.Now()
		close(p.ended)
	}()
	return p, nil
}

// device starts a shell script under a supervisor whose device has the address of the namespace.
func (l *lab) device(ctx context.Context, e *end, script string) (*process, error) {
	return e.start(ctx, l.viaduct, "run", "--rdma", "--device", "rxe0="+e.addr.String(), "--", "sh", "-c", functions+script)
}

// over reports whether the process has ended.
func (p *process) over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// status waits for the end of the process, and returns its exit status, or -1.
func (p *process) status() int {
	<-p.ended
	var exit *exec.ExitError
	switch {
	case p.err == nil:
		return 0
	case errors.As(p.err, &exit):
		return exit.ExitCode()
	}
	return -1
}

// listens waits until a process in the namespace listens at a TCP port, or p ends.
func (e *end) listens(ctx context.Context, port int, p *process) error {
	return e.await(ctx, "tcp", "0A", port, p)
}

// bound waits until a process in the namespace has a UDP port, or p ends.
func (e *end) bound(ctx context.Context, port int, p *process) error {
	return e.await(ctx, "udp", "07", port, p)
}

// await waits until the kernel's table of a protocol has a socket of a state at a local port, or p
// ends.
func (e *end) await(ctx context.Context, protocol, state string, port int, p *process) error {
	want := fmt.Sprintf(":%04X", port)
	for {
		found := false
		err := e.Do(func() error {
			for _, name := range []string{protocol, protocol + "6"} {
				b, err := os.ReadFile("/proc/thread-self/net/" + name)
				if err != nil {
					return err
				}
				for line := range strings.Lines(string(b)) {
					f := strings.Fields(line)
					found = found || len(f) > 3 && strings.HasSuffix(f[1], want) && f[3] == state
				}
			}
			return nil
		})
		if found || err != nil {
			return err
		}
		select {
		case <-p.ended:
			return fmt.Errorf("the server has ended: %v\n%s", p.err, &p.out)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// functions are shell functions for all scripts. rping_whole runs rping, and ignores a failure of
// rping after its conversation: the program closes its event channel while a thread still reads it.
const functions = `rping_whole() {
	out=$(rping "$@" 2>&1); code=$?
	echo "$out"
	[ $code = 0 ] || case $out in
	*" DISCONNECT EVENT..."*"rdma_get_cm_event: Bad file descriptor"*) ;;
	*) return $code ;;
	esac
}
retry() {
	for i in $(seq 60); do
		"$@" && return
		sleep 0.5
	done
	return 1
}
`
