package shell

import (
	"net/netip"

	"viaduct/portmap"
)

// Mapper returns the client of the Port Mapper at server. A run of the command has one client per
// server, so that a result for a connection, even a denial or silence, serves the next. Mapper is
// safe for concurrent use. [D-64]
func (e *Env) Mapper(server netip.AddrPort) *portmap.Client {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.mappers[server]
	if c == nil {
		cfg := portmap.ClientConfig{Server: server, Logger: e.Log}
		if e.Capture != nil {
			cfg.Dial = e.DialUDP
		}
		if c = portmap.NewClient(cfg); e.mappers == nil {
			e.mappers = make(map[netip.AddrPort]*portmap.Client)
		}
		e.mappers[server] = c
	}
	return c
}
