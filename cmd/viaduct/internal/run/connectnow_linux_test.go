//go:build linux && (amd64 || arm64)

package run

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"viaduct/internal/testkit"
)

// connectNow never sets O_NONBLOCK of a blocking socket: the program shares the flag, and a signal may
// let it run on meanwhile.
func TestConnectNowLeavesFlags(t *testing.T) {
	b, err := os.ReadFile("/proc/sys/net/ipv4/tcp_fastopen")
	if on, _ := strconv.Atoi(strings.TrimSpace(string(b))); err != nil || on&1 == 0 {
		t.Skipf("SKIPPED: net.ipv4.tcp_fastopen is %q, %v: without Fast Open connectNow has to set the flag", b, err)
	}
	const synSent = 2
	for host, family := range map[string]int{"127.0.0.1": unix.AF_INET, "::1": unix.AF_INET6} {
		t.Run(host, func(t *testing.T) {
			testkit.NeedHost(t, host)
			h, err := newHolder(family == unix.AF_INET, family)
			if err != nil {
				t.Fatal(err)
			}
			defer h.close()
			fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			var stop, seen atomic.Bool
			var wg sync.WaitGroup
			defer stop.Store(true)
			wg.Go(func() {
				for !stop.Load() {
					if isNonblock(fd) {
						seen.Store(true)
					}
				}
			})
			b := &borrowed{fd: fd, family: family}
			for range 2000 {
				if err := connectNow(b, h.addr); err != nil {
					t.Fatal(err)
				}
				if state := tcpState(fd); state != synSent {
					t.Fatalf("state %d, want SYN_SENT", state)
				}
				disconnect(fd)
			}
			stop.Store(true)
			wg.Wait()
			if seen.Load() {
				t.Error("O_NONBLOCK was set meanwhile")
			}
		})
	}
}
