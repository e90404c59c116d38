package main

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A process is a run of the command.
type process struct {
	cmd   *exec.Cmd
	lines chan string // of standard output
	mu    sync.Mutex
	errs  bytes.Buffer
	ended chan struct{}
	err   error
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.errs.Write(b)
}

func (p *process) stderr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.errs.String()
}

// patience is how long what has to happen may take.
const patience = time.Minute

func (c *campaign) start(args ...string) (*process, error) {
	p := &process{cmd: exec.CommandContext(c.ctx, c.bin, args...), lines: make(chan string, 100), ended: make(chan struct{})}
	p.cmd.Stderr = p
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		s := bufio.NewScanner(out)
		for s.Scan() {
			select {
			case p.lines <- s.Text():
			default:
			}
		}
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// serve starts what listens and returns its address.
func (c *campaign) serve(args ...string) (*process, string, error) {
	p, err := c.start(args...)
	if err != nil {
		return nil, "", err
	}
	for limit := time.After(patience); ; {
		select {
		case line := <-p.lines:
			if url, ok := strings.CutPrefix(line, "listening "); ok {
				return p, url, nil
			}
		case <-p.ended:
			return nil, "", fmt.Errorf("viaduct %s ended: %v\n%s", strings.Join(args, " "), p.err, p.stderr())
		case <-limit:
			p.kill()
			return nil, "", fmt.Errorf("viaduct %s does not listen\n%s", strings.Join(args, " "), p.stderr())
		}
	}
}

// again is serve at an address that another process had just now, whose sockets
// the system may not have ended yet.
func (c *campaign) again(args ...string) (p *process, url string, err error) {
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		if p, url, err = c.serve(args...); err == nil || time.Now().After(end) || c.ctx.Err() != nil {
			return p, url, err
		}
	}
}

// do runs the command to its end.
func (c *campaign) do(args ...string) error {
	p, err := c.start(args...)
	if err != nil {
		return err
	}
	return p.wait()
}

// wait waits for the end; a status other than 0 is an error.
func (p *process) wait() error {
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.kill()
		return fmt.Errorf("%s did not end within %v\n%s", strings.Join(p.cmd.Args[1:], " "), patience, p.stderr())
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(p.cmd.Args[1:], " "), p.err, p.stderr())
	}
	return nil
}

// end asks for the end.
func (p *process) end() error {
	p.cmd.Process.Signal(syscall.SIGTERM)
	return p.wait()
}

func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.ended
}

func sorted(m map[string]int) []string { return slices.Sorted(maps.Keys(m)) }
