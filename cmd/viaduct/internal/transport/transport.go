// Package transport makes connections of every kind the command knows from
// addresses. A transport carries byte streams or messages; each is one file.
package transport

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/msg"
	"viaduct/cmd/viaduct/internal/shell"
)

// Options are what a verb wants of its connections.
type Options struct {
	Env        *shell.Env
	TLSDial    *tls.Config // nil: no TLS
	TLSListen  *tls.Config
	Congestion string // "" is the system's

	// MTU is the longest message in bytes that is offered when the address
	// does not say; 0 is 4 GiB - 1.
	MTU uint32
	// RecvSize and RecvCount are the receives that are kept posted. A
	// RecvSize of 0 is the agreed MTU.
	RecvSize, RecvCount int
}

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
