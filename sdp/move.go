package sdp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"viaduct/internal/sdpcore"
	"viaduct/internal/wire/sdpwire"
)

// This file moves a live connection to another process, or to another address of this host,
// unnoticed by the program at the other end (socket duplication). The old holder calls Suspend with
// the port where the new holder listens, and passes the State to the new holder by its own means.
// The new holder gets the connection from Expectation.Resume. [SDP 13] Managed failover works the
// same way. The new holder may be anywhere the peer reaches by the old address; the operator moves
// the address. Each end moves separately. [SDP-13.2-1] [SDP-13.2-2] [SDP-13.2-4] [SDP-13.2-5]
// [D-56]

// [D-50]

// ResumeTimeout is the time each side waits for a suspended connection to resume.
const ResumeTimeout = 30 * time.Second

// A State is a suspended connection on its way to another holder: the state required by the draft,
// and the bytes not read or not delivered. [Conn.Suspend] and UnmarshalBinary make a State.
type State struct { // [SDP-13.1.1-11]
	core   sdpcore.State
	Local  netip.AddrPort // local end of the suspended TCP connection
	Remote netip.AddrPort // the peer's end of the suspended TCP connection
	Held   []byte         // bytes received and not read
	Unsent []byte         // bytes written and not delivered
	Token  []byte         // token that the peer presents when it reconnects, or nil

	// Token [D-50].
}

// MarshalBinary encodes the state, for example for a pipe or a file. The error is always nil.
func (s *State) MarshalBinary() ([]byte, error) {
	b := []byte("vdsdp1")
	flags := byte(0)
	if s.core.EOF {
		flags |= 1
	}
	if s.core.Closing {
		flags |= 2
	}
	b = append(b, flags, byte(s.core.Role))
	for _, v := range []int{s.core.RecvSize, s.core.RecvBufs, s.core.ORD} {
		b = binary.BigEndian.AppendUint32(b, uint32(v))
	}
	b = binary.BigEndian.AppendUint64(b, s.core.RecvPos)
	for _, p := range [][]byte{[]byte(s.Local.String()), []byte(s.Remote.String()), s.Token, s.Held, s.Unsent} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
	}
	return b, nil
}

var errState = errors.New("sdp: not the state of a suspended connection")

// UnmarshalBinary decodes a state encoded by MarshalBinary. After an error, s is unchanged.
func (s *State) UnmarshalBinary(b []byte) error {
	const head = 6 + 2 + 12 + 8
	if len(b) < head || string(b[:6]) != "vdsdp1" || b[7] > 1 {
		return errState
	}
	n := func(i int) int { return int(binary.BigEndian.Uint32(b[8+4*i:])) }
	t := State{core: sdpcore.State{EOF: b[6]&1 != 0, Closing: b[6]&2 != 0, Role: sdpcore.Role(b[7]),
		RecvSize: n(0), RecvBufs: n(1), ORD: n(2), RecvPos: binary.BigEndian.Uint64(b[20:])}}
	b = b[head:]
	var local, remote []byte
	for _, p := range []*[]byte{&local, &remote, &t.Token, &t.Held, &t.Unsent} {
		if len(b) < 4 {
			return errState
		}
		n := binary.BigEndian.Uint32(b)
		b = b[4:]
		if uint64(n) > uint64(len(b)) {
			return errState
		}
		*p, b = append([]byte(nil), b[:n]...), b[n:]
	}
	var err error
	if t.Local, err = netip.ParseAddrPort(string(local)); err != nil {
		return errState
	}
	if t.Remote, err = netip.ParseAddrPort(string(remote)); err != nil || len(b) > 0 {
		return errState
	}
	t.core.Held, t.core.Unsent = len(t.Held), len(t.Unsent)
	*s = t
	return nil
}

// A moving connection continues in another process or on another stream.
type moving struct {
	suspendTo chan error // gets the result of Suspend
	resumeAt  uint16     // port named by OpReconnect; 0 after reconnect has begun, or if there is none
}

// Suspend stops the connection so that it can continue elsewhere: Suspend asks the peer to
// reconnect to the given port of the same host. After Suspend has returned without error, the
// connection has ended here, and only the State remains. Waiting calls end with net.ErrClosed, and
// count unsent bytes as not written. The new holder must listen already. While the peer itself moves,
// Suspend waits until it has come back. If the peer refuses or does not answer in time, the error
// matches ErrSuspend; the connection is then aborted.
func (c *Conn) Suspend(ctx context.Context, port uint16) (*State, error) { // [SDP-13.1.1-3] [SDP-13.1.1-4] [SDP-13.1.1-5] [SDP-13.1.1-1] [SDP-13.2-3]
	c.mu.Lock()
	if c.closed || c.suspendTo != nil {
		c.unlock()
		return nil, c.opError("suspend", net.ErrClosed)
	}
	for _, o := range slices.Concat(c.calls.reads, c.calls.writes) {
		c.cancel(o) // bytes in memory of callers do not move, only copied bytes do
	}
	acts, err := c.m.Suspend(c.now(), port, c.room())
	ch := make(chan error, 1)
	c.suspendTo = ch
	c.exec(acts)
	c.unlock()
	if err == nil {
		select {
		case err = <-ch:
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-c.gone:
		}
	}
	c.mu.Lock()
	defer c.unlock()
	if err == nil && !c.m.Suspended() {
		err = ErrSuspend
	}
	if err != nil {
		c.exec(c.m.Abort(c.now(), err, c.room()))
		return nil, c.opError("suspend", err)
	}
	return c.export(), nil
}

// export returns the state of the connection, and ends the connection in this process.
func (c *Conn) export() *State {
	st := &State{core: c.m.State(), Token: c.token, Held: c.recv.held()}
	st.Local, _ = netip.ParseAddrPort(c.path.Local.String())
	st.Remote, _ = netip.ParseAddrPort(c.path.Remote.String())
	for _, o := range c.calls.writes {
		if off, ok := c.m.Detachable(o.id); ok && o.own {
			st.Unsent = append(st.Unsent, o.buf[off-o.base:]...)
		}
	}
	st.core.Held, st.core.Unsent = len(st.Held), len(st.Unsent)
	c.closed = true
	c.exec(c.m.Abort(c.now(), sdpcore.ErrClosed, c.room())) // ends the calls that still wait here
	return st
}

// reconnect follows a peer that has moved. It closes the stream after the SuspCommAck was sent, and
// makes a new stream to the same address and the port the peer named. [SDP-13.1.1-8] [SDP-13.1.1-9]
// [D-51] [D-56]
func (d *driver) reconnect() {
	if len(d.send.backlog) > 0 {
		return // the backlog contains the SuspCommAck; sendsDone calls reconnect again
	}
	d.state = streamMoved
	qp, port := d.qp, d.resumeAt
	d.resumeAt = 0
	d.send.flush()
	go func() {
		_ = qp.Close()
		err := d.comeBack(port)
		d.mu.Lock()
		defer d.unlock()
		if err != nil {
			d.exec(d.m.Abort(d.now(), fmt.Errorf("%w: %w", ErrReset, err), d.room()))
		}
	}()
}

// comeBack connects to the new holder at the given port, and resumes the connection. It gives up
// after ResumeTimeout.
func (d *driver) comeBack(port uint16) error {
	ctx, cancel := context.WithTimeout(context.Background(), ResumeTimeout)
	defer cancel()
	nc, err := redial(ctx, d.path.Local, d.path.Remote, port)
	if err != nil {
		return err
	}
	d.mu.Lock()
	opt := d.opt
	opt.SendBuffer = d.calls.room
	d.unlock()
	s, p, err := connect(ctx, nc, opt, d.layout, d.path.RawHello, d.token) // [SDP-13.1.1-10]
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.unlock()
	if !d.m.Suspended() { // the connection was aborted meanwhile
		go s.discard()
		return net.ErrClosed
	}
	d.path.Local, d.path.Remote = nc.LocalAddr(), nc.RemoteAddr()
	d.resume(s, p)
	return nil
}

// redial connects to a port of the peer's host, from the same address and port as before if
// possible, because the new holder may check both. [SDP-13.1.1-2] [D-51]
func redial(ctx context.Context, local, remote net.Addr, port uint16) (net.Conn, error) {
	r, err := netip.ParseAddrPort(remote.String())
	if err != nil {
		return nil, err
	}
	to := netip.AddrPortFrom(r.Addr(), port).String()
	l := local.(*net.TCPAddr)
	nd := net.Dialer{LocalAddr: l, Control: reuse}
	nc, err := nd.DialContext(ctx, "tcp", to)
	if err != nil {
		nd = net.Dialer{LocalAddr: &net.TCPAddr{IP: l.IP, Zone: l.Zone}}
		nc, err = nd.DialContext(ctx, "tcp", to)
	}
	return nc, err
}

// resume continues the connection over a new stream. [SDP-13.1.1-17]
func (d *driver) resume(s *setup, p sdpcore.Params) {
	d.send.last = 0 // a DisConn is sent again
	d.sendsDone(^uint64(0))
	d.attach(s)
	d.state = streamUp
	d.exec(d.m.Resume(d.now(), p, d.room()))
	d.recv.in.stream.Handle(d.completed)
	d.progress().Unpoll() // wakes the calls that sleep
}

// A moveKey identifies a returning peer. [SDP-13.1.1-2] [D-50]
type moveKey struct{ local, remote netip.Addr }

// A move is a connection expected to resume at a listener.
type move struct {
	key    moveKey
	strict netip.AddrPort // required source address, if not zero
	token  []byte
	ready  chan struct{} // closed when the state is set
	taken  bool          // a set-up was taken for the peer
	got    chan *arrival // gets the peer's new stream
	state  *State
}

type arrival struct {
	s      *setup
	layout sdpwire.Layout
	p      sdpcore.Params
	path   Path
}

// An Expectation is a connection that will resume at a listener.
type Expectation struct {
	l *Listener
	m *move
}

// Expect prepares the listener for a suspended connection between the given addresses. Call it
// before the old holder suspends the connection. The first suitable connection from the remote
// address is taken for the peer; until then, unsuitable connections from this address are refused.
// A connection is suitable if it presents the token, or no token if token is nil. If strict is
// true, a suitable connection also comes from the old source port. A token protects against another
// program on the peer's host, for example a program of another user. Expect returns an error if the
// listener is closed, or expects another connection between the same addresses.
func (l *Listener) Expect(local, remote netip.AddrPort, strict bool, token []byte) (*Expectation, error) { // [SDP-13.1.1-1] [SDP-13.1.1-2] [D-50]
	m := &move{key: moveKey{local.Addr().Unmap(), remote.Addr().Unmap()}, token: token,
		ready: make(chan struct{}), got: make(chan *arrival, 1)}
	if strict {
		m.strict = netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil, net.ErrClosed
	case l.moves[m.key] != nil:
		return nil, errors.New("sdp: another connection of these addresses is expected")
	}
	l.moves[m.key] = m
	return &Expectation{l, m}, nil
}

// Cancel ends the expectation. A peer that connects later gets a new connection, or a refusal if
// the peer presents a token.
func (e *Expectation) Cancel() {
	e.l.mu.Lock()
	delete(e.l.moves, e.m.key)
	e.l.mu.Unlock()
}

// Resume takes the State of a suspended connection, waits for its peer, and returns the connection.
// Reads return the received bytes of the State first, and undelivered bytes are sent. The error is
// the error of ctx, or context.DeadlineExceeded after ResumeTimeout, or net.ErrClosed if the
// listener is closed. Call Resume once.
func (e *Expectation) Resume(ctx context.Context, st *State) (*Conn, error) { // [SDP-13.1.1-12] [SDP-13.1.1-13] [SDP-13.1.1-16] [SDP-13.1.1-17]
	ctx, cancel := context.WithTimeout(ctx, ResumeTimeout)
	defer cancel()
	defer e.Cancel()
	e.m.state = st
	close(e.m.ready)
	var a *arrival
	select {
	case a = <-e.m.got:
	case <-ctx.Done():
		return nil, &net.OpError{Op: "resume", Net: "sdp", Err: context.Cause(ctx)}
	case <-e.l.dead:
		return nil, &net.OpError{Op: "resume", Net: "sdp", Err: net.ErrClosed}
	}
	c := newConn(a.s.opt, a.layout, a.s, a.p)
	defer c.begin()
	c.mu.Lock()
	defer c.unlock()
	c.m = sdpcore.Restore(a.p, st.core)
	c.path, c.token = a.path, st.Token
	c.path.Why = "moved here from another holder"
	if len(st.Held) > 0 { // [SDP-13.1.1-16]
		c.recv.holdCopy(slices.Clone(st.Held))
	}
	c.urg.readPos = st.core.RecvPos - uint64(len(st.Held))
	if len(st.Unsent) > 0 {
		o := c.calls.begin(st.Unsent, false)
		o.waited = false
		c.calls.detach(o, 0, 0)
		c.calls.writes = append(c.calls.writes, o)
		c.exec(c.m.Write(c.now(), o.id, len(o.buf), false, c.room()))
	}
	if st.core.Closing {
		c.exec(c.m.CloseWrite(c.now(), c.room()))
	}
	return c, nil
}

// expected returns the move that a Hello belongs to, or nil if the connection is new. If the
// connection must be refused, the reason is not ReasonUnknown. The HelloAck waits until the state
// is set, because the state determines the announced buffer size. [SDP-13.1.1-13] [SDP-13.1.1-14]
// [SDP-13.1.1-15]
func (l *Listener) expected(s *setup, g greeting, path Path) (*move, Reason) {
	local, _ := netip.ParseAddrPort(path.Local.String())
	remote, _ := netip.ParseAddrPort(path.Remote.String())
	l.mu.Lock()
	m := l.moves[moveKey{local.Addr().Unmap(), remote.Addr().Unmap()}]
	if m != nil && m.taken {
		m = nil
	}
	switch {
	case m == nil:
		l.mu.Unlock()
		if len(g.token) > 0 {
			return nil, ReasonToken // no connection with a token is expected [D-07]
		}
		return nil, ReasonUnknown
	case m.strict.IsValid() && m.strict != netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port()),
		string(m.token) != string(g.token):
		l.mu.Unlock()
		return nil, ReasonToken
	}
	m.taken = true
	l.mu.Unlock()
	select {
	case <-m.ready:
	case <-l.dead:
		return nil, ReasonBusy
	case <-time.After(ResumeTimeout):
		return nil, ReasonBusy
	}
	if n := m.state.core.RecvSize; n >= 37 && n <= s.opt.maxRecvSize() {
		s.opt.RecvBufferSize = n
	}
	s.opt.RecvThreshold = max(s.opt.RecvThreshold, s.opt.RecvBufferSize)
	return m, ReasonUnknown
}

func (m *move) arrive(s *setup, layout sdpwire.Layout, p sdpcore.Params, path Path) {
	m.got <- &arrival{s, layout, p, path}
}
