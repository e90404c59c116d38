//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"

	"viaduct/interop/internal/link"
	"viaduct/interop/internal/mixed"
)

// members is the number of hosts in the fabric. The fabric has a separate namespace.
const members = 4

// ring runs a Fibre Channel fabric in one namespace, and members in four others. Each member has
// connections to the next.
func ring(ctx context.Context, o *options, s scenario) (said string, err error) {
	bin, err := builtViaduct()
	if err != nil {
		return "", err
	}
	t := &test{s: s, net: link.New(), longs: 2 * members, plans: map[string]mixed.Plan{"long": longPlan(s.traffic, s.rate), "short": plans["short"]}}
	defer t.net.Close()
	for i := range members + 1 {
		h, err := newHost(ctx, t.net, i, defaultMTU, 1)
		if err != nil {
			return "", err
		}
		defer h.end()
		h.SetFault(s.fault)
		t.hosts = append(t.hosts, h)
	}
	at := t.hosts[0].addr.String() + ":3225"
	fabric := exec.CommandContext(ctx, bin, "fabric", "--listen", at)
	out, err := fabric.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := t.hosts[0].Do(fabric.Start); err != nil {
		return "", err
	}
	defer func() {
		fabric.Process.Signal(os.Interrupt)
		fabric.Wait()
	}()
	if _, err := out.Read(make([]byte, 100)); err != nil { // waits for the line that says that the fabric listens
		return "", fmt.Errorf("the fabric: %w", err)
	}
	fcvi := []string{"fcvi"}
	// Each NIC is a port with a separate host address: one NIC listens for each plan, and another
	// NIC dials.
	address := func(plan string, i int) string {
		return fmt.Sprintf("10.0.%d.%d", map[string]int{"long": 1, "short": 2, "": 3}[plan], i)
	}
	where := make([]addresses, members+1)
	for i, h := range t.hosts[1:] {
		where[i+1] = addresses{}
		for plan, p := range t.plans {
			host := address(plan, i+1)
			got, err := h.job(job{Listen: host, Host: host, Fabric: at, Plans: map[string]mixed.Plan{plan: p}, Transports: fcvi, Limit: s.limit})
			if err != nil {
				return "", err
			}
			where[i+1][plan] = got.At[plan]
		}
	}
	for i, h := range t.hosts[1:] {
		next := where[(i+1)%members+1]
		for _, j := range []job{{Plan: "long", Each: 1}, {Plan: "short", Each: 1, Again: s.traffic + time.Second}} {
			j.At, j.Plans, j.Transports, j.Attempt, j.Fabric, j.Host = next, t.plans, fcvi, setupLimit, at, address("", i+1)
			if _, err := h.job(j); err != nil {
				return "", err
			}
		}
	}
	for _, h := range t.hosts[1:] {
		if _, err := h.job(job{Ready: 2}); err != nil {
			return "", err
		}
	}
	return t.judge(o, time.Time{})
}
