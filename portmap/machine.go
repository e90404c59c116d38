package portmap

import (
	"net/netip"
	"time"

	"viaduct/internal/wire/portmapwire"
)

// These limits are our choice, because the draft sets none.
const (
	// defaultLifetime is how long a request waits for the PMAck.
	defaultLifetime = 10 * time.Second
	// defaultMaxPending is the maximum number of requests waiting for a PMAck. An entry takes about
	// 200 bytes, so a full table takes some 3 MiB.
	defaultMaxPending = 16384
	// defaultRate and defaultBurst limit the datagrams accepted from a source (an IPv4 address or
	// an IPv6 /64). A host that dials faster without caching counts as a flood.
	defaultRate  = 200
	defaultBurst = 400
	// limiterSources is the maximum number of remembered sources, about 150 bytes each.
	limiterSources = 16384
	// maxPendingPerSource is the maximum number of per-request ports of a source.
	maxPendingPerSource = 256

	// defaultLifetime [D-62].
)

// Stats has the counters of a server. Each counter rises once per datagram unless its comment says
// otherwise.
type Stats struct {
	Received    uint64 // datagrams that reached the machine
	Accepts     uint64 // requests answered with PMAccept
	Denies      uint64 // requests answered with PMDeny
	Acks        uint64 // PMAck that matched a pending request
	Duplicates  uint64 // requests equal to a pending one
	Replaced    uint64 // pending requests replaced by a new AssocHandle
	Malformed   uint64 // dropped: short, unknown version or IP version
	RateLimited uint64 // dropped: the source has exceeded its rate
	Unmatched   uint64 // dropped: PMAck without a pending request, or a message that only servers send
	Expired     uint64 // pending requests whose time has passed; not datagrams
	Evicted     uint64 // pending requests evicted by newer ones; not datagrams
	Pending     uint64 // requests that wait for PMAck now
}

// A machine is the Port Mapper server without socket and clock. It gets datagrams and times, and
// returns answers. Times must not decrease. It is not safe for concurrent use.
type machine struct { // [SDP 7.4] [SDP 7.5.2]
	cfg     ServerConfig
	lim     *limiter
	pending map[fourTuple]*request
	head    request // ring in the order of deadlines; each deadline is now+Lifetime, so new requests come last
	// byHandle finds the request of a PMAck. A PMAck repeats the granted address instead of the
	// requested address.
	byHandle map[assoc]*request
	perSrc   map[netip.Prefix]int // number of pending requests with a port of their own
	stats    Stats
}

// A fourTuple holds the addresses a client wants to connect from and to: together with the
// AssocHandle, the draft's 5-tuple. [SDP-7.5-3]
type fourTuple struct{ cp, ap netip.AddrPort }

// An assoc identifies the transaction of a client.
type assoc struct {
	handle uint64
	cp     netip.AddrPort
}

// A request is an accepted request before its PMAck.
type request struct {
	prev, next *request
	key        fourTuple
	handle     uint64
	source     netip.Addr     // source of the datagram
	target     netip.AddrPort // address in the answer
	deadline   time.Time
	release    func(confirmed bool) // releases the port that was opened for this request; nil if there is none
}

// newMachine returns a server machine with cfg.
func newMachine(cfg ServerConfig) *machine {
	if cfg.Registry == nil {
		cfg.Registry = NewRegistry()
	}
	if cfg.Lifetime <= 0 {
		cfg.Lifetime = defaultLifetime
	}
	if cfg.MaxPending <= 0 {
		cfg.MaxPending = defaultMaxPending
	}
	if cfg.Rate == 0 {
		cfg.Rate = defaultRate
	}
	if cfg.Burst <= 0 {
		cfg.Burst = defaultBurst
	}
	m := &machine{
		cfg:     cfg,
		lim:     newLimiter(cfg.Rate, float64(cfg.Burst), limiterSources),
		pending: make(map[fourTuple]*request),
		perSrc:  make(map[netip.Prefix]int),

		byHandle: make(map[assoc]*request),
	}
	m.head.prev, m.head.next = &m.head, &m.head
	return m
}

// Handle handles a datagram and appends the answer, if any, to reply. The caller sends the answer
// to the source of the datagram.
func (m *machine) Handle(now time.Time, from netip.Addr, b, reply []byte) []byte {
	m.Expire(now)
	m.stats.Received++
	if !m.lim.allow(now, from) {
		m.stats.RateLimited++ // no answer, so that the server does not amplify a flood [D-61]
		return reply
	}
	msg, err := portmapwire.Parse(b)
	if err != nil {
		m.stats.Malformed++ // [SDP-7.3.1.1-1] [SDP-7.3.1.3-1] [D-61]
		return reply
	}
	switch msg.Type {
	case portmapwire.Request:
		return m.handleRequest(now, from, msg, reply)
	case portmapwire.Ack:
		m.handleAck(msg)
	case portmapwire.Accept, portmapwire.Deny: // messages that only servers send
		m.stats.Unmatched++
	}
	return reply
}

func (m *machine) handleRequest(now time.Time, from netip.Addr, msg portmapwire.Message, reply []byte) []byte {
	msg.PmTime = 0 // the field has no meaning in a request [SDP-7.4-8]
	key := fourTuple{msg.Cp, msg.Ap}
	old := m.pending[key]
	if old != nil && old.handle == msg.AssocHandle {
		m.stats.Duplicates++ // [SDP-7.5-3]
	}

	// Every request, even a duplicate, is answered from the current state of the service.
	// [SDP-7.5.2-7] [SDP-7.5.2-4]
	svc, ok := m.cfg.Registry.lookup(msg.Ap)
	if !ok && m.cfg.More != nil {
		svc, ok = m.cfg.More.lookup(msg.Ap)
	}
	if !ok || msg.Ap.Port() == 0 {
		if old != nil {
			m.drop(old, false)
		}
		return m.deny(msg, reply) // [SDP-7.4-33]
	}
	if old != nil && old.handle == msg.AssocHandle && (old.release != nil || svc.Open == nil) {
		// A duplicate gets the same answer and restarts the timer. [SDP-7.5.2-5]
		life, ok := svc.PmTime, true
		if svc.Open == nil {
			life, ok = svc.serves(now, old.target, msg.Ap)
		}
		if ok {
			m.arm(old, now)
			return m.accept(msg, old.target, life, reply)
		}
	}

	if old != nil {
		// A newer request of the same four-tuple replaces the older request, whose port is closed.
		// The newer request is treated as a first request. [SDP-7.5.2-8] [D-67]
		if old.handle != msg.AssocHandle {
			m.stats.Replaced++
		}
		m.drop(old, false)
	}
	target, life, release, ok := m.open(now, svc, from, msg)
	if !ok {
		return m.deny(msg, reply)
	}
	m.add(&request{key: key, handle: msg.AssocHandle, source: from, target: target, release: release}, now)
	return m.accept(msg, target, life, reply) // [SDP-7.4-14]
}

// open chooses the target of the requested family for the answer, and the lifetime. If the service
// opens a port for each request, the third result releases the port, otherwise the third result is
// nil. The last result is false if the request must be denied.
func (m *machine) open(now time.Time, svc *service, from netip.Addr, msg portmapwire.Message) (netip.AddrPort, PmTime, func(bool), bool) {
	if svc.Open == nil {
		t, life, ok := svc.pick(now, msg.Ap)
		return inFormOf(msg.Ap, t), life, nil, ok
	}
	// A port per request is a scarce resource. If the table is full, the request is denied, because
	// otherwise another client's port would be closed early. No source gets more than
	// maxPendingPerSource ports.
	if len(m.pending) >= m.cfg.MaxPending || m.perSrc[sourceOf(from)] >= maxPendingPerSource {
		return netip.AddrPort{}, 0, nil, false
	}
	t, release, err := svc.Open(msg.Cp, msg.Ap)
	if err != nil {
		return netip.AddrPort{}, 0, nil, false
	}
	asked := msg.Ap.Addr().Unmap()
	t = netip.AddrPortFrom(t.Addr().Unmap().WithZone(""), t.Port())
	if !t.Addr().IsValid() || t.Addr().IsUnspecified() {
		t = netip.AddrPortFrom(asked, t.Port())
	}
	if release == nil {
		release = func(bool) {}
	}
	if t.Port() == 0 || t.Addr().Is4() != asked.Is4() {
		release(false)
		return netip.AddrPort{}, 0, nil, false
	}
	return inFormOf(msg.Ap, t), svc.PmTime, release, true
}

// inFormOf returns target, mapped into IPv6 if asked is an IPv6 address. An answer has the IPV of
// its request. [SDP-7.4-17]
func inFormOf(asked, target netip.AddrPort) netip.AddrPort {
	if !asked.Addr().Is4() {
		return netip.AddrPortFrom(netip.AddrFrom16(target.Addr().As16()), target.Port())
	}
	return target
}

func (m *machine) handleAck(msg portmapwire.Message) {
	// A PMAck repeats the PMAccept, so the Ap of a PMAck is the granted address. The handle and the
	// client's address identify the request. [SDP-7.5.2-6]
	if r := m.byHandle[assoc{msg.AssocHandle, msg.Cp}]; r != nil && r.target == msg.Ap {
		m.stats.Acks++
		m.drop(r, true)
		return
	}
	m.stats.Unmatched++ // [SDP-7.5.2-6]
}

// Connected reports that a connection from cp has arrived at the SDP address ap. Connected has the
// same effect as a PMAck, and none if no pending request has these addresses.
func (m *machine) Connected(cp, ap netip.AddrPort) { // [SDP-7.5.2-1]
	same := func(a, b netip.AddrPort) bool { return a.Port() == b.Port() && a.Addr().Unmap() == b.Addr().Unmap() }
	for r := m.head.next; r != &m.head; r = r.next {
		if same(r.key.cp, cp) && same(r.target, ap) {
			m.drop(r, true)
			return
		}
	}
}

// Expire drops every request whose deadline has passed and releases the port of the request. Handle
// calls Expire too. So no request outlives its time, whatever datagram was lost. Existing
// connections are not affected.
func (m *machine) Expire(now time.Time) { // [SDP-7.2-1] [SDP-7.5.2-2] [SDP-7.5.2-3] [SDP-7.5-1]
	for r := m.head.next; r != &m.head && !now.Before(r.deadline); r = m.head.next {
		m.stats.Expired++
		m.drop(r, false)
	}
}

// Deadline returns the time when Expire is due; ok is false if no request is pending.
func (m *machine) Deadline() (t time.Time, ok bool) {
	if m.head.next == &m.head {
		return time.Time{}, false
	}
	return m.head.next.deadline, true
}

// Close releases every pending request.
func (m *machine) Close() {
	for m.head.next != &m.head {
		m.drop(m.head.next, false)
	}
}

// Stats returns the counters.
func (m *machine) Stats() Stats {
	s := m.stats
	s.Pending = uint64(len(m.pending))
	return s
}

func (m *machine) accept(req portmapwire.Message, target netip.AddrPort, t PmTime, reply []byte) []byte {
	m.stats.Accepts++
	req.Type, req.PmTime, req.Ap = portmapwire.Accept, uint8(t), target // [SDP-7.4-18] [SDP-7.4-19] [SDP-7.4-23]
	return req.Append(reply)                                            // all other fields repeat the request [SDP-7.4-16] [SDP-7.4-17] [SDP-7.4-20] [SDP-7.4-21] [SDP-7.4-22]
}

// deny appends an answer that repeats the request, including ApPort. [SDP-7.4-35] [SDP-7.4-36]
// [SDP-7.4-37] [SDP-7.4-38] [SDP-7.3.1.6-2] [D-60]
func (m *machine) deny(req portmapwire.Message, reply []byte) []byte {
	m.stats.Denies++
	req.Type = portmapwire.Deny
	return req.Append(reply)
}

// add stores r. If the table is full, the oldest entry without a port of its own is evicted,
// because only the counters depend on entries without a port. If each entry has a port, r is not
// stored.
func (m *machine) add(r *request, now time.Time) {
	if len(m.pending) >= m.cfg.MaxPending {
		for o := m.head.next; o != &m.head; o = o.next {
			if o.release == nil {
				m.stats.Evicted++
				m.drop(o, false)
				break
			}
		}
		if len(m.pending) >= m.cfg.MaxPending {
			return // only a port needs an entry, so a static answer is not stored
		}
	}
	if r.release != nil {
		m.perSrc[sourceOf(r.source)]++
	}
	m.pending[r.key] = r
	m.byHandle[assoc{r.handle, r.key.cp}] = r
	m.arm(r, now)
}

// arm starts or restarts the timer of r. [SDP-7.5.2-1]
func (m *machine) arm(r *request, now time.Time) {
	if r.next != nil {
		r.prev.next, r.next.prev = r.next, r.prev
	}
	r.deadline = now.Add(m.cfg.Lifetime)
	r.prev, r.next = m.head.prev, &m.head
	r.prev.next, r.next.prev = r, r
}

// drop removes r and releases the port of r, if any.
func (m *machine) drop(r *request, confirmed bool) {
	r.prev.next, r.next.prev = r.next, r.prev
	delete(m.pending, r.key)
	if k := (assoc{r.handle, r.key.cp}); m.byHandle[k] == r {
		delete(m.byHandle, k)
	}
	if r.release != nil {
		release := r.release
		m.unlinkPort(r)
		release(confirmed)
	}
}

// unlinkPort removes the port from r without releasing it.
func (m *machine) unlinkPort(r *request) {
	r.release = nil
	k := sourceOf(r.source)
	if m.perSrc[k]--; m.perSrc[k] <= 0 {
		delete(m.perSrc, k)
	}
}
