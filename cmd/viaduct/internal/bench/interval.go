package bench

import (
	"slices"
	"sync"
	"time"
)

// An Interval is the result of one interval of a measurement.
type Interval struct {
	Transport string  `json:"transport"`
	Op        string  `json:"op"`
	Size      int     `json:"size"`
	Doorbell  int     `json:"doorbell,omitempty"`
	Conns     int     `json:"connections"`
	Round     int     `json:"round"` // from 1 on
	From      float64 `json:"from"`  // seconds since the measurement began
	To        float64 `json:"to"`
	Done      int     `json:"done"` // messages, round trips or connections
	Unit      string  `json:"unit"`
	Value     float64 `json:"value"` // in Unit; 0 if nothing was done
}

// A meter counts the operations of a measurement and reports them every interval. A nil meter does
// nothing, so that a measurement without reports pays one comparison per operation.
type meter struct {
	every time.Duration
	tell  func(Interval)
	s     spec
	round int

	mu    sync.Mutex
	done  int             // guarded by mu: operations since the last interval
	trips []time.Duration // guarded by mu: round trips since the last interval
}

// meter returns the meter of one measurement, or nil if nobody watches.
func (p *Plan) meter(s spec, round int) *meter {
	if p.Interval <= 0 || p.Tell == nil {
		return nil
	}
	return &meter{every: p.Interval, tell: p.Tell, s: s, round: round}
}

func (m *meter) add(n int) {
	if m == nil {
		return
	}
	m.mu.Lock()
	m.done += n
	m.mu.Unlock()
}

func (m *meter) trip(d time.Duration) {
	if m == nil {
		return
	}
	m.mu.Lock()
	m.done++
	m.trips = append(m.trips, d)
	m.mu.Unlock()
}

// watch reports intervals until end is called. end reports the last, shorter interval, and may be
// called again.
func (m *meter) watch() (end func()) {
	if m == nil {
		return func() {}
	}
	begin, from := time.Now(), time.Duration(0)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(m.every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				to := time.Since(begin)
				m.tell(m.take(from, to))
				from = to
			case <-stop:
				if i := m.take(from, time.Since(begin)); i.Done > 0 {
					m.tell(i)
				}
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(stop)
		<-ended
	})
}

// take returns the operations counted since the last call, as an interval.
func (m *meter) take(from, to time.Duration) Interval {
	m.mu.Lock()
	done, trips := m.done, m.trips
	m.done, m.trips = 0, nil
	m.mu.Unlock()
	i := Interval{Transport: m.s.Transport, Op: m.s.Op, Size: m.s.Size, Conns: m.s.Conns, Round: m.round,
		From: from.Seconds(), To: to.Seconds(), Done: done, Unit: Unit(m.s.Op)}
	if m.s.Op == OpRate {
		i.Doorbell = m.s.Doorbell
	}
	switch i.Unit {
	case "us":
		if slices.Sort(trips); len(trips) > 0 {
			i.Value = float64(trips[len(trips)/2].Nanoseconds()) / 1000
		}
	case "bytes/s":
		i.Value = float64(done) * float64(m.s.Size) / (i.To - i.From)
	default:
		i.Value = float64(done) / (i.To - i.From)
	}
	return i
}
