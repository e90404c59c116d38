//go:build !linux

package frameio

import (
	"context"
	"net"
)

// Own returns nc: there is nothing to be gained here.
func Own(nc net.Conn) net.Conn { return nc }

// OwnListener returns l.
func OwnListener(l net.Listener, _ Tuning) (net.Listener, error) { return l, nil }

// Dial is d.DialContext.
func Dial(ctx context.Context, d *net.Dialer, network, address string) (net.Conn, error) {
	return d.DialContext(ctx, network, address)
}
