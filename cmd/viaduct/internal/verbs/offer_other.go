//go:build !linux

package verbs

import (
	"net/netip"

	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/portmap"
)

// offerMapper does nothing, because only viaduct run registers services, and viaduct run needs
// Linux.
func offerMapper(*shell.Env, netip.AddrPort, *portmap.Registry) (stop func()) { return func() {} }
