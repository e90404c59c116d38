package sdp

import (
	"viaduct/internal/sdpcore"
)

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

func (u *urgent) advance(n int) { u.readPos += uint64(n) }

// urgentCame records the arrival of an urgent byte.
func (c *Conn) urgentCame(a *sdpcore.Action) {
	c.urg.newest, c.urg.seen = a.Pos, true
	if a.Local {
		c.urg.apart = append(c.urg.apart, c.recv.cur[len(c.recv.cur)-1])
		c.urg.newest -= uint64(len(c.urg.apart) - 1)
		if len(c.urg.apart) > 16 { // only the newest are kept, like TCP
			c.urg.apart = c.urg.apart[len(c.urg.apart)-16:]
		}
	}
	c.urg.notify()
}

// WriteUrgent sends p, and marks the last byte as urgent. The urgent byte is announced to the peer
// before other waiting bytes are sent. Count and errors are as for Write.
func (c *Conn) WriteUrgent(p []byte) (int, error) { // [SDP-9.5.3-2] [SDP-9.5.3-3]
	c.mu.Lock()
	defer c.unlock()
	if err := c.refused("write", &c.calls.wd); err != nil || len(p) == 0 {
		return 0, err
	}
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
	if !c.urg.seen || c.urg.newest < c.urg.readPos {
		return 0, false
	}
	return int(c.urg.newest - c.urg.readPos), true
}

// ReadMarked reads like Read, and returns in mark the index of the urgent byte in p[:n], or -1 if
// there is none. Of several urgent bytes, mark is the newest, like TCP. With Options.UrgentApart no
// urgent byte is in the stream, and mark is -1.
func (c *Conn) ReadMarked(p []byte) (n, mark int, err error) {
	c.mu.Lock()
	defer c.unlock()
	n, err = c.readLocked(p, false)
	begin := c.urg.readPos - uint64(n)
	if c.opt.UrgentApart || !c.urg.seen || c.urg.newest < begin || c.urg.newest >= c.urg.readPos {
		return n, -1, err
	}
	return n, int(c.urg.newest - begin), err
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
