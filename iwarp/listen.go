package iwarp

import (
	"context"
	"errors"
	"net"
	"sync"

	"viaduct/internal/attend"
	"viaduct/internal/perturb"
	"viaduct/internal/sock"
	"viaduct/internal/wire/mpa"
)

// defaultMaxPending is the default limit of start-ups in progress. No RFC prescribes a limit.
const defaultMaxPending = 256 // [I-70]

// A Listener accepts streams. Start-ups run concurrently, so that a slow peer does not delay
// others. The limited number of start-ups keeps slow peers from exhausting memory. Safe for
// concurrent use.
type Listener struct { // [SEC-6.4.1-1] [SEC-6.4.1-2]
	l     net.Listener
	cfg   *Config
	ready chan *Request
	ctx   context.Context
	stop  context.CancelFunc
	wg    sync.WaitGroup

	mu      perturb.Mutex
	err     error          // guarded by mu
	pending int            // guarded by mu
	hosts   map[string]int // guarded by mu
	refused uint64         // guarded by mu
}

// Listen listens for TCP connections on addr, host:port, where port 0 selects a free port. cfg may
// be nil. All streams share the queues or the domain of cfg, if any.
func Listen(addr string, cfg *Config) (*Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	if c := cfg.clone(); c.owns() {
		own, err := sock.OwnListener(l, c.tuning())
		if err != nil {
			l.Close()
			return nil, err
		}
		l = own
	}
	return NewListener(l, cfg), nil
}

// NewListener returns a Listener for the connections of l. Closing the Listener closes l. cfg may
// be nil.
func NewListener(l net.Listener, cfg *Config) *Listener {
	ln := &Listener{l: l, cfg: cfg.clone(), ready: make(chan *Request), hosts: make(map[string]int)}
	if ln.cfg.Responder.MaxPending <= 0 {
		ln.cfg.Responder.MaxPending = defaultMaxPending
	}
	ln.ctx, ln.stop = context.WithCancel(context.Background())
	ln.wg.Go(ln.serve)
	return ln
}

// Addr returns the address the Listener listens on.
func (l *Listener) Addr() net.Addr { return l.l.Addr() }

// Refused returns the number of connections closed because of the limits or the filter.
func (l *Listener) Refused() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

func (l *Listener) serve() {
	for {
		nc, err := sock.AcceptNext(l.l.Accept, l.ctx.Done())
		if err != nil {
			l.mu.Lock()
			l.err = err
			l.mu.Unlock()
			l.stop()
			return
		}
		host := hostOf(nc.RemoteAddr())
		if !l.admit(nc, host) {
			nc.Close()
			continue
		}
		l.wg.Add(1)
		attend.Go(sock.IsTCP(nc), func() {
			defer l.wg.Done()
			l.startUp(nc, host)
		})
	}
}

func hostOf(a net.Addr) string {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.IP.String()
	}
	return a.String()
}

// admit counts a new start-up of host and returns true. If there are too many start-ups or the
// filter refuses nc, admit counts a refused connection and returns false.
func (l *Listener) admit(nc net.Conn, host string) bool {
	ok := l.cfg.Responder.Filter == nil || l.cfg.Responder.Filter(nc.RemoteAddr())
	l.mu.Lock()
	defer l.mu.Unlock()
	if !ok || l.pending >= l.cfg.Responder.MaxPending ||
		l.hosts[host] >= sock.PendingPerHost(nc, l.cfg.Responder.MaxPendingPerHost, l.cfg.Responder.MaxPending) {
		l.refused++
		return false
	}
	l.pending++
	l.hosts[host]++
	return true
}

func (l *Listener) settled(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending--
	if l.hosts[host]--; l.hosts[host] == 0 {
		delete(l.hosts, host)
	}
}

func (l *Listener) startUp(nc net.Conn, host string) {
	r, err := ReadRequest(l.ctx, nc, nil, l.cfg)
	if err != nil {
		l.settled(host)
		return
	}
	r.done = sync.OnceFunc(func() { l.settled(host) })
	select {
	case l.ready <- r:
	case <-l.ctx.Done():
		r.settle()
		r.nc.Close()
		r.q.discard(ErrClosed)
	}
}

// AcceptRequest waits for the next Request. The error is the error of the context, or ErrClosed
// after Close, or the error that ended listening.
func (l *Listener) AcceptRequest(ctx context.Context) (*Request, error) {
	select {
	case r := <-l.ready:
		return r, nil
	default:
	}
	select {
	case r := <-l.ready:
		return r, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-l.ctx.Done():
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.err != nil && !errors.Is(l.err, net.ErrClosed) {
			return nil, l.err
		}
		return nil, ErrClosed
	}
}

// Accept waits for the next Request and accepts it, with Config.Private as private data. A Request
// that cannot be accepted any more, for example because the peer has gone, is skipped. The errors
// are the errors of AcceptRequest, or an error wrapping ErrTooLong if Config.Private is too long.
func (l *Listener) Accept(ctx context.Context) (*QueuePair, error) {
	for {
		r, err := l.AcceptRequest(ctx)
		if err != nil {
			return nil, err
		}
		q, err := r.Accept(l.cfg.Private)
		if err == nil {
			return q, nil
		}
		if errors.Is(err, mpa.ErrPrivateTooLong) {
			r.Reject(nil)
			return nil, err
		}
	}
}

// Close stops listening, and waits until all start-ups not yet accepted have ended. Accepted
// streams are not affected. The error is the error of closing the net.Listener.
func (l *Listener) Close() error {
	l.stop()
	err := l.l.Close()
	l.wg.Wait()
	return err
}
