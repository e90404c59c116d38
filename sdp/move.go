package sdp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"viaduct/internal/sdpcore"
	"viaduct/internal/wire/sdpwire"
)

// Socket duplication: a live connection moves to another process, or to
// another end of this host, without the program at the other end noticing. The
// old holder calls Suspend with the port the new holder listens at, hands the
// State over by whatever means they have, and the new holder gets the
// connection from Expectation.Resume. [SDP 13] Managed failover is the same thing:
// the new holder may be anywhere the peer reaches by the old address, moving the
// address itself is the operator's job, and each end moves by a move of its own.
// [SDP-13.2-1] [SDP-13.2-2] [SDP-13.2-4] [SDP-13.2-5] [D-56]

// [D-50]

// ResumeTimeout is how long a suspended connection is waited for.
const ResumeTimeout = 30 * time.Second

// A State is a suspended connection on its way to another holder: the state that the draft
// requires, and the bytes that were not read or not delivered yet. It is created by [Conn.Suspend]
// or UnmarshalBinary.
type State struct { // [SDP-13.1.1-11]
	core   sdpcore.State
	Local  netip.AddrPort // of the suspended TCP connection
	Remote netip.AddrPort // the peer's end of it
	Held   []byte         // received, not read
	Unsent []byte         // written, not delivered
	Token  []byte         // the peer shows it when it comes back, if it was given one

	// Token [D-50].
}

// MarshalBinary encodes the state for a pipe or a file.
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

// UnmarshalBinary decodes what MarshalBinary made.
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

// Suspend stops the connection so that it can go on elsewhere: the peer is
// asked to come back to the given port of this host. When Suspend returns
// without error the connection is finished here, and the State is all there is
// of it. Calls that wait meanwhile end with net.ErrClosed; bytes they had not
// got rid of are counted as not written. The new holder must listen already.
func (c *Conn) Suspend(ctx context.Context, port uint16) (*State, error) { // [SDP-13.1.1-3] [SDP-13.1.1-4] [SDP-13.1.1-5] [SDP-13.1.1-1] [SDP-13.2-3]
	c.mu.Lock()
	if c.closed || c.suspendTo != nil {
		c.unlock()
		return nil, c.opError("suspend", net.ErrClosed)
	}
	for _, o := range append(append([]*op(nil), c.rops...), c.wops...) {
		c.cancel(o) // the bytes of callers do not move, those copied do
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

// suspendedNow is called when the peer has acknowledged SuspComm.
func (c *Conn) suspendedNow(err error) {
	c.suspended = true
	if c.suspendTo != nil {
		c.suspendTo <- err
	}
}

// export takes the connection apart.
func (c *Conn) export() *State {
	st := &State{core: c.m.State(), Token: c.token}
	st.Local, _ = netip.ParseAddrPort(c.path.Local.String())
	st.Remote, _ = netip.ParseAddrPort(c.path.Remote.String())
	for _, h := range c.recv.holds[c.recv.head:] {
		st.Held = append(st.Held, h.b...)
	}
	for _, o := range c.wops {
		if off, ok := c.m.Detachable(o.id); ok && o.own {
			st.Unsent = append(st.Unsent, o.buf[off-o.base:]...)
		}
	}
	st.core.Held, st.core.Unsent = len(st.Held), len(st.Unsent)
	c.closed = true
	c.exec(c.m.Abort(c.now(), sdpcore.ErrClosed, c.room())) // for what still waits here
	c.release(false, nil)
	return st
}

// reconnect follows a peer that has moved: the stream is closed once the
// SuspCommAck is out, and a new one is made to the same address and the port it
// named. [SDP-13.1.1-8] [SDP-13.1.1-9] [D-51] [D-56]
func (c *Conn) reconnect() {
	if len(c.send.backlog) > 0 {
		return // the SuspCommAck among it; catchUp comes back to this
	}
	c.suspended = true
	qp, port := c.qp, c.resumeAt
	c.resumeAt = 0
	qp.Flush()
	go func() {
		_ = qp.Close()
		err := c.comeBack(port)
		c.mu.Lock()
		defer c.unlock()
		if err != nil {
			c.suspended = false
			c.exec(c.m.Abort(c.now(), fmt.Errorf("%w: %w", ErrReset, err), c.room()))
		}
	}()
}

// comeBack connects to the new holder.
func (c *Conn) comeBack(port uint16) error {
	ctx, cancel := context.WithTimeout(context.Background(), ResumeTimeout)
	defer cancel()
	remote, err := netip.ParseAddrPort(c.path.Remote.String())
	if err != nil {
		return err
	}
	to := netip.AddrPortFrom(remote.Addr(), port)
	local := c.path.Local.(*net.TCPAddr)
	// From the same address and port if that can be had; the new holder may
	// look at it. [SDP-13.1.1-2] [D-51]
	nd := net.Dialer{LocalAddr: &net.TCPAddr{IP: local.IP, Port: local.Port, Zone: local.Zone}, Control: reuse}
	nc, err := nd.DialContext(ctx, "tcp", to.String())
	if err != nil {
		nd = net.Dialer{LocalAddr: &net.TCPAddr{IP: local.IP, Zone: local.Zone}}
		if nc, err = nd.DialContext(ctx, "tcp", to.String()); err != nil {
			return err
		}
	}
	c.mu.Lock()
	opt := c.opt
	c.unlock()
	s, p, err := connect(ctx, nc, opt, c.layout, c.path.RawHello, c.token) // [SDP-13.1.1-10]
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.unlock()
	if !c.m.Suspended() { // aborted meanwhile
		go s.discard()
		return net.ErrClosed
	}
	c.path.Local, c.path.Remote = nc.LocalAddr(), nc.RemoteAddr()
	c.resume(s, p)
	return nil
}

// resume goes on over a new stream. [SDP-13.1.1-17]
func (c *Conn) resume(s *setup, p sdpcore.Params) {
	c.send.last = 0 // a DisConn goes again
	c.sendsDone(^uint64(0))
	for i := c.recv.head; i < len(c.recv.holds); i++ { // what is held leaves the old buffers
		h := &c.recv.holds[i]
		if h.index >= 0 {
			h.b, h.index = append([]byte(nil), h.b...), -1
		}
	}
	c.attach(s)
	c.recv.local = nil
	c.suspended, c.drv.llp = false, false
	c.exec(c.m.Resume(c.now(), p, c.room()))
	c.queue.Load().Handle(c.completed)
	c.progress().Unpoll() // for calls that sleep
}

// moveKey is by what a returning peer is known. [SDP-13.1.1-2] [D-50]
type moveKey struct{ local, remote netip.Addr }

// A move is a connection expected to come back to this listener.
type move struct {
	key    moveKey
	strict netip.AddrPort // the source address, if it must be the old one
	token  []byte
	ready  chan struct{} // closed when the state has been handed over
	taken  bool
	got    chan *arrival
	state  *State
}

type arrival struct {
	s      *setup
	layout sdpwire.Layout
	p      sdpcore.Params
	path   Path
}

// An Expectation is a connection that will come back to a listener.
type Expectation struct {
	l *Listener
	m *move
}

// Expect prepares the listener for a suspended connection between the given addresses, before the
// old holder suspends it. The first connection from that address is taken to be its peer; others
// from there are refused meanwhile. With strict the source port must be the old one too. A token,
// if not nil, must be presented by the peer.
func (l *Listener) Expect(local, remote netip.AddrPort, strict bool, token []byte) (*Expectation, error) { // [SDP-13.1.1-1] [SDP-13.1.1-2] [D-50]
	m := &move{key: moveKey{local.Addr().Unmap(), remote.Addr().Unmap()}, token: token, ready: make(chan struct{}), got: make(chan *arrival, 1)}
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

// Cancel gives up.
func (e *Expectation) Cancel() {
	e.l.mu.Lock()
	delete(e.l.moves, e.m.key)
	e.l.mu.Unlock()
}

// Resume waits for the peer of a suspended connection, whose state has been handed over, and
// returns the connection where it stopped. Received bytes are read first, and undelivered ones are
// sent.
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
		c.recv.holds = append(c.recv.holds, hold{append([]byte(nil), st.Held...), -1})
	}
	c.urg.readPos = st.core.RecvPos - uint64(len(st.Held))
	if len(st.Unsent) > 0 {
		o := newOp()
		c.nextID++
		o.id, o.buf, o.own, o.held = c.nextID, append([]byte(nil), st.Unsent...), true, len(st.Unsent)
		c.send.held += o.held
		c.wops = append(c.wops, o)
		c.exec(c.m.Write(c.now(), o.id, len(o.buf), false, c.room()))
	}
	if st.core.Closing {
		c.exec(c.m.CloseWrite(c.now(), c.room()))
	}
	return c, nil
}

// expected reports whether a Hello belongs to a connection that resumes. The HelloAck waits until
// the state has been handed over, and its buffer size comes from the state. [SDP-13.1.1-13]
// [SDP-13.1.1-14] [SDP-13.1.1-15]
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
			return nil, ReasonToken // no connection is expected with one [D-07]
		}
		return nil, ReasonUnknown
	case m.strict.IsValid() && m.strict != netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port()), string(m.token) != string(g.token):
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
