package transport

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/samehost"
)

const (
	// SetupTimeout bounds the set-up of a connection of every transport, from the first TCP segment
	// until both sides have agreed. The bound is needed because the kernel of a stopped server
	// still accepts connections, so that nothing else would end the wait. [V-35] [I-14] [D-17]
	SetupTimeout = 10 * time.Second

	// RemoteSetupTimeout is the bound if the set-up first asks another host, such as a Port Mapper
	// or a fabric. RemoteSetupTimeout is longer because the questions may be repeated.
	RemoteSetupTimeout = 30 * time.Second
)

// errSetup is the cause of a context whose time for the set-up is over.
var errSetup = errors.New("set-up took too long")

// setupTimeout returns the bound for the set-up of a connection to u.
func setupTimeout(u *addr.URL) time.Duration {
	if u.Query.Has("portmap") || u.Query.Has("fabric") {
		return RemoteSetupTimeout
	}
	return SetupTimeout
}

// bounded returns dial with the bound of setupTimeout. If the bound ends the set-up, the error
// matches os.ErrDeadlineExceeded.
func bounded[C any](dial func(context.Context, *addr.URL, *Options) (C, error)) func(context.Context, *addr.URL, *Options) (C, error) {
	return func(ctx context.Context, u *addr.URL, o *Options) (C, error) {
		limit := setupTimeout(u)
		ctx, cancel := context.WithTimeoutCause(ctx, limit, errSetup)
		defer cancel()
		c, err := dial(ctx, u, o)
		if err != nil && context.Cause(ctx) == errSetup {
			var none C
			err = fmt.Errorf("connect to %s: no answer within %v: %w", u, limit, os.ErrDeadlineExceeded)
			return none, shell.Hint(err, "the other side may be stopped or overloaded, a firewall may drop packets, or the port may speak another protocol")
		}
		return c, err
	}
}

// sameHost returns the policy for shared memory in an address, and the directory for shared memory.
// The default is the policy of the library. The parser has already rejected invalid words.
func sameHost(u *addr.URL) (p samehost.Policy, dir string) {
	if s := u.Query.Get("samehost"); s != "" {
		p, _ = samehost.Parse(s)
	}
	return p, u.Query.Get("samehost-dir")
}
