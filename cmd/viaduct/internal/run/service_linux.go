//go:build linux && (amd64 || arm64)

package run

import (
	"encoding/json"
	"fmt"
	"time"

	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/internal/notify"
)

// A Service serves a program's calls instead of the supervisor of TCP connections. A single
// goroutine at a time calls Serve, plus another if a call blocks (see attend).
type Service interface {
	Rules() []notify.Rule
	Serve(c *notify.Call)
	Sweep()       // releases immediately all that no process uses any more
	Reap(pid int) // a child of this process has ended, and its number will become free
	Close()       // called after the last process has ended
}

// A NewService makes a Service in the supervisor's process. explain is nil if no explanation is
// wanted. restart makes the kernel restart interrupted calls of a process, see Restarts.
type NewService func(e *shell.Env, explain func(format string, args ...any), restart func(pid int)) (Service, error)

// Restarts reports whether the kernel must restart a thread's call, which a signal has interrupted,
// even if the signal's handler does not have SA_RESTART. The front calls it.
type Restarts func(tid int, n notify.Native) bool

func (s *supervisor) openService() (err error) {
	if err := s.openExplain(); err != nil {
		return err
	}
	var explain func(string, ...any)
	if x := s.explain; x != nil {
		explain = x.say
	}
	s.service, err = s.o.Service(s.e, explain, s.restart)
	return err
}

// restart makes the front trace a process that makes interrupted calls restart. It returns when the
// front has begun, but waits at most restartTime, because the front may be stopped.
func (s *supervisor) restart(pid int) {
	s.restarting.Lock()
	defer s.restarting.Unlock()
	s.sendFront(sayRestart, pid)
	select {
	case <-s.restarted:
	case <-time.After(restartTime):
	}
}

const restartTime = time.Second

// say writes a line of --explain for a service.
func (x *explainer) say(format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.json {
		json.NewEncoder(x.w).Encode(map[string]string{"event": fmt.Sprintf(format, args...)})
		return
	}
	fmt.Fprintf(x.w, "viaduct run: "+format+"\n", args...)
}
