package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"viaduct/interop/internal/proc"
)

// members is the number of members of both fabrics together.
const members = 20

// backTime is how long a restarted fabric may take to serve the members. A quiet machine needs some
// three seconds, a busy one ten.
const backTime = time.Minute

// A plant is the two fabrics and their members.
type plant struct {
	*trial
	first   *proc.Process // the fabric that the second fabric has joined
	listen  string        // address of the first fabric
	members [members]*proc.Process
}

// fabrics starts two fabrics whose members find each other in the registry. It kills the leader of
// the cluster, a fabric and a member, and checks that the others still reach each other.
func (t *trial) fabrics(ctx context.Context) (string, error) {
	if err := t.healthy(ctx); err != nil {
		return "", err
	}
	free, err := ports(1)
	if err != nil {
		return "", err
	}
	p := &plant{trial: t, listen: free[0]}
	if err := p.startFirst(); err != nil {
		return "", err
	}
	second, err := t.start("fabric", "--listen", "127.0.0.1:0", "--domain", "2", "--join", "plant1", "--registry", t.registry, "--register", "plant2", "--lease", lease.String())
	if err != nil {
		return "", err
	}
	if err := second.Says("listening ", 1); err != nil {
		return "", err
	}
	for i := range p.members {
		p.members[i], err = t.start("echo", "--listen", fmt.Sprintf("fcvi://10.0.1.%d/echo?fabric=plant%d", 1+i, 1+i%2), "--registry", t.registry, "--register", name(i), "--lease", lease.String(), "--log-level", "info")
		if err != nil {
			return "", err
		}
	}
	for _, m := range p.members {
		if err := m.Says("msg=registered", 1); err != nil {
			return "", err
		}
	}
	table, err := t.list(ctx)
	if err != nil {
		return "", err
	}
	for i := range members {
		if !strings.Contains(table, name(i)) {
			return "", fmt.Errorf("%s is not registered:\n%s", name(i), table)
		}
	}
	if !strings.Contains(table, "plant1") || !strings.Contains(table, "plant2") {
		return "", fmt.Errorf("a fabric is not registered:\n%s", table)
	}
	if _, err := p.pingAll(ctx, ""); err != nil {
		return "", fmt.Errorf("at first: %w", err)
	}

	old, err := t.c.leader(ctx, nil)
	if err != nil {
		return "", err
	}
	old.kill()
	if _, err := p.pingAll(ctx, ""); err != nil {
		return "", fmt.Errorf("without the leader: %w", err)
	}
	if err := old.start(); err != nil {
		return "", err
	}

	p.first.Kill()
	for i, m := range p.members {
		if i%2 == 0 {
			if err := m.Says(`level=WARN msg="link to fabric lost"`, 1); err != nil {
				return "", err
			}
		}
	}
	if err := p.startFirst(); err != nil {
		return "", err
	}
	began := time.Now()
	back, err := p.pingAll(ctx, "1m")
	if err != nil {
		return "", fmt.Errorf("with the fabric started again: %w", err)
	}
	slowest := back.Sub(began)
	if slowest > backTime {
		return "", fmt.Errorf("the fabric was back in service only after %v", slowest)
	}

	// The record of an ended member is removed at once, the record of a killed member when the
	// lease ends.
	if err := p.members[0].End(); err != nil {
		return "", err
	}
	if table, err = t.list(ctx); err != nil || strings.Contains(table, name(0)) {
		return "", fmt.Errorf("%s has ended and is registered, %v:\n%s", name(0), err, table)
	}
	p.members[1].Kill()
	killed := time.Now()
	for {
		if table, err = t.list(ctx); err != nil {
			return "", err
		}
		if !strings.Contains(table, name(1)) {
			break
		}
		// A new leader restarts every lease, and a busy machine may elect several.
		if time.Since(killed) > proc.Patience {
			return "", fmt.Errorf("%s was killed %v ago, has a lease of %v and is registered", name(1), time.Since(killed), lease)
		}
		time.Sleep(50 * time.Millisecond)
	}
	gone := time.Since(killed)
	p.first.Kill()
	second.Kill()
	for _, m := range p.members {
		m.Kill()
	}
	return fmt.Sprintf("%d members reached by name from the other fabric, without a leader too; all again %v after a fabric was back; one that was killed gone after %v", members, slowest.Round(time.Millisecond), gone.Round(time.Millisecond)), nil
}

// name returns the name of member i. i must be less than 100. With two digits, no name is a prefix
// of another name, and a table can be searched for a name.
func name(i int) string { return fmt.Sprintf("node-%02d", i) }

func (p *plant) startFirst() (err error) {
	if p.first, err = p.start("fabric", "--listen", p.listen, "--registry", p.registry, "--register", "plant1", "--lease", lease.String()); err != nil {
		return err
	}
	return p.first.Says("listening ", 1)
}

// list returns the registry's records of hosts and fabrics.
func (t *trial) list(ctx context.Context) (string, error) {
	var all strings.Builder
	for _, kind := range []string{"vi", "fabric"} {
		out, err := exec.CommandContext(ctx, t.bin, "registry", t.registry, kind).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("viaduct registry: %w\n%s", err, out)
		}
		all.Write(out)
	}
	return all.String(), nil
}

// pingAll reaches every member by name from the other fabric, and returns the time of reaching the
// last member. wait is the value of --wait, or "".
func (p *plant) pingAll(ctx context.Context, wait string) (last time.Time, err error) {
	var wg sync.WaitGroup
	var mu sync.Mutex // guards last, err
	next := make(chan int)
	for range 4 {
		wg.Go(func() {
			for i := range next {
				args := []string{"ping", fmt.Sprintf("fcvi://%s/echo?fabric=plant%d&self=10.0.2.%d", name(i), 2-i%2, 1+i), "--registry", p.registry, "-c", "1", "-q"}
				if wait != "" {
					args = append(args, "--wait", wait)
				}
				out, e := exec.CommandContext(ctx, p.bin, args...).CombinedOutput()
				mu.Lock()
				if last = time.Now(); e != nil && err == nil {
					err = fmt.Errorf("viaduct %s: %w\n%s", strings.Join(args, " "), e, out)
				}
				mu.Unlock()
			}
		})
	}
	for i := range members {
		next <- i
	}
	close(next)
	wg.Wait()
	return last, err
}
