package fcvi

import (
	"fmt"
	"slices"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// A consumer is the VI above a connection: its queues, and the memory opened to the peer. The
// methods are called one at a time and must not block. None is called after broken, or after the
// connection has detached the consumer by clearing conn.up.
type consumer interface {
	// peek returns the control word of the next send descriptor, and false if no descriptor may
	// start. next starts that descriptor and fills w.
	peek() (vi.Control, bool)
	next(w *work)
	// gather returns up to n bytes of w from offset off on. The result is either registered memory,
	// valid until the next call, or a copy in scratch. It is shorter than n only if n exceeds the
	// length of scratch.
	gather(w *work, off uint32, n int, scratch []byte) ([]byte, vi.Status)
	// scatterRead places data of an RDMA Read at offset off of w.
	scatterRead(w *work, off uint32, b []byte) vi.Status
	// finish completes w with the error bits bad, 0 for success.
	finish(w *work, bad vi.Status)

	// takeRecv takes the next receive descriptor and returns its capacity in bytes, and in bad the
	// errors of its check. ok is false if no descriptor is posted. scatter places bytes into the
	// taken descriptor, and finishRecv completes it.
	takeRecv() (capacity uint64, bad vi.Status, ok bool)
	scatter(off uint32, b []byte) vi.Status
	finishRecv(d vi.Delivery)

	// check, place and fetch access memory that the peer names by handle. ok is false if the peer
	// may not access it. The message has total bytes at address va; place and fetch start at offset
	// off. fetch may return fewer than n bytes, but only if n exceeds the length of scratch.
	check(handle uint32, va uint64, total uint32, write bool) (ok bool)
	place(handle uint32, va uint64, total, off uint32, b []byte) (ok bool)
	fetch(handle uint32, va uint64, total, off uint32, n int, scratch []byte) (b []byte, ok bool)

	// async raises an asynchronous error. broken reports the end of the connection. If the end is
	// not orderly, started sends complete with transport errors.
	async(code vi.ErrorCode, op vi.Control)
	broken(orderly bool)
}

// A work is a send descriptor being executed.
type work struct {
	op   iu.Opcode
	n    uint32 // length of the message in bytes
	imm  bool
	data uint32
	va   uint64
	mh   uint32
	bad  vi.Status // error bits that the check of the descriptor found

	d   *vi.Descriptor
	seq uint64
	cur vi.Cursor
	pos uint32 // offset of cur in the message
}

// A leg is one side's record of one Exchange of a connection set-up.
type leg struct {
	id         uint32   // FCVI_CONNECTION_ID
	attempt    iu.MsgID // [FCVI-5.9.6-4]
	oxid, rxid uint16
	cnt        uint16 // number of frames that this side has sent on the Exchange
	open       bool
}

// A conn is an endpoint: a VI connection from request to end. The port calls it for one event at a
// time. conn itself has the states of FCVI 8.2, the set-up and the end, each in a file of its own.
// Its parts transfer the messages: tx sends this side's requests, rx receives the peer's requests,
// and answers has the responses to them. See transfer.go.
type conn struct {
	shared
	state state
	setUp
	ending

	turn  turn
	early early
	run   run

	tx      sender
	rx      receiver
	answers answers
}

// A setUp is the state of a connection being set up.
type setUp struct {
	own       leg // the set-up that this side originated
	their     leg // the set-up that the peer originated
	key       setupKey
	hasKey    bool
	initTx    iu.MsgID
	initRx    iu.MsgID
	sentResp2 bool // RESP2 was sent, so the peer may be connected
	tries     int
	deadline  fc.Time // the consumer's deadline; fc.Never if it has none
	timer     *fc.Timer
	limit     *fc.Timer
	done      func(now fc.Time, reason iu.Reason)
	accepted  func(now fc.Time, reason iu.Reason)
	claim     claim // of a held request
}

// An ending is the state of an ending connection.
type ending struct {
	late    *lateDisc // the peer's disconnect, if it is delayed
	disc    leg       // the Exchange of our DISCONNECT_RQST
	discHdr iu.Header // header of our DISCONNECT_RQST; its opcode is 0 if none was sent
	ended   []func()  // called when the endpoint is released
	gone    bool
}

// A claim says who decides on a held request.
type claim uint8

const (
	unclaimed claim = iota // a matching peer-to-peer request of this side, if one is made
	lingering              // the next waiter; there is none yet
	taken                  // a waiter has the request and decides
)

func (p *port) newConn(now fc.Time, mode iu.Mode) *conn {
	c := &conn{shared: shared{p: p, terms: terms{mode: mode, class: fc.Class3}}, setUp: setUp{deadline: fc.Never}}
	c.self = c
	h, ok := p.handles.alloc(now, c)
	if !ok {
		return nil
	}
	c.handle = h
	c.initTx = iu.MsgID(p.rng.Uint32()) // [FCVI-6.8-2]
	c.timer = p.np.Timers().New(c.expired)
	c.limit = p.np.Timers().New(c.limited)
	return c
}

// setState enters state s, and panics if arrows has no such change. No other code assigns c.state.
func (c *conn) setState(s state) {
	if c.state == s {
		return
	}
	if !arrows[c.state][s] {
		panic(fmt.Sprintf("fcvi: endpoint %08x: no arrow from %v to %v", c.handle, c.state, s))
	}
	from := c.state
	c.state = s
	if c.p.cfg.onConnState != nil {
		c.p.cfg.onConnState(c, from, s)
	}
	c.p.log("endpoint state", "conn", c.handle, "from", from.String(), "to", s.String())
}

// remember stores the outcome of a peer's request for R_A_TOV, so that a late or repeated copy of
// the request does not start a new set-up. [FCVI-C-6]
func (c *conn) remember(now fc.Time, reason iu.Reason) {
	if c.hasKey {
		c.hasKey = false
		c.p.remember(now, c.key, reason)
	}
}

// remember stores the outcome of the set-up k. If maxEnded are stored, the port forgets the oldest
// one: a peer that asks again and again until somebody waits is refused for that reason alone.
func (p *port) remember(now fc.Time, k setupKey, reason iu.Reason) {
	p.setups[k] = &setup{reason: reason}
	p.ended = append(p.ended, endedSetup{k, now + p.np.RATOV()})
	if len(p.ended) > maxEnded {
		p.ended[0].until = now
	}
	p.forgetOld(now)
}

// forgetOld forgets the ended set-ups whose time is over.
func (p *port) forgetOld(now fc.Time) {
	for len(p.ended) > 0 && p.ended[0].until <= now {
		delete(p.setups, p.ended[0].key)
		p.ended = p.ended[1:]
	}
	if len(p.ended) > 0 {
		p.forget.Set(p.ended[0].until)
	}
}

// release removes the endpoint from the tables, and does not reuse the handle for the quarantine. A
// second call has no effect. [FCVI-4-6]
func (c *conn) release(now fc.Time, quarantine time.Duration) {
	if c.gone {
		return
	}
	c.gone = true
	c.timer.Stop()
	c.limit.Stop()
	c.stopStreams(now)
	if c.late != nil {
		c.late.timer.Stop()
	}
	p := c.p
	p.oxids.disown(now, c)
	p.handles.release(c.handle, now+quarantine)
	p.active = slices.DeleteFunc(p.active, func(o *conn) bool { return o == c })
	for _, fn := range c.ended {
		fn()
	}
}

// loggedOut ends c because the login with the peer's port has ended. A peer-to-peer set-up returns
// to C_RESOLVE instead.
func (c *conn) loggedOut(now fc.Time) {
	switch c.state {
	case stRqst, stResp2, stConceded, stResp1:
		c.own.open = false // the end of the login has ended all Exchanges with the port [FCFS-2.10-7]
		c.sentResp2 = false
		if c.mode == iu.PeerToPeer { // the peer may send its request again
			c.setState(stResolve)
			c.their, c.own.attempt, c.tries, c.remote = leg{}, 0, 0, nil
			c.remember(now, iu.Stale)
			c.timer.Set(now + c.p.np.EDTOV())
			return
		}
		c.giveUp(now, notReachable)
	case stHeld:
		c.setState(stIdle)
		c.release(now, c.p.np.RATOV())
		c.remember(now, iu.ULPTimeout)
		c.tellAccept(now, iu.ULPTimeout)
	case stConnected:
		c.early.end()
		c.breakNow(now, false)
		c.setState(stError)
		c.setState(stIdle)
		c.release(now, c.p.np.RATOV())
		c.remember(now, iu.Stale)
	case stDiscSent, stError:
		c.setState(stIdle)
		c.release(now, c.p.np.RATOV())
		c.remember(now, iu.Stale)
	case stIdle, stResolve:
	}
}
