package perftest

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"viaduct/iwarp"
)

// Port is the TCP port of the tools.
const Port = 18515

// A Test names a tool.
type Test uint8

// The tests.
const (
	WriteBW Test = iota // the client writes into the server's memory
	ReadBW              // the client reads the server's memory
	SendBW              // the client sends messages
)

// String returns the name of the tool.
func (t Test) String() string {
	switch t {
	case WriteBW:
		return "ib_write_bw"
	case ReadBW:
		return "ib_read_bw"
	case SendBW:
		return "ib_send_bw"
	}
	return fmt.Sprintf("Test(%#02x)", uint8(t))
}

// Defaults and bounds.
const (
	DefaultSize  = 65536 // bytes per message
	DefaultCount = 1000  // messages
	DefaultDepth = 128   // messages in flight
	MinCount     = 5
	MaxSize      = 64 << 20
	MaxDepth     = 512

	// Reads is the number of RDMA Reads allowed by both ends of ib_read_bw, the limit of Linux's
	// software adapter.
	Reads = 128

	// receives is the depth of the receive queue of ib_send_bw, unless there
	// are fewer messages.
	receives = 512
	// maxMemory bounds the buffers of a run.
	maxMemory = 256 << 20
)

// Options of both roles. They must be the same at both ends, except Depth and Verify. The zero
// value is ib_write_bw with the defaults.
type Options struct {
	Test  Test
	Size  int // bytes per message, option -s of the tools; 0 means DefaultSize
	Count int // messages, option -n; 0 means DefaultCount, at least MinCount

	Depth  int  // client: messages in flight, option -t; 0 means DefaultDepth
	Verify bool // check received contents: server of Writes and Sends, client of Reads

	// Settle, if set, is called by the client of Writes after TCP has accepted all Writes, and
	// before the client reports the end of the run to the server. The server of the tools then
	// closes without waiting for Writes in flight. On Linux the client waits for TCP's
	// acknowledgement. Waiting is not enough if a device before the server's host sends the
	// acknowledgement.
	Settle func(context.Context) error
}

// Errors of a completed run. Test with errors.Is.
var (
	ErrContents = errors.New("perftest: wrong contents")
	ErrCount    = errors.New("perftest: wrong count")
)

// check sets the defaults and checks the options.
func (o *Options) check() error {
	if o.Size == 0 {
		o.Size = DefaultSize
	}
	if o.Count == 0 {
		o.Count = DefaultCount
	}
	if o.Depth == 0 {
		o.Depth = DefaultDepth
	}
	switch {
	case o.Test > SendBW:
		return fmt.Errorf("perftest: no test %v", o.Test)
	case o.Size < 1 || o.Size > MaxSize:
		return fmt.Errorf("perftest: size %d, want 1 to %d", o.Size, MaxSize)
	case o.Count < MinCount:
		return fmt.Errorf("perftest: count %d, want %d or more", o.Count, MinCount)
	case o.Depth < 1 || o.Depth > MaxDepth:
		return fmt.Errorf("perftest: depth %d, want 1 to %d", o.Depth, MaxDepth)
	case o.Test == SendBW && o.receives()*o.Size > maxMemory:
		return fmt.Errorf("perftest: %d receive buffers of %d bytes, at most %d bytes in all", o.receives(), o.Size, maxMemory)
	}
	if o.Test == ReadBW {
		o.Depth = max(1, min(o.Depth, maxMemory/o.Size))
	}
	return nil
}

// receives returns the even depth of the server's receive queue. Both sides calculate the depth.
func (o *Options) receives() int {
	n := min(receives, o.Count)
	return n + n%2
}

// A Result is the outcome of a run.
type Result struct {
	Test    Test
	Size    int           // bytes per message
	Count   int           // messages
	Elapsed time.Duration // client: from the first request to the last completion; server of Sends: between the first and the last message
	Peer    *Report       // server of Writes and Reads: the client's measurement

	// Verified is the number of messages whose contents were checked.
	Verified int
}

// Bytes returns the number of transferred bytes.
func (r *Result) Bytes() uint64 { return uint64(r.Size) * uint64(r.Count) }

// report returns r as the report of a client.
func (r *Result) report() Report {
	s := max(r.Elapsed, time.Nanosecond).Seconds()
	return Report{Size: uint64(r.Size), Count: uint64(r.Count), Average: float64(r.Bytes()) / (1 << 20) / s, Rate: float64(r.Count) / 1e6 / s}
}

// Config returns a copy of base, nil for the defaults, with the depths needed by opt. Both streams
// of a run are made with the copy.
func Config(base *iwarp.Config, opt Options) *iwarp.Config {
	c := new(iwarp.Config)
	if base != nil {
		*c = *base
	}
	c.IRD, c.ORD = -1, -1
	if opt.Test == ReadBW {
		c.IRD, c.ORD = Reads, Reads
	}
	if opt.check() == nil {
		c.SendDepth = max(opt.Depth, DefaultDepth)
		c.RecvDepth = max(opt.receives(), 2)
	}
	return c
}

// Dial runs the client's side against the server at addr, and closes. base may
// be nil.
func Dial(ctx context.Context, addr string, base *iwarp.Config, opt Options) (*Result, error) {
	return Client(ctx, func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", addr)
	}, base, opt)
}

// Client is Dial for a caller that makes the TCP connections: connect is called for each of the two
// streams, and again if the server is not ready.
func Client(ctx context.Context, connect func(context.Context) (net.Conn, error), base *iwarp.Config, opt Options) (*Result, error) {
	if err := opt.check(); err != nil {
		return nil, err
	}
	first, second := Config(base, opt), Config(base, opt)
	s := &session{opt: opt, client: true}
	first.Prepare = s.control.prepare
	q, err := dial(ctx, connect, first)
	if err != nil {
		return nil, err
	}
	return s.run(ctx, q, func() (*iwarp.QueuePair, error) { return redial(ctx, connect, second) })
}

func dial(ctx context.Context, connect func(context.Context) (net.Conn, error), cfg *iwarp.Config) (*iwarp.QueuePair, error) {
	nc, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	return iwarp.Client(ctx, nc, cfg)
}

// The server of the tools announces the second stream before listening for the stream. So their
// client tries ten times; ours tries redials times, with pauses of redialPause.
const (
	redials     = 20
	redialPause = 100 * time.Millisecond
)

// redial connects, and tries again if the peer does not listen yet. On a forwarded port a missing
// listener appears as a connection that ends during start-up, so redial also tries again after such
// an end. A rejection ends the attempts.
func redial(ctx context.Context, connect func(context.Context) (net.Conn, error), cfg *iwarp.Config) (*iwarp.QueuePair, error) {
	for n := 1; ; n++ {
		q, err := dial(ctx, connect, cfg)
		if err == nil || n == redials {
			return q, err
		}
		if _, rejected := errors.AsType[*iwarp.RejectedError](err); rejected {
			return nil, err
		}
		select {
		case <-time.After(redialPause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// Serve runs the server's side for the next client of l, and closes both streams of the run. l must
// have been made with Config(base, opt) and serve nothing else meanwhile, because Serve assumes the
// second Request to come from the same client.
func Serve(ctx context.Context, l *iwarp.Listener, opt Options) (*Result, error) {
	if err := opt.check(); err != nil {
		return nil, err
	}
	r, err := l.AcceptRequest(ctx)
	if err != nil {
		return nil, err
	}
	s := &session{opt: opt}
	if err := s.control.prepare(r.QueuePair()); err != nil {
		r.Reject(nil)
		return nil, err
	}
	q, err := r.Accept(nil)
	if err != nil {
		return nil, err
	}
	return s.run(ctx, q, func() (*iwarp.QueuePair, error) { return l.Accept(ctx) })
}

// A session is one run in one role.
type session struct {
	opt     Options
	client  bool
	control control
	data    *iwarp.QueuePair
	layout  layout
	peer    keys
	own     keys
}

// Page and cache line of ordinary processors in bytes, as reported by each side. The larger value
// of both sides applies.
const (
	cycleBuffer = 4096
	cacheLine   = 64
)

// finish ends a stream: in order if the run succeeded, otherwise at once, because a failed run's
// peer may wait on the other stream and never close this one.
func finish(q *iwarp.QueuePair, err *error) {
	if *err != nil {
		q.Abort()
	}
	q.Close()
}

// run executes the exchange in the package documentation, on the control stream q, and closes q.
// connect makes the second stream.
func (s *session) run(ctx context.Context, q *iwarp.QueuePair, connect func() (*iwarp.QueuePair, error)) (_ *Result, err error) {
	defer finish(q, &err)
	s.control.client = s.client
	if err := s.greet(ctx); err != nil {
		return nil, err
	}
	if err := s.sync(ctx, keys{}); err != nil {
		return nil, err
	}
	if s.data, err = connect(); err != nil {
		return nil, fmt.Errorf("perftest: second stream: %w", err)
	}
	defer finish(s.data, &err)
	if err := s.sync(ctx, keys{}); err != nil {
		return nil, err
	}
	w, err := s.worker()
	if err != nil {
		return nil, err
	}
	defer w.close()
	if err := s.describe(w.region()); err != nil {
		return nil, err
	}
	for range 3 {
		if err := s.sync(ctx, s.own); err != nil {
			return nil, err
		}
	}
	if s.opt.Test == SendBW {
		if err := s.sync(ctx, s.own); err != nil {
			return nil, err
		}
	}
	res := &Result{Test: s.opt.Test, Size: s.opt.Size, Count: s.opt.Count}
	if err := w.work(ctx, res); err != nil {
		return nil, err
	}
	if s.opt.Test != SendBW {
		if err := s.sync(ctx, s.own); err != nil {
			return nil, err
		}
		if err := s.reports(ctx, res); err != nil {
			return nil, err
		}
	}
	if err := s.sync(ctx, s.own); err != nil {
		return nil, err
	}
	if err := s.part(ctx); err != nil {
		return nil, err
	}
	return res, w.verify(res)
}

// greet exchanges version, buffer, cache line and MTU.
func (s *session) greet(ctx context.Context) error {
	b, err := s.control.exchange(ctx, appendVersion(nil, exchangeVersion))
	if err != nil {
		return err
	}
	if _, err := parseVersion(b); err != nil {
		return err
	}
	s.layout = layout{size: s.opt.Size, cycle: cycleBuffer, line: cacheLine}
	for _, v := range []struct {
		what   string
		p      *int
		lo, hi uint32
	}{{"buffer size", &s.layout.cycle, 1, 1 << 20}, {"cache line", &s.layout.line, 1, cycleBuffer}} {
		b, err := s.control.exchange(ctx, binary.BigEndian.AppendUint32(nil, uint32(*v.p)))
		if err != nil {
			return err
		}
		theirs, err := parseWord(v.what, b, v.lo, v.hi)
		if err != nil {
			return err
		}
		*v.p = max(*v.p, theirs)
	}
	if b, err = s.control.exchange(ctx, defaultMTU.append(nil)); err != nil {
		return err
	}
	_, err = parseMTU(b)
	return err
}

// sync exchanges keys, so that both sides also wait for each other.
func (s *session) sync(ctx context.Context, own keys) error {
	b, err := s.control.exchange(ctx, own.append(nil))
	if err != nil {
		return err
	}
	s.peer, err = parseKeys(b)
	return err
}

// describe sets our keys, with the address of m if m is not nil.
func (s *session) describe(m *iwarp.MemoryRegion) error {
	s.own = keys{outReads: 1, qpn: 2}
	if s.opt.Test == ReadBW {
		s.own.outReads = Reads
	}
	var r [3]byte
	if _, err := rand.Read(r[:]); err != nil {
		return err
	}
	s.own.psn = uint32(r[0])<<16 | uint32(r[1])<<8 | uint32(r[2])
	if a, ok := s.data.LocalAddr().(*net.TCPAddr); ok {
		copy(s.own.gid[:], a.IP.To16())
	}
	if m != nil {
		s.own.rkey, s.own.vaddr = m.STag(), m.TO()
	}
	return nil
}

// reports exchanges the measurements. Only the client measures; the report of the tools' server is
// uninitialised memory.
func (s *session) reports(ctx context.Context, res *Result) error {
	var own, theirs [reportNumbers]uint64
	if s.client {
		own = res.report().numbers()
	}
	for i, v := range own {
		b, err := s.control.exchange(ctx, binary.BigEndian.AppendUint64(nil, v))
		if err != nil {
			return err
		}
		if theirs[i], err = parseNumber(b); err != nil {
			return err
		}
	}
	if s.client {
		return nil
	}
	r := reportOf(theirs)
	if r.Size != uint64(s.opt.Size) || r.Count != uint64(s.opt.Count) {
		return fmt.Errorf("%w: the client reports %d messages of %d bytes, want %d of %d", ErrCount, r.Count, r.Size, s.opt.Count, s.opt.Size)
	}
	res.Peer = &r
	return nil
}

// part closes the data stream in order, the client first. The client's close proves the arrival of
// all the client's messages on the data stream; no message on the control stream proves the
// arrival. Some stacks drop unsent data if the server closes first.
func (s *session) part(ctx context.Context) error {
	if s.client {
		s.data.CloseWrite()
	}
	select {
	case <-s.data.PeerClosed():
	case <-s.data.Ended():
	case <-ctx.Done():
		return ctx.Err()
	}
	if _, terminated := errors.AsType[*iwarp.TerminateError](s.data.Err()); terminated {
		return s.data.Err()
	}
	return nil
}
