// Command listeners accepts SDP and plain TCP for one service, in the two ways
// there are: at a port each, and at one port for both.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"

	"viaduct/sdp"
)

// A pather is what both kinds of connection are: *sdp.Conn and *sdp.TCPConn.
type pather interface{ Path() sdp.Path }

func main() {
	ctx := context.Background()

	// A port for each. Clients that ask a Port Mapper for the conventional address
	// are sent to the other; all others reach the conventional one by TCP.
	var two sdp.ListenConfig
	both := must(two.ListenBoth(ctx, "tcp", "127.0.0.1:0", "127.0.0.1:0"))
	defer both.Close()

	// One port: the first bytes of a connection tell which it is. The client has
	// to send first, as one of HTTP does.
	one := sdp.ListenConfig{Plain: true}
	shared := must(one.Listen(ctx, "tcp", "127.0.0.1:0"))
	defer shared.Close()

	// A dialer that would like SDP: it asks, tries, and falls back to plain TCP.
	conventional := addrPort(both.Addr())
	mapped := &sdp.Dialer{Resolve: sdp.ResolvePrefer, Resolver: table{conventional: addrPort(both.SDP.Addr())}}
	unmapped := &sdp.Dialer{Resolve: sdp.ResolvePrefer, Resolver: table{}}
	direct := &sdp.Dialer{}
	plain := &net.Dialer{}

	for _, dial := range []struct {
		name string
		by   interface {
			DialContext(ctx context.Context, network, address string) (net.Conn, error)
		}
		l  net.Listener
		to string
	}{
		{"mapped", mapped, both, conventional.String()},
		{"not mapped", unmapped, both, conventional.String()},
		{"one port, SDP", direct, shared, shared.Addr().String()},
		{"one port, TCP", plain, shared, shared.Addr().String()},
	} {
		client := must(dial.by.DialContext(ctx, "tcp", dial.to))
		// Close returns when the peer's TCP has all of it and the end of the stream:
		// the process may end behind it, and nothing is lost.
		must(io.WriteString(client, "all that there is"))
		check(client.Close())

		server := must(dial.l.Accept())
		got := must(io.ReadAll(server))
		path := server.(pather).Path()
		fmt.Printf("%-14s sdp=%-5v %d bytes, then the end\n", dial.name+":", path.SDP, len(got))
		if dialed, ok := client.(pather); ok && !dialed.Path().SDP {
			fmt.Printf("%-14s %v\n", "", dialed.Path().Err)
		}
		server.Close()
	}
}

// A table takes the place of a Port Mapper here; package portmap has a real one.
type table map[netip.AddrPort]netip.AddrPort

func (t table) Resolve(_ context.Context, _, service netip.AddrPort) (netip.AddrPort, error) {
	if at, ok := t[service]; ok {
		return at, nil
	}
	return netip.AddrPort{}, fmt.Errorf("the table does not have the service")
}

func (t table) Forget(service netip.AddrPort) {}

func addrPort(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
