package decode

import (
	"errors"
	"fmt"
	"io"

	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/rdmap"
	"viaduct/internal/wire/sdpwire"
)

// An sdpState follows an SDP connection.
type sdpState struct {
	p       *mpaParser
	layout  sdpwire.Layout
	settled bool // the layout is known
	whole   bool // the connection was seen from its Hello on, with nothing missing
	side    [2]sdpSide
	view    [2]*sdpView // the views of the two peers, nil if unknown
}

// An sdpSide holds the sending state and the announcements of one peer, called this side.
type sdpSide struct {
	sure bool   // next is valid
	next uint32 // MSeq of this side's next message
	bye  bool   // this side's DisConn was seen
	susp bool   // this side's SuspComm was seen

	maxAdverts int    // advertisements that this side accepts
	size       uint32 // bytes of each of this side's receive Private Buffers, 0 if unknown
	limit      int64  // MSeq of the other peer's first message without credit, -1 if unknown

	mode    sdpwire.Mode // mode of the half in which this side is Data Source
	before  sdpwire.Mode // mode before the last change
	byPeer  bool         // the last change came from the Data Sink
	at      uint32       // MSeq of the last change, valid if changed
	changed bool

	adverts map[uint32]advert // this side's advertisements, by STag
	many    bool              // some of adverts were discarded
}

// An advert is memory a peer advertised.
type advert struct {
	at   uint64
	size uint64
	sink bool // advertised by SinkAvail
}

// maxAdverts limits the number of remembered advertisements.
const maxAdverts = 4096

func newSDP(p *mpaParser, whole bool) *sdpState {
	s := &sdpState{p: p, whole: whole}
	for i := range s.side {
		s.side[i] = sdpSide{sure: whole, limit: -1, mode: sdpwire.Combined, before: sdpwire.Combined,
			adverts: make(map[uint32]advert)}
	}
	return s
}

// lost records missing or doubtful bytes of a direction.
func (s *sdpState) lost(side int) {
	s.side[side].sure = false
	s.whole, s.view = false, [2]*sdpView{}
	for i := range s.side {
		s.side[i].mode, s.side[i].changed = sdpwire.Combined, false
	}
}

// hello decodes the Hello, in the private data of the MPA Request or before the Request.
func (p *mpaParser) hello(h *half, b []byte, l sdpwire.Layout) {
	p.ulp = newSDP(p, true)
	p.ulp.layout, p.ulp.settled = l, true
	x, _, err := sdpwire.ParseHello(b, l)
	if err != nil {
		return
	}
	m := p.c.d.message(p.c, h.back)
	m.Proto, m.Name = "sdp", sdpwire.HelloMID.String()
	m.num("sdp.mid", uint64(sdpwire.HelloMID))
	m.text("sdp.layout", l.String())
	m.num("sdp.bufs", uint64(x.Bufs))
	m.num("sdp.len", sdpwire.HelloLen)
	m.num("sdp.max_adverts", uint64(x.MaxAdverts))
	m.num("sdp.des_rem_rcv_sz", uint64(x.DesRemRcvSz))
	m.num("sdp.local_rcv_sz", uint64(x.LocalRcvSz))
	m.num("sdp.loc_ird", uint64(x.LocIRD))
	m.num("sdp.loc_ord", uint64(x.LocORD))
	p.ulp.greet(side(h), m, x.Bufs, x.LocalRcvSz, x.MaxAdverts)
	p.c.d.emit(m)
}

// greet records the values of a Hello or HelloAck. Both views begin with a complete HelloAck.
func (s *sdpState) greet(side int, m *Message, bufs uint16, size uint32, adverts uint16) {
	x := &s.side[side]
	if bufs < sdpwire.MinBuffers {
		m.wrong("SDP-10.3-1", fmt.Sprintf("%d buffers, at least %d", bufs, sdpwire.MinBuffers))
	}
	if size < sdpwire.MinBufferSize {
		m.wrong("SDP-10-5", fmt.Sprintf("buffers of %d bytes, at least %d", size, sdpwire.MinBufferSize))
	}
	x.size, x.limit, x.maxAdverts = size, int64(bufs), int(adverts)
	if side == 1 && s.whole {
		for i := range s.view {
			s.view[i] = &sdpView{connecting: i == 0, adverts: s.side[1-i].maxAdverts, size: s.side[i].size,
				source: sdpHalf{mode: sdpwire.Combined}, sink: sdpHalf{mode: sdpwire.Combined}}
		}
	}
}

// send decodes the message beginning in a Send.
func (s *sdpState) send(h *half, m *Message, u ddp.Untagged, body []byte, filled int) {
	body = body[:len(body)-filled]
	if len(body) < sdpwire.BSDHLen {
		if filled == 0 {
			m.wrong("SDP-6-1", fmt.Sprintf("a Send of %d bytes holds no BSDH", len(body)))
		}
		s.lost(side(h))
		return
	}
	me, peer := &s.side[side(h)], &s.side[1-side(h)]
	if !s.settled {
		for _, l := range []sdpwire.Layout{sdpwire.Figure, sdpwire.IBTA} {
			if _, _, n := sdpwire.Peek(body, l); u.Last && int(n) == len(body) {
				s.layout, s.settled = l, true
				break
			}
		}
	}
	mid, flags, length := sdpwire.Peek(body, s.layout)
	m.Proto, m.Name = "sdp", mid.String()
	m.num("sdp.mid", uint64(mid))
	if mid == sdpwire.HelloAckMID && h.back && u.MSN == ddp.FirstMSN {
		x, _, err := sdpwire.ParseHelloAck(body, s.layout)
		if err != nil {
			m.wrong("SDP-6.1.4-1", err.Error())
			return
		}
		m.num("sdp.bufs", uint64(x.Bufs))
		m.num("sdp.len", sdpwire.HelloAckLen)
		m.num("sdp.max_adverts", uint64(x.MaxAdverts))
		m.num("sdp.act_rcv_sz", uint64(x.ActRcvSz))
		m.num("sdp.loc_ird", uint64(x.LocIRD))
		m.num("sdp.loc_ord", uint64(x.LocORD))
		s.greet(side(h), m, x.Bufs, x.ActRcvSz, x.MaxAdverts)
		return
	}
	total := len(body)
	if !u.Last || filled > 0 { // more segments follow
		total = int(length)
	}
	x, _, err := sdpwire.ParseHead(body, total, s.layout)
	if err != nil {
		m.num("sdp.flags", uint64(flags))
		m.num("sdp.len", uint64(length))
		if filled == 0 || !errors.Is(err, io.ErrUnexpectedEOF) {
			m.wrong(sdpRow(err), err.Error())
		}
		s.lost(side(h))
		return
	}
	s.fields(m, &x)
	s.judge(h, me, peer, m, &x)
	s.follow(h, m, &x, u)
}

// sdpRow returns the requirement violated by an error of the codec.
func sdpRow(err error) string {
	switch {
	case errors.Is(err, sdpwire.ErrLen):
		return "SDP-6.1.4-1"
	case errors.Is(err, sdpwire.ErrMID):
		return "SDP-6.1.1-3"
	case errors.Is(err, sdpwire.ErrSize):
		return "SDP-6.3.2.1-2"
	case errors.Is(err, sdpwire.ErrMode):
		return "SDP-6.3.8.2-1"
	case errors.Is(err, sdpwire.ErrConst):
		return "SDP-6.5.1.2-1"
	case errors.Is(err, sdpwire.ErrFlags):
		return "SDP-6.1.2-5"
	}
	return "SDP-6.1.1-1"
}

func (s *sdpState) fields(m *Message, x *sdpwire.Message) {
	if x.Flags != 0 {
		m.text("sdp.flags", x.Flags.String())
	}
	m.num("sdp.bufs", uint64(x.Bufs))
	m.num("sdp.len", uint64(x.Len))
	m.num("sdp.mseq", uint64(x.MSeq))
	m.num("sdp.mseqack", uint64(x.MSeqAck))
	switch x.MID {
	case sdpwire.SrcAvail, sdpwire.SinkAvail:
		m.num("sdp.size", uint64(x.Size))
		m.hex("sdp.stag", uint64(x.STag))
		m.hex("sdp.va", x.VA)
		if x.MID == sdpwire.SinkAvail {
			m.num("sdp.non_discards", uint64(x.NonDiscards))
		}
	case sdpwire.RdmaRdCompl, sdpwire.RdmaWrCompl, sdpwire.ChRcvBuf, sdpwire.ChRcvBufAck:
		m.num("sdp.size", uint64(x.Size))
	case sdpwire.ModeChange:
		m.text("sdp.mode", x.Mode.String())
		m.truth("sdp.s", x.S)
	case sdpwire.SuspComm:
		m.num("sdp.port", uint64(x.Port))
	}
	if n := x.PayloadLen(); n > 0 {
		m.num("sdp.payload", uint64(n))
	}
}

// judge checks the rules visible to an observer: sequence numbers, credits, sizes, and whether the
// mode allows the message. If the sender may still have been in an older mode, either mode may
// allow it.
func (s *sdpState) judge(h *half, me, peer *sdpSide, m *Message, x *sdpwire.Message) {
	if me.sure && x.MSeq != me.next {
		id := "SDP-6.1.5-2"
		if me.next == 0 && s.whole {
			id = "SDP-6.1.5-1"
		}
		m.wrong(id, fmt.Sprintf("MSeq %d where %d was due", x.MSeq, me.next))
	}
	payload := x.PayloadLen()
	if s.whole && me.sure && peer.limit >= 0 {
		switch left := peer.limit - int64(x.MSeq); {
		case left <= 0:
			m.wrong("SDP-10.5-5", "there is no credit for it")
		case left <= 2 && payload > 0:
			m.wrong("SDP-10.5-7", fmt.Sprintf("ULP payload with a credit of %d", left))
		}
	}
	if peer.size > 0 && x.Len > peer.size {
		m.wrong("SDP-10-4", fmt.Sprintf("%d bytes for buffers of %d", x.Len, peer.size))
	}
	if s.whole && peer.sure && int32(x.MSeqAck-peer.next) >= 0 && x.MSeqAck != 0 {
		m.wrong("D-09", fmt.Sprintf("MSeqAck %d, but only the messages before %d were sent", x.MSeqAck, peer.next))
	}
	if me.bye && (payload > 0 || x.MID == sdpwire.SrcAvail) {
		m.wrong("SDP-8.2.1-8", "after DisConn")
	}
	me.sure, me.next = true, x.MSeq+1
	if upTo := int64(x.MSeqAck) + 1; me.limit >= 0 && upTo+int64(x.Bufs) > me.limit {
		me.limit = upTo + int64(x.Bufs)
	}
	switch x.MID {
	case sdpwire.SrcAvail:
		s.advertise(me, x, false)
		if !me.may(me.sees(x, true), func(mode sdpwire.Mode) bool { return mode != sdpwire.Buffered }) {
			m.wrong("SDP-11.1-1", "a SrcAvail in Buffered Mode")
		} else if s.whole && payload == 0 && !me.may(me.sees(x, true), func(mode sdpwire.Mode) bool { return mode == sdpwire.Pipelined }) {
			m.wrong("SDP-11.2-6", "a SrcAvail without payload in Combined Mode")
		} else if s.whole && payload > 0 && !me.may(me.sees(x, true), func(mode sdpwire.Mode) bool { return mode == sdpwire.Combined }) {
			m.wrong("SDP-11.3-4", "a SrcAvail with payload in Pipelined Mode")
		}
	case sdpwire.SinkAvail:
		s.advertise(me, x, true)
		if s.whole && !peer.may(peer.sees(x, false), func(mode sdpwire.Mode) bool { return mode == sdpwire.Pipelined }) {
			m.wrong("SDP-12-10", fmt.Sprintf("a SinkAvail in %v Mode", peer.mode))
		}
	case sdpwire.ModeChange:
		s.change(me, peer, m, x)
	case sdpwire.ChRcvBufAck:
		me.size = x.Size
	case sdpwire.DisConn:
		me.bye = true
	}
}

// follow checks x against the sender's view, and advances the views of both peers. After a
// SuspComm, follow only checks the messages of the suspension.
func (s *sdpState) follow(h *half, m *Message, x *sdpwire.Message, u ddp.Untagged) {
	i := side(h)
	s.suspending(i, m, x)
	if s.view[i] == nil {
		return
	}
	v, peer := s.view[i], s.view[1-i]
	sure := len(m.Wrong) == 0 && !s.side[0].susp && !s.side[1].susp && len(peer.inbox) < maxInbox && v.hear(x)
	if sure {
		inv, invalidates := rdmap.InvalidateSTag(u)
		if b := v.send(x, inv, invalidates); b.id != "" {
			m.wrong(b.id, b.text)
			sure = false
		}
	}
	if !sure {
		s.view = [2]*sdpView{}
		return
	}
	peer.inbox = append(peer.inbox, *x)
}

// suspending checks the messages before and after the messages of a suspension. [SDP 13.1.1] [D-53]
func (s *sdpState) suspending(i int, m *Message, x *sdpwire.Message) {
	me, peer := &s.side[i], &s.side[1-i]
	update := x.MID == sdpwire.Data && x.PayloadLen() == 0
	if me.susp && x.MID != sdpwire.SuspCommAck && x.MID != sdpwire.AbortConn && !update {
		m.wrong("SDP-13.1.1-5", "after SuspComm")
	}
	reads := &s.p.side[i].rdma
	reading := s.whole && !reads.readsLost && len(reads.reads) > 0
	switch {
	case x.MID == sdpwire.SuspCommAck && s.whole && !peer.susp:
		m.wrong("SDP-13.1.1-6", "nothing was asked")
	case x.MID == sdpwire.SuspCommAck && reading:
		m.wrong("SDP-13.1.1-6", "RDMA Reads of its sender are not answered yet")
	case x.MID == sdpwire.SuspComm && reading:
		m.wrong("SDP-13.1.1-3", "RDMA Reads of its sender are not answered yet")
	}
	me.susp = me.susp || x.MID == sdpwire.SuspComm
}

// suspended reports RDMA after SuspComm as a violation.
func (s *sdpState) suspended(h *half, m *Message) {
	if s.side[side(h)].susp {
		m.wrong("SDP-13.1.1-5", "after SuspComm")
	}
}

// advertise records the advertisement in x.
func (s *sdpState) advertise(me *sdpSide, x *sdpwire.Message, sink bool) {
	if len(me.adverts) >= maxAdverts {
		clear(me.adverts)
		me.many = true
	}
	me.adverts[x.STag] = advert{x.VA, uint64(x.Size), sink}
}

// sees returns the modes that the sender of x may assume for the half of src: the present mode and,
// if the other peer made the last change and x does not acknowledge the change, the previous mode.
func (src *sdpSide) sees(x *sdpwire.Message, isSource bool) (modes [2]sdpwire.Mode) {
	modes = [2]sdpwire.Mode{src.mode, src.mode}
	if src.changed && src.byPeer == isSource && int32(x.MSeqAck-src.at) < 0 ||
		src.changed && src.byPeer == isSource && x.MSeqAck == 0 {
		modes[1] = src.before
	}
	return modes
}

func (src *sdpSide) may(modes [2]sdpwire.Mode, legal func(sdpwire.Mode) bool) bool {
	return legal(modes[0]) || legal(modes[1])
}

// change checks and applies a ModeChange. [SDP 12]
func (s *sdpState) change(me, peer *sdpSide, m *Message, x *sdpwire.Message) {
	src, byPeer := me, false
	if x.S { // the receiver's sending half
		src, byPeer = peer, true
	}
	from := src.mode
	switch {
	case !s.whole && !src.changed:
	case from == x.Mode:
		m.wrong("SDP-12-3", fmt.Sprintf("the half is in %v already", from))
	case from != sdpwire.Combined && x.Mode != sdpwire.Combined:
		m.wrong("SDP-12-1", fmt.Sprintf("from %v to %v", from, x.Mode))
	case byPeer != (from == sdpwire.Buffered):
		m.wrong("SDP-12-2", fmt.Sprintf("the other peer is master of the change from %v to %v", from, x.Mode))
	}
	src.before, src.mode, src.changed, src.byPeer, src.at = from, x.Mode, true, byPeer, x.MSeq
}

// write checks an RDMA Write, whose target the peer must have advertised by SinkAvail.
func (s *sdpState) write(h *half, m *Message, t ddp.Tagged, n int) {
	s.suspended(h, m)
	peer := &s.side[1-side(h)]
	if n == 0 || !s.whole || peer.many || !peer.sure {
		return
	}
	a, ok := peer.adverts[t.STag]
	switch {
	case !ok || !a.sink:
		m.wrong("DDP-7.1-9", fmt.Sprintf("STag %#x was never advertised by a SinkAvail", t.STag))
	case t.TO < a.at || t.TO-a.at+uint64(n) > a.size:
		m.wrong("DDP-7.1-12", fmt.Sprintf("%d bytes at %#x, advertised are %d at %#x", n, t.TO, a.size, a.at))
	}
}

// read checks a Read Request, whose source the peer must have advertised by SrcAvail.
func (s *sdpState) read(h *half, m *Message, r rdmap.ReadRequest) {
	s.suspended(h, m)
	peer := &s.side[1-side(h)]
	if r.Size == 0 || !s.whole || peer.many || !peer.sure {
		return
	}
	a, ok := peer.adverts[r.SourceSTag]
	switch {
	case !ok || a.sink:
		m.wrong("RDMAP-7.2-7", fmt.Sprintf("STag %#x was never advertised by a SrcAvail", r.SourceSTag))
	case r.SourceTO < a.at || r.SourceTO-a.at+uint64(r.Size) > a.size:
		m.wrong("RDMAP-7.2-10", fmt.Sprintf("%d bytes at %#x, advertised are %d at %#x", r.Size,
			r.SourceTO, a.size, a.at))
	}
}
