//go:build linux && (amd64 || arm64)

package main

import (
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
)

// asNames makes the test binary a program that connects to an address and prints the
// two names of its socket.
const asNames = "VIADUCT_TEST_NAMES"

// A rule may lead to an address of the other family: the program's socket shows one of its
// own.
func TestRunOtherFamily(t *testing.T) {
	_, sdpPort, err := net.SplitHostPort(echoSDP(t, "::1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, bound := range []string{"0", "10s"} {
		port := strconv.Itoa(freePort(t))
		r, es := runRun(t, []string{"--to", "127.0.0.1:" + port + "=[::1]:" + sdpPort, "--bound", bound}, "env", asNames+"=127.0.0.1:"+port, os.Args[0])
		local, remote, _ := strings.Cut(strings.TrimSpace(r.stdout), " ")
		if a, err := netip.ParseAddrPort(local); r.code != 0 || r.stderr != "" || remote != "127.0.0.1:"+port || err != nil || a.Addr().String() != "127.0.0.1" || a.Port() == 0 {
			t.Errorf("bound %s: exit %d; %q\n%s", bound, r.code, r.stdout, r.stderr)
		}
		if count(es, "connect", "sdp") != 1 {
			t.Errorf("bound %s: not carried: %+v", bound, es)
		}
	}
}
