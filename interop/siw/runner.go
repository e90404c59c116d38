package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"viaduct/interop/internal/qemu"
)

// A mode determines how siw is loaded, and how viaduct is started.
type mode struct {
	name, load string
	args       []string // arguments of viaduct rping in both roles
	crc        bool     // FPDUs have CRCs
	sizes      []int    // message sizes of rping
	bandwidth  bandwidth
}

// modes lists the modes. By default viaduct requests CRCs, and siw as shipped grants a caller's
// request. rping accepts buffers of up to 65,535 bytes.
var modes = []mode{
	{"as shipped", "siw", nil, true, []int{64, 1024, 4096, 16384, 65535}, bandwidth{[]int{64, 4096, 65536}, 100}},
	{"without CRC", "siw", []string{"--no-crc"}, false, []int{64, 65535}, bandwidth{}},
	{"siw wants CRC", "siw-param mpa_crc_required=1", nil, true, []int{1000, 65535}, bandwidth{}},
	{"CRC, peer-to-peer", "siw-param mpa_crc_required=1 peer_to_peer=1", nil, true, []int{64, 4096, 65535}, bandwidth{[]int{1000}, 700}},
}

// A talk is a conversation with the guest.
type talk struct {
	what     string
	run      func(context.Context) error
	startUps int // connections that the capture must contain
	fpdus    int // number of FPDUs that the capture must contain at least
}

const (
	guestPort  = 7174            // first port of servers in the guest
	guestPorts = 3               // number of ports that can be reached, from guestPort on
	talkLimit  = 3 * time.Minute // long, because the guest may have an emulated processor on a busy machine
)

// A runner holds the guest and the results of the checks.
type runner struct {
	*options
	image *image
	acc   qemu.Accelerator
	dir   string

	guest    *guest
	forward  []int    // ports of 127.0.0.1 that lead to guestPort and the following ones
	captures []string // one file for each boot
	begin    time.Time
	loops    int // number of calls of again
	checks   int
	failures int
	// Minimum counts in the captures, for the successful talks.
	startUps, fpdus, withCRC int
}

// boot stops the previous guest and starts a new guest. The previous guest may be in a bad state:
// kernel 6.1 does not always survive if a connecting rping is killed.
func (r *runner) boot(ctx context.Context) (err error) {
	if r.guest != nil {
		r.guest.stop()
	}
	network := "user,id=n0,ipv6=off"
	r.forward = r.forward[:0]
	for i := range guestPorts {
		p, err := freePort()
		if err != nil {
			return err
		}
		r.forward = append(r.forward, p)
		network += fmt.Sprintf(",hostfwd=tcp:127.0.0.1:%d-:%d", p, guestPort+i)
	}
	name := fmt.Sprintf("guest%d", len(r.captures)+1)
	capture := ""
	if !r.nvmeOnly { // the traffic of disks is too large for a capture
		capture = filepath.Join(r.dir, name+".pcap")
	}
	cpus := r.acc.CPUs
	if r.nvmeOnly { // so that the guest opens two queues
		cpus = 2
	}
	begin := time.Now()
	r.guest, err = boot(ctx, r.image, machine{
		name: name, cpus: cpus, address: "10.0.2.15/24", gateway: "10.0.2.2", capture: capture,
		network: network,
	}, r.acc, r.dir)
	if err != nil {
		return err
	}
	r.captures = append(r.captures, capture)
	r.logf("guest: up in %.1f s", time.Since(begin).Seconds())
	_, err = r.guest.run(ctx, talkLimit, rmem)
	return err
}

// load loads siw in the given mode.
func (r *runner) load(ctx context.Context, m mode) error {
	if _, err := r.guest.run(ctx, talkLimit, "load-siw "+m.load); err != nil {
		return fmt.Errorf("loading siw (%s): %w", m.name, err)
	}
	return nil
}

// check runs f as a check, prints the result, and returns false if f failed.
func (r *runner) check(what string, f func() error) (ok bool) {
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
	return err == nil
}

func (r *runner) fail(err error) {
	r.failures++
	r.logf("    %s", strings.ReplaceAll(err.Error(), "\n", "\n    "))
}

// maxFailures is the number of failed conversations before the program stops.
const maxFailures = 3

// all runs the checks. It returns an error of the environment; failures of checks are only counted.
func (r *runner) all(ctx context.Context) error {
	if err := r.boot(ctx); err != nil {
		return err
	}
	if r.conformOnly {
		return r.conform(ctx)
	}
	for i, m := range modes {
		if err := r.load(ctx, m); err != nil {
			return err
		}
		if i == 0 {
			if err := r.control(ctx); err != nil {
				return fmt.Errorf("the environment does not work: %w", err)
			}
		}
		talks := r.pingTalks(m)
		if !r.rdma {
			talks = append(talks, r.bandwidthTalks(m)...)
		}
		for _, t := range talks {
			ok := r.check(m.name+": "+t.what, func() error { return t.run(ctx) })
			if err := ctx.Err(); err != nil {
				return err
			}
			if ok {
				r.startUps += t.startUps
				r.fpdus += t.fpdus
				if m.crc {
					r.withCRC += t.fpdus
				}
				continue
			}
			r.diagnose(ctx)
			if r.failures == maxFailures {
				return errors.New("enough failures")
			}
			if err := r.boot(ctx); err != nil {
				return err
			}
			if err := r.load(ctx, m); err != nil {
				return err
			}
		}
	}
	if r.rdma {
		return nil
	}
	if err := r.boot(ctx); err != nil {
		return err
	}
	return r.conform(ctx)
}

// ping returns the arguments of viaduct for our rping: viaduct's own rping, or rdma-core's under
// run --rdma.
func (r *runner) ping(m mode, args ...string) []string {
	if !r.rdma {
		return append(append([]string{"rping"}, args...), m.args...)
	}
	run := append([]string{"run", "--rdma", "--explain"}, m.args...)
	if args[0] == "-s" {
		args = append(args, "-a", "127.0.0.1")
	}
	return append(append(run, "--", "rping"), args...)
}

// listening waits until our server listens at the port.
func (r *runner) listening(ctx context.Context, h *process, port int) error {
	if !r.rdma {
		return h.waitFor("listening ", talkLimit)
	}
	entry := fmt.Sprintf(":%04X 00000000:0000 0A ", port) // rping of rdma-core does not print that it listens
	for over := time.Now().Add(talkLimit); ; time.Sleep(10 * time.Millisecond) {
		if b, err := os.ReadFile("/proc/net/tcp"); err != nil || strings.Contains(string(b), entry) {
			return err
		}
		if time.Now().After(over) || ctx.Err() != nil {
			return fmt.Errorf("%s does not listen:\n%s", h.cmd, h.said())
		}
	}
}

// pingTalks returns the runs of rping in a mode.
func (r *runner) pingTalks(m mode) (talks []talk) {
	ours := "viaduct rping"
	if r.rdma {
		ours = "rping under run --rdma"
	}
	for _, size := range m.sizes {
		for _, way := range []struct {
			what string
			talk func(context.Context, mode, int) error
		}{
			{"guest's rping -c, " + ours + " -s", r.viaductServes},
			{ours + " -c, guest's rping -s", r.viaductCalls},
		} {
			talks = append(talks, talk{
				what:     fmt.Sprintf("%s, %d x %d bytes", way.what, r.count, size),
				run:      func(ctx context.Context) error { return way.talk(ctx, m, size) },
				startUps: 1, fpdus: 6 * r.count,
			})
		}
	}
	return talks
}

// diagnose prints the state of the guest after a failed conversation.
func (r *runner) diagnose(ctx context.Context) {
	const script = `ps | grep -v ' \['; for p in $(pidof rping ib_write_bw ib_read_bw ib_send_bw); do echo "process $p"; cat /proc/$p/stack; done; netstat -tn; dmesg | tail -n 12`
	out, err := r.guest.run(ctx, time.Minute, script)
	if err != nil {
		out += fmt.Sprintf("%v\nits console ends with:\n%s", err, r.guest.consoleTail(15))
	}
	r.logf("    --- in the guest:\n    %s", strings.ReplaceAll(strings.TrimSpace(out), "\n", "\n    "))
}

// control checks that the guest can use iWARP with itself, and can reach the host.
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
	const greeting = "from the guest\n"
	first := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			first <- err
			return
		}
		defer c.Close()
		c.SetReadDeadline(time.Now().Add(talkLimit))
		got, err := io.ReadAll(c)
		if err == nil && string(got) != greeting {
			err = fmt.Errorf("the guest said %q", got)
		}
		first <- err
	}()
	if _, err := r.guest.run(ctx, talkLimit, fmt.Sprintf("printf '%s' | nc 10.0.2.2 %d", strings.ReplaceAll(greeting, "\n", `\n`), port(l.Addr()))); err != nil {
		return err
	}
	l.Close()
	return <-first
}

// viaductServes runs our server for the guest's client.
func (r *runner) viaductServes(ctx context.Context, m mode, size int) error {
	p, err := freePort()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, talkLimit)
	defer cancel()
	h, err := r.startViaduct(ctx, r.ping(m, "-s", "-p", strconv.Itoa(p), "-S", strconv.Itoa(size), "-C", strconv.Itoa(r.count), "-V")...)
	if err != nil {
		return err
	}
	defer h.kill()
	if err := r.listening(ctx, h, p); err != nil {
		return err
	}
	_, err = r.guest.run(ctx, talkLimit, fmt.Sprintf("rping -c -a 10.0.2.2 -p %d -S %d -C %d -V", p, size, r.count))
	if err = r.tornDown(err); err != nil {
		return fmt.Errorf("the guest's client: %w\nour server: %s", err, h.said())
	}
	return h.wait(talkLimit)
}

// viaductCalls runs our client against the guest's server.
func (r *runner) viaductCalls(ctx context.Context, m mode, size int) error {
	ctx, cancel := context.WithTimeout(ctx, talkLimit)
	defer cancel()
	script := fmt.Sprintf("rping -s -a 10.0.2.15 -p %d -S %d -C %d -V", guestPort, size, r.count)
	served, err := r.guest.start(talkLimit, script)
	if err != nil {
		return err
	}
	if _, err := r.guest.run(ctx, talkLimit, fmt.Sprintf("wait-port %d", guestPort)); err != nil {
		return err
	}
	h, err := r.startViaduct(ctx, r.ping(m, "-c", "-a", "127.0.0.1", "-p", strconv.Itoa(r.forward[0]), "-S", strconv.Itoa(size), "-C", strconv.Itoa(r.count), "-V")...)
	if err != nil {
		return err
	}
	defer h.kill()
	if err := h.wait(talkLimit); err != nil {
		return err
	}
	_, err = r.guest.finish(ctx, talkLimit, script, served)
	return r.tornDown(err)
}

// tornDown ignores one harmless failure of the guest's rping. After printing that it is
// disconnected, the main thread of rping closes the event channel while another thread waits there.
// If the waiting thread sees the closed descriptor first, the thread ends the process with status
// 255. Other checks show that our side has ended well, after the right number of pings.
func (r *runner) tornDown(err error) error {
	if err == nil {
		return nil
	}
	said := err.Error()
	if strings.Contains(said, "status 255") && strings.Contains(said, " DISCONNECT EVENT...") && strings.Contains(said, "rdma_get_cm_event: Bad file descriptor") &&
		!strings.Contains(said, "cq completion failed") && !strings.Contains(said, "data mismatch") {

		r.logf("                  (the guest's rping lost the race of its own end)")
		return nil
	}
	return err
}

// A process is a running viaduct on the host.
type process struct {
	cmd    *exec.Cmd
	mu     sync.Mutex
	out    bytes.Buffer
	more   chan struct{} // one slot, filled when out grows
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

// said returns the output of the process so far.
func (h *process) said() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.out.String()
}

// waitFor waits until the output of the process contains s, for limit at most. It returns an error
// if the process ends first.
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

// wait waits for the end of the process, and kills the process after limit. A status other than 0
// is an error.
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

// freePort returns an unused TCP port below the system's range for connections. A port in the range
// could be taken before a server listens there.
func freePort() (p int, err error) {
	for range 100 {
		var l net.Listener
		p = 20000 + rand.IntN(12000)
		if l, err = net.Listen("tcp", ":"+strconv.Itoa(p)); err == nil {
			l.Close()
			return p, nil
		}
	}
	return 0, err
}

func port(a net.Addr) int { return a.(*net.TCPAddr).Port }
