package vitcp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// A probe is a scripted peer. It uses plain TCP and the codec, and nothing else of the provider.
type probe struct {
	t  testing.TB
	nc net.Conn
	d  vitcpwire.Dialect

	sent   uint64           // number of segments sent on established connections
	last   vitcpwire.Number // number of the probe's last message
	posted vitcpwire.Count  // number of receive descriptors that the probe announces
}

// A seg is a received segment.
type seg struct {
	h       vitcpwire.Header
	ce      vitcpwire.CE
	rdma    vitcpwire.RDMA
	payload []byte // payload, or security information
}

func newProbe(t testing.TB, nc net.Conn) *probe {
	t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(patience))
	return &probe{t: t, nc: nc}
}

// unmatched closes a probe whose request came before the call that waits for it. It pauses before
// the next request.
func (p *probe) unmatched() {
	p.nc.Close()
	time.Sleep(time.Millisecond)
}

// raw sends b.
func (p *probe) raw(b []byte) {
	p.t.Helper()
	p.nc.SetWriteDeadline(time.Now().Add(patience))
	if _, err := p.nc.Write(b); err != nil {
		p.t.Fatalf("probe: %v", err)
	}
}

// bytes returns a segment with its length set.
func (p *probe) bytes(h vitcpwire.Header, ce *vitcpwire.CE, r *vitcpwire.RDMA, payload []byte) []byte {
	n := vitcpwire.HeaderLen + len(payload)
	if ce != nil {
		n += vitcpwire.CELen
	}
	if r != nil {
		n += vitcpwire.RDMALen
	}
	h.Length = uint16(n)
	if h.Posted == 0 {
		h.Posted = p.posted
	}
	b := p.d.AppendHeader(nil, h)
	if ce != nil {
		b = ce.Append(b)
	}
	if r != nil {
		b = r.Append(b)
	}
	return append(b, payload...)
}

// send sends one segment of a message.
func (p *probe) send(h vitcpwire.Header, r *vitcpwire.RDMA, payload []byte) {
	p.t.Helper()
	p.sent++
	p.raw(p.bytes(h, nil, r, payload))
}

// message sends a whole message in one segment, with the next number, and returns the number.
func (p *probe) message(typ vitcpwire.Type, r *vitcpwire.RDMA, payload []byte, more ...func(*vitcpwire.Header)) vitcpwire.Number {
	p.t.Helper()
	p.last = p.last.Add(1)
	h := vitcpwire.Header{Type: typ, Flags: vitcpwire.EndOfMessage, Number: p.last}
	for _, f := range more {
		f(&h)
	}
	p.send(h, r, payload)
	return p.last
}

func (p *probe) nop(more ...func(*vitcpwire.Header)) {
	p.t.Helper()
	h := vitcpwire.Header{Type: vitcpwire.NOP, Flags: vitcpwire.EndOfMessage, Number: p.last}
	for _, f := range more {
		f(&h)
	}
	p.send(h, nil, nil)
}

func immediate(v uint32) func(*vitcpwire.Header) {
	return func(h *vitcpwire.Header) { h.Flags |= vitcpwire.ImmediateValid; h.Immediate = v }
}

func ack(n vitcpwire.Number) func(*vitcpwire.Header) {
	return func(h *vitcpwire.Header) { h.Ack = n }
}

// post announces n more receive descriptors.
func (p *probe) post(n vitcpwire.Count) {
	p.t.Helper()
	p.posted += n
	p.nop()
}

func fails(vierr uint8) func(*vitcpwire.Header) {
	return func(h *vitcpwire.Header) { h.Error = vitcpwire.MakeRemoteError(vierr, 0) }
}

// tryRecv reads and returns one segment.
func (p *probe) tryRecv() (seg, error) {
	p.nc.SetReadDeadline(time.Now().Add(patience))
	return p.read()
}

// read is tryRecv, but keeps the deadline of the connection.
func (p *probe) read() (s seg, err error) {
	var head [vitcpwire.HeaderLen]byte
	if _, err := io.ReadFull(p.nc, head[:]); err != nil {
		return s, err
	}
	if s.h, _, err = p.d.ParseHeader(head[:]); err != nil {
		return s, err
	}
	rest := make([]byte, int(s.h.Length)-len(head))
	if _, err := io.ReadFull(p.nc, rest); err != nil {
		return s, err
	}
	switch {
	case s.h.Type.HasCE():
		s.ce, _, err = vitcpwire.ParseCE(rest)
		rest = rest[vitcpwire.CELen:]
	case p.d.HeaderLen(s.h.Type) > vitcpwire.HeaderLen:
		s.rdma, _, err = vitcpwire.ParseRDMA(rest)
		rest = rest[vitcpwire.RDMALen:]
	}
	s.payload = rest
	return s, err
}

func (p *probe) recv() seg {
	p.t.Helper()
	s, err := p.tryRecv()
	if err != nil {
		p.t.Fatalf("probe: no segment: %v", err)
	}
	return s
}

// want reads segments until one of type typ arrives, and returns it. It skips NOPs.
func (p *probe) want(typ vitcpwire.Type) seg {
	p.t.Helper()
	for {
		s := p.recv()
		if s.h.Type == typ {
			return s
		}
		if s.h.Type != vitcpwire.NOP {
			p.t.Fatalf("probe: got %v, want %v", s.h, typ)
		}
	}
}

// wantAck reads segments until all messages up to n are acknowledged. It returns the last segment.
func (p *probe) wantAck(n vitcpwire.Number) seg {
	p.t.Helper()
	for {
		if s := p.recv(); !s.h.Ack.Less(n) {
			return s
		}
	}
}

// wantEnd reads segments until the provider ends the connection. The end must be want: io.EOF for
// an orderly end, or syscall.ECONNRESET for a reset.
func (p *probe) wantEnd(want error) (segs []seg) {
	p.t.Helper()
	for {
		s, err := p.tryRecv()
		if err == nil {
			segs = append(segs, s)
			continue
		}
		if !errors.Is(err, want) {
			p.t.Errorf("probe: ended by %v, want %v", err, want)
		}
		return segs
	}
}

// silent fails the test if anything arrives within a short time.
func (p *probe) silent() {
	p.t.Helper()
	p.nc.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	s, err := p.read()
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		p.t.Errorf("probe: expected silence, got %v, %v", s.h, err)
	}
}

// ceOf returns a CE header for the attributes.
func ceOf(a vi.Attributes, calling, called string) vitcpwire.CE {
	ce := vitcpwire.CE{MTU: 1 << 20, Calling: disc(calling), Called: disc(called)}
	switch a.Reliability {
	case vi.ReliableDelivery:
		ce.Attributes = vitcpwire.Reliable | vitcpwire.ReliableDelivery
	case vi.ReliableReception:
		ce.Attributes = vitcpwire.Reliable
	}
	if a.FlowControl {
		ce.Attributes |= vitcpwire.FlowControl
	}
	if a.EnableRDMAWrite {
		ce.Attributes |= vitcpwire.RDMAWrite
	}
	if a.EnableRDMARead {
		ce.Attributes |= vitcpwire.RDMARead
		ce.ReadWindow = 4
	}
	return ce
}

func (p *probe) greet(typ vitcpwire.Type, h vitcpwire.Header, ce vitcpwire.CE, security []byte) {
	p.t.Helper()
	h.Type, h.Flags = typ, vitcpwire.EndOfMessage
	p.last, p.posted = h.Number, h.Posted
	p.raw(p.bytes(h, &ce, nil, security))
}

// dialProbe returns a probe that has connected to the NIC's listener.
func dialProbe(t testing.TB, n *nicUnderTest) *probe {
	t.Helper()
	nc, err := net.Dial("tcp", netip.AddrPortFrom(loopback, n.port()).String())
	must(t, err)
	return newProbe(t, nc)
}

// A session is a VI that is connected to a probe.
type session struct {
	*probe
	n *nicUnderTest
	v *vi.VI
}

// taken waits until the provider has handled all bytes the probe has sent.
func (s *session) taken() {
	s.t.Helper()
	l := s.v.Link().(*link)
	testkit.Eventually(s.t, "the provider takes what was sent",
		func() bool { return l.count.receivedSegments.Load() >= s.sent })
	l.c.WithReceiver(func() {}) // the last segment was counted before it was handled
}

// drainLong has a time limit longer than any test: a stream that ends has not waited for the limit.
var drainLong = Config{DrainTimeout: 10 * patience}

// sessionOpts are the options of a session.
type sessionOpts struct {
	cfg     Config
	attrs   vi.Attributes
	posted  vitcpwire.Count  // number of receive descriptors that the probe announces
	first   vitcpwire.Number // the number that precedes the probe's first message
	ce      func(*vitcpwire.CE)
	before  func(*session) // called after the VI was created and before it is connected
	dialect vitcpwire.Dialect

	security []byte // security information of the probe's request
}

// serveProbe returns a session in which the probe is the caller.
func serveProbe(t testing.TB, o sessionOpts) *session {
	t.Helper()
	s := &session{n: openNIC(t, openProvider(t, o.cfg))}
	s.v = newVI(t, s.n, o.attrs)
	if o.before != nil {
		o.before(s)
	}
	ctx := testContext(t)
	accepted := make(chan error, 1)
	go func() {
		req, err := s.n.ConnectWait(ctx, s.n.addr("vi"))
		if err == nil {
			err = req.Accept(ctx, s.v)
		}
		accepted <- err
	}()
	for {
		s.probe = dialProbe(t, s.n)
		s.d = o.dialect
		ce := ceOf(o.attrs, "probe", "vi")
		if o.ce != nil {
			o.ce(&ce)
		}
		s.greet(vitcpwire.ConnectRequest, vitcpwire.Header{Number: o.first, Posted: o.posted}, ce, o.security)
		a := s.recv()
		if a.h.Type == vitcpwire.ConnectNoMatch {
			s.unmatched()
			continue
		}
		if a.h.Type != vitcpwire.ConnectAccept {
			t.Fatalf("answer %v", a.h)
		}
		break
	}
	must(t, <-accepted)
	return s
}

// A callee is a probe that is called.
type callee struct {
	l net.Listener
	t testing.TB
}

func listenProbe(t testing.TB) *callee {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return &callee{l, t}
}

func (c *callee) addr(d string) vi.Address {
	return vi.IPAddress(c.l.Addr().(*net.TCPAddr).AddrPort(), d)
}

// accept accepts a connection and returns its Connect Request.
func (c *callee) accept() (*probe, seg) {
	c.t.Helper()
	p := c.take()
	s := p.recv()
	if s.h.Type != vitcpwire.ConnectRequest {
		c.t.Fatalf("probe: %v instead of a connect request", s.h)
	}
	return p, s
}

func (c *callee) take() *probe {
	c.t.Helper()
	c.l.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
	nc, err := c.l.Accept()
	must(c.t, err)
	return newProbe(c.t, nc)
}

// answers makes the probe answer every request with typ, until the end of the test.
func (c *callee) answers(typ vitcpwire.Type) {
	go func() {
		for {
			nc, err := c.l.Accept()
			if err != nil {
				return
			}
			p := &probe{t: c.t, nc: nc}
			if req, err := p.tryRecv(); err == nil {
				nc.Write(p.bytes(vitcpwire.Header{Type: typ, Flags: vitcpwire.EndOfMessage}, &req.ce, nil, nil))
			}
			nc.Close()
		}
	}()
}

// none fails the test if a call arrives within a short time.
func (c *callee) none() {
	c.t.Helper()
	c.l.(*net.TCPListener).SetDeadline(time.Now().Add(20 * time.Millisecond))
	if nc, err := c.l.Accept(); err == nil {
		nc.Close()
		c.t.Error("a connection came")
	}
}

// callVI makes v call the probe in another goroutine. It returns a channel that gets the result.
func callVI(t testing.TB, n *nicUnderTest, v *vi.VI, to vi.Address, timeout time.Duration) <-chan error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	t.Cleanup(cancel)
	done := make(chan error, 1)
	go func() {
		_, err := v.ConnectRequest(ctx, n.addr("caller"), to)
		done <- err
	}()
	return done
}

var errReset error = syscall.ECONNRESET
