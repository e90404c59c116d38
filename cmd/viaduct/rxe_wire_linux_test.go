//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Unchanged programs under two supervisors reach each other by RoCEv2: connected by themselves, and by rdma_cm.
func TestRXEWire(t *testing.T) {
	t.Parallel()
	need(t, "ibv_ud_pingpong", "ibverbs-utils")
	need(t, "rping", "rdmacm-utils")
	need(t, "udaddy", "rdmacm-utils")
	for _, c := range []struct{ server, client string }{
		{"ibv_rc_pingpong -p PORT -g 1 -c -n 20 -s 20000", "ibv_rc_pingpong -p PORT -g 1 -c -n 20 -s 20000 ADDR"},
		{"rping -s -a ADDR -p PORT -C 10", "rping -c -p PORT -C 10 -V -a ADDR"},
		{"udaddy -c 2 -C 5", "udaddy -c 2 -C 5 -s ADDR"},
	} {
		t.Run(strings.Fields(c.server)[0], func(t *testing.T) {
			port := strconv.Itoa(20000 + rand.IntN(10000))
			a, b := wireAddr(), wireAddr()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			server, serverOut := rxeAt(ctx, a, strings.NewReplacer("PORT", port, "ADDR", a).Replace(c.server))
			if err := server.Start(); err != nil {
				t.Fatal(err)
			}
			// A client that comes before the server fails; one that came later would find no server any more.
			client, clientOut := rxeAt(ctx, b, "for i in 1 2 3 4 5 6 7 8 9; do "+strings.NewReplacer("PORT", port, "ADDR", a).Replace(c.client)+" && exit; sleep 1; done; exit 1")
			err := client.Run()
			if err != nil {
				cancel()
			}
			if serverErr := server.Wait(); err != nil || serverErr != nil {
				t.Fatalf("client %v, server %v\nclient: %s\nserver: %s", err, serverErr, clientOut, serverOut)
			}
			for _, out := range []*bytes.Buffer{clientOut, serverOut} {
				if !strings.HasPrefix(c.server, "udaddy") && !strings.Contains(out.String(), "by RoCEv2 from 127.") {
					t.Errorf("no connection by RoCEv2:\n%s", out)
				}
			}
		})
	}
}

// wireAddr is an address of the loopback interface that nobody else is likely to have.
func wireAddr() string {
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(250), rand.IntN(256), 1+rand.IntN(250))
}

// rxeAt is a shell script under a supervisor with a RoCE device of an address.
func rxeAt(ctx context.Context, addr, script string) (*exec.Cmd, *bytes.Buffer) {
	out := new(bytes.Buffer)
	c := command(ctx, "run", "--rdma", "--device", "rxe0="+addr, "--explain", "--", "sh", "-c", script)
	c.Stdout, c.Stderr = out, out
	c.WaitDelay = 5 * time.Second
	return c, out
}
