package fcvi

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fabric"
	"viaduct/internal/testkit"
	"viaduct/internal/wire/iu"
)

// A walk is an endpoint that was put into a state, at port 0 of a simulated
// pair, and what it does then.
type walk struct {
	*sim
	f     *fake
	c     *conn
	r     *fc.Remote
	moves []string // changes of state, FROM TO
	sent  []string
}

// A standing is where a walk begins: a state, with what tells its cases apart.
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
	{"CONCEDED", stConceded, func(c *conn) { c.own.open = false }},
	{"C_HELD", stHeld, nil},
	{"C_RESP1", stResp1, nil},
	{"C_RESP2", stResp2, func(c *conn) { c.sentResp2 = true; c.startStreams() }},
	{"CONNECTED", stConnected, nil},
	{"DISC_SENT", stDiscSent, nil},
	{"ERROR", stError, nil},
	{"ERROR after ERR response", stError, func(c *conn) {
		c.disc, c.discHdr, c.rx.failed = leg{}, iu.Header{}, iu.NoRecvDesc
	}},
}

// The ids of the walk's legs, and the peer's handle.
const (
	ownID, theirID = 0x00010001, 0x00020001
	peerHandle     = 0x00077001
)

// begin puts a new endpoint of mode into a state.
func begin(t *testing.T, mode iu.Mode, at standing) *walk {
	w := &walk{sim: newSim(t, simConfig{seed: 1, order: true})}
	x, _ := w.connect(iu.ReliableDelivery) // so that the ports are logged in
	x.c.disconnect(w.net.Now())
	w.net.Run(time.Minute)
	p := w.ports[0]
	w.r = p.np.RemoteByName(w.ports[1].np.Name())
	w.f = w.fake(0, iu.ReliableDelivery)
	peer := w.fake(1, iu.ReliableDelivery)
	c := p.newConn(w.net.Now(), mode)
	w.c, w.f.c = c, c
	c.local, c.want, c.attrs, c.rattrs = w.f.net("me"), peer.net("you"), w.f.attrs(), peer.attrs()
	c.up, c.done, c.mts = w.f, w.f.result1, DefaultMaxTransfer
	p.cache[keyOf(c.want)] = mapping{w.r.Addr, w.r.PortName}
	c.state = at.s
	open := func(id uint32) leg {
		ox, _ := p.oxids.alloc(c)
		return leg{id: id, attempt: 1, oxid: ox, rxid: 0x55, open: true}
	}
	switch at.s {
	case stIdle, stResolve:
	case stHeld, stResp1:
		c.remote, c.rHandle, c.their = w.r, peerHandle, leg{id: theirID, attempt: 1, oxid: 0x123, rxid: 0x55, open: true}
		c.key, c.hasKey = setupKey{w.r.PortName, theirID}, true
		p.setups[c.key] = &setup{conn: c}
		c.deadline = w.net.Now() + time.Hour
		if at.s == stHeld {
			c.up, c.done = nil, nil
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
			c.disc, c.discHdr, c.tries = open(ownID), iu.Header{Op: iu.DisconnectRqst, Handle: peerHandle, Param: iu.Status{Reason: iu.ULPDisconnect}.Param()}, 1
		}
	}
	if at.more != nil {
		at.more(c)
	}
	p.cfg.onConnState = func(o *conn, from, to state) {
		if o == c {
			w.moves = append(w.moves, from.String()+" "+to.String())
		}
	}
	w.net.Tap(func(_ fc.Time, from *fabric.End, f *fc.Frame) {
		h, _, err := iu.ParseHeader(f.Opt)
		switch {
		case from != p.end:
		case f.RCtl == fc.RCtlABTS:
			w.sent = append(w.sent, "ABTS")
		case f.Type == fc.TypeFCVI && f.RCtl.IsDeviceData() && err == nil:
			s := strings.TrimPrefix(h.Op.String(), "FCVI_")
			if o := h.Op; o == iu.ConnectResp1 || o == iu.ConnectResp2 || o == iu.DisconnectRqst {
				s += "(" + h.Status().Reason.String() + ")"
			}
			w.sent = append(w.sent, s)
		}
	})
	return w
}

// arrive lets the endpoint have an IU of its peer's.
func (w *walk) arrive(h iu.Header, reason iu.Reason, payload []byte) {
	if h.Op != iu.ConnectRqst {
		h.Handle = w.c.handle
	}
	h.Param = iu.Status{Reason: reason}.Param()
	codec := w.c.p.cfg.codec
	f := fc.Frame{SOF: fc.SOFi3, EOF: fc.EOFt, Payload: payload, Opt: h.Append(nil), Header: fc.Header{RCtl: fc.RCtl(codec.RCtl(h.Op)), Type: fc.TypeFCVI,
		DFCtl: codec.DFCtl(h.Op), FCtl: fc.FCtlFirstSeq | fc.FCtlLastSeq | fc.FCtlEndSeq, SID: w.r.Addr, OXID: w.c.disc.oxid, RXID: 0x55}}
	w.c.p.Frame(w.net.Now(), w.r, &f)
}

func (w *walk) resp1(reason iu.Reason, flags iu.Flags) {
	a := iu.AcceptPayload{Handle: peerHandle, InitialMsgID: 1, Local: w.c.want, Attributes: w.c.rattrs}
	w.arrive(iu.Header{Op: iu.ConnectResp1, Flags: flags, MsgID: 1, Total: ownID}, reason, w.c.p.cfg.codec.AppendConnectResp1(nil, &a))
}

func (w *walk) rqst(id uint32) {
	q := iu.ConnectPayload{Handle: peerHandle, InitialMsgID: 1, Timeout: iu.NoTimeout, Local: w.c.want, Remote: w.c.local, Attributes: w.c.rattrs}
	w.arrive(iu.Header{Op: iu.ConnectRqst, Flags: w.c.mode.Flags(), MsgID: 1, Total: id}, 0, w.c.p.cfg.codec.AppendConnectRqst(nil, &q))
}

// events are everything that can happen to an endpoint.
var events = []struct {
	name string
	run  func(w *walk)
}{
	{"address found", func(w *walk) { // what connect does
		if w.c.state == stIdle {
			w.c.setState(stResolve)
		}
		w.c.lookUp(w.net.Now())
	}},
	{"CONNECT_RQST, ours", func(w *walk) {
		if w.c.state == stIdle { // what hold does
			w.c.remote = w.r
			w.c.setState(stHeld)
			return
		}
		w.rqst(theirID)
	}},
	{"CONNECT_RQST, another", func(w *walk) { w.rqst(theirID + 1) }},
	{"RESP1(ACCEPTED)", func(w *walk) { w.resp1(iu.Accepted, iu.FlagPos) }},
	{"RESP1(PENDING)", func(w *walk) { w.resp1(iu.Pending, iu.FlagPend) }},
	{"RESP1(PEER_YIELD)", func(w *walk) { w.resp1(iu.PeerYield, 0) }},
	{"RESP1(NO_MATCH)", func(w *walk) { w.resp1(iu.NoMatch, 0) }},
	{"RESP1(ULP_REJECT)", func(w *walk) { w.resp1(iu.ULPReject, 0) }},
	{"RESP2(CONFIRMED)", func(w *walk) {
		w.arrive(iu.Header{Op: iu.ConnectResp2, Flags: iu.FlagPos, MsgID: 1, Total: theirID}, iu.Confirmed, nil)
	}},
	{"RESP2(CANCELLED)", func(w *walk) {
		w.arrive(iu.Header{Op: iu.ConnectResp2, MsgID: 1, Total: theirID}, iu.Cancelled, nil)
	}},
	{"RESP3", func(w *walk) {
		w.arrive(iu.Header{Op: iu.ConnectResp3, Flags: iu.FlagPos, MsgID: 1, Total: ownID}, iu.Confirmed, nil)
	}},
	{"a message", func(w *walk) {
		w.f.postRecv(0)
		w.arrive(iu.Header{Op: iu.SendRqst, MsgID: w.c.rx.mexp}, 0, nil)
	}},
	{"a violation", func(w *walk) { w.arrive(iu.Header{Op: iu.SendRqst, Flags: iu.FlagRR, MsgID: w.c.rx.mexp}, 0, nil) }},
	{"DISCONNECT_RQST", func(w *walk) {
		w.arrive(iu.Header{Op: iu.DisconnectRqst, RmtHandle: w.c.rHandle, Total: ownID}, iu.ULPDisconnect, nil)
	}},
	{"DISCONNECT_RESP", func(w *walk) { w.arrive(iu.Header{Op: iu.DisconnectResp, Total: ownID}, iu.ULPDisconnect, nil) }},
	{"the state's timer", func(w *walk) { w.c.expired(w.net.Now()) }},
	{"the consumer's time is over", func(w *walk) { w.c.limited(w.net.Now()) }},
	{"the consumer accepts", func(w *walk) {
		w.c.accept(w.net.Now(), w.f.attrs(), w.f, false, w.f.result1)
	}},
	{"the consumer rejects", func(w *walk) { w.c.reject(w.net.Now(), iu.ULPReject) }},
	{"the consumer leaves", func(w *walk) { w.c.disconnect(w.net.Now()) }},
	{"the consumer breaks it", func(w *walk) { w.c.stop(w.net.Now(), true) }},
	{"logout", func(w *walk) { w.c.loggedOut(w.net.Now()) }},
}

// TestFCVI_8_2_Walk walks all states by all events, in both models; the golden
// file is to be laid beside the figure in state.go. Every arrow of the table is
// walked. [FCVI-8.2-1]
func TestFCVI_8_2_Walk(t *testing.T) {
	var text strings.Builder
	seen := map[string][]string{} // by arrow, the events
	for _, mode := range []iu.Mode{iu.ClientServer, iu.PeerToPeer} {
		fmt.Fprintf(&text, "%v\n\n", mode)
		for _, at := range places {
			for _, e := range events {
				w := begin(t, mode, at)
				e.run(w)
				w.net.Run(time.Nanosecond) // so that what was sent is seen
				to := w.c.state.String()
				if w.c.gone {
					to = "gone"
				}
				fmt.Fprintf(&text, "%-25s %-28s %-10s %s\n", at.name, e.name, to, strings.Join(w.sent, "; "))
				for _, m := range w.moves {
					if l := seen[m]; len(l) == 0 || l[len(l)-1] != e.name {
						seen[m] = append(l, e.name)
					}
				}
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
