package verbs

import (
	"net/netip"

	"viaduct/cmd/viaduct/internal/mapper"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/portmap"
)

// offerMapper lets services of this host register with the Port Mapper at a UDP address.
func offerMapper(e *shell.Env, udp netip.AddrPort, reg *portmap.Registry) (stop func()) {
	c, err := mapper.Offer(udp, reg)
	if err != nil {
		e.Log.Warn("services of this host can't register", "err", err)
		return func() {}
	}
	return func() { c.Close() }
}
