package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"viaduct/interop/internal/proc"
)

// electionTime is the election time-out of the members.
const electionTime = 500 * time.Millisecond

// A member is an etcd of the cluster.
type member struct {
	name, client, peer string // name, and addresses as HOST:PORT
	args               []string
	log                string
	cmd                *exec.Cmd
}

// A cluster is an etcd of three members.
type cluster struct {
	members []*member
	client  *clientv3.Client
}

// ports returns n different free TCP addresses on loopback. The ports are below the system's
// ephemeral ports, because otherwise a connection could take the port of a member while the member
// is down.
func ports(n int) ([]string, error) {
	var found []string
	for range 1000 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(20000)))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return nil, err
		}
		defer l.Close()
		if found = append(found, l.Addr().String()); len(found) == n {
			return found, nil
		}
	}
	return nil, errors.New("no TCP port is free")
}

func startCluster(ctx context.Context, dir string) (*cluster, error) {
	at, err := ports(6)
	if err != nil {
		return nil, err
	}
	c := &cluster{}
	var initial, endpoints []string
	for i := range 3 {
		m := &member{name: fmt.Sprint("m", i), client: at[i], peer: at[3+i], log: filepath.Join(dir, fmt.Sprint("m", i, ".log"))}
		c.members = append(c.members, m)
		initial = append(initial, m.name+"=http://"+m.peer)
		endpoints = append(endpoints, "http://"+m.client)
	}
	for _, m := range c.members {
		m.args = []string{"--name", m.name, "--data-dir", filepath.Join(dir, m.name),
			"--listen-client-urls", "http://" + m.client, "--advertise-client-urls", "http://" + m.client,
			"--listen-peer-urls", "http://" + m.peer, "--initial-advertise-peer-urls", "http://" + m.peer,
			"--initial-cluster", strings.Join(initial, ","), "--initial-cluster-state", "new",
			"--heartbeat-interval", "50", "--election-timeout", fmt.Sprint(electionTime.Milliseconds()), "--logger", "zap"}
		if err := m.start(); err != nil {
			return c, err
		}
	}
	c.client, err = clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		return c, err
	}
	_, err = c.leader(ctx, nil)
	return c, err
}

func (m *member) start() error {
	out, err := os.OpenFile(m.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	m.cmd = exec.Command("etcd", m.args...)
	m.cmd.Env = append(os.Environ(), "ETCD_UNSUPPORTED_ARCH=arm64") // Debian's etcd for arm64 requires it
	m.cmd.Stdout, m.cmd.Stderr = out, out
	if err := m.cmd.Start(); err != nil {
		m.cmd = nil
		return err
	}
	return nil
}

func (m *member) kill() {
	if m.cmd != nil {
		m.cmd.Process.Kill()
		m.cmd.Wait()
		m.cmd = nil
	}
}

func (c *cluster) close() {
	for _, m := range c.members {
		m.kill()
	}
	if c.client != nil {
		c.client.Close()
	}
}

// leader waits until a running member other than old reports being the leader, and returns the
// member.
func (c *cluster) leader(ctx context.Context, old *member) (*member, error) {
	for end := time.Now().Add(proc.Patience); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		for _, m := range c.members {
			if m == old || m.cmd == nil {
				continue
			}
			one, cancel := context.WithTimeout(ctx, time.Second)
			st, err := c.client.Status(one, "http://"+m.client)
			cancel()
			if err == nil && st.Leader == st.Header.MemberId {
				return m, nil
			}
		}
	}
	return nil, fmt.Errorf("the cluster elects no leader within %v%s", proc.Patience, c.logs())
}

// logs returns the last lines of each member's log.
func (c *cluster) logs() string {
	var s strings.Builder
	for _, m := range c.members {
		if b, err := os.ReadFile(m.log); err == nil {
			lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
			fmt.Fprintf(&s, "\n%s: %s", m.name, bytes.Join(lines[max(0, len(lines)-5):], []byte("\n    ")))
		}
	}
	return s.String()
}
