// Package etcd is a registry of names in an etcd cluster. The package belongs to the command,
// because library packages have no dependencies.
//
// A record is the key PREFIX/KIND/NAME/ID, for example viaduct/vi/node7/694d81417f2a6c05; the value
// of the key is the value of the record. ID is the number of the lease under which the record was
// registered, in hex. A key put by hand may have any ID, or none, and no lease. A record without a
// lease never expires.
//
// Lookups are answered from memory, by a [registry.Table]. Linearizable reads of all keys and of
// the remaining time of the leases fill the table. A watch starts another read at every change.
// Without changes the table is read several times in the shortest lease. A record in the table
// expires no later than the lease in the cluster. Therefore lookups still work while the cluster
// elects a leader or has no quorum. Answers at such times are marked, and an expired record is
// never returned.
package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"viaduct/registry"
)

// Times chosen for this package.
const (
	// requestTime bounds one request. The cluster elects a leader within about two seconds.
	requestTime = 3 * time.Second

	// The table is read again parts times in the shortest lease, but at intervals of at least
	// shortestPause and at most longestPause.
	parts         = 6
	shortestPause = 500 * time.Millisecond
	longestPause  = 5 * time.Second

	// retryPause is the pause after a failure. settle is the pause after a change, so that a read
	// covers many changes at a time.
	retryPause = 250 * time.Millisecond
	settle     = 20 * time.Millisecond

	// asking is how many leases are queried at a time.
	asking = 16
)

// A Config describes a registry.
type Config struct {
	Endpoints          []string // URLs or HOST:PORT
	Prefix             string   // of all keys; slashes around it are optional
	TLS                *tls.Config
	Username, Password string
	Logger             *slog.Logger
}

// A Registry is a registry in a cluster. It implements registry.Registry.
type Registry struct {
	cfg    Config
	prefix string // ends in a slash
	client *clientv3.Client
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	table registry.Table
	begin sync.Once
	known chan struct{} // closed after the first read of the table, even if it failed

	mu      sync.Mutex
	failure error // guarded by mu; why the last read of the table failed
}

// Open returns the registry of a cluster, without waiting for the cluster. Close must follow.
func Open(cfg Config) (*Registry, error) {
	c, err := clientv3.New(clientv3.Config{
		Endpoints: cfg.Endpoints, TLS: cfg.TLS, Username: cfg.Username, Password: cfg.Password,
		DialTimeout: requestTime, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: requestTime,
		Logger: zap.NewNop(), // the errors have all that matters
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", registry.ErrUnavailable, describe(cfg, err))
	}
	r := &Registry{cfg: cfg, client: c, known: make(chan struct{})}
	if p := strings.Trim(cfg.Prefix, "/"); p != "" {
		r.prefix = "/" + p
	}
	r.prefix += "/"
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

// Close ends the registry's connections. Registrations expire with their leases.
func (r *Registry) Close() error {
	r.cancel()
	r.wg.Wait()
	return r.client.Close()
}

// describe translates the client's errors for the user.
func describe(cfg Config, err error) error {
	at := "etcd at " + strings.Join(cfg.Endpoints, ", ")
	switch {
	case errors.Is(err, rpctypes.ErrNoLeader):
		return fmt.Errorf("%s has no leader, since too few of its members can reach each other: %w", at, err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, rpctypes.ErrTimeout),
		errors.Is(err, rpctypes.ErrTimeoutDueToLeaderFail):
		return fmt.Errorf("%s gave no answer in time: it can't be reached, or has no quorum: %w", at, err)
	}
	return fmt.Errorf("%s: %w", at, err)
}

// request returns a context for one request. A cluster member without a leader refuses the request
// at once.
func (r *Registry) request(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(clientv3.WithRequireLeader(ctx), requestTime)
}

// start starts the goroutine for filling the table, once.
func (r *Registry) start() {
	r.begin.Do(func() { r.wg.Go(r.follow) })
}

// Resolve implements registry.Registry. It waits until the table was read once, or failed to be.
func (r *Registry) Resolve(ctx context.Context, kind, name string) (registry.Answer, error) {
	if err := r.await(ctx); err != nil {
		return registry.Answer{}, err
	}
	a, err := r.table.Resolve(ctx, kind, name)
	return a, r.explain(err)
}

// Watch implements registry.Registry.
func (r *Registry) Watch(ctx context.Context, kind, name string, f func(registry.Answer)) error {
	if err := r.await(ctx); err != nil {
		return err
	}
	return r.explain(r.table.Watch(ctx, kind, name, f))
}

func (r *Registry) await(ctx context.Context) error {
	r.start()
	select {
	case <-r.known:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", registry.ErrUnavailable, describe(r.cfg, context.Cause(ctx)))
	case <-r.ctx.Done():
		return fmt.Errorf("%w: closed", registry.ErrUnavailable)
	}
}

// explain adds the last failure to read the table to an error of the table.
func (r *Registry) explain(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if errors.Is(err, registry.ErrUnavailable) && r.failure != nil {
		return fmt.Errorf("%w: %w", err, r.failure)
	}
	return err
}

// An entry is a key of the cluster.
type entry struct {
	registry.Record
	created int64
	lease   clientv3.LeaseID
}

// A term is the remaining time of a lease.
type term struct {
	until   time.Time     // zero: the lease has expired
	granted time.Duration // whole length of the lease
}

// follow keeps the table equal to the cluster until the registry is closed.
func (r *Registry) follow() {
	var bell <-chan struct{} // rings after a change
	terms := make(map[clientv3.LeaseID]term)
	first := sync.OnceFunc(func() { close(r.known) })
	defer first()
	all := true // query every lease, not only new ones
	var next time.Time
	for r.ctx.Err() == nil {
		rev, err := r.read(terms, all)
		if r.ctx.Err() != nil {
			return
		}
		r.mu.Lock()
		was := r.failure
		r.failure = err
		r.mu.Unlock()
		if err != nil {
			if was == nil {
				r.cfg.Logger.Warn("the registry is out of reach, the last known names are used", "err", err)
			}
			r.table.SetStale()
			first()
			r.sleep(nil, retryPause)
			all = true
			continue
		}
		if was != nil {
			r.cfg.Logger.Info("the registry is in reach again")
		}
		first()
		if all {
			next = time.Now().Add(pause(terms))
		}
		if bell == nil {
			// The watch starts right after the read revision, so that no change is missed. A watch
			// older than the cluster's last compaction ends, and the table is read again.
			bell = r.watch(rev + 1)
		}
		rung, open := r.sleep(bell, time.Until(next))
		all = !rung
		if rung && open {
			r.sleep(nil, settle)
		}
		if rung && !open {
			bell, all = nil, true
			r.sleep(nil, settle)
		}
	}
}

// pause returns the time after which the table is read again even if nothing has changed.
func pause(terms map[clientv3.LeaseID]term) time.Duration {
	p := longestPause
	for _, t := range terms {
		p = min(p, t.granted/parts)
	}
	return max(p, shortestPause)
}

// sleep returns when bell rings or is closed, when d has passed, or when the registry is closed.
// rung is true in the first two cases, and open is false only if bell is closed.
func (r *Registry) sleep(bell <-chan struct{}, d time.Duration) (rung, open bool) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case _, open = <-bell:
		return true, open
	case <-t.C:
	case <-r.ctx.Done():
	}
	return false, true
}

// watch returns a channel that receives a value after a change. The channel is closed when the
// watch has ended.
func (r *Registry) watch(rev int64) <-chan struct{} {
	bell := make(chan struct{}, 1)
	ctx, stop := context.WithCancel(clientv3.WithRequireLeader(r.ctx))
	events := r.client.Watch(ctx, r.prefix, clientv3.WithPrefix(), clientv3.WithRev(rev))
	r.wg.Go(func() {
		defer stop()
		defer close(bell)
		for resp := range events {
			if err := resp.Err(); err != nil {
				if ctx.Err() == nil {
					r.cfg.Logger.Debug("the watch of the registry has ended, reading all names again", "err", err)
				}
				return
			}
			if len(resp.Events) > 0 {
				select {
				case bell <- struct{}{}:
				default:
				}
			}
		}
	})
	return bell
}

// read sets the table to the contents of the cluster and returns the revision of the contents. read
// queries leases missing from terms, or every lease if all is set.
func (r *Registry) read(terms map[clientv3.LeaseID]term, all bool) (int64, error) {
	ctx, cancel := r.request(r.ctx)
	defer cancel()
	resp, err := r.client.Get(ctx, r.prefix, clientv3.WithPrefix())
	if err != nil {
		return 0, describe(r.cfg, err)
	}
	entries := make([]entry, 0, len(resp.Kvs))
	used := make(map[clientv3.LeaseID]bool)
	for _, kv := range resp.Kvs {
		if e, ok := r.entry(kv); ok {
			entries = append(entries, e)
			if e.lease != 0 {
				used[e.lease] = true
			}
		}
	}
	for id := range terms {
		if all || !used[id] {
			delete(terms, id)
		}
	}
	if err := r.ask(ctx, used, terms); err != nil {
		return 0, describe(r.cfg, err)
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return cmp.Compare(a.created, b.created) })
	var records []registry.Record
	for _, e := range entries {
		if e.lease != 0 {
			if e.Until = terms[e.lease].until; e.Until.IsZero() {
				continue
			}
		}
		records = append(records, e.Record)
	}
	if err := r.table.Set(records); err != nil {
		r.cfg.Logger.Debug("a key of the registry is left out", "err", err)
	}
	return resp.Header.Revision, nil
}

func (r *Registry) entry(kv *mvccpb.KeyValue) (e entry, ok bool) {
	f := strings.SplitN(strings.TrimPrefix(string(kv.Key), r.prefix), "/", 3)
	if len(f) < 2 {
		return e, false
	}
	e.Record = registry.Record{Kind: f[0], Name: f[1], Value: strings.TrimSpace(string(kv.Value))}
	e.created, e.lease = kv.CreateRevision, clientv3.LeaseID(kv.Lease)
	return e, true
}

// ask queries the remaining time of the leases without a term.
func (r *Registry) ask(ctx context.Context, used map[clientv3.LeaseID]bool, terms map[clientv3.LeaseID]term) error {
	var mu sync.Mutex // guards err and terms
	var failed error
	var wg sync.WaitGroup
	room := make(chan struct{}, asking)
	var wanted []clientv3.LeaseID
	for id := range used {
		if _, ok := terms[id]; !ok {
			wanted = append(wanted, id)
		}
	}
	for _, id := range wanted {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			// The term is counted from before the question and rounded down, so that the term never
			// ends later than in the cluster.
			asked := time.Now()
			resp, err := r.client.TimeToLive(ctx, id)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, rpctypes.ErrLeaseNotFound):
				terms[id] = term{}
			case err != nil:
				failed = err
			case resp.TTL <= 0:
				terms[id] = term{granted: time.Duration(resp.GrantedTTL) * time.Second}
			default:
				terms[id] = term{asked.Add(time.Duration(resp.TTL) * time.Second),
					time.Duration(resp.GrantedTTL) * time.Second}
			}
		})
	}
	wg.Wait()
	return failed
}

// Register implements registry.Registry. The cluster counts leases in seconds and may raise a short
// length to the cluster's minimum.
func (r *Registry) Register(ctx context.Context, rec registry.Record, length time.Duration) (registry.Lease, error) {
	if err := rec.Check(); err != nil {
		return nil, err
	}
	ctx, cancel := r.request(ctx)
	defer cancel()
	refused := func(err error) error {
		return fmt.Errorf("%w: %s can't be registered: %w", registry.ErrUnavailable, rec.Name, describe(r.cfg, err))
	}
	g, err := r.client.Grant(ctx, max(1, int64(length/time.Second)))
	if err != nil {
		return nil, refused(err)
	}
	l := &lease{r: r, id: g.ID, key: r.prefix + rec.Kind + "/" + rec.Name + "/" + strconv.FormatUint(uint64(g.ID), 16)}
	if _, err := r.client.Put(ctx, l.key, rec.Value, clientv3.WithLease(g.ID)); err != nil {
		return nil, errors.Join(refused(err), l.Release(ctx))
	}
	return l, nil
}

// A lease is an etcd lease with one key.
type lease struct {
	r   *Registry
	id  clientv3.LeaseID
	key string
}

func (l *lease) Renew(ctx context.Context) error {
	ctx, cancel := l.r.request(ctx)
	defer cancel()
	_, err := l.r.client.KeepAliveOnce(ctx, l.id)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return registry.ErrLeaseLost
	}
	if err != nil {
		return fmt.Errorf("%w: %w", registry.ErrUnavailable, describe(l.r.cfg, err))
	}
	resp, err := l.r.client.Get(ctx, l.key, clientv3.WithCountOnly())
	if err != nil {
		return fmt.Errorf("%w: %w", registry.ErrUnavailable, describe(l.r.cfg, err))
	}
	if resp.Count == 0 { // somebody deleted the key
		l.Release(ctx)
		return registry.ErrLeaseLost
	}
	return nil
}

func (l *lease) Release(ctx context.Context) error {
	ctx, cancel := l.r.request(ctx)
	defer cancel()
	_, err := l.r.client.Revoke(ctx, l.id)
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("%w: %w", registry.ErrUnavailable, describe(l.r.cfg, err))
	}
	return nil
}
