package sdp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"viaduct/internal/fault"
	"viaduct/internal/sdpcore"
	"viaduct/internal/sock"
	"viaduct/internal/wire/sdpwire"
	"viaduct/iwarp"
)

// sendDepth is the depth of the stream's send queue. Further requests wait in the backlog of
// sideSend.
const sendDepth = 256

// A setup is a stream before it becomes a connection.
type setup struct {
	opt       Options
	qp        *iwarp.QueuePair
	cq        *iwarp.CompletionQueue
	dev       *iwarp.Device
	in        *inbox
	sendDepth int
	layout    sdpwire.Layout
	pooled    bool // see attend.Go
}

// newSetup makes the objects a stream needs. If dev is nil, newSetup makes a device too.
func newSetup(opt Options, dev *iwarp.Device) (*setup, error) {
	if dev == nil {
		dev = newDevice(&opt)
	}
	s := &setup{opt: opt, dev: dev, sendDepth: sendDepth}
	cq, err := dev.NewCQ(sendDepth + opt.mostBuffers() + 1)
	if err != nil {
		return nil, err
	}
	s.cq = cq
	return s, nil
}

func newDevice(opt *Options) *iwarp.Device {
	return iwarp.NewDevice(iwarp.DeviceConfig{NoCRC: opt.NoCRC, Limits: iwarp.Limits{QueueDepth: max(sendDepth, 1024)}})
}

// maxWish is the largest size of Private Buffers, in bytes, that a peer gets on request. It is at
// least the default size.
const maxWish = max(64<<10, defaultRecvBufferSize)

// maxRecvSize is the size the Private Buffers can grow to without new memory.
func (o *Options) maxRecvSize() int {
	if o.NoResize {
		return o.RecvBufferSize
	}
	return max(o.RecvBufferSize, maxWish)
}

// mostBuffers returns the largest number of Private Buffers.
func (o *Options) mostBuffers() int { return max(o.RecvBuffers, o.MaxRecvBuffers) }

// config returns the iwarp configuration. All Private Buffers, and a spare buffer, can receive
// before any byte is sent to the peer. [SDP-8.1.1-5] [SDP-8.1.1-6] [SDP-8.1.1-7] [SDP-8.1.1-18]
// [D-08]
func (s *setup) config(nc net.Conn) *iwarp.Config {
	o := &s.opt
	s.pooled = sock.IsTCP(nc)
	s.in = newInbox(s.layout, o.mostBuffers()+1, o.maxRecvSize())
	return &iwarp.Config{
		Interop: iwarp.Interop{FPDUSize: fpduSize(nc)},
		Device:  s.dev, SendCQ: s.cq, RecvCQ: s.cq, SendDepth: s.sendDepth, RecvDepth: o.mostBuffers() + 1,
		IRD: o.ReadDepth, ORD: o.ReadDepth, CloseTimeout: 2 * time.Second, // [D-49]
		Initiator: iwarp.InitiatorConfig{ReplyTimeout: o.SetupTimeout},
		Responder: iwarp.ResponderConfig{RequestTimeout: o.SetupTimeout, FirstFPDUTimeout: o.SetupTimeout},
		KeepAlive: o.KeepAlive, Congestion: o.Congestion, WrapConn: o.WrapConn, SameHost: o.SameHost,
		SameHostDir: o.SameHostDir,
		Source:      s.in, Polled: true,
		Prepare: func(qp *iwarp.QueuePair) error {
			s.qp = qp
			return nil
		},
	}
}

// discard releases a failed set-up. [SDP-8.1.2-1] [SDP-8.1.2-2]
func (s *setup) discard() {
	if s.qp != nil {
		s.qp.Abort()
		_ = s.qp.Close()
	}
}

func (s *setup) hello(des int) sdpwire.Hello {
	o := &s.opt
	return sdpwire.Hello{
		Bufs: uint16(o.RecvBuffers), MajV: sdpwire.MajV, MinV: sdpwire.MinV, MaxAdverts: uint16(o.MaxAdverts), // [SDP-6.2.1.3-2] [SDP-10.3-1]
		DesRemRcvSz: uint32(des), LocalRcvSz: uint32(o.RecvBufferSize), // [SDP-6.2.1.4-1] [SDP-6.2.1.5-1]
		LocIRD: uint16(o.ReadDepth), LocORD: uint16(o.ReadDepth), // [SDP-6.2.1.6-1] [SDP-6.2.1.7-1] [SDP-8.1.1-8] [D-04]
	}
}

// params returns the parameters of the machine.
func (s *setup) params(role sdpcore.Role, bufs, size, adverts, ord int) sdpcore.Params {
	o := &s.opt
	return sdpcore.Params{
		Role: role, RecvBufs: o.RecvBuffers, MaxRecvBufs: o.mostBuffers(), RecvSize: o.RecvBufferSize,
		PeerBufs: bufs, PeerSize: size,
		MaxAdverts: o.MaxAdverts, PeerMaxAdverts: adverts, ORD: ord,
		SendPolicy: sdpcore.Policy(o.SendPolicy), RecvPolicy: sdpcore.Policy(o.RecvPolicy),
		SendThreshold: threshold(o.SendThreshold), RecvThreshold: o.RecvThreshold,
		NoRead: o.NoRDMARead, NoSinkAvail: o.NoSinkAvail, NoInvalidate: o.NoRemoteInvalidate,
		BigPrefix: o.BigPrefix, UrgentApart: o.UrgentApart,
		RecvBudget: o.ReceiveBuffer, SendBudget: o.SendBuffer, MaxRecvSize: o.maxRecvSize(), NoResize: o.NoResize,
		NoSuspend: o.NoSuspend, MinSuspendPort: 1024, Timers: sdpcore.Timers(o.Timers),
	}
}

// connect makes a connection on a TCP connection as Connecting Peer: a stream and Private Buffers
// for this connection alone, in the order of the draft. After an error connect closes the TCP
// connection. [SDP-8.1.1-3] [SDP-8.1.1-4] [SDP-9.1-2]
func connect(ctx context.Context, nc net.Conn, opt Options, layout sdpwire.Layout, raw bool, token []byte) (*setup, sdpcore.Params, error) {
	ctx, cancel := context.WithTimeout(ctx, opt.SetupTimeout) // [D-17]
	defer cancel()
	s, err := newSetup(opt, nil)
	if err != nil {
		nc.Close()
		return nil, sdpcore.Params{}, err
	}
	s.layout = layout
	hello := append(s.hello(opt.RecvBufferSize).Append(nil, layout), token...)
	cfg := s.config(nc)
	if raw {
		// The Hello is sent before the MPA Request. [D-02]
		late, _ := ctx.Deadline()
		nc.SetWriteDeadline(late)
		if _, err := nc.Write(hello); err != nil {
			nc.Close()
			return nil, sdpcore.Params{}, err
		}
		nc.SetWriteDeadline(time.Time{})
	} else {
		// The Hello is in the private data of the MPA Request. It is sent in streaming mode, and is
		// atomic with the change to iWARP. [SDP-8.1.1-2] [SDP-8.1.1-9] [SDP-8.1.1-10] [D-02]
		cfg.Private = hello
	}
	// Until HelloAck arrives, only MPA's ready message is sent. [SDP-8.1.1-11] [D-03]
	if _, err := iwarp.Client(ctx, nc, cfg); err != nil {
		var rej *iwarp.RejectedError
		if errors.As(err, &rej) {
			e := &RefusedError{}
			if len(rej.Private) >= 2 {
				e.Reason = Reason(binary.BigEndian.Uint16(rej.Private))
			}
			err = e
		}
		return nil, sdpcore.Params{}, err
	}
	p, err := s.awaitHelloAck(ctx, layout)
	if err != nil {
		s.discard()
		return nil, sdpcore.Params{}, err
	}
	return s, p, nil
}

// awaitHelloAck receives and checks the first message of the Accepting Peer. [SDP-8.1.1-25]
func (s *setup) awaitHelloAck(ctx context.Context, layout sdpwire.Layout) (p sdpcore.Params, err error) {
	if _, _, err := sdpwire.ParseHelloAck(s.qp.PeerPrivate(), layout); err == nil {
		return p, errors.New("sdp: the peer put its HelloAck into the MPA reply, which is not a form spoken here") // [D-02]
	}
	e, err := s.cq.Wait(ctx)
	if err != nil {
		return p, fmt.Errorf("%w: %w", ErrNoHelloAck, err)
	}
	if e.Status != iwarp.StatusOK {
		err := s.qp.Err()
		if err == nil {
			err = ErrReset
		}
		return p, fmt.Errorf("%w: %w", ErrNoHelloAck, err)
	}
	b, _ := s.in.message(e.ID, int(e.Len))
	a, n, err := sdpwire.ParseHelloAck(b, layout)
	switch {
	case err != nil:
		return p, fmt.Errorf("sdp: first message of the peer is no HelloAck: %w", err)
	case n != len(b): // [SDP-6.2.2-1]
		return p, violation("SDP-6.2.2-1", sdpwire.HelloAckMID, fmt.Sprintf("%d bytes", len(b)))
	case a.MajV != sdpwire.MajV && !fault.On("sdp-ack-unchecked"):
		// [SDP-6.2.2.1-2]; MinV is no reason to refuse [SDP-6.2.2.2-2] [SDP-8.1.1-26] and selects
		// the same rules [SDP-8.1.1-27]
		return p, violation("SDP-6.2.2.1-2", sdpwire.HelloAckMID, fmt.Sprintf("major version %d", a.MajV))
	case a.MaxAdverts == 0: // [SDP-6.2.2.3-2]
		return p, violation("SDP-6.2.2.3-2", sdpwire.HelloAckMID, "MaxAdverts is zero")
	case a.LocIRD == 0 || a.LocORD == 0:
		return p, violation("SDP-8.1.1-25", sdpwire.HelloAckMID, "LocIRD or LocORD is zero")
	case a.Bufs < sdpwire.MinBuffers || a.ActRcvSz < sdpwire.MinBufferSize || a.ActRcvSz > sdpwire.MaxSize: // [D-07]
		return p, violation("D-07", sdpwire.HelloAckMID, fmt.Sprintf("%d buffers of %d bytes", a.Bufs, a.ActRcvSz))
	}
	s.in.release(int(e.ID))
	ord := s.settleORD(int(a.LocIRD)) // [SDP-8.1.1-29]; from here on data may be sent [SDP-8.1.1-31]
	return s.params(sdpcore.Connecting, int(a.Bufs), int(a.ActRcvSz), int(a.MaxAdverts), ord), nil
}

// settleORD lowers our ORD to the number of Reads the peer serves, and returns the new ORD. IRD
// does not change, which is allowed. [SDP-8.1.1-20] [SDP-8.1.1-28] [D-04]
func (s *setup) settleORD(peerIRD int) int {
	ord := max(1, min(s.opt.ReadDepth, peerIRD, max(1, s.qp.ORD())))
	_ = s.qp.SetORD(ord)
	return ord
}

// judge returns the reason to refuse a Hello, or ReasonUnknown for an acceptable Hello.
// [SDP-8.1.1-12] Any minor version is acceptable. [SDP-6.2.1.2-2] [SDP-8.1.1-14] [SDP-8.1.1-15]
func judge(h sdpwire.Hello) Reason {
	switch {
	case h.MajV != sdpwire.MajV && !fault.On("sdp-version-unchecked"): // [SDP-6.2.1.1-2]
		return ReasonVersion
	case h.MaxAdverts == 0: // [SDP-6.2.1.3-3]
		return ReasonAdverts
	case h.LocIRD == 0 || h.LocORD == 0:
		return ReasonDepth
	case h.Bufs < sdpwire.MinBuffers, h.LocalRcvSz < sdpwire.MinBufferSize, h.LocalRcvSz > sdpwire.MaxSize: // [SDP-10.3-1] [SDP-10-5] [D-07]
		return ReasonBuffers
	}
	return ReasonUnknown
}

// recvSizeFor returns the size of our Private Buffers for a request of des bytes. A request outside
// our limits leaves the size unchanged. [SDP-6.2.1.4-2] [SDP-6.2.1.4-3] [D-07] [D-14]
func recvSizeFor(o *Options, des uint32) int {
	if o.NoResize || des < 4<<10 || des > maxWish || o.RecvBufferSize < 4<<10 || o.RecvBufferSize > maxWish {
		return o.RecvBufferSize
	}
	return int(des)
}

// A greeting is a Hello, and the way the Hello was received.
type greeting struct {
	hello  sdpwire.Hello
	layout sdpwire.Layout
	raw    bool   // the Hello came before the MPA Request
	token  []byte // bytes after the Hello; empty if there were none
}

const tokenLen = 16 // [D-50]

// readGreeting parses a Hello, optionally followed by a token, and detects the layout. ok is false
// for all other bytes. [D-01] [SDP-6.2.1-1]
func readGreeting(b []byte) (g greeting, ok bool) {
	if g.layout, ok = sdpwire.DetectLayout(b); !ok {
		// A Hello with Flags is refused, because the bytes can be read in both layouts. [D-07]
		return g, false
	}
	h, n, err := sdpwire.ParseHello(b, g.layout)
	if err != nil || len(b) != n && len(b) != n+tokenLen {
		return g, false
	}
	g.hello, g.token = h, b[n:]
	return g, true
}

// accept makes a connection on a TCP connection as Accepting Peer. It calls decide after the Hello
// has arrived, and refuses the connection unless the result is ReasonUnknown. It closes the TCP
// connection after an error, except errPlain.
func accept(ctx context.Context, nc net.Conn, opt Options, dev *iwarp.Device, decide func(*setup, greeting) Reason) (*setup, greeting, sdpcore.Params, error) {
	var g greeting
	fail := func(s *setup, err error) (*setup, greeting, sdpcore.Params, error) {
		if s != nil {
			s.discard()
		}
		return nil, g, sdpcore.Params{}, err
	}
	// The peer's first bytes are on their way, so there is time for preparations.
	s, err := newSetup(opt, dev)
	if err != nil {
		nc.Close()
		return fail(nil, err)
	}
	cfg := s.config(nc)
	// A single time limit holds for all bytes before the peer is known: the Hello, and the MPA
	// Request that contains or follows the Hello. [D-17]
	late := time.Now().Add(opt.SetupTimeout)
	first, err := sniff(ctx, nc, sniffLen, isPlain, late)
	if err != nil {
		nc.Close()
		return fail(nil, fmt.Errorf("sdp: waiting for Hello: %w", err))
	}
	if isPlain(first) { // [D-69]
		return fail(nil, errPlain)
	}
	if !isMPA(first) { // a raw Hello is followed by the MPA Request [D-02]
		b, err := readRaw(ctx, nc, late)
		if err == nil {
			var ok bool
			if g, ok = readGreeting(b); !ok {
				err = &RefusedError{ReasonHello}
			} else if r := judge(g.hello); r != ReasonUnknown {
				err = &RefusedError{r}
			}
		}
		if err == nil {
			first, err = sniff(ctx, nc, sniffLen, isPlain, late)
		}
		if err != nil {
			reset(nc) // [D-16]
			return fail(nil, err)
		}
		g.raw = true
	}
	if isMPA(first) && first[17] == 1 {
		// Revision 1 has no ready message, but SDP requires a ready dialer. [D-03]
		cfg.Interop.EarlyResponder = true
	}
	cfg.Responder.RequestTimeout = max(time.Until(late), 1)
	req, err := iwarp.ReadRequest(ctx, nc, nil, cfg)
	if err != nil {
		s.qp = nil
		return fail(s, err)
	}
	if !g.raw {
		var ok bool
		if g, ok = readGreeting(req.Private()); !ok {
			return fail(s, refuse(s, req, ReasonHello))
		}
		if r := judge(g.hello); r != ReasonUnknown {
			return fail(s, refuse(s, req, r))
		}
	}
	s.in.layout = g.layout
	// The sizes may still change, because they are not announced yet.
	s.opt.RecvBufferSize = recvSizeFor(&s.opt, g.hello.DesRemRcvSz)
	s.opt.RecvThreshold = max(s.opt.RecvThreshold, s.opt.RecvBufferSize)
	if r := decide(s, g); r != ReasonUnknown {
		return fail(s, refuse(s, req, r))
	}
	qp, err := req.Accept(nil)
	if err != nil {
		s.qp = nil
		return fail(s, err)
	}
	s.qp = qp
	ord := s.settleORD(int(g.hello.LocIRD)) // [SDP-8.1.1-21]
	ack := sdpwire.HelloAck{
		Bufs: uint16(s.opt.RecvBuffers), MajV: sdpwire.MajV, MinV: min(sdpwire.MinV, max(g.hello.MinV, sdpwire.MinV)), // [SDP-6.2.2.2-1]
		MaxAdverts: uint16(s.opt.MaxAdverts), ActRcvSz: uint32(s.opt.RecvBufferSize), // [SDP-6.2.2.3-1] [SDP-6.2.2.4-1]
		LocIRD: uint16(s.opt.ReadDepth), LocORD: uint16(ord), // [SDP-6.2.2.5-1] [SDP-6.2.2.6-1] [SDP-8.1.1-19] [D-04]
	}
	// HelloAck is the first message; data may follow at once. [SDP-8.1.1-16] [SDP-8.1.1-17]
	// [SDP-8.1.1-22] [SDP-8.1.1-24]
	err = qp.Post(iwarp.SendWR{Op: iwarp.OpSendSE, SG: []iwarp.SGE{iwarp.Buf(ack.Append(nil, g.layout))},
		Inline: true, Unsignaled: true})
	if err != nil {
		return fail(s, err)
	}
	h := g.hello
	return s, g, s.params(sdpcore.Accepting, int(h.Bufs), int(h.LocalRcvSz), int(h.MaxAdverts), ord), nil
}

// refuse rejects an MPA Request with the reason in its private data, and returns the error. [D-16]
func refuse(s *setup, req *iwarp.Request, r Reason) error {
	s.qp = nil
	_ = req.Reject(binary.BigEndian.AppendUint16(nil, uint16(r)))
	return &RefusedError{r}
}

// sniffLen is the number of bytes that distinguish the kinds of connections: the key and the
// revision of an MPA Request, or a Hello.
const sniffLen = 18

func isMPA(b []byte) bool { return len(b) >= sniffLen && string(b[:len(mpaKey)]) == mpaKey }

// isPlain reports whether a connection whose first bytes are b speaks neither MPA nor SDP.
func isPlain(b []byte) bool {
	if n := min(len(b), len(mpaKey)); string(b[:n]) == mpaKey[:n] {
		return false
	}
	zero := func(i int) bool { return i >= len(b) || b[i] == 0 }
	return !(zero(0) && zero(1)) && !(zero(2) && zero(3))
}

// errPlain means that a connection speaks neither MPA nor SDP. None of the connection's bytes was
// read.
var errPlain = &RefusedError{ReasonHello}

const mpaKey = "MPA ID Req Frame" // begins an MPA Request

// readRaw reads a raw Hello: 32 bytes. [SDP-8.1.1-10]
func readRaw(ctx context.Context, nc net.Conn, late time.Time) ([]byte, error) {
	b := make([]byte, sdpwire.HelloLen)
	stop := bound(ctx, nc, late)
	defer stop()
	for n := 0; n < len(b); {
		k, err := nc.Read(b[n:])
		if err != nil {
			return nil, err
		}
		n += k
	}
	return b, nil
}

// bound limits the reads of set-up by time and by the context, until stop is called.
func bound(ctx context.Context, nc net.Conn, late time.Time) (stop func()) {
	nc.SetReadDeadline(late)
	cancel := context.AfterFunc(ctx, func() { nc.SetReadDeadline(time.Unix(1, 0)) })
	return func() {
		if cancel() {
			nc.SetReadDeadline(time.Time{})
		}
	}
}

// reset closes a TCP connection by a reset, or in order if nc cannot be reset.
func reset(nc net.Conn) {
	if l, ok := nc.(interface{ SetLinger(int) error }); ok {
		_ = l.SetLinger(0)
	}
	nc.Close()
}

// hostFPDU is the largest size of an FPDU, in bytes.
const hostFPDU = 64766

// fpduSize returns a fixed size of FPDUs for connections within one host, and 0 for others, whose
// FPDUs fit TCP segments. Within a host, TCP segments are not frames: the kernel may cut them at 32
// KiB, and no message should be cut because of that.
func fpduSize(nc net.Conn) int {
	l, ok := nc.LocalAddr().(*net.TCPAddr)
	if r, isTCP := nc.RemoteAddr().(*net.TCPAddr); ok && isTCP && l.IP.Equal(r.IP) {
		return hostFPDU
	}
	return 0
}
