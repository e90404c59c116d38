package rocecm

import (
	"net/netip"
	"time"

	"viaduct/internal/wire/ib"
)

// A Time is the time since an origin that the driver chooses.
type Time = time.Duration

// A state is the state of a connection.
type state uint8

const (
	requesting    state = iota // a REQ or SIDR_REQ was sent
	requested                  // a REQ or SIDR_REQ was received
	replied                    // a REP was received
	accepting                  // a REP or SIDR_REP was sent
	established                // an RTU was sent or received
	disconnecting              // a DREQ was sent
	over
)

// A Conn is one side of a connection, or of a request for a datagram service (SIDR).
type Conn struct {
	Owner any // set and read by the driver only

	state   state
	own     netip.Addr // address of the local port
	peer    netip.Addr
	kind    ib.CMKind // CMReq or CMSIDRReq
	tid     uint64
	local   uint32
	remote  uint32
	peerQPN uint32

	again ib.CM // the message to retransmit
	gap   time.Duration
	due   Time // time of the next retransmission, 0 for none
	left  int  // number of retransmissions left
}

// A message is retransmitted after firstGap, then after gaps doubling up to lastGap: most times, or
// mostDReq times if it is a DREQ. [ROCE-CM-7]
const (
	firstGap = 300 * time.Millisecond
	lastGap  = 4 * time.Second
	most     = 15
	mostDReq = 5
)

// repeat makes m the message to retransmit, at most times times.
func (c *Conn) repeat(now Time, m ib.CM, times int) {
	c.again, c.gap, c.left = m, firstGap, times
	c.due = now + c.gap
}

// answered ends the retransmissions, and releases the private data of the message.
func (c *Conn) answered() {
	c.due = 0
	c.again.Private = nil
}

// message returns a message of kind k with the numbers of the connection.
func (c *Conn) message(k ib.CMKind) ib.CM {
	return ib.CM{Kind: k, TID: c.tid, Local: c.local, Remote: c.remote}
}
