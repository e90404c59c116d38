// Package transport makes connections of every kind of transport from addresses. A transport
// carries byte streams or messages. Each transport has a separate file.
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

// Options are a verb's settings for connections.
type Options struct {
	Env        *shell.Env
	TLSDial    *tls.Config // nil: no TLS
	TLSListen  *tls.Config
	Congestion string // "" means the system's default

	// Token authenticates servers of files and their clients; nil means none. The verbs use the
	// token, not the transports.
	Token *token.Token
	// Find looks up hosts and fabrics in a registry; nil if there is no registry.
	Find Finder

	// MTU is the longest message in bytes to offer if the address has none; 0 means 4 GiB - 1.
	MTU uint32
	// Wait is how long dialling is repeated while the server does not listen.
	Wait time.Duration
	// RecvSize and RecvCount are the size and the number of the receives kept posted. A RecvSize of
	// 0 means the agreed MTU.
	RecvSize, RecvCount int

	vitcp vitcpListens
}

// A Finder returns the first value of a name in a registry. The error matches registry.ErrNotFound
// if there is no value.
type Finder func(ctx context.Context, kind, name string) (string, error)

// A Transport dials and listens for a URL scheme. Unsupported functions are nil.
type Transport struct {
	Scheme string
	// Check checks the parameters of an address, without connecting.
	Check func(u *addr.URL) error

	// Byte streams.
	DialStream   func(ctx context.Context, u *addr.URL, o *Options) (net.Conn, error)
	ListenStream func(u *addr.URL, o *Options) (net.Listener, error)
	// OverStream is ListenStream for the connections of an existing TCP listener. The new listener
	// owns the TCP listener.
	OverStream func(l net.Listener, u *addr.URL, o *Options) (net.Listener, error)

	// Messages and memory.
	DialMsg   func(ctx context.Context, u *addr.URL, o *Options) (msg.Conn, error)
	ListenMsg func(u *addr.URL, o *Options) (msg.Listener, error)
	// PeerMsg connects to a remote end also calling PeerMsg, instead of listening.
	PeerMsg func(ctx context.Context, local, remote *addr.URL, o *Options) (msg.Conn, error)
}

// All returns all transports.
func All() []*Transport {
	return []*Transport{&vitcpTransport, &iwarpTransport, &sdpTransport, &fcviTransport, &tcpTransport}
}

// Names returns the schemes of all transports.
func Names() []string {
	var n []string
	for _, t := range All() {
		n = append(n, t.Scheme)
	}
	return n
}

// For returns the transport of an address, or a usage error.
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

// Stream calls DialStream repeatedly until the server listens or o.Wait has passed.
func (t *Transport) Stream(ctx context.Context, u *addr.URL, o *Options) (net.Conn, error) {
	return Await(ctx, o.Wait, timed(o, t.Scheme, func() (net.Conn, error) { return t.DialStream(ctx, u, o) }))
}

// Messages calls DialMsg repeatedly until the server listens or o.Wait has passed.
func (t *Transport) Messages(ctx context.Context, u *addr.URL, o *Options) (msg.Conn, error) {
	return Await(ctx, o.Wait, timed(o, t.Scheme, func() (msg.Conn, error) { return t.DialMsg(ctx, u, o) }))
}

// timed returns dial with metrics: the duration of a successful call, and the repetitions.
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

// Pauses between attempts of Await: firstPause, doubled after each attempt up to lastPause.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 250 * time.Millisecond
)

// Await calls dial repeatedly while the error means a missing listener, for at most wait. Await
// returns the error of the last attempt. If ctx ends during a pause, Await returns the cause of
// ctx.
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

// notListening reports whether err means that the server may still be starting: the port is closed,
// or is open without the discriminator, or the host has not joined the fabric. A caller with
// --wait, for example, then tries again.
func notListening(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, vi.ErrNoMatch) || errors.Is(err, vi.ErrNotReachable)
}
