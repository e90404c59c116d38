package nvme

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"viaduct/internal/nvmecore"
	"viaduct/internal/wire/nvmewire"
	"viaduct/iwarp"
)

// defaultNQN is the name of a target whose Config has none.
const defaultNQN = "nqn.2026-11.viaduct:disk"

// maxQueues limits the I/O queues of a host. Hosts usually open a queue per processor.
const maxQueues = 64

// maxStreams limits the queues of all hosts together.
const maxStreams = 1024

// tick is the interval of watch's search for silent hosts.
const tick = 250 * time.Millisecond

// A Config holds the parameters of a target. The zero value is valid.
type Config struct {
	NQN string // name of the subsystem; "" means "nqn.2026-11.viaduct:disk"

	// Stream configures the streams; nil means the default. Its Device, Logger, WrapConn, limits
	// and timers are used. The target chooses queues, depths and private data itself.
	Stream *iwarp.Config

	Logger *slog.Logger // logs associations at Info, failed commands at Debug; nil is silent
}

// A Target serves namespaces to hosts. All methods are safe for concurrent use.
type Target struct {
	cfg     Config
	dev     *iwarp.Device
	pd      *iwarp.ProtectionDomain // domain of the streams and of mapped files
	log     *slog.Logger
	buffers buffers
	workers workers
	ctx     context.Context
	stop    context.CancelFunc
	wg      sync.WaitGroup

	mu        sync.Mutex // never held during a call of a stream or backend
	core      *nvmecore.Target
	spaces    map[uint32]*space
	queues    map[*nvmecore.Queue]*queue
	listeners []*iwarp.Listener
	ended     Counters // counters of closed queues
	closed    bool
}

// New returns a target without namespaces, not yet listening. The error reports an invalid NQN or
// stream configuration.
func New(cfg Config) (*Target, error) {
	if cfg.NQN == "" {
		cfg.NQN = defaultNQN
	}
	if len(cfg.NQN) > 223 || !strings.HasPrefix(cfg.NQN, "nqn.") || cfg.NQN == nvmecore.DiscoveryNQN {
		return nil, fmt.Errorf(`nvme: %q is no name of a subsystem, want "nqn." and at most 223 bytes`, cfg.NQN)
	}
	if cfg.Stream == nil {
		cfg.Stream = new(iwarp.Config)
	}
	sum := sha256.Sum256([]byte(cfg.NQN))
	t := &Target{
		cfg: cfg, dev: cfg.Stream.Device, log: cfg.Logger,
		core: nvmecore.New(nvmecore.Config{NQN: cfg.NQN, Serial: fmt.Sprintf("%x", sum[:8]),
			Model: "Viaduct", MaxQueues: maxQueues}),
		spaces: make(map[uint32]*space), queues: make(map[*nvmecore.Queue]*queue),
	}
	if t.dev == nil {
		t.dev = iwarp.NewDevice(iwarp.DeviceConfig{})
	}
	t.pd = t.dev.NewPD()
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	t.ctx, t.stop = context.WithCancel(context.Background())
	t.wg.Go(t.watch)
	return t, nil
}

// NQN returns the name of the subsystem. Hosts pass the name to connect.
func (t *Target) NQN() string { return t.cfg.NQN }

// Add adds a namespace and returns the number, at least 1. The number of a removed namespace is
// reused only if no other is free. Connected hosts get an event. After Close the error is
// net.ErrClosed.
func (t *Target) Add(n Namespace) (id uint32, err error) {
	t.mu.Lock()
	defer t.unlock()
	if t.closed {
		return 0, net.ErrClosed
	}
	if id = t.core.FreeID(); id == 0 {
		return 0, fmt.Errorf("nvme: %d namespaces are all that a target has", nvmecore.MaxNamespaces)
	}
	s, err := newSpace(n, id, t.cfg.NQN)
	if err != nil {
		return 0, err
	}
	if err := s.use(t.pd); err != nil {
		return 0, err
	}
	t.spaces[id] = s
	t.core.Put(s.core)
	return id, nil
}

// ErrNamespace reports that no namespace has the given number.
var ErrNamespace = errors.New("nvme: no such namespace")

// Resize changes the size of a namespace, whose Data must already have size bytes.
func (t *Target) Resize(id uint32, size int64) error {
	t.mu.Lock()
	old := t.spaces[id]
	if old == nil {
		t.mu.Unlock()
		return ErrNamespace
	}
	n := old.Namespace
	n.Size = size
	s, err := newSpace(n, id, t.cfg.NQN)
	if err == nil {
		s.mapped, s.users = old.mapped, old.users
		t.spaces[id] = s
		t.core.Put(s.core)
	}
	t.unlock()
	return err
}

// Remove removes a namespace. Commands in progress continue to use the namespace's Data. After the
// last such command, Release is called.
func (t *Target) Remove(id uint32) error {
	t.mu.Lock()
	s := t.spaces[id]
	delete(t.spaces, id)
	t.core.Remove(id)
	t.unlock()
	if s == nil {
		return ErrNamespace
	}
	s.users.drop()
	return nil
}

// unlock unlocks t.mu and then does the work requested by nvmecore meanwhile.
func (t *Target) unlock() {
	outputs := t.core.Outputs()
	if outputs == nil {
		t.mu.Unlock()
		return
	}
	queues := make([]*queue, len(outputs))
	for i, o := range outputs {
		queues[i] = t.queues[o.Queue]
	}
	t.mu.Unlock()
	for i, o := range outputs {
		switch q := queues[i]; {
		case q == nil: // the queue has ended
		case o.End:
			q.qp.Abort()
		default:
			q.event(&o)
		}
	}
}

// watch ends the queues of silent hosts until the target is closed. [NVME-KA-1]
func (t *Target) watch() {
	k := time.NewTicker(tick)
	defer k.Stop()
	for {
		select {
		case <-t.ctx.Done():
			return
		case now := <-k.C:
			t.mu.Lock()
			t.core.Tick(now)
			t.unlock()
		}
	}
}

// Listen starts to serve at addr (host:port), and returns the actual address. A target may listen
// at several addresses. 4420 is the default port of hosts.
func (t *Target) Listen(addr string) (net.Addr, error) {
	c := *t.cfg.Stream
	c.Device, c.Source, c.SRQ, c.PD, c.SendCQ, c.RecvCQ = t.dev, nil, nil, t.pd, nil, nil
	c.SendDepth, c.RecvDepth, c.EndWithPeer = 1, 1, true // Configure sets the real depths
	if c.ORD == 0 {
		c.ORD = 32
	}
	l, err := iwarp.Listen(addr, &c)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		l.Close()
		return nil, net.ErrClosed
	}
	t.listeners = append(t.listeners, l)
	t.wg.Go(func() {
		for {
			r, err := l.AcceptRequest(t.ctx)
			if err != nil {
				return
			}
			t.wg.Go(func() { t.serve(r) })
		}
	})
	return l.Addr(), nil
}

// serve answers a connection Request, and serves the queue until its end.
func (t *Target) serve(r *iwarp.Request) {
	t.mu.Lock()
	core, why := (*nvmecore.Queue)(nil), nvmewire.RejectFull
	if len(t.queues) < maxStreams && !t.closed {
		core, why = t.core.Open(time.Now(), r.Private(), reached(r.QueuePair().LocalAddr()))
	}
	t.mu.Unlock()
	log := t.log.With("remote", r.RemoteAddr().String())
	if core == nil { // [NVME-CM-2]
		log.Info("queue refused", "why", int(why))
		r.Reject(nvmewire.AppendReject(nil, why))
		return
	}
	q := newQueue(t, core)
	err := q.open(r)
	if err == nil {
		log.Info("queue opened", "queue", core.ID, "depth", core.Depth)
		q.run()
		err = q.qp.Err()
	}
	q.jobs.Wait()
	q.abandon()
	t.mu.Lock()
	t.core.Closed(core)
	delete(t.queues, core)
	q.addTo(&t.ended)
	t.unlock()
	log.Info("queue ended", "queue", core.ID, "err", err)
}

// reached returns the target's address on a connection, in the form of nvmecore. [NVME-DISC-3]
func reached(a net.Addr) nvmecore.Address {
	host, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return nvmecore.Address{Host: a.String()}
	}
	ip := net.ParseIP(host)
	return nvmecore.Address{IPv6: ip != nil && ip.To4() == nil, Host: host, Service: port}
}

// Close stops listening and ends all queues. It waits for commands in progress, and then calls
// Release of each namespace. The caller closes backends without a Release afterwards.
func (t *Target) Close() error {
	t.mu.Lock()
	t.closed = true
	listeners := t.listeners
	t.listeners = nil
	var qs []*queue
	for _, q := range t.queues {
		qs = append(qs, q)
	}
	t.mu.Unlock()
	t.stop()
	for _, l := range listeners {
		l.Close()
	}
	for _, q := range qs {
		q.qp.Abort()
	}
	t.wg.Wait()
	t.workers.close()
	t.mu.Lock()
	spaces := t.spaces
	t.spaces = nil
	t.mu.Unlock()
	for _, s := range spaces {
		s.users.drop()
	}
	return nil
}
