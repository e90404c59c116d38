package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"viaduct/internal/status"
	"viaduct/samehost"
)

// A Client drives measurements against a server.
type Client struct {
	c   net.Conn
	in  *json.Decoder
	out *json.Encoder
	// host is where the server's lanes listen.
	host   string
	status *status.Server
}

// Dial connects to the control address of a server. shown, which may be nil, lists the connections
// of measurements.
func Dial(ctx context.Context, at string, shown *status.Server) (*Client, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", at)
	if err != nil {
		return nil, err
	}
	host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
	if ip := net.ParseIP(host); ip != nil && ip.To4() == nil {
		host = "[" + host + "]"
	}
	return &Client{c: c, in: json.NewDecoder(c), out: json.NewEncoder(c), host: host, status: shown}, nil
}

// Close ends the control connection. The server then closes the connections of the measurement.
func (c *Client) Close() error { return c.c.Close() }

func (c *Client) ask(q request) (answer, error) {
	if err := c.out.Encode(q); err != nil {
		return answer{}, err
	}
	return c.hear()
}

func (c *Client) hear() (a answer, err error) {
	if err := c.in.Decode(&a); err != nil {
		return a, fmt.Errorf("bench: the server is gone: %w", err)
	}
	if a.Error != "" {
		return a, errors.New("bench: server: " + a.Error)
	}
	return a, nil
}

// A sample is the outcome of one measurement.
type sample struct {
	value     float64 // in the unit of the operation
	bytes     float64
	messages  float64
	seconds   float64
	cpuClient float64 // seconds
	cpuServer float64
	path      samehost.Path // path of the last connection
}

// measureTime bounds how long a measurement may take in addition to the planned time.
const measureTime = 60 * time.Second

// measure runs one spec for about d. count, which may be nil, counts the operations.
func (c *Client) measure(ctx context.Context, s spec, d time.Duration, count *meter) (m sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, d+measureTime)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { c.c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	defer func() {
		if ctx.Err() != nil && err != nil {
			err = context.Cause(ctx)
		}
	}()
	s.Host = c.host
	a, err := c.ask(request{Cmd: "open", Spec: s})
	if err != nil {
		return m, err
	}
	defer c.ask(request{Cmd: "close"})
	before := memory()
	var serverBefore int64
	if s.Op == OpIdle {
		b, err := c.ask(request{Cmd: "memory"})
		if err != nil {
			return m, err
		}
		serverBefore = b.Memory
	}
	dl, err := newDialer(s, a.URL)
	if err != nil {
		return m, err
	}
	defer dl.close()
	if s.Op == OpSetup || s.Op == OpChurn {
		return c.setup(ctx, s, dl, d, count)
	}
	var lanes []dialed
	defer func() {
		for _, l := range lanes {
			l.close()
		}
	}()
	for range s.Conns {
		l, err := c.connect(ctx, dl)
		if err != nil {
			return m, err
		}
		lanes = append(lanes, l)
		m.path = l.path()
		s.show(c.status, l, a.URL, "dial")
	}
	if s.Op == OpIdle {
		select {
		case <-time.After(settled):
		case <-ctx.Done():
			return m, context.Cause(ctx)
		}
		b, err := c.ask(request{Cmd: "memory"})
		if err != nil {
			return m, err
		}
		// The result is the memory per end: the memory of both processes, divided by all ends.
		m.value = float64(memory()-before+b.Memory-serverBefore) / float64(2*s.Conns)
		return m, nil
	}
	err = c.drive(ctx, s, lanes, d, &m, count)
	return m, err
}

// connect opens one lane and receives the memory the client may use.
func (c *Client) connect(ctx context.Context, dl dialer) (dialed, error) {
	if err := c.out.Encode(request{Cmd: "accept"}); err != nil {
		return nil, err
	}
	l, err := dl.dial(ctx)
	if err != nil {
		return nil, err
	}
	a, err := c.hear()
	if err != nil {
		l.close()
		return nil, err
	}
	l.use(a.Target)
	return l, nil
}

// maxSetups bounds the connections of one measurement. TCP keeps the port of each connection in
// TIME_WAIT for a minute. To find a free port among many ports in TIME_WAIT would take longer than
// the set-up itself.
const maxSetups = 8000

// setup makes and ends connections, one after the other. For OpSetup, only the set-up counts: from
// the dial until the arrival of a message sent by the other side after accepting. Both ends can
// send then. Before the next set-up, both sides have closed the connection.
func (c *Client) setup(ctx context.Context, s spec, dl dialer, d time.Duration, count *meter) (m sample, err error) {
	if _, err := c.ask(request{Cmd: "churn"}); err != nil {
		return m, err
	}
	cpu, start := cpuSeconds(), time.Now()
	watched := count.watch()
	defer watched()
	var took time.Duration
	n := 0
	for n == 0 || n < maxSetups && time.Since(start) < d {
		was := time.Now()
		l, err := dl.dial(ctx)
		if err != nil {
			return m, err
		}
		if s.Op == OpSetup {
			if k, err := l.recv(ctx, false); err != nil || k != s.Size {
				l.close()
				return m, fmt.Errorf("bench: %d bytes of the first message: %w", k, err)
			}
			took += time.Since(was)
		}
		m.path = l.path()
		l.close()
		n++
		count.add(1)
	}
	watched()
	m.seconds, m.messages, m.cpuClient = time.Since(start).Seconds(), float64(n), cpuSeconds()-cpu
	if s.Op == OpSetup {
		m.seconds = took.Seconds()
	}
	m.value = m.messages / m.seconds
	a, err := c.ask(request{Cmd: "finish"})
	m.cpuServer = a.CPU
	return m, err
}

// drive runs the client's side of all lanes at once for about d, and stores the outcome in m.
func (c *Client) drive(ctx context.Context, s spec, lanes []dialed, d time.Duration, m *sample, count *meter) error {
	if _, err := c.ask(request{Cmd: "go"}); err != nil {
		return err
	}
	counts := make([]int, len(lanes))
	trips := make([][]time.Duration, len(lanes))
	errs := make([]error, len(lanes))
	var wg sync.WaitGroup
	watched := count.watch()
	cpu, start := cpuSeconds(), time.Now()
	for i, l := range lanes {
		wg.Go(func() {
			switch s.Op {
			case OpPoll, OpWait:
				trips[i], errs[i] = pingPong(ctx, s, l, start.Add(d), count)
				counts[i] = len(trips[i])
			default:
				counts[i], errs[i] = push(ctx, s, l, start.Add(d), count)
			}
		})
	}
	wg.Wait()
	m.seconds, m.cpuClient = time.Since(start).Seconds(), cpuSeconds()-cpu
	watched()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	a, err := c.ask(request{Cmd: "finish"})
	if err != nil {
		return err
	}
	m.cpuServer = a.CPU
	for _, n := range counts {
		m.messages += float64(n)
	}
	m.bytes = m.messages * float64(s.Size)
	switch s.Op {
	case OpPoll, OpWait:
		all := slices.Concat(trips...)
		slices.Sort(all)
		m.value = float64(all[len(all)/2].Nanoseconds()) / 1000
	case OpRate:
		m.value = m.messages / m.seconds
	default:
		m.value = m.bytes / m.seconds
	}
	return nil
}

// push keeps the window full until the time is over, and posts at least once. push returns the
// number of posted operations. After a nil error, the other side has received every operation.
func push(ctx context.Context, s spec, l lane, end time.Time, count *meter) (n int, err error) {
	w, batch, out := s.window(), max(1, s.Doorbell), 0
	for i := 0; ; i++ {
		if i&15 == 0 && i > 0 && time.Now().After(end) {
			break
		}
		for out+batch > w {
			k, err := l.reap(ctx, false)
			if err != nil {
				return n, err
			}
			out -= k
			count.add(k)
		}
		if err := l.post(batch); err != nil {
			return n, err
		}
		out += batch
		n += batch
	}
	for out > 0 {
		k, err := l.reap(ctx, false)
		if err != nil {
			return n, err
		}
		out -= k
		count.add(k)
	}
	return n, finish(ctx, l)
}

// finish ends a measurement and waits until the other side has received everything.
func finish(ctx context.Context, l lane) error {
	if err := l.send(ctx, endSize, false); err != nil {
		return err
	}
	for {
		n, err := l.recv(ctx, false)
		if err != nil {
			return err
		}
		if n == endSize {
			return nil
		}
	}
}

// pingPong measures round trips until the time is over. pingPong measures at least one round trip,
// because on a busy machine the time may be over before the first.
func pingPong(ctx context.Context, s spec, l lane, end time.Time, count *meter) (trips []time.Duration, err error) {
	poll := s.Op == OpPoll
	for was := time.Now(); len(trips) == 0 || was.Before(end); {
		if err := l.send(ctx, s.Size, poll); err != nil {
			return nil, err
		}
		if _, err := l.recv(ctx, poll); err != nil {
			return nil, err
		}
		now := time.Now()
		trips = append(trips, now.Sub(was))
		count.trip(now.Sub(was))
		was = now
	}
	return trips, finish(ctx, l)
}
