package main

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/internal/testkit"
)

// hostAddresses returns the host's addresses that can be dialled without a zone.
func hostAddresses(t *testing.T) (at []netip.Addr) {
	t.Helper()
	as, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range as {
		ip, ok := netip.AddrFromSlice(a.(*net.IPNet).IP)
		if ok && !ip.IsLinkLocalUnicast() {
			at = append(at, ip.Unmap())
		}
	}
	return at
}

// eachWildcard runs f with each spelling of "every address" for transports with a discriminator,
// and with a single spelling for other transports.
func eachWildcard(t *testing.T, f func(t *testing.T, listen string)) {
	for _, scheme := range transport.Names() {
		hosts := []string{""}
		if hasDisc(scheme) {
			hosts = append(hosts, "0.0.0.0", "[::]")
		}
		for _, host := range hosts {
			t.Run(scheme+"/"+host, func(t *testing.T) {
				t.Parallel()
				if host == "[::]" { // clients take it for [::1]
					testkit.NeedHost(t, "[::1]")
				}
				f(t, listenURL(scheme, host))
			})
		}
	}
}

// callAt returns the URL by which a client at the same host reaches a listener at the address ip.
func callAt(t *testing.T, listening string, ip netip.Addr) string {
	t.Helper()
	u, err := addr.Parse(listening)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = ip.String()
	return u.String()
}

// TestWildcard: a listener at no host, at 0.0.0.0 or at [::] answers at every address of the host,
// and at the printed address.
func TestWildcard(t *testing.T) {
	t.Parallel()
	eachWildcard(t, func(t *testing.T, listen string) {
		_, urls := start(t, 1, "echo", "--listen", listen)
		good(t, "ping", urls[0], "-c", "1")
		for _, ip := range hostAddresses(t) {
			good(t, "ping", callAt(t, urls[0], ip), "-c", "1")
		}
	})
}

// TestWildcardFiles: files are served, and nc listens, at every address of the host.
func TestWildcardFiles(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	body := random(t, filepath.Join(root, "f"), 1000)
	for _, scheme := range []string{"vitcp", "fcvi"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			listen := listenURL(scheme, "")
			_, urls := start(t, 1, "serve", "--root", root, "--listen", listen)
			for _, ip := range hostAddresses(t) {
				if !ip.IsLoopback() {
					continue // a listener prints the address of an interface
				}
				out := filepath.Join(t.TempDir(), "f")
				good(t, "get", at(callAt(t, urls[0], ip), "f"), "-o", out)
				same(t, out, body)
				received, url := startRaw(t, os.DevNull, "nc", "-l", listen)
				r := runFrom(t, strings.NewReader("hello"), "nc", callAt(t, url, ip))
				if got := received(); r.code != 0 || string(got) != "hello" {
					t.Errorf("nc at %v: exit %d, received %q\n%s", ip, r.code, got, r.stderr)
				}
			}
		})
	}
}
