// Package portmap is the SDP Port Mapper, client and server. It implements chapter 7 of
// draft-pinkerton-iwarp-sdp-01: a client that knows a service's conventional TCP address asks, over
// UDP, for the address where the same service speaks SDP. The server accepts with an address and a
// lifetime, or denies: then the client stays with plain TCP.
//
// A server:
//
//	reg := portmap.NewRegistry()
//	reg.Set(netip.MustParseAddrPort("0.0.0.0:80"), portmap.Mapping{
//		Targets: []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:8080")},
//	})
//	srv, err := portmap.Listen(":3935", portmap.ServerConfig{Registry: reg})
//	...
//	err = srv.Serve()
//
// A client:
//
//	c := portmap.NewClient(portmap.ClientConfig{})
//	m, err := c.Resolve(ctx, portmap.Query{Service: addr, Local: local})
//
// Calls that may block take a context or end when the object is closed.
//
// Not implemented: keeping the server's state over a restart (a restarted server
// starts empty; clients ask again, decision D-72), and checking a later TCP
// connection against the mapping (decision D-59 leaves it to the listener).
package portmap
