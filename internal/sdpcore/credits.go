package sdpcore

// credits numbers the messages of both directions and counts Private Buffers. [SDP 10]
type credits struct {
	// These fields are for sending.
	first    serial // MSeq of the first message sent
	next     serial // MSeq of the next message sent
	acked    serial // number after the last message that the peer has acknowledged
	ackSure  bool   // whether any received MSeqAck was not zero
	bufs     int    // Bufs of the last message received
	idleBufs int    // lowest Bufs received while no message had been sent
	lastReal serial // MSeq after the last message sent that was not an empty Data

	// These fields are for receiving.
	rfirst  serial // MSeq of the first message after Hello or HelloAck: 0 in either layout [D-05]
	expect  serial // MSeq of the next message to be received
	pool    int    // own Private Buffers announced
	most    int    // limit of pool
	size    int    // bytes of each Private Buffer, as at set-up
	taken   int    // bytes consumed by reads since pool grew
	free    int    // own Private Buffers posted; -1 when the spare is used
	hold    bool   // MSeqAck is held for a SrcAvailCancel [SDP-9.5.4-5]
	holdAt  serial // the held value of MSeqAck
	toldAck serial // ackNext of the last message sent
	told    int    // Bufs of the last message sent
	// The peer may have sent the messages before number high: the largest limit of all
	// announcements.
	high    serial
	ackTold bool // an MSeqAck other than zero was sent
	empties int  // empty Data messages received since we last sent a message
}

func (c *credits) start(p Params) {
	*c = credits{
		first: serial(p.FirstSend), next: serial(p.FirstSend), acked: serial(p.FirstSend),
		lastReal: serial(p.FirstSend),
		bufs:     p.PeerBufs, idleBufs: p.PeerBufs, ackSure: p.FirstSend != 0,
		rfirst: serial(p.FirstRecv), expect: serial(p.FirstRecv), toldAck: serial(p.FirstRecv),
		pool: p.RecvBufs, most: p.MaxRecvBufs, size: p.RecvSize, free: p.RecvBufs, told: p.RecvBufs,
		high: serial(p.FirstRecv) + serial(p.RecvBufs),
	}
}

// grow counts n bytes that reads have consumed. grow doubles the number of Private Buffers once the
// count reaches the size of all buffers. So a peer whose bytes are read gets enough credit for a
// long round trip, and a peer whose bytes are not read can occupy only little memory. [SDP-10.3-2]
func (c *credits) grow(n int) {
	if c.pool >= c.most {
		return
	}
	if c.taken += n; c.taken >= c.pool*c.size {
		more := min(c.pool, c.most-c.pool)
		c.pool += more
		c.free += more
		c.taken = 0
	}
}

// credit returns the number of messages that may be sent: Bufs less the messages the peer had not
// received when sending Bufs. [SDP-10.2-1] Message 0 counts as unreceived until its receipt is
// certain [D-08]. A hold makes the result too low, without harm [D-12].
func (c *credits) credit() int { return max(0, c.bufs-int(c.next.sub(c.acked))) }

// unacked returns the number of own messages not yet acknowledged.
func (c *credits) unacked() int { return int(c.next.sub(c.acked)) }

// allAcked reports whether the peer has acknowledged all messages except empty Data. An MSeqAck of 0
// counts as an acknowledgement of message 0, because the peer has sent a message since. [D-08]
func (c *credits) allAcked() bool {
	return !c.acked.less(c.lastReal) || !c.ackSure && c.lastReal == c.first+1
}

// received records Bufs and MSeqAck of a received message. received returns false for an impossible
// acknowledgement: lower than an earlier one, or of a message never sent. [D-09]
func (c *credits) received(bufs int, ack serial) bool {
	upTo := ack + 1
	if !c.ackSure && ack == 0 {
		// Zero may mean "message 0" or "none". It means message 0 if Bufs is lower than in every
		// message received while no message had been sent. [D-08]
		upTo = c.acked
		if c.next != c.first && bufs < c.idleBufs {
			upTo = max(upTo, c.first+1)
		}
	} else {
		c.ackSure = true
	}
	if upTo.less(c.acked) || c.next.less(upTo) {
		return false
	}
	c.acked, c.bufs = upTo, bufs
	if c.next == c.first {
		c.idleBufs = min(c.idleBufs, bufs)
	}
	return true
}

// ack returns the MSeqAck to send: the number of the last message received
// [SDP-6.1.6-1], zero before the first [SDP-6.1.6-2], or the held value.
func (c *credits) ack() serial {
	switch {
	case c.hold:
		return c.holdAt
	case c.expect == c.rfirst && c.rfirst == 0:
		return 0
	}
	return c.expect - 1
}

// ackNext returns ack()+1 as a careful peer understands it: while only message 0 was received, a
// zero on the wire proves nothing. [D-08]
func (c *credits) ackNext() serial {
	v := c.expect
	if c.hold {
		v = c.holdAt + 1
	}
	if v == 1 && c.rfirst == 0 && !c.ackTold {
		return 0
	}
	return v
}

// announce returns Bufs for the next message: all buffers ever posted minus all messages ever
// received, or 0 while the spare is used. [SDP-6.1.3-1] [D-13]
func (c *credits) announce() int { return max(0, c.free) }

// gain returns how many messages a message sent now would add to the credit the peer computes.
// [D-11]
func (c *credits) gain() int { return c.announce() - c.told + int(c.ackNext().sub(c.toldAck)) }

// gainForLast returns how far a message sent now would raise high. A message that takes the last
// credit must raise high, so that the peer has credit even if messages in flight use up all credit
// given so far. Otherwise two ends whose last messages cross would both have no credit. gain is not
// enough, because the peer may understand the acknowledgement of message 0 as none, and a gain that
// only corrects the misunderstanding gives no credit. [SDP-10.5-3] [D-10]
func (c *credits) gainForLast() int {
	if now := c.ackNext() + serial(c.announce()); c.high.less(now) {
		return int(now.sub(c.high))
	}
	return 0
}

// announced records the credit given to the peer by the message sent now. A hold withdraws no
// credit: the cancel uses no buffer, and only the rest of an earlier SendSm can arrive before the
// cancel is answered. [D-12]
func (c *credits) announced() {
	most := c.expect + serial(c.announce()) // the largest number that the peer may compute
	if c.hold {
		most = c.holdAt + 1 + serial(c.announce())
	}
	if c.high.less(most) {
		c.high = most
	}
	c.told, c.toldAck, c.empties = c.announce(), c.ackNext(), 0
	c.ackTold = c.ackTold || c.ack() != 0
}

// peerHas returns the peer's remaining credits: given credits less used credits.
func (c *credits) peerHas() int { return c.told - int(c.expect.sub(c.toldAck)) }

// mustRefresh reports whether the peer has at most one credit left and can be given more. A message
// that gives more may take our last credit and must not wait. [SDP-10.5-8] [SDP-10.5-9]
func (c *credits) mustRefresh() bool {
	return c.peerHas() <= 1 && (c.gainForLast() >= 1 || c.credit() >= 2 && c.gain() >= 1)
}

// shouldRefresh reports whether an empty Data is worth its cost: the peer has only two credits
// left, too few to send payload, or half of the pool is new. An empty Data does not return credit
// consumed only by empty Data messages. [SDP-10.4-1] [D-10]
func (c *credits) shouldRefresh() bool {
	gain := c.gain() - c.empties
	return gain >= 1 && (c.peerHas() <= 2 || gain >= (c.pool+1)/2)
}

// mayPayload reports whether a message with payload may be sent: this takes three credits.
// mayControl reports whether a message without payload may be sent: this takes two credits, or the
// last credit if the message gives the peer credit. [SDP-10.5-1] [SDP-10.5-2] [SDP-10.5-3]
// [SDP-10.5-4] [SDP-10.5-7] [SDP-10.5-10]
func (c *credits) mayPayload() bool { return c.credit() >= 3 }
func (c *credits) mayControl() bool {
	// Without credit no message may be sent. [SDP-10.5-5]
	n := c.credit()
	return n >= 2 || n == 1 && c.gainForLast() >= 1 // [SDP-10.5-6]
}
