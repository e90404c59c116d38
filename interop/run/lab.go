//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	mrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// limit bounds every operation expected to be quick on an idle machine.
const limit = 3 * time.Minute

// A lab holds the shared state of the trials.
type lab struct {
	ctx     context.Context
	dir     string // directory of all files, readable and writable for every user
	viaduct string
	self    string        // path of this program, linked statically
	uid     int           // user ID of the programs
	apart   bool          // each program runs in a separate user namespace
	busy    time.Duration // duration of a trial with busy loops
	n       int
	servers []*server     // servers that the trial has started
	shown   map[fact]bool // facts that the trial has shown
}

// A fact is a property shown by a trial, besides success.
type fact string

const (
	bytesSame fact = "bytes" // received and sent bytes were compared
	serverSaw fact = "server saw"
	clientSaw fact = "client saw" // each end saw the true address and port of its peer
)

func newLab(ctx context.Context) (*lab, error) {
	dir, err := os.MkdirTemp("", "viaduct-interop-run")
	if err != nil {
		return nil, err
	}
	l := &lab{ctx: ctx, dir: dir, viaduct: filepath.Join(dir, "viaduct"), self: filepath.Join(dir, "helper"), uid: os.Getuid()}
	if err := os.Chmod(dir, 0o777); err != nil {
		return nil, err
	}
	for out, pkg := range map[string]string{l.viaduct: "./cmd/viaduct", l.self: "./interop/run"} {
		c := exec.CommandContext(ctx, "go", "build", "-o", out, pkg)
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		if b, err := c.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s: %w\n%s", pkg, err, b)
		}
	}
	return l, nil
}

func (l *lab) close() { os.RemoveAll(l.dir) }

// run runs a trial and stops the trial's servers. An error of a server fails the trial.
func (l *lab) run(tr trial) (err error) {
	l.shown = map[fact]bool{}
	defer func() {
		for _, s := range l.servers {
			if serr := s.stop(); err == nil && serr != nil {
				err = serr
			}
			l.shown[serverSaw] = l.shown[serverSaw] || s.shows != nil
		}
		l.servers = nil
	}()
	return tr.run(l)
}

// command returns a command that runs as user l.uid.
func (l *lab) command(ctx context.Context, argv ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Dir = l.dir
	c.Env = append(os.Environ(), "HOME="+l.dir, "PGCONNECT_TIMEOUT=60")
	c.WaitDelay = 5 * time.Second
	c.SysProcAttr = &syscall.SysProcAttr{}
	gid := os.Getgid()
	if l.uid != os.Getuid() {
		gid = l.uid
		c.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(l.uid), Gid: uint32(gid)}
	}
	if l.apart { // the namespace has this user only, without privileges
		c.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: l.uid, HostID: l.uid, Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		c.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(l.uid), Gid: uint32(gid), NoSetGroups: true}
	}
	return c
}

// path returns a new path ending in name.
func (l *lab) path(name string) string {
	l.n++
	return filepath.Join(l.dir, fmt.Sprintf("%d.%s", l.n, name))
}

// folder returns a new directory of the trial's user.
func (l *lab) folder(name string) (string, error) {
	dir := l.path(name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	return dir, os.Chown(dir, l.uid, l.uid)
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

// freePort returns a free port below the kernel's ephemeral ports.
func freePort() string {
	for {
		port := strconv.Itoa(12000 + mrand.IntN(20000))
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			l.Close()
			return port
		}
	}
}

// An event is a line of run --explain --json.
type event struct {
	Call, Program, Local, Remote, Path, Why string
	Summary                                 map[string]int64
}

func events(file string) (es []event) {
	b, _ := os.ReadFile(file)
	for line := range bytes.Lines(b) {
		var e event
		if json.Unmarshal(line, &e) == nil {
			es = append(es, e)
		}
	}
	return es
}

// A server is a listening program, under viaduct run or without.
type server struct {
	port, mapper string
	explain      string
	cmd          *exec.Cmd
	out          *output
	ended        chan error
	peers        []string               // addresses of the clients, as the server should see them
	shows        func() (string, error) // returns the peers that the server reported; called after its end; nil if it reports none
	quit         syscall.Signal
}

// Ways of running programs: without viaduct, over SDP, and over a socket pair with --same-host.
const (
	native   = "native"
	overSDP  = "sdp"
	sameHost = "same-host"
)

// serve starts a server in the given way and waits until the server listens at port.
func (l *lab) serve(how, port string, argv ...string) (*server, error) {
	s := &server{port: port, mapper: "127.0.0.1:" + freePort(), explain: l.path("explain"), out: &output{}, ended: make(chan error, 1), quit: syscall.SIGTERM}
	switch how {
	case overSDP:
		argv = append([]string{l.viaduct, "run", "--json", "--explain=" + s.explain, "--listen", port, "--portmap-listen", s.mapper, "--"}, argv...)
	case sameHost:
		argv = append([]string{l.viaduct, "run", "--json", "--explain=" + s.explain, "--same-host", "--"}, argv...)
	}
	s.cmd = l.command(context.Background(), argv...)
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	s.cmd.SysProcAttr.Setpgid = true // some servers end by a signal to their whole process group
	// Keep the input open, because some programs end at the end of their input.
	if _, err := s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { s.ended <- s.cmd.Wait() }()
	l.servers = append(l.servers, s)
	for end := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		if how == native {
			if c, err := net.Dial("tcp", "127.0.0.1:"+port); err == nil {
				c.Close()
				return s, nil
			}
		}
		for _, e := range events(s.explain) {
			if e.Call == "listen" && strings.HasSuffix(e.Local, ":"+port) && e.Path != "tcp" {
				return s, nil
			}
		}
		select {
		case err := <-s.ended:
			s.ended <- err
			return nil, fmt.Errorf("%s ended: %v\n%s", argv, err, s.out)
		default:
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("%s does not listen\n%s", argv, s.out)
		}
	}
}

// stop ends a server, and returns an error unless the server has accepted all carried connections
// and has seen the true addresses of the peers.
func (s *server) stop() error {
	s.cmd.Process.Signal(s.quit)
	select {
	case <-s.ended:
	case <-time.After(limit):
		s.cmd.Process.Kill()
		return fmt.Errorf("%s does not end", s.cmd.Args)
	}
	n := 0
	for _, e := range events(s.explain) {
		switch {
		case e.Call == "accept" && e.Path == "refused":
			return fmt.Errorf("a connection to the server was refused: %s", e.Why)
		case e.Call == "accept":
			n++
		}
	}
	if n < len(s.peers) {
		return fmt.Errorf("the server accepted %d carried connections, want %d\n%s", n, len(s.peers), s.out)
	}
	if s.shows == nil {
		return nil
	}
	told, err := s.shows()
	for _, p := range s.peers {
		if err == nil && !strings.Contains(told, p+"\n") {
			err = fmt.Errorf("the server has not seen its peer %s\n%s", p, told)
		}
	}
	return err
}

// written returns the output of a server, for server.shows.
func (s *server) written() (string, error) { return s.out.String(), nil }

// An output collects the output of a program, and can be read meanwhile.
type output struct {
	mu sync.Mutex
	b  []byte // guarded by mu
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.b = append(o.b, b...)
	return len(b), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.b)
}

// resets returns a line for each broken connection, from files of --explain.
func resets(files ...string) (told string) {
	for _, f := range files {
		for _, e := range events(f) {
			if e.Call == "reset" {
				told += fmt.Sprintf("%s -> %s was reset: %s\n", e.Local, e.Remote, e.Why)
			}
		}
	}
	return told
}

// client runs a program to the end, in the way how, and returns the output. The error is nil only
// if the program's connections to s were carried as how says. s.peers gets the connections'
// addresses.
func (l *lab) client(how string, s *server, argv ...string) (out []byte, err error) {
	explain := l.path("explain")
	switch how {
	case overSDP:
		argv = append([]string{l.viaduct, "run", "--require", "--json", "--explain=" + explain, "--portmap", s.mapper, "--"}, argv...)
	case sameHost:
		argv = append([]string{l.viaduct, "run", "--json", "--explain=" + explain, "--same-host", "--"}, argv...)
	}
	ctx, cancel := context.WithTimeout(l.ctx, limit)
	defer cancel()
	var errs bytes.Buffer
	stood := ""
	c := l.command(ctx, argv...)
	c.Stderr = &errs
	c.Cancel = func() error {
		stood = standstill(c.Process.Pid, s.cmd.Process.Pid) + s.out.String()
		return c.Process.Kill()
	}
	out, err = c.Output()
	if err != nil {
		return out, fmt.Errorf("%s: %w\n%s%s%s%s", argv, err, out, errs.String(), resets(explain, s.explain), stood)
	}
	want := map[string]string{overSDP: "sdp", sameHost: "pair"}[how]
	if want == "" {
		return out, nil
	}
	before := len(s.peers)
	for _, e := range events(explain) {
		if e.Call != "connect" || !strings.HasSuffix(e.Remote, ":"+s.port) {
			continue
		}
		if e.Path != want {
			return out, fmt.Errorf("%s: a connection went by %s (%s)", argv, e.Path, e.Why)
		}
		local, _, _ := strings.Cut(e.Why, " -> ")
		s.peers = append(s.peers, local)
	}
	if len(s.peers) == before {
		return out, fmt.Errorf("%s: nothing was carried", argv)
	}
	return out, nil
}
