package fcvi

import (
	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
)

// An rxMsg is a message request whose frames are arriving.
type rxMsg struct {
	stage   stage
	discard bool // Unreliable Delivery: further bytes of the message are ignored
	taken   bool // a receive descriptor was taken for the message
	checked bool // the RDMA target has passed the check
	held    bool // the received bytes are in buf
	h       iu.Header
	oxid    uint16
	rxid    uint16
	seq     uint8
	class   fc.Class
	got     spans
	end     int64  // length of the message, or -1 until the last frame has arrived
	buf     []byte // received bytes that can't be placed yet
	bad     iu.Reason
}

// A stage says how much of a message has arrived.
type stage uint8

const (
	absent   stage = iota // nothing
	partial               // some frames
	complete              // all frames; also a lost message that is skipped at Unreliable Delivery
)

// An rxWindow has the messages of the request stream that have arrived in part, or wait for earlier
// ones. The frames of different messages may arrive in any order. [FCVI-8.4-6]
type rxWindow struct {
	mexp  iu.MsgID // id of the next message to deliver
	front iu.MsgID // id of the next message to arrive; it is ahead of mexp while messages wait
	win   []rxMsg  // messages by MSG_ID modulo the length, which is a power of two; nil until the first message
	hold  int      // total bytes in the buf of held messages
}

// lostAs returns the reason to report if m can't be completed: a frame of m was lost, or all of m.
func (m *rxMsg) lostAs() iu.Reason {
	if m.stage != absent {
		return iu.FrameLost
	}
	return iu.MsgLost
}

// at returns the slot of id, and grows win if necessary. id must be at most recvWindow()-1 ahead of
// mexp.
func (r *rxWindow) at(id iu.MsgID) *rxMsg {
	if int(id-r.mexp) >= len(r.win) {
		r.grow(int(id - r.mexp))
	}
	return &r.win[int(id)&(len(r.win)-1)]
}

// ahead returns the slot of id if the slot is in use, and nil otherwise.
func (r *rxWindow) ahead(id iu.MsgID) *rxMsg {
	if int(id-r.mexp) < len(r.win) {
		if m := &r.win[int(id)&(len(r.win)-1)]; m.stage != absent {
			return m
		}
	}
	return nil
}

// grow makes room for messages up to n ahead of mexp. It doubles win step by step, because on a
// path that keeps order few slots are needed.
func (r *rxWindow) grow(n int) {
	size := max(8, len(r.win))
	for size <= n {
		size *= 2
	}
	old := r.win
	r.win = make([]rxMsg, size)
	for i := range old {
		id := r.mexp + iu.MsgID(i)
		r.win[int(id)&(size-1)] = old[int(id)&(len(old)-1)]
	}
}

// reset empties a slot.
func (r *rxWindow) reset(m *rxMsg) {
	if m.held {
		r.hold -= len(m.buf)
	}
	buf, got := m.buf[:0], m.got
	got.reset()
	if cap(buf) > 1<<16 {
		buf = nil
	}
	*m = rxMsg{buf: buf, got: got}
}

// skip marks the messages from front up to id, exclusive, as discarded, and sets front to id.
// Messages before front may still wait for receive descriptors. skip returns false if id is beyond
// the window.
func (r *rxWindow) skip(id, window iu.MsgID) bool {
	if id-r.mexp >= window {
		return false
	}
	for ; r.front != id; r.front++ {
		m := r.at(r.front)
		r.reset(m)
		m.stage, m.discard, m.h.MsgID = complete, true, r.front
	}
	return true
}
