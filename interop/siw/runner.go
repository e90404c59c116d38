package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A mode is one way to load siw.
type mode struct {
	name, load string
	sizes      []int
}

// rping takes buffers of up to one byte less than 64 KiB.
var modes = []mode{
	{"as shipped", "siw", []int{64, 1024, 4096, 16384, 65535}},
	{"CRC", "siw-param mpa_crc_required=1", []int{64, 1000, 65535}},
	{"CRC, peer-to-peer", "siw-param mpa_crc_required=1 peer_to_peer=1", []int{64, 4096, 65535}},
}

const (
	guestPort = 7174 // of rping in the guest
	talkLimit = 60 * time.Second
)

// A runner holds the guest and the results.
type runner struct {
	*options
	guest    *guest
	forward  int // port of 127.0.0.1 that leads to guestPort
	capture  string
	begin    time.Time
	checks   int
	failures int
	talks    int // conversations of viaduct, which the capture has to show
	withCRC  int // those of them with CRC
}

func newRunner(ctx context.Context, o *options, im *image, acc accelerator, dir string) (*runner, error) {
	r := &runner{options: o, begin: time.Now(), capture: filepath.Join(dir, "siw.pcap")}
	var err error
	if r.forward, err = freePort(); err != nil {
		return nil, err
	}
	r.guest, err = boot(ctx, im, machine{
		name: "guest", cpus: 2, address: "10.0.2.15/24", gateway: "10.0.2.2", capture: r.capture,
		network: fmt.Sprintf("user,id=n0,ipv6=off,hostfwd=tcp:127.0.0.1:%d-:%d", r.forward, guestPort),
	}, acc, dir)
	if err != nil {
		return nil, err
	}
	o.logf("guest: up in %.1f s", time.Since(r.begin).Seconds())
	return r, nil
}

// check runs one check and prints its line.
func (r *runner) check(what string, f func() error) {
	begin := time.Now()
	err := f()
	r.checks++
	verdict := "ok"
	if err != nil {
		verdict = "FAILED"
	}
	r.logf("%-7s %6.1f s  %s", verdict, time.Since(begin).Seconds(), what)
	if err != nil {
		r.fail(err)
	}
}

func (r *runner) fail(err error) {
	r.failures++
	r.logf("    %s", strings.ReplaceAll(err.Error(), "\n", "\n    "))
}

// all runs the checks. The error is one of the environment; failures of checks
// are counted.
func (r *runner) all(ctx context.Context) error {
	for i, m := range modes {
		if _, err := r.guest.run(ctx, 30*time.Second, "load-siw "+m.load); err != nil {
			return fmt.Errorf("loading siw (%s): %w", m.name, err)
		}
		if i == 0 {
			if err := r.control(ctx); err != nil {
				return fmt.Errorf("the environment does not work: %w", err)
			}
		}
		for _, size := range m.sizes {
			r.check(fmt.Sprintf("%s: guest's rping -c, viaduct rping -s, %d x %d bytes", m.name, r.count, size),
				func() error { return r.viaductServes(ctx, size) })
			r.check(fmt.Sprintf("%s: viaduct rping -c, guest's rping -s, %d x %d bytes", m.name, r.count, size),
				func() error { return r.viaductCalls(ctx, size) })
			r.talks += 2
			if i > 0 {
				r.withCRC += 2
			}
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

// control shows that the guest talks iWARP with itself and reaches the host.
func (r *runner) control(ctx context.Context) error {
	script := "rping -s -a 10.0.2.15 -p 7175 -S 4096 -C 20 & wait-port 7175 && rping -c -a 10.0.2.15 -p 7175 -S 4096 -V -C 20"
	if _, err := r.guest.run(ctx, talkLimit, script); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	first := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			first <- err
			return
		}
		defer c.Close()
		c.SetReadDeadline(time.Now().Add(talkLimit))
		var key [16]byte
		if _, err := io.ReadFull(c, key[:]); err == nil && string(key[:]) != "MPA ID Req Frame" {
			err = fmt.Errorf("the guest begins with % x", key)
			first <- err
			return
		}
		first <- err
	}()
	if out, err := r.guest.run(ctx, talkLimit, fmt.Sprintf("! rping -c -a 10.0.2.2 -p %d -C 1", port(l.Addr()))); err != nil {
		return fmt.Errorf("rping succeeded with a peer that hung up: %w %s", err, out)
	}
	l.Close()
	return <-first
}

// viaductServes lets the guest's client ping our server.
func (r *runner) viaductServes(ctx context.Context, size int) error {
	p, err := freePort()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, talkLimit)
	defer cancel()
	h, err := r.startViaduct(ctx, "rping", "-s", "-p", strconv.Itoa(p), "-S", strconv.Itoa(size), "-C", strconv.Itoa(r.count), "-V")
	if err != nil {
		return err
	}
	defer h.kill()
	if err := h.waitFor("listening ", 20*time.Second); err != nil {
		return err
	}
	_, err = r.guest.run(ctx, talkLimit, fmt.Sprintf("rping -c -a 10.0.2.2 -p %d -S %d -C %d -V", p, size, r.count))
	if err != nil {
		return fmt.Errorf("the guest's client: %w\nour server: %s", err, h.said())
	}
	return h.wait(20 * time.Second)
}

// viaductCalls pings the guest's server with our client.
func (r *runner) viaductCalls(ctx context.Context, size int) error {
	ctx, cancel := context.WithTimeout(ctx, talkLimit)
	defer cancel()
	script := fmt.Sprintf("rping -s -a 10.0.2.15 -p %d -S %d -C %d -V", guestPort, size, r.count)
	served, err := r.guest.start(talkLimit, script)
	if err != nil {
		return err
	}
	if _, err := r.guest.run(ctx, 40*time.Second, fmt.Sprintf("wait-port %d", guestPort)); err != nil {
		return err
	}
	h, err := r.startViaduct(ctx, "rping", "-c", "-a", "127.0.0.1", "-p", strconv.Itoa(r.forward), "-S", strconv.Itoa(size), "-C", strconv.Itoa(r.count), "-V")
	if err != nil {
		return err
	}
	defer h.kill()
	if err := h.wait(talkLimit); err != nil {
		// Let the server go, or it would meet the next client.
		if _, e := r.guest.run(context.WithoutCancel(ctx), 10*time.Second, "killall -9 rping || true"); e != nil {
			err = errors.Join(err, e)
		}
		<-served
		return err
	}
	_, err = r.guest.finish(ctx, talkLimit, script, served)
	return err
}

// A process is viaduct running on the host.
type process struct {
	cmd    *exec.Cmd
	mu     sync.Mutex
	out    bytes.Buffer
	more   chan struct{} // a slot, filled when out grew
	exited chan struct{}
	err    error
}

func (r *runner) startViaduct(ctx context.Context, args ...string) (*process, error) {
	h := &process{cmd: exec.CommandContext(ctx, r.viaduct, args...), more: make(chan struct{}, 1), exited: make(chan struct{})}
	pr, pw := io.Pipe()
	h.cmd.Stdout, h.cmd.Stderr = pw, pw
	if err := h.cmd.Start(); err != nil {
		return nil, err
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		b := bufio.NewReader(pr)
		for {
			line, err := b.ReadString('\n')
			h.mu.Lock()
			h.out.WriteString(line)
			h.mu.Unlock()
			select {
			case h.more <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	})
	go func() {
		h.err = h.cmd.Wait()
		pw.Close()
		reading.Wait()
		close(h.exited)
	}()
	return h, nil
}

// said returns what the process printed so far.
func (h *process) said() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.out.String()
}

// waitFor waits until the process printed s.
func (h *process) waitFor(s string, limit time.Duration) error {
	over := time.After(limit)
	for {
		if strings.Contains(h.said(), s) {
			return nil
		}
		select {
		case <-h.more:
		case <-h.exited:
			if strings.Contains(h.said(), s) {
				return nil
			}
			return fmt.Errorf("%s ended (%v) before it said %q:\n%s", h.cmd, h.err, s, tail(h.said(), 20))
		case <-over:
			return fmt.Errorf("%s did not say %q within %v:\n%s", h.cmd, s, limit, tail(h.said(), 20))
		}
	}
}

// wait waits for the end of the process; a status other than 0 is an error.
func (h *process) wait(limit time.Duration) error {
	select {
	case <-h.exited:
	case <-time.After(limit):
		h.kill()
		return fmt.Errorf("%s did not end within %v:\n%s", h.cmd, limit, tail(h.said(), 20))
	}
	if h.err != nil {
		return fmt.Errorf("%s: %w:\n%s", h.cmd, h.err, tail(h.said(), 20))
	}
	return nil
}

func (h *process) kill() {
	h.cmd.Process.Kill()
	<-h.exited
}

// freePort finds a TCP port of 127.0.0.1 that nobody uses now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return port(l.Addr()), nil
}

func port(a net.Addr) int { return a.(*net.TCPAddr).Port }
