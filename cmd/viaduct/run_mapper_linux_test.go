//go:build linux && (amd64 || arm64)

package main

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"viaduct/portmap"
)

// The Port Mapper of a host finds all services of the host, in whatever order the services start
// and end.
func TestRunServicesOfOneHost(t *testing.T) {
	t.Parallel()
	python := need(t, "python3", "python3-minimal")
	mapper := netip.MustParseAddrPort("127.0.0.1:" + strconv.Itoa(freeUDP(t)))
	type service struct {
		*served
		port, sdp string
	}
	begin := func() service {
		s := service{port: strconv.Itoa(freePort(t))}
		s.served = startRun(t, []string{"--listen", s.port, "--portmap-listen", mapper.String()}, python, "-c", `
import socket, sys
l = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True: l.accept()[0].close()
`, s.port)
		s.sdp = s.sdpPort(s.port)
		return s
	}
	found := func(what string, services ...service) {
		t.Helper()
		for _, s := range services {
			eventually(t, what+": an answer for the service",
				func() bool { return resolves(t, mapper, "127.0.0.1:"+s.port, "127.0.0.1:"+s.sdp) })
		}
	}
	a, b := begin(), begin()
	found("side by side", a, b)
	// A Port Mapper that is slow to answer is registered with again.
	if count(a.explained(), "portmap", "udp") != 1 || count(b.explained(), "portmap", "registered") == 0 {
		t.Errorf("%+v\n%+v", a.explained(), b.explained())
	}
	syscall.Kill(a.supervisor(), syscall.SIGKILL)
	found("after kill -9", b)
	c := begin()
	found("with a new one", b, c)
	if code := b.stop(syscall.SIGTERM); code != 128+15 {
		t.Errorf("exit %d; %s", code, b.stderr())
	}
	eventually(t, "the third in the place of the second",
		func() bool { return count(c.explained(), "portmap", "udp") == 1 })
	found("after the end of the second", c)
	a.stop(syscall.SIGTERM)
	c.stop(syscall.SIGTERM)
}

// A service also registers with viaduct portmap serve, whose own entries stay.
func TestRunRegistersWithServe(t *testing.T) {
	t.Parallel()
	python := need(t, "python3", "python3-minimal")
	mapper := netip.MustParseAddrPort("127.0.0.1:" + strconv.Itoa(freeUDP(t)))
	start(t, 1, "portmap", "serve", "--listen", mapper.String(), "--map", "127.0.0.1:1=127.0.0.1:2")
	port := strconv.Itoa(freePort(t))
	s := startRun(t, []string{"--listen", port, "--portmap-listen", mapper.String()}, python, "-c", `
import socket, sys
socket.create_server(("127.0.0.1", int(sys.argv[1]))).accept()
`, port)
	for service, sdp := range map[string]string{"127.0.0.1:" + port: "127.0.0.1:" +
		s.sdpPort(port), "127.0.0.1:1": "127.0.0.1:2"} {
		eventually(t, "the answer "+sdp+" for "+service, func() bool { return resolves(t, mapper, service, sdp) })
	}
	// A Port Mapper that is slow to answer is registered with again.
	if count(s.explained(), "portmap", "registered") == 0 {
		t.Errorf("%+v", s.explained())
	}
	s.stop(syscall.SIGTERM)
}

// resolves reports whether a Port Mapper maps the address of a service to the address sdp.
func resolves(t *testing.T, mapper netip.AddrPort, service, sdp string) bool {
	c := portmap.NewClient(portmap.ClientConfig{Server: mapper})
	m, err := c.Resolve(t.Context(), portmap.Query{Service: netip.MustParseAddrPort(service),
		Local: netip.MustParseAddrPort("127.0.0.1:40000")})
	return err == nil && m.Address.String() == sdp
}

// If another program has the Port Mapper's UDP port, the user is informed and the program runs.
func TestRunForeignMapper(t *testing.T) {
	t.Parallel()
	python := need(t, "python3", "python3-minimal")
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	at := c.LocalAddr().String()
	r := run(t, "run", "--explain", "--listen", "any", "--portmap-listen", at, "--", python,
		"-c", "import socket; socket.create_server((\"127.0.0.1\", 0))")
	if r.code != 0 || !strings.Contains(r.stderr, "portmap "+at+": off (UDP port "+portOf(c.LocalAddr())+" is another program's") || strings.Contains(r.stderr, "invalid") {
		t.Errorf("exit %d, %s", r.code, r.stderr)
	}
}

// freeUDP returns a UDP port where nothing listens, and which the kernel assigns to nobody.
func freeUDP(t *testing.T) int {
	t.Helper()
	for {
		port := freePort(t)
		c, err := net.ListenPacket("udp", "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		c.Close()
		return port
	}
}
