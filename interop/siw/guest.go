package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"viaduct/interop/internal/qemu"
)

// A machine holds the parameters of a guest.
type machine struct {
	name    string // for files and logs
	cpus    int
	network string // the -netdev option of QEMU, with id=n0
	address string // address of the guest, with prefix length
	gateway string // address of the gateway; may be empty
	capture string // file for the capture of the network card; no capture if empty
}

// A guest is a running virtual machine. Several goroutines may run commands in a guest at the same
// time.
type guest struct {
	cmd     *exec.Cmd
	console string // file with the output of its console
	control net.Conn
	exited  chan struct{} // closed when QEMU has ended

	mu     sync.Mutex
	next   int
	wait   map[string]chan result
	broken error
}

// A result is the exit status and output of a command in the guest.
type result struct {
	status int
	output string
}

// bootLimit is long, because without hardware support a busy machine may take minutes.
const bootLimit = 5 * time.Minute

// boot starts a guest in dir and waits until the guest serves commands.
func boot(ctx context.Context, im *image, m machine, acc qemu.Accelerator, dir string) (*guest, error) {
	g := &guest{console: filepath.Join(dir, m.name+".console"), exited: make(chan struct{}), wait: make(map[string]chan result)}
	// QEMU connects the control line to our listening socket, so that the line is connected from
	// the start.
	socket := filepath.Join(dir, m.name+".sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer l.Close()

	// The kernel must not report a lockup where only the emulator waited for a processor of the host.
	appendix := fmt.Sprintf("console=ttyS0 quiet panic=-1 mitigations=off no_timer_check nowatchdog rcupdate.rcu_cpu_stall_suppress=1 rdinit=/init viaduct.ip=%s viaduct.gw=%s", m.address, m.gateway)
	args := []string{"-machine", "pc", "-accel", acc.Accel, "-cpu", acc.CPU, "-smp", strconv.Itoa(m.cpus), "-m", "1024",
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-vga", "none",
		"-kernel", im.kernel, "-initrd", im.initrd, "-append", appendix,
		"-chardev", "file,id=console,path=" + g.console, "-serial", "chardev:console",
		"-chardev", "socket,id=control,path=" + socket, "-serial", "chardev:control",
		"-device", "virtio-rng-pci", "-netdev", m.network, "-device", "virtio-net-pci,netdev=n0,romfile=,mac=" + macFor(m.address)}
	if m.capture != "" {
		args = append(args, "-object", "filter-dump,id=dump,netdev=n0,file="+m.capture)
	}
	g.cmd = exec.CommandContext(ctx, "qemu-system-x86_64", args...)
	g.cmd.Cancel = func() error { return g.cmd.Process.Kill() }
	var errs bytes.Buffer
	g.cmd.Stderr = &errs
	if err := g.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		g.cmd.Wait()
		close(g.exited)
	}()
	l.SetDeadline(time.Now().Add(bootLimit))
	go func() { // ends Accept if QEMU has ended without connecting
		<-g.exited
		l.Close()
	}()
	g.control, err = l.Accept()
	if err != nil {
		g.kill()
		return nil, fmt.Errorf("QEMU did not start: %s", tail(errs.String(), 5))
	}
	ready := make(chan result, 1)
	g.wait["ready"] = ready
	go g.answers()
	select {
	case <-ready:
		return g, nil
	case <-g.exited:
		err = fmt.Errorf("the guest ended while booting, QEMU said %q", tail(errs.String(), 5))
	case <-time.After(bootLimit):
		err = fmt.Errorf("the guest did not boot within %v", bootLimit)
	case <-ctx.Done():
		err = ctx.Err()
	}
	g.kill()
	return nil, fmt.Errorf("%w; its console ends with:\n%s", err, g.consoleTail(15))
}

// macFor derives a locally administered MAC address from the guest's IP address.
func macFor(address string) string {
	ip := net.ParseIP(strings.SplitN(address, "/", 2)[0]).To4()
	return fmt.Sprintf("52:54:%02x:%02x:%02x:%02x", ip[0], ip[1], ip[2], ip[3])
}

// answers reads the answers on the control line until the line is closed.
func (g *guest) answers() {
	r := bufio.NewReader(g.control)
	err := func() error {
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return err
			}
			id, res, n, err := parseAnswer(line)
			if err != nil {
				continue // noise that the guest sent before it had set up the line
			}
			out := make([]byte, n)
			if _, err := io.ReadFull(r, out); err != nil {
				return err
			}
			res.output = string(out)
			g.mu.Lock()
			ch := g.wait[id]
			delete(g.wait, id)
			g.mu.Unlock()
			if ch != nil {
				ch <- res
			}
		}
	}()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.broken = fmt.Errorf("the guest went away: %w", err)
	for id, ch := range g.wait {
		close(ch)
		delete(g.wait, id)
	}
}

// maxOutput limits the output of a command in the guest, in bytes.
const maxOutput = 16 << 20

// parseAnswer parses an answer's first line: "ID status length".
func parseAnswer(line string) (id string, res result, length int, err error) {
	f := strings.Fields(line)
	if len(f) != 3 {
		return "", res, 0, fmt.Errorf("no answer: %q", line)
	}
	if res.status, err = strconv.Atoi(f[1]); err != nil {
		return "", res, 0, err
	}
	if length, err = strconv.Atoi(f[2]); err != nil {
		return "", res, 0, err
	}
	if length < 0 || length > maxOutput {
		return "", res, 0, fmt.Errorf("answer of %d bytes", length)
	}
	return f[0], res, length, nil
}

// start runs a shell command in the guest, for at most limit. The channel receives the result, or
// is closed if the guest has ended.
func (g *guest) start(limit time.Duration, script string) (<-chan result, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.broken != nil {
		return nil, g.broken
	}
	g.next++
	id := "c" + strconv.Itoa(g.next)
	ch := make(chan result, 1)
	g.wait[id] = ch
	line := fmt.Sprintf("%s %d %s\n", id, int(limit.Seconds()), base64.StdEncoding.EncodeToString([]byte(script)))
	if _, err := io.WriteString(g.control, line); err != nil {
		delete(g.wait, id)
		return nil, err
	}
	return ch, nil
}

// run runs a shell command in the guest and returns the output. A status other than 0 is an error.
func (g *guest) run(ctx context.Context, limit time.Duration, script string) (string, error) {
	ch, err := g.start(limit, script)
	if err != nil {
		return "", err
	}
	return g.finish(ctx, limit, script, ch)
}

// finish waits for the result of a command started by start, and returns the output. A status other
// than 0 is an error.
func (g *guest) finish(ctx context.Context, limit time.Duration, script string, ch <-chan result) (string, error) {
	select {
	case res, ok := <-ch:
		switch {
		case !ok:
			return "", fmt.Errorf("%q: the guest went away; its console ends with:\n%s", script, g.consoleTail(15))
		case res.status == 124 || res.status == 143:
			return res.output, fmt.Errorf("%q did not end within %v:\n%s", script, limit, tail(res.output, 15))
		case res.status != 0:
			return res.output, fmt.Errorf("%q: status %d:\n%s", script, res.status, tail(res.output, 15))
		}
		return res.output, nil
	case <-time.After(limit + 15*time.Second):
		return "", fmt.Errorf("%q: no answer from the guest; its console ends with:\n%s", script, g.consoleTail(15))
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// stop shuts the guest down, and so completes the capture.
func (g *guest) stop() {
	io.WriteString(g.control, "end 0 x\n")
	select {
	case <-g.exited:
	case <-time.After(10 * time.Second):
		g.kill()
	}
	g.control.Close()
}

func (g *guest) kill() {
	g.cmd.Process.Kill()
	<-g.exited
	if g.control != nil {
		g.control.Close()
	}
}

// consoleTail returns the last n lines of the console.
func (g *guest) consoleTail(n int) string {
	b, err := os.ReadFile(g.console)
	if err != nil {
		return err.Error()
	}
	return tail(strings.ReplaceAll(string(b), "\r", ""), n)
}
