//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"viaduct/sdp"
)

// asleep waits until a process is in the state S, interruptible sleep.
func asleep(t *testing.T, pid int) {
	t.Helper()
	eventually(t, fmt.Sprintf("sleep of process %d", pid), func() bool { return processState(pid) == 'S' })
}

// processState returns the kernel's state letter of a process, or 0 if the process does not exist.
func processState(pid int) byte {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(b), ") ")
	return (rest + "\x00")[0]
}

// A signal interrupts a held call like the kernel's own call: a fatal signal ends the program at
// once, and a handled signal runs its handler at once.
func TestRunHeldSignals(t *testing.T) {
	t.Parallel()
	lengthy(t, "5 s")
	program := buildCFile(t, "shapes")
	never := deaf(t, "127.0.0.1") // no call ends by itself within the test's patience
	at := portOf(never.Addr())
	port := strconv.Itoa(freePort(t))
	for _, tc := range []struct {
		name    string
		flags   []string
		program []string
	}{
		{"connect, not answered", []string{"--to", "127.0.0.1:" + at, "--bound", "10m"}, []string{program, "wait-connect", at}},
		{"connect, held", []string{"--to", "127.0.0.1:" + at, "--bound", "1ms"}, []string{program, "wait-connect", at}},
		{"accept", []string{"--listen", port}, []string{program, "wait-accept", port}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := startRun(t, tc.flags, tc.program...)
			if got := s.line(); got != "waiting" {
				t.Fatalf("said %q", got)
			}
			asleep(t, childOf(t, s.supervisor(), "PATH="))
			if code := s.stop(syscall.SIGTERM); code != 128+15 {
				t.Errorf("exit %d; %s", code, s.stderr())
			}
		})
	}
	t.Run("handled in accept", func(t *testing.T) {
		t.Parallel()
		python := need(t, "python3", "python3-minimal")
		s := startRun(t, []string{"--listen", "any"}, python, "-c", `
import signal, socket, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
l = socket.create_server(("127.0.0.1", 0))
print("waiting", flush=True)
try: l.accept()
except KeyboardInterrupt: sys.exit(4)
`)
		if got := s.line(); got != "waiting" {
			t.Fatalf("said %q", got)
		}
		child := childOf(t, s.supervisor(), "PATH=")
		asleep(t, child)
		syscall.Kill(child, syscall.SIGINT)
		if code := s.wait(); code != 4 {
			t.Errorf("exit %d; %s", code, s.stderr())
		}
	})
}

// The command stops once the program has stopped, and continues when the program does, whether the
// command or the program gets the signal. The program gets each signal once.
func TestRunStops(t *testing.T) {
	t.Parallel()
	python := need(t, "python3", "python3-minimal")
	for _, alone := range []bool{false, true} { // also without a supervisor
		p := begin(t, func(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} },
			"run", "--listen", "any", "--portmap-listen", "off", "--", python, "-c", `
import os, signal, sys, time
n = {}
def put_away(s, _):
	time.sleep(.2)
	n[s] = n.get(s, 0) + 1
	os.kill(os.getpid(), signal.SIGSTOP)
def count(s, _): n[s] = n.get(s, 0) + 1
signal.signal(signal.SIGTSTP, put_away)
signal.signal(signal.SIGCONT, count)
print("ready", flush=True)
for line in sys.stdin: print(n.get(signal.SIGTSTP, 0), n.get(signal.SIGCONT, 0), flush=True)
`)
		if got := p.line(); got != "ready" {
			t.Fatalf("said %q", got)
		}
		front := p.cmd.Process.Pid
		supervisor := supervisorOf(t, front)
		program := childOf(t, supervisor, "PATH=")
		group := -front
		steps := []struct {
			name           string
			stop, proceed  int // processes or groups that get the signals
			by             syscall.Signal
			stops, resumes int
		}{
			{"the group", group, group, syscall.SIGTSTP, 1, 1},
			{"the front", front, front, syscall.SIGTSTP, 2, 2},
			{"the program", program, program, syscall.SIGSTOP, 2, 3},
			{"the group, then the program", group, program, syscall.SIGTSTP, 3, 4},
			{"the program, then the group", program, group, syscall.SIGTSTP, 4, 5},
			{"the program, then the front", program, front, syscall.SIGSTOP, 4, 6},
		}
		if alone {
			syscall.Kill(supervisor, syscall.SIGKILL)
			p.waitStderr("the supervisor died")
			steps = steps[:1]
		}
		for _, tc := range steps {
			asleep(t, program) // Python does not check for signals right before it reads
			syscall.Kill(tc.stop, tc.by)
			eventually(t, tc.name+": stop", func() bool { return processState(front) == 'T' })
			if st := processState(program); st != 'T' {
				t.Errorf("%s: the command has stopped, the program is in state %c", tc.name, st)
			}
			syscall.Kill(tc.proceed, syscall.SIGCONT)
			eventually(t, tc.name+": both go on",
				func() bool { return processState(front) != 'T' && processState(program) != 'T' })
			fmt.Fprintln(p.in)
			if got, want := p.line(), fmt.Sprint(tc.stops, " ", tc.resumes); got != want {
				t.Errorf("%s: the program has seen %s stops and continues, want %s", tc.name, got, want)
			}
		}
		p.in.Close()
		if code := p.wait(); code != 0 {
			t.Errorf("exit %d; %s", code, p.stderr())
		}
	}
}

// startWithPy executes a command with signals ignored or blocked. IGNORED and BLOCKED are masks as
// in /proc/PID/status.
const startWithPy = `
import os, signal, sys
ignored, blocked = int(sys.argv[1], 16), int(sys.argv[2], 16)
for s in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
	signal.signal(s, signal.SIG_IGN if ignored >> s - 1 & 1 else signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, [s for s in signal.valid_signals() if blocked >> s - 1 & 1])
os.execvp(sys.argv[3], sys.argv[3:])
`

// A program starts with the signal dispositions of the command: ignored, default or blocked.
// Signals that end a process by default, and fault signals, are never blocked in a Go process or
// its children.
func TestRunSignalsAtStart(t *testing.T) {
	t.Parallel()
	python := need(t, "python3", "python3-minimal")
	const all, odd, even = "ffffffffffffffff", "5555555555555555", "aaaaaaaaaaaaaaaa"
	const blockable, oddBlockable = "fffffff83bbe3a00", "5555555011141000"
	for _, masks := range [][2]string{{"0", "0"}, {"4", "0"}, {odd, "0"}, {even, oddBlockable}, {all, blockable}} {
		status := func(how ...string) string {
			args := append([]string{"-c", startWithPy, masks[0], masks[1]}, how...)
			c := exec.CommandContext(t.Context(), python,
				append(args, "grep", "-E", "^(Sig(Ign|Blk|Cgt|Pnd)|ShdPnd)", "/proc/self/status")...)
			c.Env = append(os.Environ(), asCommand+"=1")
			out, err := c.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			return string(out)
		}
		if got, want := status(os.Args[0], "run", "--listen", "any", "--portmap-listen", "off", "--"), status(); got != want {
			t.Errorf("ignored %s, blocked %s: the program has\n%swant\n%s", masks[0], masks[1], got, want)
		}
	}
}

// A signal ignored at the start of the command still reaches a program that handles it.
func TestRunIgnoredPassedOn(t *testing.T) {
	t.Parallel()
	python := need(t, "python3", "python3-minimal")
	p := begin(t, func(c *exec.Cmd) {
		c.Args = append([]string{python, "-c", startWithPy, "7", "0"}, c.Args...) // HUP, INT, QUIT
		c.Path = python
	}, "run", "--listen", "any", "--portmap-listen", "off", "--", python, "-c", `
import signal, sys
for s in signal.SIGHUP, signal.SIGINT, signal.SIGQUIT: signal.signal(s, lambda s, _: print("got", s, flush=True))
print("ready", flush=True)
while True: signal.pause()
`)
	if got := p.line(); got != "ready" {
		t.Fatalf("said %q", got)
	}
	program := childOf(t, supervisorOf(t, p.cmd.Process.Pid), "PATH=")
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		asleep(t, program) // Python does not check for signals right before it pauses
		syscall.Kill(p.cmd.Process.Pid, s)
		if got, want := p.line(), fmt.Sprint("got ", int(s)); got != want {
			t.Errorf("said %q, want %q", got, want)
		}
	}
	if code := p.stop(syscall.SIGTERM); code != 128+15 {
		t.Errorf("exit %d; %s", code, p.stderr())
	}
}

// On a terminal, a program is interrupted, stopped, continued and ended as without viaduct run,
// once each time.
func TestRunTerminal(t *testing.T) {
	t.Parallel()
	python := need(t, "python3", "python3-minimal")
	path, env := shellWith(t, "bash")
	for _, how := range []string{"", "viaduct run --listen any --portmap-listen off -- "} {
		c := exec.CommandContext(t.Context(), path, "--norc", "--noprofile", "-i")
		c.Env = append(env, "PS1=> ", "INPUTRC=/dev/null")
		script := t.TempDir() + "/terminal.py"
		if err := os.WriteFile(script, []byte(`
import os, signal, socket, sys
n = {}
def count(s, _): n[s] = n.get(s, 0) + 1
for s in signal.SIGINT, signal.SIGQUIT, signal.SIGCONT, signal.SIGWINCH: signal.signal(s, count)
assert os.tcgetpgrp(0) == os.getpgrp() and sys.stdin.isatty()
l = socket.create_server(("127.0.0.1", 0))
print("be" + "gun", flush=True)
for line in sys.stdin:
	print("got", line.strip(), n.get(signal.SIGINT, 0), n.get(signal.SIGQUIT, 0), n.get(signal.SIGCONT, 0), flush=True)
sys.exit(5)
`), 0o644); err != nil {
			t.Fatal(err)
		}
		show := typing(t, c, "echo re''ady\n", "ready")
		show(how+python+" "+script+"\n", "begun")
		show("\x03", "^C")
		show("one\n", "got one 1 0 0")
		show("\x1c", "^\\")
		show("two\n", "got two 1 1 0")
		show("\x1a", "Stopped")
		show("echo pro''mpt\n", "prompt")
		show("fg\n", "fg")
		show("three\n", "got three 1 1 1")
		show("\x04", "")
		show("echo co''de $?\n", "code 5")
	}
}

// A cutter forwards connections to an address until cut ends them.
type cutter struct {
	net.Listener
	mu    sync.Mutex
	conns []*net.TCPConn // guarded by mu
}

func newCutter(t *testing.T, to string) *cutter {
	c := &cutter{Listener: listenOn(t, "127.0.0.1")}
	go func() {
		for {
			near, err := c.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				near.Close()
				continue
			}
			c.mu.Lock()
			c.conns = append(c.conns, near.(*net.TCPConn), far.(*net.TCPConn))
			c.mu.Unlock()
			go io.Copy(near, far)
			go io.Copy(far, near)
		}
	}()
	t.Cleanup(func() { c.cut(true) })
	return c
}

// cut ends all connections: by a reset, like a restarted host, or by an end of the stream, like a
// killed process.
func (c *cutter) cut(reset bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, tc := range c.conns {
		if reset {
			tc.SetLinger(0)
		}
		tc.Close()
	}
	c.conns = nil
}

// If the transport's connection breaks, the program gets a reset, as over TCP, and continues.
func TestRunTransportDies(t *testing.T) {
	t.Parallel()
	python := need(t, "python3", "python3-minimal")
	const client = `
import socket, sys
for _ in range(2):
	c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
	c.sendall(b"hello")
	print(c.recv(5, socket.MSG_WAITALL).decode(), flush=True)
	try: print("ended", c.recv(1))
	except OSError as e: print(type(e).__name__)
	sys.stdout.flush()
`
	const server = `
import socket, sys
l = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
	c, _ = l.accept()
	try:
		while True:
			b = c.recv(100)
			if not b: break
			c.sendall(b)
		print("ended")
	except OSError as e: print(type(e).__name__)
	sys.stdout.flush()
	c.close()
`
	t.Run("client", func(t *testing.T) {
		t.Parallel()
		via := newCutter(t, echoSDP(t, "127.0.0.1"))
		s := startRun(t, []string{"--require", "--to", via.Addr().String()}, python, "-c", client, portOf(via.Addr()))
		for _, reset := range []bool{true, false} {
			if got := s.line(); got != "hello" {
				t.Fatalf("said %q", got)
			}
			via.cut(reset)
			if got := s.line(); got != "ConnectionResetError" {
				t.Errorf("reset %v: the program got %s", reset, got)
			}
		}
		if code, es := s.finish(); code != 0 || count(es, "connect", "sdp") != 2 || count(es, "reset", "sdp") != 2 {
			t.Errorf("exit %d, %+v\n%s", code, es, s.stderr())
		}
	})
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		port := strconv.Itoa(freePort(t))
		s := startRun(t, []string{"--listen", port}, python, "-c", server, port)
		via := newCutter(t, "127.0.0.1:"+s.sdpPort(port))
		for _, reset := range []bool{true, false} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			c, err := new(sdp.Dialer).DialContext(ctx, "tcp", via.Addr().String())
			cancel()
			if err != nil {
				t.Fatal(err)
			}
			c.SetDeadline(time.Now().Add(patience))
			if err := echoOnce(c); err != nil {
				t.Fatal(err)
			}
			via.cut(reset)
			if got := s.line(); got != "ConnectionResetError" {
				t.Errorf("reset %v: the program got %s", reset, got)
			}
			c.Close()
		}
		eventually(t, "two resets", func() bool { return count(s.explained(), "reset", "sdp") == 2 })
		if code := s.stop(syscall.SIGTERM); code != 128+15 {
			t.Errorf("exit %d; %s", code, s.stderr())
		}
	})
}
