//go:build linux && (amd64 || arm64)

package main

import (
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// deferredPy accepts from a listener whose options withhold connections. HOW selects when the
// options are set, and on which descriptor. deferredPy prints the results of getsockopt, the bytes
// an accepted socket holds before the peer sends any, and the peer's address. Then deferredPy
// echoes.
const deferredPy = `
import array, fcntl, os, select, socket, sys, termios
how = sys.argv[1]
l = socket.socket(fileno=3) if how == "inherited" else socket.socket()
def options(s):
	s.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 30)
	s.setsockopt(socket.IPPROTO_IP, 21, 255) # IP_MINTTL
if how == "before listen": options(l)
if how != "inherited":
	l.bind(("127.0.0.1", 0))
	l.listen()
if how == "after listen": options(l)
if how == "second descriptor": options(socket.socket(fileno=os.dup(l.fileno())))
if how == "child":
	if os.fork() == 0:
		options(l)
		os._exit(0)
	os.wait()
l.setblocking(False)
while True:
	select.select([l], [], [])
	try: c, peer = l.accept()
	except BlockingIOError: continue
	waits = array.array("i", [0])
	fcntl.ioctl(c, termios.FIONREAD, waits)
	c.sendall(("%d %d %s %d\n" % ((l.getsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT), waits[0]) + peer)).encode())
	c.sendall(c.recv(5, socket.MSG_WAITALL))
	c.close()
`

// Options of a listener may withhold connections until the first bytes arrive, or from peers other
// than direct neighbours. A listener with these options accepts carried connections at once, and
// keeps the options.
func TestRunDeferredAccept(t *testing.T) {
	t.Parallel()
	python := need(t, "python3", "python3-minimal")
	for _, how := range []string{"before listen", "after listen", "second descriptor", "child", "inherited"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "explain")
			var f *net.TCPListener
			if how == "inherited" {
				f = listenOn(t, "127.0.0.1").(*net.TCPListener)
				raw, _ := f.SyscallConn()
				raw.Control(func(fd uintptr) {
					unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 30)
					unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MINTTL, 255)
				})
			}
			p := begin(t, func(c *exec.Cmd) {
				if f != nil {
					file, err := f.File()
					if err != nil {
						t.Fatal(err)
					}
					c.ExtraFiles = append(c.ExtraFiles, file)
				}
			}, "run", "--json", "--explain="+file, "--portmap-listen", "off", "--listen", "any",
				"--", python, "-c", deferredPy, how)
			s := &served{proc: p, file: file}
			port := s.sdpPort("")
			begin := time.Now()
			for range 3 {
				c := dialFrom(t, "127.0.0.3", "127.0.0.1:"+port)
				b := make([]byte, 100)
				n, err := c.Read(b) // before the peer has sent anything
				want := strings.Replace(fmt.Sprintf("31 0 %v\n", c.LocalAddr()), ":", " ", 1)
				if err != nil || string(b[:n]) != want {
					t.Fatalf("%q, %v, want %q after %v; %s", b[:n], err, want, time.Since(begin), s.stderr())
				}
				io.WriteString(c, "hello")
				if n, err := io.ReadFull(c, b[:5]); err != nil || string(b[:n]) != "hello" {
					t.Fatalf("%q, %v", b[:n], err)
				}
			}
			if took := time.Since(begin); took > patience/2 {
				t.Errorf("three connections took %v", took)
			}
			s.stop(syscall.SIGTERM)
		})
	}
}

// A listener bound to one interface is not carried over SDP, because SDP would admit connections
// from other interfaces.
func TestRunListenOneInterface(t *testing.T) {
	t.Parallel()
	python := need(t, "python3", "python3-minimal")
	r, es := runRun(t, []string{"--listen", "any", "--portmap-listen", "off"}, python, "-c", `
import socket
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
l.bind(("127.0.0.1", 0))
l.listen()
c = socket.create_connection(l.getsockname())
print(l.accept()[1] == c.getsockname())
`)
	if strings.Contains(r.stderr, "PermissionError") {
		t.Skip("SKIPPED: this kernel (before 5.7) lets only root bind a socket to an interface")
	}
	if r.code != 0 || r.stdout != "True\n" || count(es, "listen", "sdp") != 0 || count(es, "listen", "tcp") != 1 {
		t.Errorf("exit %d, %q, %+v\n%s", r.code, r.stdout, es, r.stderr)
	}
}
