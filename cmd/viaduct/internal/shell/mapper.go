package shell

import (
	"net/netip"

	"viaduct/portmap"
)

// Mapper returns the client that asks the Port Mapper at server. There is one
// for each server in a run of the command, so that what one connection learned,
// a denial or silence included, serves the next. It is safe for concurrent use.
// [D-64]
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
