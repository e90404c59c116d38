//go:build linux && (amd64 || arm64)

package main

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRunUrgent: urgent data is carried both ways. poll, select, epoll, SIGURG, MSG_OOB,
// SO_OOBINLINE and SIOCATMARK behave as on a TCP connection.
func TestRunUrgent(t *testing.T) {
	t.Parallel()
	python := need(t, "python3", "python3")
	program := filepath.Join("testdata", "run", "urgent.py")
	port, sdpPort := strconv.Itoa(freePort(t)), strconv.Itoa(freePort(t))
	carry := []string{"--portmap-listen", "off", "--listen", port + "=" + sdpPort,
		"--to", "127.0.0.1:" + port + "=:" + sdpPort}
	want := plain(t, python, program, port)
	r, es := runRun(t, carry, python, program, port)
	if r.code != 0 || count(es, "connect", "sdp") != 2 || count(es, "accept", "sdp") != 2 {
		t.Errorf("exit %d, %+v\n%s", r.code, es, r.stderr)
	}
	compareTables(t, r.stdout, want)
	t.Run("pair", func(t *testing.T) {
		if !unixUrgent() {
			t.Skip("SKIPPED: the unix sockets of this kernel do not have TCP's urgent data (Linux 6.11)")
		}
		r, es := runRun(t, []string{"--same-host"}, python, program, port)
		if r.code != 0 || count(es, "connect", "pair") != 2 || count(es, "accept", "pair") != 2 {
			t.Errorf("exit %d, %+v\n%s", r.code, es, r.stderr)
		}
		compareTables(t, r.stdout, want)
	})
}

// unixUrgent reports whether unix sockets have urgent data as TCP does. Before Linux 5.15, unix
// sockets have no urgent data, and before 6.11 the mark is sometimes misplaced.
func unixUrgent() bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	major, rest, _ := strings.Cut(unix.ByteSliceToString(u.Release[:]), ".")
	minor, _, _ := strings.Cut(rest, ".")
	n, _ := strconv.Atoi(major)
	m, _ := strconv.Atoi(minor)
	if n < 6 || n == 6 && m < 11 {
		return false
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	return unix.Sendto(fds[0], []byte("!"), unix.MSG_OOB, nil) == nil
}
