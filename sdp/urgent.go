package sdp

// urgent is the receiving side's state of urgent data. [D-29]
type urgent struct {
	pending int           // number of announced urgent bytes
	newest  uint64        // stream position of the newest urgent byte
	seen    bool          // an urgent byte has arrived
	readPos uint64        // stream position of the next byte to be read
	apart   []byte        // urgent bytes kept out of the stream
	ch      chan struct{} // channel of Conn.Urgent, or nil if nobody has asked for it
}

func (u *urgent) notify() {
	if u.ch != nil {
		select {
		case u.ch <- struct{}{}:
		default:
		}
	}
}

// announced records the announcement of an urgent byte.
func (u *urgent) announced() {
	u.pending++
	u.notify()
}

// came records the arrival of the urgent byte at position pos of the stream. If apart is true, the
// byte is not in the stream; it is the last byte of p, the payload of the message.
func (u *urgent) came(pos uint64, p []byte, apart bool) {
	u.newest, u.seen = pos, true
	if apart {
		u.apart = append(u.apart, p[len(p)-1])
		u.newest -= uint64(len(u.apart) - 1)
		if len(u.apart) > 16 { // only the newest are kept, like TCP
			u.apart = u.apart[len(u.apart)-16:]
		}
	}
	u.notify()
}

// read counts n bytes that a read has taken from the stream.
func (u *urgent) read(n int) { u.readPos += uint64(n) }

// ahead returns the number of bytes to read before the newest urgent byte.
func (u *urgent) ahead() (n int, ok bool) {
	if !u.seen || u.newest < u.readPos {
		return 0, false
	}
	return int(u.newest - u.readPos), true
}

// mark returns the index of the newest urgent byte among the last n bytes read, or -1.
func (u *urgent) mark(n int) int {
	begin := u.readPos - uint64(n)
	if !u.seen || u.newest < begin || u.newest >= u.readPos {
		return -1
	}
	return int(u.newest - begin)
}

// WriteUrgent sends p, and marks the last byte as urgent. The urgent byte is announced to the peer
// before other waiting bytes are sent. Count and errors are as for Write.
func (c *Conn) WriteUrgent(p []byte) (int, error) { // [SDP-9.5.3-2] [SDP-9.5.3-3]
	c.mu.Lock()
	defer c.unlock()
	if err := c.refused("write", &c.calls.wd); err != nil || len(p) == 0 {
		return 0, err
	}
	c.flow.streak = 0
	return c.write(p, true)
}

// Urgent returns a channel that gets a value when the peer announces an urgent byte, and when the
// byte arrives. The channel holds at most one value.
func (c *Conn) Urgent() <-chan struct{} { // [SDP-9.5.3-9]
	c.mu.Lock()
	defer c.unlock()
	if c.urg.ch == nil {
		c.urg.ch = make(chan struct{}, 1)
		if c.urg.pending > 0 {
			c.urg.notify()
		}
	}
	return c.urg.ch
}

// UrgentMark returns the number of bytes to read before the newest arrived urgent byte. ok is false
// if no urgent byte has arrived, or the newest was read already.
func (c *Conn) UrgentMark() (before int, ok bool) {
	c.mu.Lock()
	defer c.unlock()
	c.look()
	return c.urg.ahead()
}

// ReadMarked reads like Read, and returns in mark the index of the urgent byte in p[:n], or -1 if
// there is none. Of several urgent bytes, mark is the newest, like TCP. With Options.UrgentApart no
// urgent byte is in the stream, and mark is -1.
func (c *Conn) ReadMarked(p []byte) (n, mark int, err error) {
	c.mu.Lock()
	defer c.unlock()
	n, err = c.readLocked(p, false)
	if c.opt.UrgentApart {
		return n, -1, err
	}
	return n, c.urg.mark(n), err
}

// ReadUrgent returns the oldest urgent byte kept out of the stream, see Options.UrgentApart. The
// error matches ErrNoUrgent if there is none.
func (c *Conn) ReadUrgent() (byte, error) {
	c.mu.Lock()
	defer c.unlock()
	c.look()
	if len(c.urg.apart) == 0 {
		return 0, c.opError("read", ErrNoUrgent)
	}
	b := c.urg.apart[0]
	c.urg.apart = c.urg.apart[1:]
	return b, nil
}
