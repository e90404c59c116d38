//go:build unix

package main

import (
	"strings"
	"syscall"
	"testing"
)

// TestInterruptedClient: an interrupted ping ends the connection in an orderly way, and the server
// logs no failure. If ping is killed, the server must log a failure, except over transports whose
// only end of connection is TCP's.
func TestInterruptedClient(t *testing.T) {
	t.Parallel()
	for _, scheme := range schemes() {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			server, urls := start(t, 1, "echo", "--listen", listenURL(scheme, "127.0.0.1"), "--log-level", "info")
			ended := func() int { return strings.Count(server.stderr(), "msg=disconnected") }
			failed := func() int { return strings.Count(server.stderr(), `msg="connection failed"`) }
			for n, args := range []string{"-i 0 -s 100000", "-i 0", "-i 1ms", "-i 0 -s 100000"} {
				client, _ := start(t, 0, append([]string{"ping", urls[0], "-c", "0"}, strings.Fields(args)...)...)
				for range 20 {
					client.line() // round trips have begun
				}
				go func() {
					for range client.out {
					}
				}()
				if code := client.stop(syscall.SIGINT); code != 0 {
					t.Errorf("ping %s: exit %d, %s", args, code, client.stderr())
				}
				eventually(t, "end of the connection", func() bool { return ended()+failed() > n })
			}
			if failed() != 0 {
				t.Errorf("orderly ends are taken for failures:\n%s", server.stderr())
			}
			if !hasDisc(scheme) {
				return // the only end is TCP's, which the kernel also sends for a killed process
			}
			client, _ := start(t, 0, "ping", urls[0], "-c", "0")
			client.line()
			client.stop(syscall.SIGKILL)
			eventually(t, "failure", func() bool { return failed() > 0 })
		})
	}
}
