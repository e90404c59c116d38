package testkit

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"testing"
)

// FreePort returns a TCP port of loopback that was free a moment ago. Systems do not choose it for a
// socket that may have any port, and every call in a process returns another one.
func FreePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		port := 12_000 + (firstPort+int(portsTried.Add(1)))%20_000
		if l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

// NeedHost skips the test if no socket can listen at host, an address with or without brackets: a
// host may have no IPv6.
func NeedHost(t testing.TB, host string) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(strings.Trim(host, "[]"), "0"))
	if err != nil {
		t.Skip("SKIPPED:", err)
	}
	l.Close()
}

// firstPort is random, because tests of other processes need ports, too.
var firstPort = rand.IntN(20_000)

// portsTried is the number of ports that FreePort has tried.
var portsTried atomic.Int64
