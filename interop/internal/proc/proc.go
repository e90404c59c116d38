// Package proc runs the command for the programs in interop, and watches the output.
package proc

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Patience is how long an expected event may take.
const Patience = time.Minute

// A Process is a run of a command. Methods are safe for concurrent use.
type Process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // result of Wait

	mu    sync.Mutex
	out   bytes.Buffer  // guarded by mu; standard output and standard error
	wrote chan struct{} // guarded by mu; closed by the next output
}

// Start starts a program, to be killed when ctx ends.
func Start(ctx context.Context, bin string, args ...string) (*Process, error) {
	p := &Process{cmd: exec.CommandContext(ctx, bin, args...), ended: make(chan struct{}), wrote: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = (*output)(p), (*output)(p)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// An output is a Process to which its command writes.
type output Process

func (p *output) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.wrote)
	p.wrote = make(chan struct{})
	return p.out.Write(b)
}

// Output returns the output so far on both streams, and a channel closed when more output arrives.
func (p *Process) Output() (string, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String(), p.wrote
}

func (p *Process) String() string { return strings.Join(p.cmd.Args[1:], " ") }

// Says waits until the output contains text at least n times. It returns an error if the process
// ends first, or after Patience.
func (p *Process) Says(text string, n int) error {
	for limit := time.After(Patience); ; {
		out, more := p.Output()
		if strings.Count(out, text) >= n {
			return nil
		}
		select {
		case <-more:
		case <-p.ended:
			if out, _ := p.Output(); strings.Count(out, text) >= n {
				return nil
			}
			return fmt.Errorf("%v: ended (%v) without %q\n%s", p, p.err, text, out)
		case <-limit:
			return fmt.Errorf("%v: no %q within %v\n%s", p, text, Patience, out)
		}
	}
}

// Listening waits until a server reports that it listens, and returns the first reported address.
func (p *Process) Listening() (url string, err error) {
	if err := p.Says("listening ", 1); err != nil {
		return "", err
	}
	for {
		out, more := p.Output()
		_, rest, _ := strings.Cut(out, "listening ")
		if url, _, ok := strings.Cut(rest, "\n"); ok {
			return url, nil
		}
		select {
		case <-more:
		case <-p.ended:
			return "", fmt.Errorf("%v: ended (%v)\n%s", p, p.err, out)
		}
	}
}

// Wait waits for the end of the process, and kills the process after d. A status other than 0 is an
// error.
func (p *Process) Wait(d time.Duration) error {
	select {
	case <-p.ended:
	case <-time.After(d):
		p.Kill()
		out, _ := p.Output()
		return fmt.Errorf("%v: did not end within %v\n%s", p, d, out)
	}
	if p.err != nil {
		out, _ := p.Output()
		return fmt.Errorf("%v: %w\n%s", p, p.err, out)
	}
	return nil
}

// Ended returns a channel closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// PID returns the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Interrupt sends SIGINT.
func (p *Process) Interrupt() { p.cmd.Process.Signal(os.Interrupt) }

// End sends SIGTERM to the process, and waits for the end.
func (p *Process) End() error {
	p.cmd.Process.Signal(syscall.SIGTERM)
	return p.Wait(Patience)
}

// Kill ends the process at once. It does nothing for a nil Process.
func (p *Process) Kill() {
	if p != nil {
		p.cmd.Process.Kill()
		<-p.ended
	}
}

// Viaduct builds the command into dir and returns the path.
func Viaduct(ctx context.Context, dir string, flags ...string) (string, error) {
	bin := dir + "/viaduct"
	args := append(append([]string{"build", "-o", bin}, flags...), "viaduct/cmd/viaduct")
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("building viaduct: %w\n%s", err, out)
	}
	return bin, nil
}
