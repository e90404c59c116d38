package status

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"
)

// AnswerTimeout is the time List waits for the answer of a process. Without a limit a stopped
// process would block the command.
const AnswerTimeout = 500 * time.Millisecond

// maxAnswer is the maximum length of an answer in bytes.
const maxAnswer = 256 << 20

// atOnce is the maximum number of processes List asks at the same time.
const atOnce = 16

// List asks all processes of the user with a status socket in dir, or in RunDir if dir is empty,
// and returns the answers, sorted by process ID. If a process does not answer within AnswerTimeout,
// the Problem of the process is set. Sockets of dead processes are removed. With a missing
// directory, List returns no process. If ctx ends, List returns the answers so far and the cause.
func List(ctx context.Context, dir string, counters bool) ([]Process, error) {
	if dir == "" {
		dir = RunDir()
	}
	if err := checkDir(dir); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	es, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var (
		mu  sync.Mutex
		all []Process
		wg  sync.WaitGroup
	)
	slots := make(chan struct{}, atOnce)
	for _, e := range es {
		pid, ok := pidOf(e.Name())
		if !ok || e.Type()&os.ModeSocket == 0 {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			path := filepath.Join(dir, e.Name())
			p, err := ask(ctx, path, pid, counters)
			if errors.Is(err, errGone) {
				return
			}
			if err != nil {
				p = Process{PID: pid, Program: programOf(pid), Problem: problem(err)}
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, p)
		})
	}
	wg.Wait()
	slices.SortFunc(all, func(a, b Process) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), a.Started.Compare(b.Started))
	})
	return all, context.Cause(ctx)
}

// errGone means that no process listens at the socket.
var errGone = errors.New("status: the process is gone")

// errForeign means that the process at the socket is not the process in the socket's name.
var errForeign = errors.New("another process has its socket")

func problem(err error) string {
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("no answer within %v: stopped, or busy", AnswerTimeout)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return "ended, or does not answer this user"
	}
	return err.Error()
}

func ask(ctx context.Context, path string, pid int, counters bool) (p Process, err error) {
	ctx, cancel := context.WithTimeout(ctx, AnswerTimeout)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED): // the socket belongs to a process that was killed
		os.Remove(path)
		return p, errGone
	case errors.Is(err, os.ErrNotExist):
		return p, errGone
	case err != nil:
		return p, err
	}
	defer c.Close()
	if end, ok := ctx.Deadline(); ok {
		c.SetDeadline(end)
	}
	if !sentBy(c, pid) {
		return p, errForeign
	}
	what := []byte{askBrief}
	if counters {
		what[0] = askFull
	}
	if _, err := c.Write(what); err != nil {
		return p, err
	}
	b, err := io.ReadAll(io.LimitReader(c, maxAnswer))
	if err != nil {
		return p, err
	}
	if len(b) == 0 {
		return p, io.EOF
	}
	if err := json.Unmarshal(b, &p); err != nil {
		return p, fmt.Errorf("answer not understood: %w", err)
	}
	p.PID, p.Problem = pid, ""
	return p, nil
}
