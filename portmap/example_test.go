package portmap_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"strings"

	"viaduct/portmap"
)

// A server maps the service of port 80 to its SDP address, and a client asks the server.
func Example() {
	reg := portmap.NewRegistry()
	err := reg.Set(netip.MustParseAddrPort("127.0.0.1:80"), portmap.Mapping{
		Targets: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:8080")},
	})
	if err != nil {
		log.Fatal(err)
	}
	// The usual port is 3935. Port 0 selects any free port.
	srv, err := portmap.Listen("127.0.0.1:0", portmap.ServerConfig{Registry: reg})
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- srv.Serve() }()

	c := portmap.NewClient(portmap.ClientConfig{Server: srv.Addr()})
	for _, service := range []string{"127.0.0.1:80", "127.0.0.1:443"} {
		m, err := c.Resolve(context.Background(), portmap.Query{
			Service: netip.MustParseAddrPort(service),
			Local:   netip.MustParseAddrPort("127.0.0.1:0"),
		})
		if err != nil {
			fmt.Println(service, err) // the program then connects to the service itself, by plain TCP
			continue
		}
		fmt.Println(service, "speaks SDP at", m.Address)
	}
	srv.Close()
	<-served
	// Output:
	// 127.0.0.1:80 speaks SDP at 127.0.0.1:8080
	// 127.0.0.1:443 portmap: the mapper denied the request
}

// ParseRegistry reads the mappings of a server from the text of a file.
func ExampleParseRegistry() {
	reg, err := portmap.ParseRegistry(strings.NewReader(`
# conventional    SDP addresses, in turn           lifetime
10.0.0.1:80       10.0.0.1:8080
*:5432            :15432                           cache=10s
[2001:db8::1]:80  [2001:db8::2]:81,[2001:db8::3]:81  cache=never
`))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reg.Len(), "mappings")
	// Output: 3 mappings
}
