//go:build linux && (amd64 || arm64)

package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// denied runs the command while the given system calls fail with EPERM.
func denied(t *testing.T, calls string, args ...string) result {
	t.Helper()
	deny := buildCFile(t, "deny")
	var stderr strings.Builder
	c := command(t.Context(), args...)
	c.Args = append([]string{deny, calls, c.Path}, c.Args[1:]...)
	c.Path, c.Stderr = deny, &stderr
	out, err := c.Output()
	if _, isExit := err.(*exec.ExitError); err != nil && !isExit {
		t.Fatal(err)
	}
	return result{string(out), stderr.String(), c.ProcessState.ExitCode()}
}

// run --check reports forbidden operations and the ways to permit the operations.
func TestRunCheck(t *testing.T) {
	t.Parallel()
	lengthy(t, "10 s")
	if r := run(t, "run", "--check"); r.code != 0 ||
		!strings.Contains(r.stdout, "a program's sockets can be borrowed") {
		t.Errorf("exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	for _, tc := range []struct {
		name  string
		call  int
		what  string
		start string // the last line if the program does not start, "" if it runs over plain TCP
	}{
		{"seccomp", unix.SYS_SECCOMP, "seccomp", "operation not permitted"},
		{"pidfd_getfd", unix.SYS_PIDFD_GETFD, "descriptors", ""},
		{"process_vm_readv", unix.SYS_PROCESS_VM_READV, "memory", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			call := strconv.Itoa(tc.call)
			r := denied(t, call, "run", "--check", "--json")
			var all []struct {
				What, Says, Do string
				Good           bool
			}
			if err := json.Unmarshal([]byte(r.stdout), &all); err != nil || r.code != 125 {
				t.Fatalf("exit %d, %v\n%s%s", r.code, err, r.stdout, r.stderr)
			}
			found := false
			for _, f := range all {
				if f.What == tc.what {
					found = !f.Good && strings.Contains(f.Do, "seccomp profile")
				}
			}
			if !found || !strings.Contains(r.last(), tc.what) {
				t.Errorf("not told: %+v; %s", all, r.last())
			}
			r = denied(t, call, "run", "--", "sh", "-c", "exit 3")
			if tc.start != "" {
				if r.code != 125 || !strings.Contains(r.last(), tc.start) || !strings.Contains(r.last(), "--check") {
					t.Errorf("start: exit %d, %s", r.code, r.stderr)
				}
				return
			}
			if r.code != 3 {
				t.Errorf("exit %d, want the program's; %s", r.code, r.stderr)
			}
			if tc.what != "descriptors" {
				return
			}
			if !strings.Contains(r.stderr, "all connections stay plain TCP") {
				t.Errorf("nothing is said: %s", r.stderr)
			}
			if r = denied(t, call, "run", "--require", "--", "true"); r.code != 125 ||
				!strings.Contains(r.last(), "can't be borrowed") {
				t.Errorf("with --require: exit %d, %s", r.code, r.stderr)
			}
		})
	}
	if r := run(t, "run", "--", os.Args[0], "run", "--check"); r.code != 125 ||
		!strings.Contains(r.stdout, "inside another viaduct run") {
		t.Errorf("nested: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}

// If a Port Mapper does not answer in time, connections use plain TCP, or with --require are
// refused.
func TestRunDeafPortMapper(t *testing.T) {
	t.Parallel()
	python := need(t, "python3", "python3")
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	port, plain := echoPlain(t)
	script := fmt.Sprintf(`import socket; s = socket.create_connection(("127.0.0.1", %s)); s.sendall(b"x"); assert s.recv(1) == b"x"`, port)
	before := time.Now()
	r, es := runRun(t, []string{"--portmap", silent.LocalAddr().String()}, python, "-c", script)
	var why string
	for _, e := range es {
		if e.Call == "connect" {
			why = e.Path + ": " + e.Why
		}
	}
	if r.code != 0 || plain.Load() != 1 || !strings.Contains(why, "the Port Mapper does not answer") {
		t.Errorf("exit %d, %q, %d plain connections\n%s", r.code, why, plain.Load(), r.stderr)
	}
	if took := time.Since(before); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
	r, es = runRun(t, []string{"--require", "--portmap", silent.LocalAddr().String()}, python, "-c", script)
	if r.code != 1 || !strings.Contains(r.stderr, "ConnectionRefusedError") || plain.Load() != 1 ||
		count(es, "connect", "refused") != 1 {
		t.Errorf("--require: exit %d, %d plain connections, %+v\n%s", r.code, plain.Load(), es, r.stderr)
	}
	// A run inside another run cannot carry the program's connections.
	if r := run(t, "run", "--", os.Args[0], "run", "--require", "--", "true"); r.code != 125 ||
		!strings.Contains(r.last(), "inside another viaduct run") {
		t.Errorf("nested with --require: exit %d, %s", r.code, r.stderr)
	}
}
