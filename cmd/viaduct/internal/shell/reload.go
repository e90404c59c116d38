package shell

import (
	"os"
	"os/signal"
	"syscall"
)

// A reloading holds the functions triggered by SIGHUP in a service. Env.mu guards a reloading.
type reloading struct {
	signals chan os.Signal // nil until the first OnHangup
	over    chan struct{}  // closed at the end
	reloads []reload
}

// A reload reads a file again.
type reload struct {
	what string
	read func() error
}

// OnHangup makes SIGHUP call read. read must read a file again and use the new content. If read
// fails, the error is logged and the old content stays in use. SIGHUP ends a process without files
// to read again, as usual, unless a service manager started it.
func (e *Env) OnHangup(what string, read func() error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reloading.reloads = append(e.reloading.reloads, reload{what, read})
	e.takeHangupLocked()
}

// takeHangupLocked starts to handle SIGHUP, unless SIGHUP is handled already. The caller holds
// e.mu.
func (e *Env) takeHangupLocked() {
	r := &e.reloading
	if r.signals != nil {
		return
	}
	signals, over := make(chan os.Signal, 1), make(chan struct{})
	r.signals, r.over = signals, over
	signal.Notify(signals, syscall.SIGHUP)
	go func() {
		for {
			select {
			case <-signals:
				e.reload()
			case <-over:
				return
			}
		}
	}()
}

func (e *Env) reload() {
	e.mu.Lock()
	list := e.reloading.reloads
	e.mu.Unlock()
	if len(list) == 0 {
		e.Notice("hangup: nothing to reload")
	}
	for _, r := range list {
		if err := r.read(); err != nil {
			e.Log.Error("not reloaded, what was read before is used", "what", r.what, "err", err)
			continue
		}
		e.Notice("reloaded", "what", r.what)
	}
}

// endReloading restores the default action of SIGHUP.
func (e *Env) endReloading() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reloading.signals != nil {
		signal.Stop(e.reloading.signals)
		close(e.reloading.over)
		e.reloading.signals = nil
	}
}
