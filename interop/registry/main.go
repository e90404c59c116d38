package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"viaduct/interop/internal/proc"
)

const (
	// lease is the lease of the listeners' registrations.
	lease = 6 * time.Second
)

func main() {
	// SIGPIPE is caught, because the signal would end the process, and leave the child processes,
	// when the reader of the output has ended.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	flag.Parse()
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "registry:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	begin := time.Now()
	dir, err := os.MkdirTemp("", "viaduct-registry.")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	t := &trial{ctx: ctx, dir: dir}
	defer t.close()
	if t.bin, err = proc.Viaduct(ctx, dir); err != nil {
		return err
	}
	skipped := 0
	if _, err := exec.LookPath("etcd"); err != nil {
		fmt.Println("\n*** SKIPPED: there is no etcd (Debian: etcd-server). The registry in etcd was not tested. ***")
		skipped++
	} else if err := t.etcd(ctx); err != nil {
		return err
	}
	if dnsmasq, err := lookDNS(); err != nil {
		fmt.Println("\n*** SKIPPED: there is no dnsmasq (Debian: dnsmasq-base). SRV records were not tested. ***")
		skipped++
	} else if err := t.dns(ctx, dnsmasq); err != nil {
		return fmt.Errorf("DNS: %w", err)
	}
	fmt.Printf("passed, %d of 2 parts skipped: %.1f s\n", skipped, time.Since(begin).Seconds())
	return nil
}

// lookDNS returns the path of dnsmasq, absent from some users' PATH.
func lookDNS() (string, error) {
	for _, name := range []string{"dnsmasq", "/usr/sbin/dnsmasq"} {
		if p, err := exec.LookPath(name); err == nil {
			return p, nil
		}
	}
	return "", exec.ErrNotFound
}

// A trial holds the running processes.
type trial struct {
	ctx      context.Context // ends all processes
	dir, bin string
	c        *cluster
	ps       []*proc.Process
	registry string // URL of the registry
	mapper   *proc.Process
	metrics  string // URL of the Port Mapper's metrics
	services map[string]*service
	listens  map[string]*proc.Process
}

func (t *trial) close() {
	for _, p := range t.ps {
		p.Kill()
	}
	if t.c != nil {
		t.c.close()
	}
}

func (t *trial) start(args ...string) (*proc.Process, error) {
	p, err := proc.Start(t.ctx, t.bin, args...)
	if err == nil {
		t.ps = append(t.ps, p)
	}
	return p, err
}

// portMapper starts a Port Mapper and returns the address.
func (t *trial) portMapper(args ...string) (*proc.Process, netip.AddrPort, error) {
	var at netip.AddrPort
	p, err := t.start(append([]string{"portmap", "serve", "--listen", "127.0.0.1:0"}, args...)...)
	if err != nil {
		return nil, at, err
	}
	if err := p.Says("listening udp://", 1); err != nil {
		return nil, at, err
	}
	out, _ := p.Output()
	_, s, _ := strings.Cut(out, "listening udp://")
	s, _, _ = strings.Cut(s, "\n")
	at, err = netip.ParseAddrPort(s)
	return p, at, err
}

// listen starts the listener of a service. The listener registers itself.
func (t *trial) listen(name string) error {
	s := t.services[name]
	p, err := t.start("echo", "--listen", "sdp://"+s.sdp.String(), "--registry", t.registry, "--register", s.conventional.String(), "--lease", lease.String(), "--log-level", "info")
	if err != nil {
		return err
	}
	t.listens[name] = p
	return p.Says("msg=registered", 1)
}

func (t *trial) etcd(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var err error
	if t.c, err = startCluster(ctx, t.dir); err != nil {
		return err
	}
	var hosts []string
	for _, m := range t.c.members {
		hosts = append(hosts, m.client)
	}
	t.registry = "etcd://" + strings.Join(hosts, ",") + "/interop/registry"

	free, err := ports(6)
	if err != nil {
		return err
	}
	t.services, t.listens = map[string]*service{}, map[string]*proc.Process{}
	var asked []*service
	for i, n := range []string{"lives", "dies", "dies-alone", "new"} {
		s := &service{conventional: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(80+i)), sdp: netip.MustParseAddrPort(free[i])}
		t.services[n] = s
		asked = append(asked, s)
	}
	t.metrics = "http://" + free[5] + "/metrics"
	mapper, at, err := t.portMapper("--registry", t.registry, "--metrics", free[5], "--log-level", "debug")
	if err != nil {
		return err
	}
	t.mapper = mapper
	for _, n := range []string{"lives", "dies", "dies-alone"} {
		if err := t.listen(n); err != nil {
			return err
		}
	}
	lookups := make(chan error, 1)
	go func() { lookups <- lookUp(ctx, at, asked) }()
	for _, n := range []string{"lives", "dies", "dies-alone"} {
		if err := t.services[n].there(ctx); err != nil {
			return err
		}
	}
	for _, step := range []struct {
		name string
		run  func(context.Context) (string, error)
	}{{"leader killed", t.leaderKilled}, {"quorum lost", t.quorumLost}, {"quorum restored", t.quorumRestored}, {"watch compacted", t.compacted}, {"cluster restarted", t.restarted}, {"two fabrics", t.fabrics}} {
		begin := time.Now()
		found, err := step.run(ctx)
		if err != nil {
			out, _ := mapper.Output()
			return fmt.Errorf("%s: %w\nthe Port Mapper said\n%s%s", step.name, err, out, t.c.logs())
		}
		fmt.Printf("%-18s %s (%.1f s)\n", step.name, found, time.Since(begin).Seconds())
	}
	cancel()
	return <-lookups
}

// leaderKilled kills the leader of the cluster, and a listener. It returns a description of the
// results.
func (t *trial) leaderKilled(ctx context.Context) (string, error) {
	old, err := t.c.leader(ctx, nil)
	if err != nil {
		return "", err
	}
	lives, dies := t.services["lives"], t.services["dies-alone"]
	lives.begin(true, time.Time{})
	killed := time.Now()
	old.kill()
	t.listens["dies-alone"].Kill()
	dies.begin(false, time.Now().Add(lease)) // the lease was renewed now at the latest
	if _, err := t.c.leader(ctx, old); err != nil {
		return "", err
	}
	election := time.Since(killed)
	if err := t.listen("new"); err != nil {
		return "", err
	}
	if err := t.services["new"].there(ctx); err != nil {
		return "", err
	}
	if err := dies.absent(ctx); err != nil {
		return "", err
	}
	gone := time.Since(dies.gone)
	// The lease may last longer than agreed, because a new leader restarts every lease. The Port Mapper
	// may therefore still return the record, but the listener must be gone.
	lives.mu.Lock()
	defer lives.mu.Unlock()
	if lives.gap > election+slack {
		return "", fmt.Errorf("no lookup of a living service succeeded for %v, the election took %v", lives.gap, election)
	}
	if err := old.start(); err != nil {
		return "", err
	}
	return fmt.Sprintf("elected in %v, longest time without an answer %v, %d lookups failed, the dead listener gone %v after its lease",
		election.Round(time.Millisecond), lives.gap.Round(time.Millisecond), lives.bad, gone.Round(time.Millisecond)), nil
}

// quorumLost kills a listener, and two of the three members.
func (t *trial) quorumLost(ctx context.Context) (string, error) {
	if err := t.healthy(ctx); err != nil {
		return "", err
	}
	lives, dies := t.services["lives"], t.services["dies"]
	t.listens["dies"].Kill()
	dies.begin(false, time.Now().Add(lease))
	time.Sleep(lease / 3) // so that part of the lease has passed when the Port Mapper last reads the record
	t.c.members[0].kill()
	t.c.members[1].kill()
	lost := time.Now()
	lives.begin(true, lost.Add(lease))
	if err := lives.await(ctx, "answered with a mark", func(s *service) bool { return s.marked }); err != nil {
		return "", err
	}
	if err := t.metric("viaduct_registry_stale 1"); err != nil {
		return "", err
	}
	marked := time.Since(lost)
	lives.mu.Lock()
	gap := lives.gap
	lives.mu.Unlock()
	if gap > slack {
		return "", fmt.Errorf("without a quorum no lookup of a service that is known succeeded for %v", gap)
	}
	p, err := t.start("echo", "--listen", "sdp://127.0.0.1:0", "--registry", t.registry, "--register", "127.0.0.1:99")
	if err != nil {
		return "", err
	}
	err = p.Wait(proc.Patience)
	out, _ := p.Output()
	if err == nil || !strings.Contains(out, "127.0.0.1:99 can't be registered") || !strings.Contains(out, "quorum") && !strings.Contains(out, "no leader") {
		return "", fmt.Errorf("a registration without a quorum: %v\n%s", err, out)
	}
	for _, s := range []*service{lives, dies} {
		if err := s.absent(ctx); err != nil {
			return "", err
		}
		s.mu.Lock()
		late := s.late
		s.mu.Unlock()
		if late > 0 {
			return "", fmt.Errorf("%d answers for %v beyond its lease", late, s.conventional)
		}
	}
	return fmt.Sprintf("marked after %v, answered on, all gone within the lease, registration refused", marked.Round(time.Millisecond)), nil
}

// quorumRestored restarts the two members killed by quorumLost.
func (t *trial) quorumRestored(ctx context.Context) (string, error) {
	begin := time.Now()
	for _, m := range t.c.members[:2] {
		if err := m.start(); err != nil {
			return "", err
		}
	}
	if err := t.healthy(ctx); err != nil {
		return "", err
	}
	led := time.Since(begin)
	if err := t.services["lives"].there(ctx); err != nil {
		return "", err
	}
	back := time.Since(begin)
	if err := t.metric("viaduct_registry_stale 0"); err != nil {
		return "", err
	}
	if err := t.listen("dies"); err != nil {
		return "", err
	}
	if err := t.services["dies"].there(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("a leader after %v, living services answered after %v", led.Round(time.Millisecond), back.Round(time.Millisecond)), nil
}

// healthy waits until there is a leader and all members accept writes.
func (t *trial) healthy(ctx context.Context) error {
	if _, err := t.c.leader(ctx, nil); err != nil {
		return err
	}
	for _, m := range t.c.members {
		if err := t.ask(ctx, m, func(ctx context.Context, c *clientv3.Client) error {
			_, err := c.Put(ctx, "/interop/health", m.name)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// ask calls f with a client of member m until f succeeds, for proc.Patience at most.
func (t *trial) ask(ctx context.Context, m *member, f func(context.Context, *clientv3.Client) error) error {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + m.client}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer c.Close()
	for end := time.Now().Add(proc.Patience); ; time.Sleep(20 * time.Millisecond) {
		one, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := f(one, c)
		cancel()
		if err == nil || time.Now().After(end) || ctx.Err() != nil {
			return err
		}
	}
}

// compacted stops the only member known to a Port Mapper, compacts the history of the changes
// meanwhile, and restarts the member.
func (t *trial) compacted(ctx context.Context) (string, error) {
	m := t.c.members[0]
	p, at, err := t.portMapper("--registry", "etcd://"+m.client+"/interop/compacted", "--log-level", "debug")
	if err != nil {
		return "", err
	}
	s := &service{conventional: netip.MustParseAddrPort("127.0.0.1:90"), sdp: netip.MustParseAddrPort("127.0.0.1:9000")}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lookups := make(chan error, 1)
	go func() { lookups <- lookUp(ctx, at, []*service{s}) }()
	key := "/interop/compacted/sdp/127.0.0.1:90"
	put := func(value string) error {
		return t.ask(ctx, t.c.members[1], func(ctx context.Context, c *clientv3.Client) error {
			_, err := c.Put(ctx, key, value)
			return err
		})
	}
	if err := put("127.0.0.1:9000"); err != nil {
		return "", err
	}
	if err := s.there(ctx); err != nil {
		return "", err
	}
	m.kill()
	for i := range 50 {
		if err := put(fmt.Sprint("127.0.0.1:", 9001+i)); err != nil {
			return "", err
		}
	}
	if err := t.ask(ctx, t.c.members[1], func(ctx context.Context, c *clientv3.Client) error {
		r, err := c.Get(ctx, key)
		if err == nil {
			_, err = c.Compact(ctx, r.Header.Revision, clientv3.WithCompactPhysical())
		}
		return err
	}); err != nil {
		return "", err
	}
	s.mu.Lock()
	s.sdp = netip.MustParseAddrPort("127.0.0.1:9050")
	s.mu.Unlock()
	if err := m.start(); err != nil {
		return "", err
	}
	if err := p.Says("required revision has been compacted", 1); err != nil {
		return "", err
	}
	if err := s.there(ctx); err != nil {
		return "", err
	}
	// The new watch reports changes too.
	begin := time.Now()
	s.mu.Lock()
	s.sdp = netip.MustParseAddrPort("127.0.0.1:9999")
	s.mu.Unlock()
	if err := put("127.0.0.1:9999"); err != nil {
		return "", err
	}
	if err := s.there(ctx); err != nil {
		return "", err
	}
	p.Kill()
	cancel()
	return fmt.Sprintf("read anew, and the next change answered after %v", time.Since(begin).Round(time.Millisecond)), <-lookups
}

// restarted kills and restarts all members at once.
func (t *trial) restarted(ctx context.Context) (string, error) {
	if err := t.healthy(ctx); err != nil {
		return "", err
	}
	lives := t.services["lives"]
	lives.begin(true, time.Time{})
	for _, m := range t.c.members {
		m.kill()
	}
	for _, m := range t.c.members {
		if err := m.start(); err != nil {
			return "", err
		}
	}
	begin := time.Now()
	if err := t.healthy(ctx); err != nil {
		return "", err
	}
	back := time.Since(begin)
	if err := lives.await(ctx, "answered", func(s *service) bool { return s.good > 10 && !s.marked && time.Since(s.since) < time.Second/4 }); err != nil {
		return "", err
	}
	lives.mu.Lock()
	gap := lives.gap
	lives.mu.Unlock()
	if gap > back+slack {
		return "", fmt.Errorf("no lookup of a living service succeeded for %v, the cluster was away for %v", gap, back)
	}
	return fmt.Sprintf("away for %v, longest time without an answer %v", back.Round(time.Millisecond), gap.Round(time.Millisecond)), nil
}

// metric waits until the Port Mapper's metrics contain line.
func (t *trial) metric(line string) error {
	var last string
	for end := time.Now().Add(proc.Patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		r, err := http.Get(t.metrics)
		if err != nil {
			return err
		}
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil {
			return err
		}
		if last = string(b); strings.Contains(last, "\n"+line+"\n") {
			return nil
		}
	}
	return fmt.Errorf("the metrics have no line %q within %v\n%s", line, proc.Patience, last)
}

// dns checks lookups of SRV records at a real DNS server, dnsmasq.
func (t *trial) dns(ctx context.Context, dnsmasq string) error {
	free, err := ports(1)
	if err != nil {
		return err
	}
	_, port, _ := strings.Cut(free[0], ":")
	srv := "--srv-host=_viaduct._tcp."
	server, err := proc.Start(ctx, dnsmasq, "--keep-in-foreground", "--log-facility=-", "--conf-file=/dev/null", "--pid-file=", "--user=", "--port="+port, "--listen-address=127.0.0.1", "--bind-interfaces",
		"--no-resolv", "--no-hosts", "--local=/example.test/", "--host-record=node.example.test,192.0.2.7",
		srv+"80.192-0-2-7.sdp.example.test,node.example.test,8080", srv+"443.sdp.example.test,node.example.test,8443",
		srv+"node7.vi.example.test,node.example.test,3050")
	if err != nil {
		return err
	}
	t.ps = append(t.ps, server)
	if err := server.Says("started", 1); err != nil {
		return err
	}
	registry := "dns://" + free[0] + "/example.test"
	_, at, err := t.portMapper("--registry", registry, "--service", "192.0.2.7:80", "--service", ":443", "--service", ":99")
	if err != nil {
		return err
	}
	for _, c := range []struct{ args, want string }{
		{"registry " + registry + " vi node7", "192.0.2.7:3050"},
		{"registry " + registry + " vi node8", "no such name"},
		{"registry " + registry + " vi", "can't be listed"},
		{"portmap query 192.0.2.7:80 --server " + at.String(), "192.0.2.7:80 speaks SDP at 192.0.2.7:8080"},
		{"portmap query 192.0.2.9:443 --server " + at.String(), "192.0.2.9:443 speaks SDP at 192.0.2.7:8443"},
		{"portmap query 192.0.2.9:99 --server " + at.String(), "denied"},
		{"echo --listen sdp://127.0.0.1:0 --registry " + registry + " --register :80", "can only be read"},
	} {
		out, _ := exec.CommandContext(ctx, t.bin, strings.Fields(c.args)...).CombinedOutput()
		if !strings.Contains(string(out), c.want) {
			return fmt.Errorf("viaduct %s: no %q in\n%s", c.args, c.want, out)
		}
	}
	fmt.Printf("%-18s SRV records resolved, answered and not registered\n", "DNS")
	return nil
}
