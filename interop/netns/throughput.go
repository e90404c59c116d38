//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"viaduct/interop/internal/link"
)

// builtViaduct builds the command, once for all scenarios.
var builtViaduct = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "viaduct-netns.")
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "viaduct")
	out, err := exec.Command("go", "build", "-o", bin, "viaduct/cmd/viaduct").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building viaduct: %w\n%s", err, out)
	}
	return bin, nil
})

// Required throughput of a transport relative to plain TCP. goalRatio applies with -long, when a
// transport is measured alone. floorRatio applies when other scenarios and transports compete for
// the processors. Windows or batches that suit only loopback reach less than half of plain TCP.
const (
	goalRatio  = 0.95
	floorRatio = 0.5
)

// tries is the number of measurements before a low ratio counts, because a busy machine delays some
// acknowledgements and not others.
const tries = 3

var errSlow = errors.New("slower than plain TCP")

// throughput compares bulk transfers of each transport with plain TCP. The transport and TCP take
// turns between two namespaces; each transport has a separate pair of namespaces. Every n-th packet
// is lost, so that all transfers have the same loss.
func throughput(ctx context.Context, o *options, s scenario) (said string, err error) {
	bin, err := builtViaduct()
	if err != nil {
		return "", err
	}
	var all sync.WaitGroup
	lanes := []string{"sdp", "iwarp", "vitcp", "fcvi"}
	parts, errs := make([]string, len(lanes)), make([]error, len(lanes))
	for i, transport := range lanes {
		run := func() {
			for n := range tries {
				if parts[i], errs[i] = compare(ctx, s, bin, transport); n > 0 {
					parts[i] += fmt.Sprintf(" (measurement %d)", n+1)
				}
				if !errors.Is(errs[i], errSlow) {
					return
				}
			}
		}
		if s.alone {
			run()
			continue
		}
		all.Go(run)
	}
	all.Wait()
	return strings.Join(parts, "; "), errors.Join(errs...)
}

// compare measures a transport in turns with plain TCP.
func compare(ctx context.Context, s scenario, bin, transport string) (said string, err error) {
	n := link.New()
	defer n.Close()
	var ports []*link.Port
	for i := range 2 {
		p, err := n.Add(hostAddr(i), max(s.mtu, defaultMTU), 1)
		if err != nil {
			return "", err
		}
		for k, v := range s.sysctl {
			if err := p.Sysctl(k, v); err != nil {
				return "", err
			}
		}
		p.SetFault(s.fault)
		ports = append(ports, p)
	}
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	server := exec.CommandContext(ctx, bin, "bench", "--server", "tcp://"+hostAddr(0).String()+":0")
	out, err := server.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := ports[0].Do(server.Start); err != nil {
		return "", err
	}
	defer func() {
		server.Process.Signal(os.Interrupt)
		server.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("bench --server: %w", err)
	}
	ops := "write,send"
	if transport == "sdp" {
		ops = "stream"
	}
	client := exec.CommandContext(ctx, bin, "bench", "--congestion", s.congestion, "--client", strings.TrimSpace(strings.TrimPrefix(line, "listening ")),
		"--transports", transport+",tcp", "--ops", ops+",stream", "--sizes", s.size,
		"--time", s.traffic.String(), "--rounds", "3", "--json")
	var stdout, stderr bytes.Buffer
	client.Stdout, client.Stderr = &stdout, &stderr
	if err := ports[1].Do(client.Start); err != nil {
		return "", err
	}
	if err := client.Wait(); err != nil {
		return "", fmt.Errorf("bench --client with %s: %w\n%s", transport, err, tail(stderr.String(), 2000))
	}
	var result struct {
		Rows []struct {
			Transport, Op string
			Median        float64
			Ratio         float64 `json:"ratio_to_tcp"`
		}
	}
	if err := json.Unmarshal(stdout.Bytes(), &result); err != nil {
		return "", err
	}
	least := floorRatio
	if s.alone {
		least = goalRatio
	}
	var low []error
	for _, r := range result.Rows {
		switch {
		case r.Transport == "tcp":
			said += fmt.Sprintf("tcp %.1f MB/s, ", r.Median/1e6)
		case r.Ratio < least:
			low = append(low, fmt.Errorf("%w: %s, %s: %.1f MB/s, %.2f", errSlow, r.Transport, r.Op, r.Median/1e6, r.Ratio))
			fallthrough
		default:
			said += fmt.Sprintf("%s %s %.2f, ", r.Transport, r.Op, r.Ratio)
		}
	}
	return strings.TrimSuffix(said, ", "), errors.Join(low...)
}
