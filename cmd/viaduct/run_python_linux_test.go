//go:build linux && (amd64 || arm64)

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// selfSigned writes a certificate for localhost and the private key, and returns both paths.
func selfSigned(t *testing.T, dir string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"},
		DNSNames:  []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true}
	c, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	b, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", c), write("key.pem", "PRIVATE KEY", b)
}

// needPython returns a Python with the standard library, or skips the test.
func needPython(t *testing.T) string {
	t.Helper()
	python := need(t, "python3", "python3")
	if exec.Command(python, "-c", "import asyncio, ssl, http.server").Run() != nil {
		t.Skip("SKIPPED: this Python has no standard library (apt-get install python3)")
	}
	return python
}

// Blocking sockets, time-outs, selectors, asyncio, TLS and servers of Python behave as without
// viaduct run, with both ends carried.
func TestRunPython(t *testing.T) {
	t.Parallel()
	python := needPython(t)
	cert, key := selfSigned(t, t.TempDir())
	program := filepath.Join("testdata", "run", "matrix.py")
	never := deaf(t, "127.0.0.1")
	for _, how := range []string{"sdp", "pair"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			port, sdpPort := strconv.Itoa(freePort(t)), strconv.Itoa(freePort(t))
			refused := closedPort(t, "127.0.0.1")
			args := []string{program, port, cert, key, refused, portOf(never.Addr())}
			want := plain(t, python, args...)
			flags := []string{"--same-host"}
			if how == "sdp" {
				flags = []string{"--portmap-listen", "off", "--listen", port + "=" + sdpPort,
					"--to", "127.0.0.1:" + port + "=:" + sdpPort}
			}
			r, es := runRun(t, flags, append([]string{python}, args...)...)
			if r.code != 0 {
				t.Errorf("exit %d\n%s", r.code, r.stderr)
			}
			if how == "pair" { // a pair has no reset
				want = strings.Replace(want, "reset: ConnectionResetError ECONNRESET", "reset: ended b''", 1)
			}
			compareTables(t, r.stdout, want)
			// EpollSelector registers a socket before connecting, and thereby prevents a pair. One
			// connection is never accepted.
			n := map[string]int{"sdp": 25, "pair": 24}[how]
			if c, a := count(es, "connect", how), count(es, "accept", how); c != n || a != n-1 {
				t.Errorf("%d connections were carried, %d accepted, want %d and one less: %+v", c, a, n, es)
			}
		})
	}
}

// Options and calls return the same on a pair as on a TCP connection.
func TestRunSameHostOptions(t *testing.T) {
	t.Parallel()
	python := needPython(t)
	program := filepath.Join("testdata", "run", "options.py")
	port := strconv.Itoa(freePort(t))
	want := plain(t, python, program, port)
	r, es := runRun(t, []string{"--same-host"}, python, program, port)
	if r.code != 0 || count(es, "connect", "pair") != 2 || count(es, "accept", "pair") != 2 {
		t.Errorf("exit %d, %+v\n%s", r.code, es, r.stderr)
	}
	compareTables(t, r.stdout, want)
}

// A socket with another reference, or registered with epoll, is not replaced by a pair. The reason
// is reported, and the connection works.
func TestRunSameHostFallback(t *testing.T) {
	t.Parallel()
	python := need(t, "python3", "python3-minimal")
	port := strconv.Itoa(freePort(t))
	s := startRun(t, []string{"--same-host"}, buildCFile(t, "shapes"), "serve-many", port)
	eventually(t, "a listener", func() bool { return count(s.explained(), "listen", "pair") > 0 })
	for _, tc := range []struct{ name, prepare, why string }{
		{"pair", "pass", ""},
		{"dup", "d = c.dup()", "second descriptor"},
		{"epoll", "e = select.epoll(); e.register(c, select.EPOLLIN)", "registered with epoll"},
		{"async", "fcntl.fcntl(c, fcntl.F_SETOWN, os.getpid()); fcntl.fcntl(c, fcntl.F_SETFL, fcntl.fcntl(c, fcntl.F_GETFL) | os.O_ASYNC)", "sends signals"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			script := "import fcntl, os, select, signal, socket\nsignal.signal(signal.SIGIO, signal.SIG_IGN)\nc = socket.socket()\n" + tc.prepare + "\n" +
				"c.connect((\"127.0.0.1\", " + port + "))\nc.sendall(b\"hello\")\nprint(c.recv(5, socket.MSG_WAITALL), c.getpeername()[1])\n"
			switch tc.name {
			case "dup":
				script += "d.sendall(b\"again\")\nassert c.recv(5, socket.MSG_WAITALL) == b\"again\"\n"
			case "epoll":
				script += "c.sendall(b\"x\")\nassert e.poll(30) == [(c.fileno(), select.EPOLLIN)]\n"
			}
			r, es := runRun(t, []string{"--same-host"}, python, "-c", script)
			if r.code != 0 || r.stdout != "b'hello' "+port+"\n" {
				t.Fatalf("exit %d, %q\n%s", r.code, r.stdout, r.stderr)
			}
			var how string
			for _, e := range es {
				if e.Call == "connect" {
					how = e.Path + " " + e.Why
				}
			}
			if tc.why == "" && how != "pair " ||
				tc.why != "" && (!strings.HasPrefix(how, "tcp ") || !strings.Contains(how, tc.why)) {
				t.Errorf("went by %q, want %q", how, tc.why)
			}
		})
	}
}
