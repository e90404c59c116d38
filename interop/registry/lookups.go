package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"viaduct/internal/wire/portmapwire"
	"viaduct/interop/internal/proc"
	"viaduct/portmap"
)

// A service is a looked-up name, with the results of the lookups.
type service struct {
	conventional netip.AddrPort

	mu     sync.Mutex
	sdp    netip.AddrPort
	good   int           // answered lookups
	bad    int           // unanswered lookups
	since  time.Time     // time of the last answered lookup; zero means none yet
	gap    time.Duration // longest time between two answered lookups, if must is set
	must   bool          // every lookup must be answered
	gone   time.Time     // no lookup may be answered from then on; zero means no limit
	late   int           // lookups that were answered after gone
	marked bool          // the last answer was valid for one connection only
}

// Lookups per second in total. The lookups come from several addresses of the host, so that each
// address stays below the rate limit of a Port Mapper.
const (
	rate    = 500
	sources = 5
)

// lookUp sends lookups for the services in turn, rate per second, until ctx ends.
func lookUp(ctx context.Context, mapper netip.AddrPort, services []*service) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	conns := make([]*net.UDPConn, sources)
	pending := make([]map[uint64]*question, sources)
	var mu sync.Mutex // guards the maps
	for i := range conns {
		local := netip.AddrFrom4([4]byte{127, 0, 0, byte(2 + i)})
		c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(local, 0)), net.UDPAddrFromAddrPort(mapper))
		if err != nil {
			return err
		}
		defer c.Close()
		conns[i], pending[i] = c, map[uint64]*question{}
		wg.Go(func() {
			b := make([]byte, portmapwire.MessageLen)
			for {
				n, err := c.Read(b)
				if err != nil {
					if ctx.Err() != nil {
						return
					}
					continue
				}
				m, err := portmapwire.Parse(b[:n])
				if err != nil {
					continue
				}
				mu.Lock()
				q := pending[i][m.AssocHandle]
				delete(pending[i], m.AssocHandle)
				mu.Unlock()
				if q != nil {
					q.answered(m)
				}
			}
		})
		context.AfterFunc(ctx, func() { c.Close() })
	}
	tick := time.NewTicker(time.Second / rate)
	defer tick.Stop()
	for n := uint64(1); ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		i, s := int(n%sources), services[int(n/sources)%len(services)]
		q := &question{s, time.Now()}
		m := portmapwire.Message{Type: portmapwire.Request, AssocHandle: n, Cp: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(1024+n%60000)), Ap: s.conventional}
		mu.Lock()
		pending[i][n] = q
		for h, o := range pending[i] {
			if q.at.Sub(o.at) > time.Second {
				delete(pending[i], h)
				o.service.count(false, o.at, false)
			}
		}
		mu.Unlock()
		conns[i].Write(m.Append(nil))
	}
}

// slack is how much longer than its cause a time without an answer may be. The causes themselves
// would take a lease, so a busy machine has all but a second of that.
const slack = lease - time.Second

// A question is an outstanding lookup.
type question struct {
	service *service
	at      time.Time
}

func (q *question) answered(m portmapwire.Message) {
	q.service.mu.Lock()
	good := m.Type == portmapwire.Accept && m.Ap == q.service.sdp
	q.service.mu.Unlock()
	q.service.count(good, q.at, portmap.PmTime(m.PmTime) == portmap.Once)
}

// count records the outcome of a lookup sent at time at.
func (s *service) count(good bool, at time.Time, marked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !good {
		s.bad++
		return
	}
	s.good++
	if !s.gone.IsZero() && !at.Before(s.gone) {
		s.late++
	}
	if s.must && !s.since.IsZero() {
		s.gap = max(s.gap, at.Sub(s.since))
	}
	s.since, s.marked = at, marked
}

// begin resets the counts. From now on every lookup must be answered if must is set, and none that
// is sent after gone may be answered unless gone is zero.
func (s *service) begin(must bool, gone time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.good, s.bad, s.gap, s.late, s.must, s.gone = 0, 0, 0, 0, must, gone
	if !must {
		s.since = time.Time{}
	}
}

// await waits until is returns true for the results of the running lookups. After proc.Patience
// await returns an error containing what.
func (s *service) await(ctx context.Context, what string, is func(*service) bool) error {
	for end := time.Now().Add(proc.Patience); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		s.mu.Lock()
		ok := is(s)
		s.mu.Unlock()
		if ok {
			return nil
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Errorf("%v: not %s within %v (%d lookups good, %d not)", s.conventional, what, proc.Patience, s.good, s.bad)
}

// there waits for two answered lookups in a row.
func (s *service) there(ctx context.Context) error {
	s.begin(false, time.Time{})
	return s.await(ctx, "answered", func(s *service) bool { return s.good > 1 })
}

// absent waits until at least four lookups have had no answer, for at least a quarter of a second.
func (s *service) absent(ctx context.Context) error {
	return s.await(ctx, "gone", func(s *service) bool { return s.bad > 3 && time.Since(s.since) > time.Second/4 })
}
