//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"viaduct/internal/testkit"
)

// TestPsRun: ps lists a program under viaduct run with the SDP connection for the program's TCP
// connection, and with the reason.
func TestPsRun(t *testing.T) {
	psDir(t)
	_, urls := start(t, 1, "echo", "--listen", "sdp://127.0.0.1:0")
	at := strings.TrimPrefix(urls[0], "sdp://")
	ctx, cancel := context.WithCancel(t.Context())
	p := command(ctx, "run", "--to", at+"="+at, "--", os.Args[0], "nc", "tcp://"+at)
	in, err := p.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cancel(); p.Wait() })
	if _, err := in.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the carried connection", func() bool {
		for _, p := range psList(t).Processes {
			if strings.HasPrefix(p.Program, "run --to") && len(p.Conns) == 1 {
				c := p.Conns[0]
				return c.Transport == "sdp" && c.Role == "dial" && c.Remote == at &&
					c.SentBytes == 5 && c.ReceivedBytes == 5 && c.Why != ""
			}
		}
		return false
	})
}
