//go:build linux && (amd64 || arm64)

package run

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/iwarp"
	"viaduct/sdp"
)

// An address is remembered as plain TCP after an accepted connection without any bytes. An address
// with an iWARP answer is not remembered, even if slow later.
func TestPlainPlaces(t *testing.T) {
	for _, tc := range []struct {
		name       string
		serve      func(net.Conn)
		timeout    time.Duration // in the second case, enough for iWARP's set-up
		remembered bool
	}{
		{"silent", func(c net.Conn) { io.Copy(io.Discard, c) }, time.Second, true}, // a connection without a reference is closed
		{"slow after iWARP's set-up", func(c net.Conn) {
			dev := iwarp.NewDevice(iwarp.DeviceConfig{})
			if cq, err := dev.NewCQ(1024); err == nil {
				iwarp.Server(context.Background(), c, &iwarp.Config{Device: dev, SendCQ: cq, RecvCQ: cq})
			}
		}, 4 * time.Second, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				if c, err := l.Accept(); err == nil {
					tc.serve(c)
				}
			}()
			c := &carrier{options: sdp.Options{SetupTimeout: tc.timeout}}
			at := addrPort(l.Addr())
			if _, err := c.dial(t.Context(), &toRule{}, at, netip.Addr{}); err == nil ||
				tc.remembered == errors.Is(err, sdp.ErrNoHelloAck) {
				t.Fatalf("the dial ends with %v", err)
			}
			if err := c.plain.known(at); (err != nil) != tc.remembered {
				t.Errorf("remembered: %v", err)
			}
		})
	}
}

// The cached addresses of this host remain if the system cannot report the addresses again.
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
	l.at = time.Time{} // expire the cache
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
