package sdp

import (
	"slices"

	"viaduct/internal/sdpcore"
	"viaduct/internal/ulp"
	"viaduct/internal/wire/sdpwire"
	"viaduct/iwarp"
)

// A sender posts the Sends, RDMA Writes and RDMA Reads of a connection to its stream, in order. It
// numbers the requests, keeps each header in place until the Send is complete, and keeps requests in
// a backlog while the stream's queue is full. Conn.mu guards all fields.
type sender struct {
	qp      *iwarp.QueuePair
	layout  sdpwire.Layout
	hdrs    [][48]byte   // indexed by the number of the Send; see header
	depth   int          // depth of the send queue
	posted  uint64       // number of requests posted so far, which is the number of the last one
	lent    uint64       // number of the last Send or Write that refers to memory of a call
	done    uint64       // number of the last request known to be complete
	backlog []backlogged // requests that wait for room in the send queue, oldest first
	last    uint64       // number of the DisConn until it is complete, otherwise 0
	ended   bool         // the DisConn is complete: TCP has all of the stream
	rang    bool         // requests were posted since the last Flush of the stream
	sg      [iwarp.MaxSGE]iwarp.SGE
}

// A backlogged request waits for room in the send queue of the stream.
type backlogged struct {
	wr iwarp.SendWR
	sg [iwarp.MaxSGE]iwarp.SGE
}

// attach makes the sender begin anew on a stream.
func (s *sender) attach(qp *iwarp.QueuePair, layout sdpwire.Layout, depth int) {
	*s = sender{qp: qp, layout: layout, depth: depth}
}

// header returns the memory for the header of the last numbered Send, in use until the Send is
// complete. The memory grows with the number of concurrent Sends, up to the depth of the queue. The
// memory is small at first, because most connections are short or send little.
func (s *sender) header() []byte {
	n := len(s.hdrs)
	if n == 0 || s.posted > s.done+uint64(n) {
		if n == s.depth { // this Send waits for room in the queue
			return make([]byte, 0, len(s.hdrs[0]))
		}
		// Sends under way continue to use the old memory.
		n = min(max(8, 2*n), s.depth)
		s.hdrs = make([][48]byte, n)
	}
	return s.hdrs[s.posted%uint64(n)][:0]
}

// message posts the Send of acts[0] and of the OpParts after acts[0]. The payload is in writes.
func (s *sender) message(acts []sdpcore.Action, writes []*op) {
	a := &acts[0]
	s.posted++
	h := a.Msg.Append(s.header(), s.layout)
	payload := a.Msg.PayloadLen()
	wr := iwarp.SendWR{ID: s.posted, Op: sendOp(a), Invalidate: a.STag, More: true, Unsignaled: true}
	s.sg[0] = iwarp.Buf(h)
	n := 1
	if payload > 0 {
		n = s.gather(acts[:1+a.Parts], writes, payload)
	}
	wr.SG = s.sg[:n]
	if len(h)+payload <= iwarp.MaxInline {
		wr.Inline = true
	} else {
		s.lent = s.posted
		// A call may wait until this memory is free, so a completion must report the end of the
		// Send. If the next action is a Send by reference too, a later completion covers both.
		next := 1 + a.Parts
		wr.Unsignaled = next < len(acts) && acts[next].Op == sdpcore.OpSend && acts[next].N > iwarp.MaxInline
	}
	if a.Msg.MID == sdpwire.DisConn {
		s.last, wr.Unsignaled = s.posted, false
	}
	if s.posted%32 == 0 {
		wr.Unsignaled = false
	}
	s.post(&wr)
}

func sendOp(a *sdpcore.Action) iwarp.Op {
	switch { // [SDP-14.2-1] [SDP-14.2-2]
	case a.Solicited && a.Invalidate:
		return iwarp.OpSendSEInvalidate
	case a.Solicited:
		return iwarp.OpSendSE
	}
	return iwarp.OpSend
}

// gather fills the gather list behind the header with the payload of parts, and returns the number
// of elements. If there are more parts than elements, gather copies all parts into a single element.
func (s *sender) gather(parts []sdpcore.Action, writes []*op, payload int) int {
	if len(parts) > len(s.sg)-1 {
		b := make([]byte, 0, payload)
		for i := range parts {
			b = append(b, bytesOf(writes, &parts[i])...)
		}
		s.sg[1] = iwarp.Buf(b)
		return 2
	}
	for i := range parts {
		s.sg[1+i] = iwarp.Buf(bytesOf(writes, &parts[i]))
	}
	return 1 + len(parts)
}

// straight posts messages whose payload is p. stream is the stream of s.qp. sent reports whether TCP
// has all messages, and inline whether the payload of the last message was copied.
func (s *sender) straight(stream ulp.Stream[iwarp.SendWR], msgs []sdpwire.Message, p []byte) (sent, inline bool) {
	for i := range msgs {
		s.posted++
		h := msgs[i].Append(s.header(), s.layout)
		n := msgs[i].PayloadLen()
		s.sg[0], s.sg[1] = iwarp.Buf(h), iwarp.Buf(p[:n])
		p = p[n:]
		inline = len(h)+n <= iwarp.MaxInline
		wr := iwarp.SendWR{ID: s.posted, SG: s.sg[:2], Inline: inline, Unsignaled: len(p) > 0, More: true}
		if len(p) == 0 && len(s.backlog) == 0 {
			var err error
			if sent, err = stream.PostNow(wr); err != iwarp.ErrQueueFull {
				break
			}
		}
		s.post(&wr)
	}
	if sent {
		s.rang = false
	} else {
		s.flush()
	}
	switch {
	case sent:
		s.done = s.posted
	case !inline:
		s.lent = s.posted
	}
	return sent, inline
}

// write posts an RDMA Write of p, and read an RDMA Read into p.
func (s *sender) write(p []byte, to iwarp.RemoteAddr) {
	s.posted++
	s.lent = s.posted
	s.sg[0] = iwarp.Buf(p)
	s.post(&iwarp.SendWR{ID: s.posted, Op: iwarp.OpWrite, SG: s.sg[:1], Remote: to, More: true})
}

func (s *sender) read(p []byte, from iwarp.RemoteAddr) {
	s.posted++
	s.sg[0] = iwarp.Buf(p)
	s.post(&iwarp.SendWR{ID: s.posted, Op: iwarp.OpRead, SG: s.sg[:1], Remote: from, More: true})
}

// post posts a request to the stream, or appends it to the backlog while the stream's queue is
// full.
func (s *sender) post(wr *iwarp.SendWR) {
	s.rang = true
	if len(s.backlog) == 0 {
		err := s.qp.Post(*wr)
		if err == nil {
			return
		}
		if err != iwarp.ErrQueueFull {
			return // the stream has ended; flushed completions report that
		}
	}
	b := backlogged{wr: *wr}
	if wr.Inline { // inline payload is valid only now, so it is copied
		p := make([]byte, 0, iwarp.MaxInline)
		for _, g := range wr.SG {
			p = append(p, g.Buf...)
		}
		b.sg[0] = iwarp.Buf(p)
		b.wr.SG = b.sg[:1]
		s.backlog = append(s.backlog, b)
		return
	}
	copy(b.sg[:], wr.SG)
	b.wr.SG = b.sg[:len(wr.SG)]
	s.backlog = append(s.backlog, b)
}

// catchUp posts the requests of the backlog, until the queue is full again. It reports whether the
// backlog is empty.
func (s *sender) catchUp() bool {
	for len(s.backlog) > 0 {
		b := &s.backlog[0]
		b.wr.SG = b.sg[:len(b.wr.SG)]
		if err := s.qp.Post(b.wr); err == iwarp.ErrQueueFull {
			return false
		}
		s.rang = true
		s.backlog = s.backlog[1:]
	}
	s.backlog = nil
	return true
}

// flush makes the stream send what was posted.
func (s *sender) flush() {
	if s.rang {
		s.rang = false
		s.qp.Flush()
	}
}

// busy reports whether requests wait in the backlog, or the DisConn was sent.
func (s *sender) busy() bool { return len(s.backlog) > 0 || s.last != 0 }

// complete records that the requests up to number done are complete.
func (s *sender) complete(done uint64) {
	s.done = max(s.done, done)
	if s.last != 0 && s.done >= s.last {
		s.last, s.ended = 0, true
	}
}

// keep copies the unsent bytes of calls, so that no request refers to memory of calls any more.
// stream is the stream of s.qp. [D-32]
func (s *sender) keep(stream ulp.Stream[iwarp.SendWR]) {
	stream.KeepSends()
	for i := range s.backlog { // the requests of the backlog refer to that memory too
		b := &s.backlog[i]
		if b.wr.Op == iwarp.OpRead {
			continue
		}
		for k := range b.sg {
			b.sg[k].Buf = slices.Clone(b.sg[k].Buf)
		}
	}
	s.lent = s.done
}

// The adverts are the memory of calls that the peer may read or write.
type adverts []advert

// An advert is memory the peer may read or write.
type advert struct {
	key uint64
	mr  *iwarp.MemoryRegion
	win *iwarp.Window // window of the whole region, which the peer may invalidate
}

// offer registers b for the peer, for the connection of qp only. [D-80]
func (l *adverts) offer(qp *iwarp.QueuePair, key uint64, b []byte, access iwarp.Access) (*iwarp.Window, error) {
	mr, err := qp.Register(b, iwarp.LocalOnly)
	if err != nil {
		return nil, err
	}
	win, err := qp.Bind(mr, 0, len(b), access)
	if err != nil {
		_ = mr.Close()
		return nil, err
	}
	*l = append(*l, advert{key, mr, win})
	return win, nil
}

// revoke ends the advertisement with the given key. The peer does not access the memory afterwards.
// An unknown key is ignored.
func (l *adverts) revoke(key uint64) {
	if i := slices.IndexFunc(*l, func(a advert) bool { return a.key == key }); i >= 0 {
		(*l)[i].close()
		*l = slices.Delete(*l, i, i+1)
	}
}

// revokeAll ends all advertisements.
func (l *adverts) revokeAll() {
	for i := range *l {
		(*l)[i].close()
	}
	*l = nil
}

func (a *advert) close() {
	_ = a.win.Close() // the peer may have invalidated the window already, which is no error
	_ = a.mr.Close()
}
