package sock

import (
	"errors"
	"net"
	"sync/atomic"

	"viaduct/internal/perturb"
	"viaduct/samehost"
)

// An agreement is the part of a Socket that others than the reader and the writer use: whether the
// bytes go through shared memory or may still be moved there, and whether the socket is closed.
type agreement struct {
	used atomic.Bool // something was read or written, or an engine has the socket

	mu      perturb.RWMutex // held around uses of the descriptor by others than the reader and the writer
	closed  bool            // guarded by mu; the descriptor is closed when nothing can be using it any more
	shared  bool            // guarded by mu; the bytes go through shared memory
	verdict chan struct{}   // not nil while a grant of shared memory is undecided, and closed after it; guarded by mu
	why     string          // the reason why the bytes do not go through shared memory; guarded by mu
}

// decide is called when a dialer gets a grant of shared memory. Reads, writes, and the engine's
// Take of the socket wait from then on, until the caller calls decided because the dialer has
// committed or left. If an earlier grant is still undecided, decide waits for its decision or,
// without wait, returns ErrWouldBlock. Any other error means a stream already begun or closed.
func (a *agreement) decide(wait bool) (decided func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.verdict != nil && !a.closed {
		if !wait {
			return nil, ErrWouldBlock
		}
		ch := a.verdict
		a.mu.Unlock()
		<-ch
		a.mu.Lock()
	}
	if a.closed || a.used.Load() || a.shared {
		return nil, errors.New(whyBegun)
	}
	ch := make(chan struct{})
	a.verdict = ch
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.verdict = nil
		close(ch)
	}, nil
}

// rlockDecided locks mu for reading as soon as no grant is undecided, or the socket is
// closed.
func (a *agreement) rlockDecided() {
	a.mu.RLock()
	for a.verdict != nil && !a.closed {
		ch := a.verdict
		a.mu.RUnlock()
		<-ch
		a.mu.RLock()
	}
}

func (a *agreement) setWhy(why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.why = why
}

func (a *agreement) path() samehost.Path {
	a.mu.RLock()
	defer a.mu.RUnlock()
	switch {
	case a.shared:
		return samehost.Path{SharedMemory: true}
	case a.why == "":
		return samehost.Path{Why: whyNotAsked}
	}
	return samehost.Path{Why: a.why}
}

// closedOr returns net.ErrClosed after Close, and err before.
func (a *agreement) closedOr(err error) error {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if a.closed {
		return net.ErrClosed
	}
	return err
}
