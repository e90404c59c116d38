//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const nobody = 65534

// limit bounds a run of a trial. A run takes a second or two on an idle machine, but many times
// longer on a busy machine, because most programs spin.
var limit = 3 * time.Minute

// A lab holds the shared state of the trials.
type lab struct {
	dir     string // directory of all files, readable and writable for every user
	viaduct string
	self    string // path of this program, linked statically
	web     string // path of the compiled testdata/web.c, or ""
	uid     int    // user ID of the programs
	n       int
}

func newLab(ctx context.Context) (*lab, error) {
	dir, err := os.MkdirTemp("", "viaduct-interop-rdma")
	if err != nil {
		return nil, err
	}
	l := &lab{dir: dir, viaduct: filepath.Join(dir, "viaduct"), self: filepath.Join(dir, "helper"), uid: os.Getuid()}
	if l.uid == 0 {
		l.uid = nobody
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		return nil, err
	}
	for out, pkg := range map[string]string{l.viaduct: "./cmd/viaduct", l.self: "./interop/rdma"} {
		c := exec.CommandContext(ctx, "go", "build", "-o", out, pkg)
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		if b, err := c.CombinedOutput(); err != nil {
			l.close()
			return nil, fmt.Errorf("build %s: %w\n%s", pkg, err, b)
		}
	}
	if find("cc") != "" {
		l.web = filepath.Join(dir, "web")
		if b, err := exec.CommandContext(ctx, "cc", "-O1", "-o", l.web, "interop/rdma/testdata/web.c").CombinedOutput(); err != nil {
			l.close()
			return nil, fmt.Errorf("web.c: %w\n%s", err, b)
		}
	}
	if err := l.buildC(ctx); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *lab) close() { os.RemoveAll(l.dir) }

// works returns an error if run --rdma does not work on this machine.
func (l *lab) works() error {
	c := l.command(context.Background(), l.viaduct, "run", "--rdma", "--", "true")
	if b, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("run --rdma does not work here: %w: %s", err, bytes.TrimSpace(b))
	}
	return nil
}

// command returns a command that runs as user l.uid, and whose descendants are killed when ctx
// ends.
func (l *lab) command(ctx context.Context, argv ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Dir = l.dir
	c.Env = append(os.Environ(), "HOME="+l.dir, "LC_ALL=C")
	// The command gets a separate process group, so that Cancel can end all descendants.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error {
		if ctx.Err() == context.DeadlineExceeded {
			l.stacks(c.Process.Pid)
		}
		return syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
	}
	c.WaitDelay = 5 * time.Second
	if l.uid != os.Getuid() {
		c.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(l.uid), Gid: uint32(l.uid)}
	}
	return c
}

// stacks makes the supervisors of a process group print their goroutines and end.
func (l *lab) stacks(group int) {
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		exe, _ := os.Readlink(p + "/exe")
		pid, _ := strconv.Atoi(filepath.Base(p))
		if pgid, err := syscall.Getpgid(pid); err != nil || pgid != group || exe != l.viaduct {
			continue
		}
		syscall.Kill(pid, syscall.SIGABRT) // not SIGQUIT, which the supervisor passes on to the program
	}
	time.Sleep(time.Second) // time for writing; a hanging process is killed afterwards
}

// keep saves the output of a hanging run in a new directory, and returns the directory, or the
// error as text.
func (l *lab) keep(out []byte, files ...string) string {
	dir, err := os.MkdirTemp("", "viaduct-interop-rdma-hang")
	if err != nil {
		return err.Error()
	}
	for _, f := range files {
		b, _ := os.ReadFile(f)
		os.WriteFile(filepath.Join(dir, filepath.Base(f)), b, 0o644)
	}
	os.WriteFile(filepath.Join(dir, "out"), out, 0o644)
	return dir
}

// path returns a new path ending in name.
func (l *lab) path(name string) string {
	l.n++
	return filepath.Join(l.dir, fmt.Sprintf("%d.%s", l.n, name))
}

// supervised returns the command line of a program under run --rdma with the given flags. explain
// and pcap are files; pcap may be "".
func (l *lab) supervised(flags []string, explain, pcap string, argv ...string) []string {
	c := []string{l.viaduct}
	if pcap != "" {
		c = append(c, "--pcap", pcap)
	}
	c = append(append(c, "run", "--rdma", "--explain="+explain), flags...)
	return append(append(c, "--"), argv...)
}

// freePort returns a port below the kernel's ephemeral ports. The next port is free too.
func (l *lab) freePort() string {
	for {
		l.n++
		port := 12000 + (os.Getpid()*37+l.n*4)%20000
		a, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		b, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port+1))
		a.Close()
		if err == nil {
			b.Close()
			return strconv.Itoa(port)
		}
	}
}

// listens reports whether a TCP socket listens at the port. RDMA programs do not report listening,
// and would count a trial connection as a client.
func listens(port string) bool {
	n, _ := strconv.Atoi(port)
	for _, f := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, _ := os.ReadFile(f)
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 3 && f[3] == "0A" && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", n)) {
				return true
			}
		}
	}
	return false
}

// A pair is two programs talking to each other; the first program listens.
type pair struct {
	Port           string
	Server, Client []string
	ServerOut      string // file for the output of each end
	ClientOut      string
}

// start starts an end with the output in a file. ended gets the result of the process.
func start(c *exec.Cmd, out string) (ended <-chan error, err error) {
	f, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c.Stdout, c.Stderr = f, f
	if err := c.Start(); err != nil {
		return nil, err
	}
	ch := make(chan error, 1)
	go func() { ch <- c.Wait() }()
	return ch, nil
}

// listening waits until the server listens at port. It returns an error if the server ends first or
// ctx ends.
func listening(ctx context.Context, port string, ended <-chan error) error {
	for !listens(port) {
		select {
		case err := <-ended:
			return fmt.Errorf("the server ended before it listened: %v", err)
		case <-ctx.Done():
			return whether(ctx, errors.New("the server does not listen"))
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

// talk runs both ends of a pair to the end, and starts the client once the server listens.
func (p *pair) talk(ctx context.Context, command func(context.Context, ...string) *exec.Cmd) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := command(ctx, p.Server...)
	served, err := start(s, p.ServerOut)
	if err != nil {
		return err
	}
	if err := listening(ctx, p.Port, served); err != nil {
		cancel()
		return err
	}
	called, err := start(command(ctx, p.Client...), p.ClientOut)
	if err != nil {
		return err
	}
	cerr := <-called
	if cerr != nil { // the server may wait for ever for the client
		select {
		case <-served:
		case <-time.After(time.Second):
			cancel()
			<-served
		}
		return fmt.Errorf("client: %w", whether(ctx, cerr))
	}
	if err := <-served; err != nil {
		return fmt.Errorf("server: %w", whether(ctx, err))
	}
	return nil
}

var errHangs = errors.New("it hangs")

// whether returns err, marked as errHangs if the time limit has ended the run.
func whether(ctx context.Context, err error) error {
	if ctx.Err() == context.DeadlineExceeded {
		return fmt.Errorf("%w: %w", errHangs, err)
	}
	return err
}

// pairHelper is the main function of this program under a supervisor, and runs both ends of a pair.
// The result is the exit status.
func pairHelper(arg string) int {
	var p pair
	if err := json.Unmarshal([]byte(arg), &p); err != nil {
		fmt.Println(err)
		return 2
	}
	err := p.talk(context.Background(), func(ctx context.Context, argv ...string) *exec.Cmd {
		return exec.CommandContext(ctx, argv[0], argv[1:]...)
	})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// said returns the last lines of the files, for an error message.
func said(files ...string) string {
	var b strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil || len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		fmt.Fprintf(&b, "\n    --- %s\n    %s", filepath.Base(f), strings.Join(lines[max(0, len(lines)-12):], "\n    "))
	}
	return b.String()
}

// find returns the path of a program or file, or "" if not installed.
func find(name string) string {
	if filepath.IsAbs(name) {
		if _, err := os.Stat(name); err != nil {
			return ""
		}
		return name
	}
	if name == "python3" { // the system's, because it has the distribution's modules
		return find("/usr/bin/python3")
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if p := find(filepath.Join(dir, name)); p != "" {
			return p
		}
	}
	p, _ := exec.LookPath(name)
	return p
}
