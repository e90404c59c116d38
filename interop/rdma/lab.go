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

// limit bounds a run of a trial, which takes a second or two on an idle machine. Most programs
// spin, so a busy one takes many times that.
var limit = time.Minute

// A lab has what trials share.
type lab struct {
	dir     string // every user may read and write it
	viaduct string
	self    string // this program, static
	web     string // testdata/web.c, or ""
	uid     int    // of the programs
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

// works tells what this machine lacks for any trial.
func (l *lab) works() error {
	c := l.command(context.Background(), l.viaduct, "run", "--rdma", "--", "true")
	if b, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("run --rdma does not work here: %w: %s", err, bytes.TrimSpace(b))
	}
	return nil
}

// command is a process of the trial's user.
func (l *lab) command(ctx context.Context, argv ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Dir = l.dir
	c.Env = append(os.Environ(), "HOME="+l.dir, "LC_ALL=C")
	// With its children, and theirs.
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

// stacks has the supervisors of a process group say what their goroutines do, which ends them.
func (l *lab) stacks(group int) {
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		exe, _ := os.Readlink(p + "/exe")
		pid, _ := strconv.Atoi(filepath.Base(p))
		if pgid, err := syscall.Getpgid(pid); err != nil || pgid != group || exe != l.viaduct {
			continue
		}
		syscall.Kill(pid, syscall.SIGABRT) // SIGQUIT is passed on to the program
	}
	time.Sleep(time.Second) // for as long as they write; what hangs is killed then
}

// keep saves what was said in a run that hangs, and returns the folder.
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

// path is a new file's.
func (l *lab) path(name string) string {
	l.n++
	return filepath.Join(l.dir, fmt.Sprintf("%d.%s", l.n, name))
}

// supervised is the command line of a program under run --rdma with those flags; explain and pcap
// are files, the latter may be "".
func (l *lab) supervised(flags []string, explain, pcap string, argv ...string) []string {
	c := []string{l.viaduct}
	if pcap != "" {
		c = append(c, "--pcap", pcap)
	}
	c = append(append(c, "run", "--rdma", "--explain="+explain), flags...)
	return append(append(c, "--"), argv...)
}

// freePort is below the ports that the kernel gives to connections, and is free with the
// one behind it.
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

// listens reports whether a TCP socket listens at the port: RDMA programs do not say so,
// and a connection to try it would be one of theirs.
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

// A pair is two programs that talk to each other, the first of which listens.
type pair struct {
	Port           string
	Server, Client []string
	ServerOut      string // files
	ClientOut      string
}

// start starts one end with its output in a file.
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

// listening waits until the server listens.
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

// talk runs a pair to its end.
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
	if cerr != nil { // the server may wait for ever
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

// whether tells an end for want of time from others.
func whether(ctx context.Context, err error) error {
	if ctx.Err() == context.DeadlineExceeded {
		return fmt.Errorf("%w: %w", errHangs, err)
	}
	return err
}

// pairHelper is this program under a supervisor: it runs both ends.
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

// said is what is in files, for an error.
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

// find is the path of a program.
func find(name string) string {
	if filepath.IsAbs(name) {
		if _, err := os.Stat(name); err != nil {
			return ""
		}
		return name
	}
	if name == "python3" { // that of the system, which has the distribution's modules
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
