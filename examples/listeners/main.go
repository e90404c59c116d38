// Command listeners accepts SDP and plain TCP for one service in two ways: at a port for each, and
// at a shared port.
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

// A pather is a connection of either kind: *sdp.Conn or *sdp.TCPConn.
type pather interface{ Path() sdp.Path }

func main() {
	ctx := context.Background()

	// Each protocol has a port. A client that asks a Port Mapper for the
	// conventional address is sent to the SDP port. All other clients reach the
	// conventional port by TCP.
	var two sdp.ListenConfig
	both := must(two.ListenBoth(ctx, "tcp", "127.0.0.1:0", "127.0.0.1:0"))
	defer both.Close()

	// Both protocols share a port. The first bytes of a connection show the protocol, so the client
	// must send first, as in HTTP.
	one := sdp.ListenConfig{Plain: true}
	shared := must(one.Listen(ctx, "tcp", "127.0.0.1:0"))
	defer shared.Close()

	// This dialer prefers SDP. It asks the Port Mapper, tries SDP, and falls back
	// to plain TCP.
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
		// Close returns when the peer's TCP has received all bytes and the end of the stream. Then
		// the process may end, and nothing is lost.
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

// A table replaces a Port Mapper here; package portmap has a real Port Mapper.
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
