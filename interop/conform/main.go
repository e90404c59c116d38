//go:build linux

// Conform runs "viaduct conform" against "viaduct" over a link with delay and loss, to check that
// "viaduct conform" raises no false alarm there.
//
//	go run ./interop/conform [-n 1] [-role both|listens|dials] [-delay 50ms] [-loss 0.01] [-viaduct PATH]
//
// "viaduct" is tested as the listening side, and as the dialling side: as the dialling side, each
// case runs a client in the namespace at the other end of the link, entered by nsenter of
// util-linux.
//
// The link comes from package interop/internal/link, between two network namespaces. Namespaces
// need root; without root the program prints loudly that all is skipped, and exits 0.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"viaduct/interop/internal/link"
	"viaduct/interop/internal/proc"
)

// fabrics is the number of listeners of fcvi. Each serves a single run at a time, because a
// listener remembers only the last nonce of a host.
const fabrics = 4

func main() {
	viaduct := flag.String("viaduct", "", "the command to run (`PATH`; default: built from this module)")
	n := flag.Int("n", 1, "runs of each protocol and role")
	role := flag.String("role", "both", "of the viaduct under test: listens, dials or both")
	delay := flag.Duration("delay", 50*time.Millisecond, "one way")
	loss := flag.Float64("loss", 0.01, "of each packet")
	flag.Parse()
	if !slices.Contains([]string{"both", "listens", "dials"}, *role) {
		fmt.Fprintf(os.Stderr, "conform: -role %q is not both, listens or dials\n", *role)
		os.Exit(2)
	}
	if os.Geteuid() != 0 {
		fmt.Println("\n*** SKIPPED: network namespaces need root. Nothing was tested. ***")
		return
	}
	if err := start(*viaduct, *n, *role, link.Fault{Delay: *delay, Loss: *loss}); err != nil {
		fmt.Fprintln(os.Stderr, "conform:", err)
		os.Exit(1)
	}
}

// start runs the tests with the command at path viaduct. If the path is empty, start builds the
// command.
func start(viaduct string, runs int, role string, f link.Fault) error {
	if viaduct == "" {
		dir, err := os.MkdirTemp("", "viaduct-conform.")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		viaduct = filepath.Join(dir, "viaduct")
		build := exec.Command("go", "build", "-o", viaduct, "viaduct/cmd/viaduct")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("building viaduct: %w", err)
		}
	}
	return run(viaduct, runs, role, f)
}

func run(viaduct string, runs int, role string, f link.Fault) (err error) {
	net := link.New()
	defer net.Close()
	at := []netip.Addr{netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("10.77.0.2")}
	var ports [2]*link.Port
	for i := range ports {
		if ports[i], err = net.Add(at[i], 1500, uint64(i+1)); err != nil {
			return err
		}
		ports[i].SetFault(f)
	}
	start := func(p *link.Port, out *bytes.Buffer, args ...string) (c *exec.Cmd, err error) {
		err = p.Do(func() error {
			c = exec.Command(viaduct, args...)
			c.Stdout, c.Stderr = out, out
			return c.Start()
		})
		return c, err
	}
	h := at[0].String()
	var server *exec.Cmd
	lines := make(chan string, 10)
	idle := make(chan string, fabrics) // listeners that no run of fcvi uses
	if err := ports[0].Do(func() error {
		args := []string{"echo", "--log-level", "error", "--listen", "iwarp://" + h + ":7001", "--listen", "vitcp://" + h + ":7002/x", "--listen", "sdp://" + h + ":7003"}
		for range fabrics {
			u := fmt.Sprintf("fcvi://%s:%d/x", h, 7010+len(idle))
			args = append(args, "--listen", u)
			idle <- u
		}
		server = exec.Command(viaduct, args...)
		out, err := server.StdoutPipe()
		if err != nil {
			return err
		}
		go func() {
			for s := bufio.NewScanner(out); s.Scan(); {
				lines <- s.Text()
			}
		}()
		return server.Start()
	}); err != nil {
		return err
	}
	defer func() { server.Process.Kill(); server.Wait() }()
	for range 3 + fabrics {
		select {
		case <-lines:
		case <-time.After(time.Minute):
			return errors.New("viaduct echo does not listen within a minute")
		}
	}
	var mapper *proc.Process
	if err := ports[0].Do(func() (err error) {
		mapper, err = proc.Start(context.Background(), viaduct, "portmap", "serve", "--map", h+":80="+h+":8080", "--listen", h+":3935")
		return err
	}); err != nil {
		return err
	}
	defer mapper.Kill()
	if err := mapper.Says("listening ", 1); err != nil {
		return err
	}
	holder, err := hold(ports[1])
	if err != nil {
		return err
	}
	defer func() { holder.Process.Kill(); holder.Wait() }()
	plans := plans(viaduct, h, holder.Process.Pid, role)
	var (
		mu    sync.Mutex
		wg    sync.WaitGroup
		bad   int
		cases int
		slots = make(chan struct{}, 8)
	)
	for i := range runs {
		for _, p := range plans {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				args := p.args
				if p.name == "fcvi" {
					u := <-idle
					defer func() { idle <- u }()
					args = []string{u}
				}
				var out bytes.Buffer
				c, err := start(ports[p.from], &out, append([]string{"conform", "--patience", "10s"}, args...)...)
				if err == nil {
					err = c.Wait()
				}
				mu.Lock()
				defer mu.Unlock()
				cases += strings.Count(out.String(), "pass  ")
				if err != nil || strings.Contains(out.String(), "not observable  ") {
					bad++
					fmt.Printf("run %d, %s: %v\n", i+1, p.name, err)
					for line := range strings.Lines(out.String()) {
						if !strings.HasPrefix(line, "pass  ") {
							fmt.Print("  ", line)
						}
					}
				}
			})
		}
	}
	wg.Wait()
	fmt.Printf("%d runs of %d peers, %d cases passed, %d runs with a failure\n", runs, len(plans), cases, bad)
	if bad > 0 {
		return fmt.Errorf("%d runs failed", bad)
	}
	return nil
}

// A plan is a run of "viaduct conform".
type plan struct {
	name string
	from int // index of the port in whose namespace it runs
	args []string
}

// plans returns the plans of all protocols: for a peer listening at host, and for a peer dialling
// from the namespace of the process holder. The address of fcvi's listening peer is found later.
func plans(viaduct, host string, holder int, role string) (ps []plan) {
	if role != "dials" {
		ps = append(ps, plan{"iwarp", 1, []string{"iwarp://" + host + ":7001"}}, plan{"vitcp", 1, []string{"vitcp://" + host + ":7002/x"}},
			plan{"sdp", 1, []string{"sdp://" + host + ":7003"}}, plan{"portmap", 1, []string{"portmap://" + host, "--service", host + ":80"}}, plan{name: "fcvi", from: 1})
	}
	if role != "listens" {
		for _, d := range [][3]string{
			{"iwarp", "iwarp://" + host + ":0", "ping {url} -c 4"},
			{"vitcp", "vitcp://" + host + ":0/x", "ping {url} -c 4"},
			{"sdp", "sdp://" + host + ":0", "ping {url} -c 4"},
			{"fcvi", "fcvi://" + host + ":0/x", "ping {url} -c 4"},
			{"portmap", "portmap://" + host + ":0", "portmap query " + host + ":80 --server {address}"},
		} {
			ps = append(ps, plan{d[0] + " dials", 0, []string{"--listen", d[1], "--exec", fmt.Sprintf("exec nsenter --net=/proc/%d/ns/net %s %s", holder, viaduct, d[2])}})
		}
	}
	return ps
}

// hold starts an idle process in the namespace of a port, so that the namespace has a process ID to
// enter by.
func hold(p *link.Port) (c *exec.Cmd, err error) {
	err = p.Do(func() error {
		c = exec.Command("sleep", "infinity")
		return c.Start()
	})
	return c, err
}
