//go:build linux && (amd64 || arm64)

package run

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The addresses of this host are not forgotten when they can't be asked for.
func TestLocalAddrsShort(t *testing.T) {
	var here netip.Addr
	as, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range as {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLoopback() {
			here = p.Addr().Unmap()
		}
	}
	if !here.IsValid() {
		t.Skip("SKIPPED: this host has no address but loopback")
	}
	var l localAddrs
	if !l.has(here) {
		t.Fatalf("%v is not an address of this host", here)
	}
	l.at = time.Time{} // they are to be asked for once more
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	got := l.has(here)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if !got || !l.has(here) {
		t.Errorf("%v is no address of this host any more", here)
	}
}
