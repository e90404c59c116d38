package verbs

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"viaduct/cmd/viaduct/internal/shell"
)

// A child is another process of this program.
type child struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string // lines of the child's standard output
	exit  chan error
}

// startChild runs this program with other arguments until ctx ends or stop is called. The child's
// standard error is ours.
func startChild(ctx context.Context, e *shell.Env, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.CommandContext(ctx, self, args...), lines: make(chan string, 64), exit: make(chan error, 1)}
	c.cmd.Cancel = func() error { return c.cmd.Process.Signal(syscall.SIGTERM) }
	c.cmd.WaitDelay = 5 * time.Second
	c.cmd.Stderr = e.Stderr
	c.cmd.SysProcAttr = withParent()
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		sc := bufio.NewScanner(out)
		sc.Buffer(nil, 16<<20)
		for sc.Scan() {
			c.lines <- sc.Text()
		}
		close(c.lines)
		c.exit <- c.cmd.Wait()
		close(c.exit) // stop may still receive after line has received
	}()
	return c, nil
}

// line waits for a line of the child's output. An earlier end of the child is an error.
func (c *child) line(ctx context.Context) (string, error) {
	select {
	case l, ok := <-c.lines:
		if !ok {
			return "", fmt.Errorf("the other process ended: %w", <-c.exit)
		}
		return l, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// listening waits, for at most 30 s, for n lines with addresses where the child listens.
func (c *child) listening(ctx context.Context, n int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var urls []string
	for len(urls) < n {
		l, err := c.line(ctx)
		if err != nil {
			return nil, err
		}
		if u, ok := strings.CutPrefix(l, "listening "); ok {
			urls = append(urls, u)
		}
	}
	return urls, nil
}

// stop sends the child SIGTERM and waits for the end of the child. It kills the child after 10 s.
func (c *child) stop() {
	c.cmd.Process.Signal(syscall.SIGTERM)
	for {
		select {
		case _, ok := <-c.lines:
			if ok {
				continue
			}
		case <-time.After(10 * time.Second):
			c.cmd.Process.Kill()
		}
		break
	}
	select {
	case <-c.exit:
	case <-time.After(10 * time.Second):
		c.cmd.Process.Kill()
	}
}
