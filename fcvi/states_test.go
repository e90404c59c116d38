package fcvi

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fabric"
	"viaduct/internal/testkit"
	"viaduct/internal/wire/iu"
)

// A walk is an endpoint of port 0 of a simulated pair, put into a state. A walk records the effects
// of an event in the state.
type walk struct {
	*sim
	f     *fake
	c     *conn
	r     *fc.Remote
	moves []string // changes of state, FROM TO
	sent  []string

	accepted []iu.Reason // the results that the waiter got

	before []string // the facts before the event
	counts Stats    // the counters of the port before the event

	since fc.Time  // the time after the event; 0 before
	later []string // effects after the event, each with its time
}

// A standing is the start of a walk: a state, and the facts distinguishing the state's cases.
type standing struct {
	name string
	s    state
	more func(c *conn)
}

var places = []standing{
	{"IDLE", stIdle, nil},
	{"C_RESOLVE", stResolve, nil},
	{"C_RQST", stRqst, nil},
	{"C_RQST after RESP2", stRqst, func(c *conn) { c.sentResp2 = true; c.startStreams() }},
	{"C_RQST after RESP2, ours is refused", stRqst, func(c *conn) {
		c.sentResp2, c.own.open = true, false
		c.startStreams()
	}},
	{"C_RQST, before the peer has a handle", stRqst, func(c *conn) { c.rHandle = 0 }},
	{"C_RQST, the peer's name is lower", stRqst, func(c *conn) { c.remote.PortName = 1 }},
	{"C_RQST, the peer's name is lower, ours is refused", stRqst, func(c *conn) { c.remote.PortName, c.own.open = 1, false }},
	{"CONCEDED", stConceded, func(c *conn) { c.own.open = false }},
	{"C_HELD", stHeld, nil},
	{"C_HELD, with a waiter", stHeld, func(c *conn) { c.claim = taken }},
	{"C_HELD, lingering", stHeld, func(c *conn) { c.claim = lingering }},
	{"C_RESP1", stResp1, nil},
	{"C_RESP1, ours is open", stResp1, func(c *conn) {
		ox, _ := c.p.oxids.alloc(c)
		c.own = leg{id: ownID, attempt: 1, oxid: ox, rxid: 0x55, open: true}
	}},
	{"C_RESP2", stResp2, func(c *conn) { c.sentResp2 = true; c.startStreams() }},
	{"CONNECTED", stConnected, nil},
	{"CONNECTED, not confirmed yet", stConnected, func(c *conn) {
		ox, _ := c.p.oxids.alloc(c)
		c.own = leg{id: ownID, attempt: 1, oxid: ox, rxid: 0x55, open: true}
	}},
	{"CONNECTED, responder", stConnected, func(c *conn) {
		c.responder, c.their, c.key, c.hasKey = true, leg{id: theirID, attempt: 1, oxid: 0x123, rxid: 0x55},
			setupKey{c.remote.PortName, theirID}, true
		c.p.setups[c.key] = &setup{conn: c}
	}},
	{"DISC_SENT", stDiscSent, nil},
	{"DISC_SENT, responder", stDiscSent, func(c *conn) {
		c.responder, c.their, c.key, c.hasKey = true, leg{id: theirID, attempt: 1, oxid: 0x123, rxid: 0x55},
			setupKey{c.remote.PortName, theirID}, true
		c.p.setups[c.key] = &setup{conn: c}
	}},
	{"ERROR", stError, nil},
	{"ERROR, responder", stError, func(c *conn) {
		c.responder, c.their, c.key, c.hasKey = true, leg{id: theirID, attempt: 1, oxid: 0x123, rxid: 0x55},
			setupKey{c.remote.PortName, theirID}, true
		c.p.setups[c.key] = &setup{conn: c}
	}},
	{"ERROR after ERR response", stError, func(c *conn) {
		c.disc, c.discHdr, c.rx.failed = leg{}, iu.Header{}, iu.NoRecvDesc
	}},
}

// The connection ids of the two requests, and the peer's handle.
const (
	ownID, theirID = 0x00010001, 0x00020001
	peerHandle     = 0x00077001
)

// begin puts a new endpoint of the given mode into the state of at.
func begin(t *testing.T, mode iu.Mode, at standing) *walk {
	w := &walk{sim: newSim(t, simConfig{seed: 1, order: true})}
	p := w.ports[0]
	p.np.Login(w.net.Now(), w.ports[1].np.ID(), func(fc.Time, *fc.Remote, error) {})
	w.net.Run(time.Millisecond)
	w.r = p.np.RemoteByName(w.ports[1].np.Name())
	w.f = w.fake(0, iu.ReliableDelivery)
	peer := w.fake(1, iu.ReliableDelivery)
	c := p.newConn(w.net.Now(), mode)
	w.c, w.f.c = c, c
	c.local, c.want, c.attrs, c.rattrs = w.f.net("me"), peer.net("you"), w.f.attrs(), peer.attrs()
	c.up, c.done, c.mts = w.f, w.f.result1, defaultMaxTransfer
	p.cache[keyOf(c.want)] = mapping{w.r.Addr, w.r.PortName}
	c.state = at.s
	open := func(id uint32) leg {
		ox, _ := p.oxids.alloc(c)
		return leg{id: id, attempt: 1, oxid: ox, rxid: 0x55, open: true}
	}
	switch at.s {
	case stIdle, stResolve:
	case stHeld, stResp1:
		c.remote, c.rHandle, c.their = w.r, peerHandle,
			leg{id: theirID, attempt: 1, oxid: 0x123, rxid: 0x55, open: true}
		c.key, c.hasKey = setupKey{w.r.PortName, theirID}, true
		p.setups[c.key] = &setup{conn: c}
		c.deadline = w.net.Now() + time.Hour
		if at.s == stHeld {
			c.up, c.done = nil, nil
			c.accepted = func(_ fc.Time, r iu.Reason) { w.accepted = append(w.accepted, r) }
		}
	default:
		c.remote, c.rHandle, c.own = w.r, peerHandle, open(ownID)
	}
	switch at.s {
	case stConnected, stDiscSent, stError:
		c.closeOwn()
		c.startStreams()
		if at.s != stConnected {
			c.up = nil
			c.disc, c.discHdr, c.tries = open(ownID),
				iu.Header{Op: iu.DisconnectRqst, Handle: peerHandle, Param: iu.Status{Reason: iu.ULPDisconnect}.Param()}, 1
		}
	}
	if at.more != nil {
		at.more(c)
	}
	p.cfg.onConnState = func(o *conn, from, to state) {
		if o == c {
			w.moves = append(w.moves, from.String()+" "+to.String())
			w.happened(to.String())
		}
	}
	codec := p.cfg.codec
	w.net.Tap(func(_ fc.Time, from *fabric.End, f *fc.Frame) {
		h, _, err := iu.ParseHeader(f.Opt)
		switch {
		case from != p.end:
		case f.RCtl == fc.RCtlABTS:
			w.sent = append(w.sent, fmt.Sprintf("ABTS F_CTL %06x", uint32(f.FCtl)))
			w.happened("ABTS")
		case f.Type == fc.TypeFCVI && f.RCtl.IsDeviceData() && err == nil:
			w.sent = append(w.sent, described(codec, f, &h))
			w.happened(strings.TrimSuffix(strings.SplitAfter(described(codec, f, &h), " F_CTL")[0], " F_CTL"))
		}
	})
	w.ready(nil)
	return w
}

// happened records an effect after the event.
func (w *walk) happened(what string) {
	if w.since != 0 {
		w.later = append(w.later, fmt.Sprintf("%v %s", (w.net.Now()-w.since).Round(time.Millisecond), what))
	}
}

// aftermath returns the effects of the event over a while without other events: sent frames, the
// states, and the facts at the end.
func (w *walk) aftermath() string {
	w.since = w.net.Now()
	told := len(w.f.result)
	w.net.Run(2 * time.Minute)
	if n := len(w.later) - 9; n > 0 { // an endpoint that tries again and again
		w.later = append(w.later[:9], fmt.Sprintf("and %d more", n))
	}
	if n := len(w.f.result); n > told {
		w.later = append(w.later, fmt.Sprintf("told %v", w.f.result[told:]))
	}
	end := fmt.Sprintf("%d exchanges", w.c.p.oxids.used)
	if w.c.gone {
		end += ", gone"
	}
	return "later: " + strings.Join(append(w.later, end), ", ")
}

// ready calls change to prepare the endpoint further, and records the endpoint's facts before the
// event.
func (w *walk) ready(change func(c *conn)) {
	if change != nil {
		change(w.c)
	}
	w.before, w.counts = w.facts(), w.c.p.stats
}

// described returns an IU in short form: the reason, other header fields, the frame count in the
// Exchange, and F_CTL.
func described(codec iu.Codec, f *fc.Frame, h *iu.Header) string {
	s := strings.TrimPrefix(h.Op.String(), "FCVI_")
	if !h.Op.IsRequest() {
		s += "(" + h.Status().Reason.String() + ")"
	}
	for _, v := range []struct {
		name string
		n    uint32
	}{{"flags", uint32(h.Flags)}, {"to", h.Handle}, {"msg", uint32(h.MsgID)}, {"total", h.Total}, {"remote", h.RmtHandle}, {"cnt", uint32(f.SeqCnt)}} {
		if v.n != 0 {
			s += fmt.Sprintf(" %s %x", v.name, v.n)
		}
	}
	if q, _, err := codec.ParseConnectRqst(f.Payload); h.Op == iu.ConnectRqst && err == nil {
		s += fmt.Sprintf(" for %d ms", int32(q.Timeout))
	}
	return fmt.Sprintf("%s F_CTL %06x", s, uint32(f.FCtl))
}

// facts returns the observable facts of the endpoint besides its state: the consumer's results,
// running timers, Exchanges, and the remembered outcome of the peer's request.
func (w *walk) facts() (all []string) {
	c, p := w.c, w.c.p
	fact := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if len(w.f.result) > 0 {
		fact("told %v", w.f.result)
	}
	if w.f.broke > 0 {
		fact("broken %d, orderly %v", w.f.broke, w.f.order)
	}
	for _, t := range []struct {
		name string
		t    *fc.Timer
	}{{"timer", c.timer}, {"limit", c.limit}, {"responses", c.tx.resp.timer}, {"gap", c.rx.timer}, {"proof", c.tx.proof.timer}} {
		if t.t.Active() {
			fact("%s %v", t.name, (t.t.At() - w.net.Now()).Round(time.Microsecond))
		}
	}
	for i, l := range []leg{c.own, c.their, c.disc} {
		if l != (leg{}) {
			fact("%s %x-%d cnt %d open %v", [...]string{"own", "their", "disc"}[i], l.id, l.attempt, l.cnt, l.open)
		}
	}
	for id := uint32(theirID); id <= theirID+1; id++ {
		if s := p.setups[setupKey{w.r.PortName, id}]; s != nil && s.conn != nil {
			fact("%x answered", id)
		} else if s != nil {
			fact("%x over: %v", id, s.reason)
		}
	}
	fact("exchanges %d", p.oxids.used)
	fact("tries %d", c.tries)
	fact("responder %v", c.responder)
	fact("confirmed %v", c.sentResp2)
	fact("to %x", c.rHandle)
	fact("from message %x", c.initRx)
	if len(w.accepted) > 0 {
		fact("the waiter is told %v", w.accepted)
	}
	return all
}

// outcome returns the changes the event made: the state, sent frames, new facts, and counters.
func (w *walk) outcome() string {
	to := w.c.state.String()
	if w.c.gone {
		to = "gone"
	}
	lines := append([]string{to}, w.sent...)
	var changed []string
	for _, f := range w.facts() {
		if !slices.Contains(w.before, f) {
			changed = append(changed, f)
		}
	}
	if changed = append(changed, counted(&w.counts, &w.c.p.stats)...); len(changed) > 0 {
		lines = append(lines, strings.Join(changed, ", "))
	}
	return strings.Join(lines, "\n\t\t")
}

// counted returns the names of the counters grown from before to after.
func counted(before, after *Stats) (all []string) {
	old, now := reflect.ValueOf(before).Elem(), reflect.ValueOf(after).Elem()
	for i := range now.NumField() {
		name := now.Type().Field(i).Name
		if n := now.Field(i).Uint() - old.Field(i).Uint(); n > 0 && name != "RecvFrames" &&
			name != "SentIUs" { // every event may count these
			all = append(all, fmt.Sprintf("%s+%d", name, n))
		}
	}
	return all
}

// arrive delivers an IU of the peer to the endpoint.
func (w *walk) arrive(h iu.Header, reason iu.Reason, payload []byte) {
	if h.Op != iu.ConnectRqst {
		h.Handle = w.c.handle
	}
	h.Param = iu.Status{Reason: reason}.Param()
	codec := w.c.p.cfg.codec
	f := fc.Frame{SOF: fc.SOFi3, EOF: fc.EOFt, Payload: payload, Opt: h.Append(nil),
		Header: fc.Header{RCtl: fc.RCtl(codec.RCtl(h.Op)), Type: fc.TypeFCVI,
			DFCtl: codec.DFCtl(h.Op), FCtl: fc.FCtlFirstSeq | fc.FCtlLastSeq | fc.FCtlEndSeq,
			SID: w.r.Addr, OXID: w.c.disc.oxid, RXID: 0x55}}
	w.c.p.Frame(w.net.Now(), w.r, &f)
}

func (w *walk) resp1(reason iu.Reason, flags iu.Flags) {
	w.resp1With(iu.Header{Flags: flags, MsgID: 1, Total: ownID}, reason, nil)
}

func (w *walk) resp1With(h iu.Header, reason iu.Reason, change func(a *iu.AcceptPayload)) {
	a := iu.AcceptPayload{Handle: peerHandle, InitialMsgID: 1, Local: w.c.want, Attributes: w.c.rattrs}
	if change != nil {
		change(&a)
	}
	h.Op = iu.ConnectResp1
	w.arrive(h, reason, w.c.p.cfg.codec.AppendConnectResp1(nil, &a))
}

func (w *walk) rqst(id uint32) { w.rqstWith(iu.Header{MsgID: 1, Total: id}, nil) }

func (w *walk) rqstWith(h iu.Header, change func(q *iu.ConnectPayload)) {
	q := iu.ConnectPayload{Handle: peerHandle, InitialMsgID: 1, Timeout: iu.NoTimeout,
		Local: w.c.want, Remote: w.c.local, Attributes: w.c.rattrs}
	if change != nil {
		change(&q)
	}
	h.Op = iu.ConnectRqst
	h.Flags |= w.c.mode.Flags()
	w.arrive(h, 0, w.c.p.cfg.codec.AppendConnectRqst(nil, &q))
}

// events are all possible events of an endpoint.
var events = []struct {
	name string
	run  func(w *walk)
}{
	{"address found", func(w *walk) { // this is what connect does
		if w.c.state == stIdle {
			w.c.setState(stResolve)
		}
		w.c.lookUp(w.net.Now())
	}},
	{"CONNECT_RQST, ours", func(w *walk) {
		if w.c.state == stIdle { // this is what hold does
			w.c.remote = w.r
			w.c.setState(stHeld)
			return
		}
		w.rqst(theirID)
	}},
	{"CONNECT_RQST, ours, retried", func(w *walk) { w.rqstWith(iu.Header{MsgID: 2, Total: theirID, Flags: iu.FlagRetry}, nil) }},
	{"CONNECT_RQST, ours, late", func(w *walk) {
		w.ready(func(c *conn) { c.their.attempt = 2 })
		w.rqst(theirID)
	}},
	{"CONNECT_RQST, another", func(w *walk) { w.rqst(theirID + 1) }},
	{"CONNECT_RQST, one before", func(w *walk) { w.rqst(theirID - 1) }},
	{"CONNECT_RQST, ours, by another login", func(w *walk) {
		again := *w.r
		w.r = &again
		w.rqst(theirID)
	}},
	{"CONNECT_RQST, another, by another login", func(w *walk) {
		again := *w.r
		w.r = &again
		w.rqst(theirID + 1)
	}},
	{"CONNECT_RQST, unfit", func(w *walk) {
		w.rqstWith(iu.Header{MsgID: 1, Total: theirID + 1}, func(q *iu.ConnectPayload) { q.Attributes.MaxTransfer = 0 })
	}},
	{"CONNECT_RQST, for a while", func(w *walk) {
		w.rqstWith(iu.Header{MsgID: 1, Total: theirID + 1},
			func(q *iu.ConnectPayload) { q.Timeout, q.Local = 1500, w.f.net("stranger") })
	}},
	{"RESP1(ACCEPTED)", func(w *walk) { w.resp1(iu.Accepted, iu.FlagPos) }},
	{"RESP1(ACCEPTED), unfit", func(w *walk) {
		w.resp1With(iu.Header{Flags: iu.FlagPos, MsgID: 1, Total: ownID}, iu.Accepted,
			func(a *iu.AcceptPayload) { a.Attributes.MaxTransfer = 0 })
	}},
	{"RESP1(ACCEPTED), handle 0", func(w *walk) {
		w.resp1With(iu.Header{Flags: iu.FlagPos, MsgID: 1, Total: ownID}, iu.Accepted,
			func(a *iu.AcceptPayload) { a.Handle = 0 })
	}},
	{"RESP1(ACCEPTED), malformed", func(w *walk) {
		a := iu.AcceptPayload{Handle: peerHandle, InitialMsgID: 1, Local: w.c.want, Attributes: w.c.rattrs}
		b := w.c.p.cfg.codec.AppendConnectResp1(nil, &a)
		b[0]++ // the version
		w.arrive(iu.Header{Op: iu.ConnectResp1, Flags: iu.FlagPos, MsgID: 1, Total: ownID}, iu.Accepted, b)
	}},
	{"RESP1(ACCEPTED), other handle", func(w *walk) {
		w.resp1With(iu.Header{Flags: iu.FlagPos, MsgID: 1, Total: ownID}, iu.Accepted,
			func(a *iu.AcceptPayload) { a.Handle++ })
	}},
	{"RESP1(ACCEPTED), other attempt", func(w *walk) { w.resp1With(iu.Header{Flags: iu.FlagPos, MsgID: 2, Total: ownID}, iu.Accepted, nil) }},
	{"RESP1(ACCEPTED), other set-up", func(w *walk) { w.resp1With(iu.Header{Flags: iu.FlagPos, MsgID: 1, Total: ownID + 1}, iu.Accepted, nil) }},
	{"RESP1(ACCEPTED), no attempt yet", func(w *walk) {
		w.ready(func(c *conn) { c.own.attempt = 0 })
		w.resp1With(iu.Header{Flags: iu.FlagPos, Total: w.c.own.id}, iu.Accepted, nil)
	}},
	{"RESP1(ALREADY_CONNECTED)", func(w *walk) { w.resp1(iu.AlreadyConnected, iu.FlagPos) }},
	{"RESP1(STALE)", func(w *walk) { w.resp1(iu.Stale, 0) }},
	{"RESP1(STALE), once more", func(w *walk) {
		w.ready(func(c *conn) { c.tries = maxAttempts - 2 })
		w.resp1(iu.Stale, 0)
	}},
	{"RESP1(STALE), the last", func(w *walk) {
		w.ready(func(c *conn) { c.tries = maxAttempts - 1 })
		w.resp1(iu.Stale, 0)
	}},
	{"RESP1(NO_RESOURCES)", func(w *walk) { w.resp1(iu.NoResources, 0) }},
	{"RESP1(BAD_MODE)", func(w *walk) { w.resp1(iu.BadMode, 0) }},
	{"RESP1(PENDING), no flag", func(w *walk) { w.resp1(iu.Pending, 0) }},
	{"RESP1(PENDING), a deadline", func(w *walk) {
		w.c.deadline = w.net.Now() + 20*time.Second
		w.resp1(iu.Pending, iu.FlagPend)
	}},
	{"RESP1(PEER_YIELD), other attempt", func(w *walk) { w.resp1With(iu.Header{MsgID: 2, Total: ownID}, iu.PeerYield, nil) }},
	{"RESP1(PENDING)", func(w *walk) { w.resp1(iu.Pending, iu.FlagPend) }},
	{"RESP1(PEER_YIELD)", func(w *walk) { w.resp1(iu.PeerYield, 0) }},
	{"RESP1(NO_MATCH)", func(w *walk) { w.resp1(iu.NoMatch, 0) }},
	{"RESP1(NO_MATCH), with the flag of PENDING", func(w *walk) { w.resp1(iu.NoMatch, iu.FlagPend) }},
	{"RESP1(ULP_REJECT)", func(w *walk) { w.resp1(iu.ULPReject, 0) }},
	{"RESP2(CONFIRMED)", func(w *walk) {
		w.arrive(iu.Header{Op: iu.ConnectResp2, Flags: iu.FlagPos, MsgID: 1, Total: theirID}, iu.Confirmed, nil)
	}},
	{"RESP2(CONFIRMED), of no set-up", func(w *walk) {
		w.arrive(iu.Header{Op: iu.ConnectResp2, Flags: iu.FlagPos}, iu.Confirmed, nil)
	}},
	{"RESP2(CANCELLED)", func(w *walk) {
		w.arrive(iu.Header{Op: iu.ConnectResp2, MsgID: 1, Total: theirID}, iu.Cancelled, nil)
	}},
	{"RESP2(CANCELLED), retried", func(w *walk) {
		w.ready(func(c *conn) { c.their.attempt = 2 })
		w.arrive(iu.Header{Op: iu.ConnectResp2, MsgID: 2, Total: theirID}, iu.Cancelled, nil)
	}},
	{"RESP2(CONFIRMED), retried", func(w *walk) {
		w.ready(func(c *conn) { c.their.attempt = 2 })
		w.arrive(iu.Header{Op: iu.ConnectResp2, Flags: iu.FlagPos, MsgID: 2, Total: theirID}, iu.Confirmed, nil)
	}},
	{"RESP2(CONFIRMED), no flag", func(w *walk) {
		w.arrive(iu.Header{Op: iu.ConnectResp2, MsgID: 1, Total: theirID}, iu.Confirmed, nil)
	}},
	{"RESP2(INVALID_MTS)", func(w *walk) {
		w.arrive(iu.Header{Op: iu.ConnectResp2, MsgID: 1, Total: theirID}, iu.InvalidMTS, nil)
	}},
	{"RESP2(INVALID_MTS), with the flag of an acceptance", func(w *walk) {
		w.arrive(iu.Header{Op: iu.ConnectResp2, Flags: iu.FlagPos, MsgID: 1, Total: theirID}, iu.InvalidMTS, nil)
	}},
	{"RESP2(CONFIRMED), other attempt", func(w *walk) {
		w.arrive(iu.Header{Op: iu.ConnectResp2, Flags: iu.FlagPos, MsgID: 2, Total: theirID}, iu.Confirmed, nil)
	}},
	{"RESP2(CONFIRMED), other set-up", func(w *walk) {
		w.arrive(iu.Header{Op: iu.ConnectResp2, Flags: iu.FlagPos, MsgID: 1, Total: theirID + 1}, iu.Confirmed, nil)
	}},
	{"RESP3, other attempt", func(w *walk) {
		w.arrive(iu.Header{Op: iu.ConnectResp3, Flags: iu.FlagPos, MsgID: 2, Total: ownID}, iu.Confirmed, nil)
	}},
	{"RESP3, other set-up", func(w *walk) {
		w.arrive(iu.Header{Op: iu.ConnectResp3, Flags: iu.FlagPos, MsgID: 1, Total: ownID + 1}, iu.Confirmed, nil)
	}},
	{"RESP3", func(w *walk) {
		w.arrive(iu.Header{Op: iu.ConnectResp3, Flags: iu.FlagPos, MsgID: 1, Total: ownID}, iu.Confirmed, nil)
	}},
	{"a message", func(w *walk) {
		w.f.postRecv(0)
		w.arrive(iu.Header{Op: iu.SendRqst, MsgID: w.c.rx.mexp}, 0, nil)
	}},
	{"a response", func(w *walk) { w.arrive(iu.Header{Op: iu.SendResp}, 0, nil) }},
	{"a violation", func(w *walk) { w.arrive(iu.Header{Op: iu.SendRqst, Flags: iu.FlagRR, MsgID: w.c.rx.mexp}, 0, nil) }},
	{"DISCONNECT_RQST", func(w *walk) {
		w.arrive(iu.Header{Op: iu.DisconnectRqst, RmtHandle: w.c.rHandle, Total: ownID}, iu.ULPDisconnect, nil)
	}},
	{"DISCONNECT_RQST, an error", func(w *walk) {
		w.arrive(iu.Header{Op: iu.DisconnectRqst, Flags: iu.FlagErr | iu.FlagMsgID | iu.FlagRetry, MsgID: 5, RmtHandle: w.c.rHandle, Total: ownID}, iu.FrameLost, nil)
	}},
	{"DISCONNECT_RQST, no handle", func(w *walk) { w.arrive(iu.Header{Op: iu.DisconnectRqst, Total: ownID}, iu.ULPDisconnect, nil) }},
	{"DISCONNECT_RQST, other handle", func(w *walk) {
		w.arrive(iu.Header{Op: iu.DisconnectRqst, RmtHandle: peerHandle + 1, Total: ownID}, iu.ULPDisconnect, nil)
	}},
	{"DISCONNECT_RQST, to handle 0", func(w *walk) {
		h := w.c.handle
		w.c.handle = 0
		w.arrive(iu.Header{Op: iu.DisconnectRqst, RmtHandle: peerHandle, Flags: iu.FlagErr, Total: ownID},
			iu.NotConnected, nil)
		w.c.handle = h
	}},
	{"DISCONNECT_RQST, between handles 0", func(w *walk) {
		h := w.c.handle
		w.c.handle = 0
		w.arrive(iu.Header{Op: iu.DisconnectRqst, Flags: iu.FlagErr, Total: ownID}, iu.NotConnected, nil)
		w.c.handle = h
	}},
	{"DISCONNECT_RESP, late", func(w *walk) {
		w.ready(func(c *conn) { c.disc.oxid++ })
		w.arrive(iu.Header{Op: iu.DisconnectResp, Total: ownID}, iu.ULPDisconnect, nil)
	}},
	{"DISCONNECT_RESP", func(w *walk) { w.arrive(iu.Header{Op: iu.DisconnectResp, Total: ownID}, iu.ULPDisconnect, nil) }},
	{"the state's timer", func(w *walk) { w.c.expired(w.net.Now()) }},
	{"the state's timer, once more", func(w *walk) {
		w.ready(func(c *conn) { c.tries = maxAttempts - 2 })
		w.c.expired(w.net.Now())
	}},
	{"the state's timer, the last", func(w *walk) {
		w.ready(func(c *conn) { c.tries = maxAttempts - 1 })
		w.c.expired(w.net.Now())
	}},
	{"the state's timer, a deadline", func(w *walk) {
		w.c.deadline = w.net.Now() + 1500*time.Millisecond
		w.c.expired(w.net.Now())
	}},
	{"the state's timer, past it", func(w *walk) {
		w.c.deadline = w.net.Now() - time.Millisecond
		w.c.expired(w.net.Now())
	}},
	{"ABTS of the request", func(w *walk) { w.c.aborted(w.net.Now(), 0x123) }},
	{"ABTS of another", func(w *walk) { w.c.aborted(w.net.Now(), 0x124) }},
	{"the consumer's time is over", func(w *walk) { w.c.limited(w.net.Now()) }},
	{"the consumer accepts", func(w *walk) {
		w.c.accept(w.net.Now(), w.f.attrs(), w.f, false, w.f.result1)
	}},
	{"the consumer rejects", func(w *walk) { w.c.reject(w.net.Now(), iu.ULPReject) }},
	{"the consumer leaves", func(w *walk) { w.c.disconnect(w.net.Now()) }},
	{"the consumer breaks it", func(w *walk) { w.c.stop(w.net.Now(), true) }},
	{"logout", func(w *walk) { w.c.loggedOut(w.net.Now()) }},
}

// TestFCVI_8_2_Walk runs all events in all states, in both models. Compare the golden file with the
// figure in state.go: it lists for each state the events and their effects, which are the new
// state, IUs sent, results for the consumer, timers, Exchanges and counters. In the peer model the
// effect of a CONNECT_RQST is annex A. Every arrow of the table is covered. [FCVI-8.2-1]
// [FCVI-8.2-2] [FCVI-5.3.2-1] [FCVI-5.3.2-2] [FCVI-5.3.2-3] [FCVI-5.3.2-4] [FCVI-5.3.2-7]
// [FCVI-5.3.2-8] [FCVI-5.3.2-9] [FCVI-5.3.2-10] [FCVI-5.3.3-1] [FCVI-5.3.3-3] [FCVI-5.3.4-2..11]
// [FCVI-5.3.5-1..4] [FCVI-5.3.5-5] [FCVI-5.3.5-6] [FCVI-A-1..8] [FCVI-C-1..8] [FCVI-D-1]
// [FCVI-6.10-1] [FCVI-6.11-1] [FCVI-6.12-1] [FCVI-6.12-2] [FCVI-6.13-1] [FCVI-5.4-3] [FCVI-5.4-4]
// [FCVI-5.9.10-2] [FCVI-8.3-3] [FCVI-8.3-4] [FCVI-8.5-1..4] [FCVI-8.6-1] [FCVI-5.2.2-9]
// [FCVI-5.9.4-8] [FCVI-5.9.6-4] [FCVI-5.9.6-5] [FCVI-6.1-4] [FCVI-6.8-3] [FCFS-2.10-7]
func TestFCVI_8_2_Walk(t *testing.T) {
	var text strings.Builder
	seen := map[string][]string{} // the events that cause an arrow, by arrow
	for _, mode := range []iu.Mode{iu.ClientServer, iu.PeerToPeer} {
		fmt.Fprintf(&text, "%v\n\n", mode)
		for _, at := range places {
			by, order := map[string][]string{}, []string{} // the events with the same effect, by effect
			for _, e := range events {
				w := begin(t, mode, at)
				e.run(w)
				w.net.Run(time.Nanosecond) // so that the sent frames are recorded
				o := w.outcome()
				moved := len(w.moves)
				o += "\n\t\t" + w.aftermath()
				w.moves = w.moves[:moved] // the changes of the event itself
				if len(by[o]) == 0 {
					order = append(order, o)
				}
				by[o] = append(by[o], e.name)
				for _, m := range w.moves {
					if l := seen[m]; len(l) == 0 || l[len(l)-1] != e.name {
						seen[m] = append(l, e.name)
					}
				}
			}
			fmt.Fprintf(&text, "%s\n", at.name)
			for _, o := range order {
				fmt.Fprintf(&text, "\t%s\n\t\t%s\n", strings.Join(by[o], "; "), o)
			}
		}
		text.WriteString("\n")
	}
	text.WriteString("digraph {\n")
	for from := range numStates {
		for to := range numStates {
			m := from.String() + " " + to.String()
			if (len(seen[m]) > 0) != arrows[from][to] {
				t.Errorf("%s: walked by %q, in the table %v", m, seen[m], arrows[from][to])
			}
			if len(seen[m]) > 0 {
				fmt.Fprintf(&text, "\t%q -> %q [label=%q];\n", from, to, strings.Join(unique(seen[m]), ", "))
			}
		}
	}
	text.WriteString("}\n")
	testkit.Golden(t, "endpoint.golden", []byte(text.String()))
}

func unique(all []string) (out []string) {
	for _, s := range all {
		if !strings.Contains("\n"+strings.Join(out, "\n")+"\n", "\n"+s+"\n") {
			out = append(out, s)
		}
	}
	return out
}
