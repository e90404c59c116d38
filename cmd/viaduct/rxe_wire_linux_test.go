//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"viaduct/internal/testkit"
)

// pingpong is a shell function that runs ibv_rc_pingpong until it succeeds. The program gives up if
// the peer's supervisor does not answer for half a second, for example because the machine is busy.
// The other end may then wait for ever.
const pingpong = `pingpong() {
	until timeout 30 ibv_rc_pingpong -g 1 -c -s 20000 "$@"; do sleep 0.5; done
}
`

// Unmodified programs under two supervisors reach each other by RoCEv2. Some exchange their queue
// pairs over TCP, and some connect by rdma_cm.
func TestRXEWire(t *testing.T) {
	t.Parallel()
	need(t, "ibv_ud_pingpong", "ibverbs-utils")
	need(t, "rping", "rdmacm-utils")
	need(t, "udaddy", "rdmacm-utils")
	for _, c := range []struct{ server, client string }{
		{"pingpong -p PORT -n 20", "pingpong -p PORT -n 20 ADDR"},
		{"rping_whole -s -a ADDR -p PORT -C 10", "rping_whole -c -p PORT -C 10 -V -a ADDR"},
		{"udaddy -c 2 -C 5", "udaddy -c 2 -C 5 -s ADDR"},
	} {
		t.Run(strings.Fields(c.server)[0], func(t *testing.T) {
			port := strconv.Itoa(testkit.FreePort(t))
			a, b := wireAddr(), wireAddr()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			server, serverOut := rxeAt(ctx, a, rpingWhole+pingpong+strings.NewReplacer("PORT", port, "ADDR", a).Replace(c.server))
			if err := server.Start(); err != nil {
				t.Fatal(err)
			}
			// A client fails if started before the server, and a server serves only one client. So
			// the script restarts the client until the client succeeds.
			client, clientOut := rxeAt(ctx, b, rpingWhole+pingpong+"until "+
				strings.NewReplacer("PORT", port, "ADDR", a).Replace(c.client)+"; do sleep 0.5; done")
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

// Several supervisors serve the same address. Programs under them reach each other, whether they
// connect queue pairs themselves or use rdma_cm, and at the same time a program at another address.
func TestRXEShared(t *testing.T) {
	t.Parallel()
	need(t, "ibv_rc_pingpong", "ibverbs-utils")
	need(t, "rping", "rdmacm-utils")
	a, b := wireAddr(), wireAddr()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	replace := strings.NewReplacer("PORT1", strconv.Itoa(testkit.FreePort(t)), "PORT2", strconv.Itoa(testkit.FreePort(t)),
		"PORT3", strconv.Itoa(testkit.FreePort(t)), "ADDR", a)
	start := func(addr, script string) func() {
		c, out := rxeAt(ctx, addr, replace.Replace(script))
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		return func() {
			t.Helper()
			if err := c.Wait(); err != nil {
				cancel()
				t.Errorf("%v\n%s", err, out)
			} else if !strings.Contains(out.String(), "by RoCEv2 from 127.") {
				t.Errorf("no connection by RoCEv2:\n%s", out)
			}
		}
	}
	for _, wait := range []func(){
		start(a, rpingWhole+pingpong+"pingpong -n 200 -p PORT1 & rping_whole -s -a ADDR -p PORT3 -C 50 & pingpong -n 200 -p PORT2 && wait"),
		start(a, pingpong+"pingpong -n 200 -p PORT1 localhost"),
		start(b, pingpong+"pingpong -n 200 -p PORT2 localhost"),
		start(a, rpingWhole+"until rping_whole -c -a ADDR -p PORT3 -C 50 -V; do sleep 0.5; done"),
	} {
		wait()
	}
}

// wireAddr returns a random and probably unused loopback address.
func wireAddr() string {
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(250), rand.IntN(256), 1+rand.IntN(250))
}

// rxeAt returns a command that runs a shell script under a supervisor with a RoCE device at the
// address addr. The buffer collects the command's output.
func rxeAt(ctx context.Context, addr, script string) (*exec.Cmd, *bytes.Buffer) {
	out := new(bytes.Buffer)
	c := command(ctx, "run", "--rdma", "--device", "rxe0="+addr, "--explain", "--", "sh", "-c", script)
	c.Stdout, c.Stderr = out, out
	c.WaitDelay = 5 * time.Second
	return c, out
}

// If another process has the UDP port of a supervisor's address, --check reports the conflict, and
// so does the supervisor when a program wants to reach a remote peer. Programs under the same
// supervisor still reach each other.
func TestRXEPortTaken(t *testing.T) {
	t.Parallel()
	need(t, "ibv_rc_pingpong", "ibverbs-utils")
	need(t, "rping", "rdmacm-utils")
	a := wireAddr()
	taken, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(a), Port: 4791})
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	who := fmt.Sprintf("process %d (", os.Getpid())
	r := run(t, "run", "--rdma", "--device", "rxe0="+a, "--check")
	if r.code != 0 || !strings.Contains(r.stdout, who) || !strings.Contains(r.stdout, "4791 of "+a) {
		t.Errorf("--check: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	port := strconv.Itoa(testkit.FreePort(t))
	both, out := rxeAt(ctx, a, strings.ReplaceAll("ibv_rc_pingpong -p PORT -g 1 -c -n 20 & "+
		"until ibv_rc_pingpong -p PORT -g 1 -c -n 20 localhost; do sleep 0.5; done; wait $!", "PORT", port))
	if err := both.Run(); err != nil {
		t.Errorf("inside the host: %v\n%s", err, out)
	}
	away := run(t, "run", "--rdma", "--device", "rxe0="+a, "--", "rping", "-c", "-p", port, "-C", "1", "-a", wireAddr())
	if away.code == 0 || !strings.Contains(away.stderr, who) ||
		!strings.Contains(away.stderr, "--device rxe0=127.0.0.2") {
		t.Errorf("elsewhere: exit %d\n%s", away.code, away.stderr)
	}
	if r := run(t, "run", "--rdma", "--device", "rxe0="+wireAddr(), "--check"); !strings.Contains(r.stdout, "reached by RoCEv2") {
		t.Errorf("a free port: %s", r.stdout)
	}
}

// The example of package roce writes into the memory of a C program under viaduct run, and reads
// the memory back.
func TestRXEExample(t *testing.T) {
	t.Parallel()
	testkit.Long(t, "5 s")
	memory, example := verbsProgram(t, filepath.Join("..", "..", "interop", "roce", "guest", "memory.c")),
		filepath.Join(t.TempDir(), "roce")
	if out, err := exec.Command("go", "build", "-pgo=off", "-o", example, "viaduct/examples/roce").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	port := strconv.Itoa(testkit.FreePort(t))
	addr := wireAddr() // a Go program and a supervisor can share an address
	server, serverOut := rxeAt(ctx, addr, memory+" 1 1024 "+port)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	var out []byte
	err := errors.New("connection refused")
	for ctx.Err() == nil && err != nil && strings.Contains(string(out)+err.Error(), "refused") {
		time.Sleep(20 * time.Millisecond)
		out, err = exec.CommandContext(ctx, example, addr, "127.0.0.1:"+port).CombinedOutput()
	}
	if err != nil {
		cancel()
	}
	serverErr := server.Wait()
	const word = "hello fr" // the program prints these bytes as a number
	if err != nil || serverErr != nil || !strings.Contains(string(out), `read back "hello from Go"`) ||
		!strings.Contains(serverOut.String(), fmt.Sprint(binary.NativeEndian.Uint64([]byte(word)))) {
		t.Errorf("example %v, program %v\nexample: %s\nprogram: %s", err, serverErr, out, serverOut)
	}
}

// verbsProgram compiles a C program that uses verbs.
func verbsProgram(t *testing.T, source string) string {
	t.Helper()
	cc := need(t, "cc", "gcc libc6-dev")
	bin := filepath.Join(t.TempDir(), "program")
	if out, err := exec.Command(cc, "-O1", "-Wall", "-o", bin, source, "-libverbs").CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: a C program that uses verbs can't be compiled (Debian: apt-get install libibverbs-dev): %v\n%s", err, out)
	}
	return bin
}
