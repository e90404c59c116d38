// Package transport makes connections of every kind the command knows from
// addresses. A transport carries byte streams or messages; each is one file.
package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"
	"time"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/token"
	"viaduct/vi"
)

// Options are what a verb wants of its connections.
type Options struct {
	Env        *shell.Env
	TLSDial    *tls.Config // nil: no TLS
	TLSListen  *tls.Config
	Congestion string // "" is the system's

	// Token is what servers of files and their clients know each other by; nil is
	// none. It is for the verbs: no transport looks at it.
	Token *token.Token
	// Find finds hosts and fabrics in a registry; nil if none is asked.
	Find Finder

	// MTU is the longest message in bytes that is offered when the address
	// does not say; 0 is 4 GiB - 1.
	MTU uint32
	// Wait is how long a server that does not listen yet is asked again.
	Wait time.Duration
	// RecvSize and RecvCount are the receives that are kept posted. A
	// RecvSize of 0 is the agreed MTU.
	RecvSize, RecvCount int

	vitcp vitcpListens
}

// A Finder returns the first value of a name in a registry. The error matches
// registry.ErrNotFound if there is none.
type Finder func(ctx context.Context, kind, name string) (string, error)

// A Transport is one way to carry data. The functions it lacks are nil.
type Transport struct {
	Scheme string
	// Check looks at the parameters of an address without connecting.
	Check func(u *addr.URL) error

	// Byte streams.
	DialStream   func(ctx context.Context, u *addr.URL, o *Options) (net.Conn, error)
	ListenStream func(u *addr.URL, o *Options) (net.Listener, error)
	// OverStream is ListenStream on the connections of a TCP listener that is
	// there already and becomes its own.
	OverStream func(l net.Listener, u *addr.URL, o *Options) (net.Listener, error)

	// Messages and memory.
	DialMsg   func(ctx context.Context, u *addr.URL, o *Options) (msg.Conn, error)
	ListenMsg func(u *addr.URL, o *Options) (msg.Listener, error)
	// PeerMsg connects two that call each other.
	PeerMsg func(ctx context.Context, local, remote *addr.URL, o *Options) (msg.Conn, error)
}

// All lists the transports that are built.
func All() []*Transport {
	return []*Transport{&vitcpTransport, &iwarpTransport, &sdpTransport, &fcviTransport, &tcpTransport}
}

// Names lists their schemes.
func Names() []string {
	var n []string
	for _, t := range All() {
		n = append(n, t.Scheme)
	}
	return n
}

// For returns the transport of an address. The error is one of usage.
func For(u *addr.URL) (*Transport, error) {
	all := All()
	i := slices.IndexFunc(all, func(t *Transport) bool { return t.Scheme == u.Scheme })
	if i < 0 {
		return nil, shell.Usagef("%s:// is not in this build (it has %v)", u.Scheme, Names())
	}
	if all[i].Check != nil {
		if err := all[i].Check(u); err != nil {
			return nil, shell.Usage(fmt.Errorf("address %q: %w", u, err))
		}
	}
	return all[i], nil
}

// IsStream reports whether the transport carries byte streams.
func (t *Transport) IsStream() bool { return t.DialStream != nil }

// Stream is DialStream that waits for a server as the options say.
func (t *Transport) Stream(ctx context.Context, u *addr.URL, o *Options) (net.Conn, error) {
	return Await(ctx, o.Wait, timed(o, t.Scheme, func() (net.Conn, error) { return t.DialStream(ctx, u, o) }))
}

// Messages is DialMsg that waits for a server as the options say.
func (t *Transport) Messages(ctx context.Context, u *addr.URL, o *Options) (msg.Conn, error) {
	return Await(ctx, o.Wait, timed(o, t.Scheme, func() (msg.Conn, error) { return t.DialMsg(ctx, u, o) }))
}

// timed counts what dial takes, and its second and later calls.
func timed[T any](o *Options, scheme string, dial func() (T, error)) func() (T, error) {
	m := o.Env.Metrics
	if m == nil {
		return dial
	}
	again := false
	return func() (T, error) {
		if again {
			m.Retried(scheme)
		}
		again = true
		began := time.Now()
		c, err := dial()
		if err == nil {
			m.SetUp(scheme, time.Since(began))
		}
		return c, err
	}
}

// The pauses between two attempts of Await: the first, doubled up to the last.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 250 * time.Millisecond
)

// Await calls dial again while its error says that no server listens there, for
// as long as wait. The error is that of the last attempt, or the cause of ctx.
func Await[T any](ctx context.Context, wait time.Duration, dial func() (T, error)) (T, error) {
	end := time.Now().Add(wait)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		c, err := dial()
		left := time.Until(end)
		if err == nil || !notListening(err) || left <= 0 {
			return c, err
		}
		t := time.NewTimer(min(pause, left))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return c, context.Cause(ctx)
		}
	}
}

// notListening tells the errors of a server that may be about to listen: the
// port is closed, or open without that discriminator, or the host has not
// joined its fabric.
func notListening(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, vi.ErrNoMatch) || errors.Is(err, vi.ErrNotReachable)
}
