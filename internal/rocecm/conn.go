package rocecm

import (
	"net/netip"
	"time"

	"viaduct/internal/wire/ib"
)

// A Time is a time since an origin of the driver's choice.
type Time = time.Duration

// A state is where a connection is in its life.
type state uint8

const (
	requesting    state = iota // REQ or SIDR_REQ was sent
	requested                  // one was received
	replied                    // REP was received
	accepting                  // REP was sent
	established                // RTU was sent or received
	disconnecting              // DREQ was sent
	over
)

// A Conn is one side of a connection, or of the question for a service of datagrams.
type Conn struct {
	Owner any // of the driver's choice

	state   state
	own     netip.Addr // of the port that it belongs to
	peer    netip.Addr
	kind    ib.CMKind // CMReq or CMSIDRReq
	tid     uint64
	local   uint32
	remote  uint32
	peerQPN uint32

	again ib.CM // what goes again
	gap   time.Duration
	due   Time // when it does, 0 for never
	left  int  // how often it still does
}

// How a message goes again: first after firstGap, then after twice as long up to lastGap. [ROCE-CM-7]
const (
	firstGap = 300 * time.Millisecond
	lastGap  = 4 * time.Second
	most     = 15
	mostDReq = 5
)

// repeat makes m the message that goes again.
func (c *Conn) repeat(now Time, m ib.CM, times int) {
	c.again, c.gap, c.left = m, firstGap, times
	c.due = now + c.gap
}

// answered ends the repetition.
func (c *Conn) answered() {
	c.due = 0
	c.again.Private = nil
}

// message begins a message of the connection.
func (c *Conn) message(k ib.CMKind) ib.CM {
	return ib.CM{Kind: k, TID: c.tid, Local: c.local, Remote: c.remote}
}
