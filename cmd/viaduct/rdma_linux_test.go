//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"viaduct/internal/sock"
	"viaduct/samehost"
)

// listens reports whether a TCP socket listens at the port. RDMA programs do not report listening,
// and a test connection would look like a peer's connection.
func listens(port string) bool {
	n, _ := strconv.Atoi(port)
	for _, f := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, _ := os.ReadFile(f)
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 3 && f[3] == "0A" &&
				strings.HasSuffix(f[1], fmt.Sprintf(":%04X", n)) {
				return true
			}
		}
	}
	return false
}

// rdmaRun returns the command "viaduct run --rdma" for a program.
func rdmaRun(ctx context.Context, out *bytes.Buffer, program ...string) *exec.Cmd {
	c := command(ctx, append([]string{"run", "--rdma", "--explain", "--"}, program...)...)
	c.Stdout, c.Stderr = out, out
	c.WaitDelay = 5 * time.Second
	return c
}

// goodLong is good for a program with thousands of calls, which can take minutes on a busy machine
// with the race detector.
func goodLong(t *testing.T, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
	defer cancel()
	c := command(ctx, args...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		t.Fatalf("viaduct %s: %v\n%.1000q\n%s", strings.Join(args, " "), err, out.String(), errs.String())
	}
	return result{stdout: out.String(), stderr: errs.String()}
}

// A file that is no program is reported as such, even though the supervisor answers the exec call.
func TestRDMANoProgram(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("no program\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		argv []string
		code int
	}{{[]string{file}, 126}, {[]string{"sh", "-c", "exec " + file + ".not"}, 127}, {[]string{"sh", "-c", "sh -c 'exit 7'"}, 7}} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		var out bytes.Buffer
		var exit *exec.ExitError
		if err := rdmaRun(ctx, &out, c.argv...).Run(); !errors.As(err, &exit) || exit.ExitCode() != c.code {
			t.Errorf("%q: %v, want exit code %d\n%s", c.argv, err, c.code, out.String())
		}
		cancel()
	}
}

// TestRDMAPs: "viaduct ps" shows the traffic of two programs under one command, whose bytes are
// copied without a stream, and of two programs under two commands, whose bytes use the stream.
func TestRDMAPs(t *testing.T) {
	need(t, "rping", "rdmacm-utils")
	psDir(t)
	for _, c := range []struct {
		path string
		runs [][]string
	}{
		{"iwarp copied", [][]string{{"sh", "-c", "rping -s -a 127.0.0.1 -p $0 & while ! rping -c -a 127.0.0.1 -p $0; do sleep 0.1; done"}}},
		{"iwarp", [][]string{{"rping", "-s", "-a", "127.0.0.1", "-p"}, {"sh", "-c", "while ! rping -c -a 127.0.0.1 -p $0; do sleep 0.1; done"}}},
	} {
		t.Run(c.path, func(t *testing.T) {
			if samehost.Auto != 0 { // in this build, the default is TCP
				c.path = "iwarp"
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			port := strconv.Itoa(freePort(t))
			var ended sync.WaitGroup
			defer ended.Wait()
			defer cancel()
			for _, argv := range c.runs {
				var out bytes.Buffer
				r := rdmaRun(ctx, &out, append(argv, port)...)
				r.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
				r.Cancel = func() error { return syscall.Kill(-r.Process.Pid, syscall.SIGKILL) }
				ended.Go(func() { r.Run() })
			}
			// A round of rping is a message and a Read or Write of 64 bytes each way.
			found := map[string]bool{}
			for len(found) < 2 {
				if ctx.Err() != nil {
					t.Fatalf("the list does not have both ends: %v", found)
				}
				for _, p := range psList(t).Processes {
					for _, conn := range p.Conns {
						if conn.Transport == "iwarp" && strings.HasPrefix(conn.Path, c.path) &&
							conn.SentBytes > 1000 && conn.ReceivedBytes > 1000 &&
							time.Since(conn.Active) < time.Minute {
							found[conn.Role] = true
						}
					}
				}
			}
			if !found["dial"] || !found["accept"] {
				t.Errorf("roles %v", found)
			}
		})
	}
}

// rdmaPair runs the two ends of a program, each under a separate supervisor, and returns their
// output.
func rdmaPair(t *testing.T, port string, server, client []string) (s, c string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var sout, cout bytes.Buffer
	sc := rdmaRun(ctx, &sout, server...)
	if err := sc.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- sc.Wait() }()
	for !listens(port) {
		select {
		case err := <-ended:
			t.Fatalf("%v: %v\n%s", server, err, sout.String())
		case <-ctx.Done():
			cancel()
			<-ended
			t.Fatalf("%v does not listen\n%s", server, sout.String())
		case <-time.After(20 * time.Millisecond):
		}
	}
	cerr := rdmaRun(ctx, &cout, client...).Run()
	cerr = rpingFailure(client[0], cout.String(), cerr)
	if cerr != nil {
		cancel()
	}
	serr := <-ended
	serr = rpingFailure(server[0], sout.String(), serr)
	if cerr != nil || serr != nil {
		t.Fatalf("client %v: %v\n%s\nserver %v: %v\n%s", client, cerr, cout.String(), server, serr, sout.String())
	}
	return sout.String(), cout.String()
}

// rpingFailure returns err, or nil if the program is rping and has failed only at the end, after all
// work, as is possible on any system: rping closes the event channel while one of rping's threads is
// about to read the next event. If the thread finds the descriptor closed before the process has
// ended, rping exits with an error.
func rpingFailure(program, out string, err error) error {
	_, rest, ok := strings.Cut(out, " DISCONNECT EVENT...")
	if program == "rping" && ok && strings.Contains(rest, "rdma_get_cm_event: Bad file descriptor") {
		return nil
	}
	return err
}

// rpingWhole is a shell function that runs rping, and ignores the failure rpingFailure ignores.
const rpingWhole = `rping_whole() {
	out=$(rping "$@" 2>&1); code=$?
	echo "$out"
	[ $code = 0 ] || case $out in
	*" DISCONNECT EVENT..."*"rdma_get_cm_event: Bad file descriptor"*) ;;
	*) return $code ;;
	esac
}
`

// The distribution's tools find the device.
func TestRDMADevices(t *testing.T) {
	t.Parallel()
	need(t, "ibv_devinfo", "ibverbs-utils")
	if r := good(t, "run", "--rdma", "--", "ibv_devices"); !strings.Contains(r.stdout, "siw0") {
		t.Errorf("ibv_devices:\n%s", r.stdout)
	}
	r := good(t, "run", "--rdma", "--device", "siw0", "--device", "other=127.0.0.2", "--", "ibv_devinfo", "-v")
	for _, want := range []string{"hca_id:\tsiw0", "hca_id:\tother", "iWARP (1)", "PORT_ACTIVE", "max_sge:\t\t\t6", "node_guid:"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("ibv_devinfo does not say %q:\n%s", want, r.stdout)
		}
	}
	if r := run(t, "run", "--rdma", "--device", "a b", "--", "true"); r.code != 125 ||
		!strings.Contains(r.last(), "letters") {
		t.Errorf("a bad name: %d, %s", r.code, r.last())
	}
}

// rping verifies the data transferred by RDMA Read and Write, in both directions.
func TestRDMARping(t *testing.T) {
	t.Parallel()
	need(t, "rping", "rdmacm-utils")
	for _, size := range []int{64, 4096, 60000} {
		port := strconv.Itoa(freePort(t))
		args := []string{"-a", "127.0.0.1", "-p", port, "-C", "20", "-S", strconv.Itoa(size), "-v"}
		s, c := rdmaPair(t, port, append([]string{"rping", "-s"}, args...),
			append([]string{"rping", "-c", "-V"}, args...))
		for side, out := range map[string]string{"server": s, "client": c} {
			if n := strings.Count(out, "ping data: rdma-ping-"); n != 20 {
				t.Errorf("%d bytes: the %s saw %d rounds:\n%s", size, side, n, out)
			}
		}
		// If the listener is slow, as on a busy machine, the request goes over TCP.
		shared, slow := strings.Contains(c, "by shared memory"), strings.Contains(c, "by tcp: the listener has not ")
		if !strings.Contains(c, "connected over iWARP") ||
			sock.SharesByDefault && !shared && !slow || shared != strings.Contains(s, "by shared memory") {
			t.Errorf("--explain does not tell of a connection through shared memory:\n%s\nserver:\n%s", c, s)
		}
	}
}

// Only one end has to run under viaduct run: here, the other end is viaduct's own rping.
func TestRDMARpingWithOwn(t *testing.T) {
	t.Parallel()
	need(t, "rping", "rdmacm-utils")
	port := strconv.Itoa(freePort(t))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out bytes.Buffer
	s := rdmaRun(ctx, &out, "rping", "-s", "-a", "127.0.0.1", "-p", port, "-C", "10", "-S", "5000")
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "rping listens", func() bool { return listens(port) })
	good(t, "rping", "-c", "-a", "127.0.0.1", "-p", port, "-C", "10", "-S", "5000", "-V")
	err := s.Wait()
	if err := rpingFailure("rping", out.String(), err); err != nil {
		t.Errorf("server: %v\n%s", err, out.String())
	}
	p := strconv.Itoa(freePort(t))
	start(t, 1, "rping", "-s", "-a", "127.0.0.1", "-p", p, "-S", "5000")
	out.Reset()
	c := command(ctx, "run", "--rdma", "--explain", "--tcp", "--", "rping", "-c", "-a", "127.0.0.1",
		"-p", p, "-C", "10", "-S", "5000", "-V")
	c.Stdout, c.Stderr, c.WaitDelay = &out, &out, 5*time.Second
	err = c.Run()
	if err := rpingFailure("rping", out.String(), err); err != nil || !strings.Contains(out.String(), "by tcp: ") {
		t.Errorf("client: %v\n%s", err, out.String())
	}
}

// perftest's tools work with events, several queue pairs and a shared receive queue.
func TestRDMAPerftest(t *testing.T) {
	t.Parallel()
	need(t, "ib_write_bw", "perftest")
	for _, args := range []string{
		"ib_send_lat -n 200", "ib_send_lat -n 200 -e", "ib_write_lat -n 200", "ib_read_lat -n 200 -e",
		"ib_send_bw -n 200 -s 4096", "ib_send_bw -n 500 -q 8", "ib_write_bw -n 500 -q 8", "ib_read_bw -n 200",
	} {
		t.Run(strings.ReplaceAll(args, " ", ""), func(t *testing.T) {
			port := strconv.Itoa(freePort(t))
			a := append(strings.Fields(args), "-R", "-p", port, "-F")
			_, c := rdmaPair(t, port, a, append(a, "127.0.0.1"))
			if !strings.Contains(c, "#bytes") {
				t.Errorf("no result:\n%s", c)
			}
		})
	}
}

// qperf registers memory for atomic operations too, as the kernel's driver allows.
func TestRDMAQperf(t *testing.T) {
	t.Parallel()
	need(t, "qperf", "qperf")
	port := strconv.Itoa(freePort(t))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var sout, cout bytes.Buffer
	s := rdmaRun(ctx, &sout, "qperf", "-lp", port, "-lto", "60")
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	defer s.Wait()
	eventually(t, "qperf listens", func() bool { return listens(port) })
	err := rdmaRun(ctx, &cout, "qperf", "-lp", port, "-to", "60", "-t", "1", "--use_cm", "1", "127.0.0.1", "rc_lat",
		"rc_rdma_read_bw", "quit").Run()
	if err != nil || strings.Count(cout.String(), " =  ") != 2 {
		cancel()
		t.Errorf("client: %v\n%s\nserver:\n%s", err, cout.String(), sout.String())
	}
}

// If a listening program is killed, the supervisor ends and the port is free.
func TestRDMAKilledListener(t *testing.T) {
	t.Parallel()
	need(t, "rping", "rdmacm-utils")
	port, file := strconv.Itoa(freePort(t)), t.TempDir()+"/pid"
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out bytes.Buffer
	s := rdmaRun(ctx, &out, "sh", "-c", `echo $$ >"$0"; exec rping -s -a 127.0.0.1 -p "$1"`, file, port)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "rping listens", func() bool { return listens(port) })
	b, _ := os.ReadFile(file)
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	p, _ := os.FindProcess(pid)
	p.Kill()
	s.Wait()
	if code := s.ProcessState.ExitCode(); code != 137 || ctx.Err() != nil || listens(port) {
		t.Errorf("the supervisor ended with %d (%v), the port is open: %v\n%s", code, ctx.Err(),
			listens(port), out.String())
	}
}
