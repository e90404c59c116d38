package sdpcore

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"viaduct/internal/wire/sdpwire"
)

// The simulation has two machines, two ordered wires instead of iWARP, two random programs and
// random interleaving. After every step, code that shares nothing with the machines checks the
// draft's rules about the wire, and follows every byte from write to read. A seed repeats a run
// exactly. [SDP-6.1.2-11] [D-28]

var (
	simSeed  = flag.Uint64("sim.seed", 0, "run the one simulation with this seed, and print its ladder")
	simLines = flag.Int("sim.lines", 200, "lines of ladder to print")
	simSteps = flag.Int("sim.steps", 1_200_000, "steps over all simulations")
)

// A span is a part of the stream: bytes from to from+n-1 of one write.
type span struct {
	write   int // number of the write
	from, n int
}

type itemKind uint8

const (
	itemSend itemKind = iota
	itemWrite
	itemReadReq
	itemReadResp
)

type item struct {
	kind  itemKind
	msg   sdpwire.Message
	spans []span
	inv   bool
	stag  uint32
	to    uint64
	n     int
}

type simRegion struct {
	write, read uint64 // IDs of the write and the read; one of them is zero
	off, n      int
	to          uint64
}

type simWrite struct {
	ord, n   int
	done     bool
	count    int // count in OpWriteDone
	got      int // bytes that the other end has read
	urgent   bool
	started  bool
	detached bool
}

type simRead struct {
	n     int
	all   bool
	parts []struct {
		off int
		s   span
	}
}

type simHold struct {
	spans   []span
	private bool
}

type simEnd struct {
	name string
	m    *Machine
	p    Params
	peer *simEnd
	out  []item // messages to the peer, in order
	resp []item // read responses that are not on the wire
	mr   map[uint32]simRegion
	advs map[uint64]uint32

	writes map[uint64]*simWrite
	order  []*simWrite
	reads  map[uint64]*simRead
	holds  []simHold
	last   []span // payload of the message being received
	ops    []struct {
		read  uint64
		off   int
		local bool
	}
	open int // reads outstanding

	nextID   uint64
	nextStag uint32

	// These fields are the position in the stream that this end has received.
	curWrite, curOff int

	// These fields are the state of the wire, derived only from messages.
	seq       uint32
	seenBufs  int
	seenAck   uint32
	seenAny   bool
	sendMode  sdpwire.Mode
	recvMode  sdpwire.Mode
	posted    int
	pool      int // number of Private Buffers
	size      int // bytes of each at the beginning
	taken     int // bytes consumed since the number of Private Buffers grew
	pend      int
	pres      int
	pendDist  []int // for each unmatched OOB_PEND, the number of stream bytes sent before it
	sentBytes int
	closing   bool
	eof       bool
	finished  bool
	dead      error
	resized   bool
	acts      []Action
}

type sim struct {
	seed   uint64
	rng    *rand.Rand
	a, b   *simEnd
	now    time.Duration
	steps  int
	trace  bool
	ladder []string
	fail   string
	suspOK bool

	straight [3]int // number of straight writes of 1, 2 and 3 messages
}

func (s *sim) errorf(format string, args ...any) {
	if s.fail == "" {
		s.fail = fmt.Sprintf(format, args...)
	}
}

func (s *sim) note(e *simEnd, arrow string) {
	if !s.trace {
		return
	}
	line := fmt.Sprintf("%6d %8v  ", s.steps, s.now)
	if e == s.a {
		line += fmt.Sprintf("%-76s|", arrow)
	} else {
		line += fmt.Sprintf("%-76s|  %s", "", arrow)
	}
	s.ladder = append(s.ladder, line)
}

func newSim(seed uint64, trace bool) *sim {
	s := &sim{seed: seed, rng: rand.New(rand.NewPCG(seed, 0x5d9)), trace: trace}
	r := s.rng
	pick := func(v ...int) int { return v[r.IntN(len(v))] }
	mk := func(name string, role Role) *simEnd {
		e := &simEnd{name: name, mr: map[uint32]simRegion{}, advs: map[uint64]uint32{},
			writes: map[uint64]*simWrite{}, reads: map[uint64]*simRead{},
			sendMode: sdpwire.Combined, recvMode: sdpwire.Combined, nextStag: uint32(r.Uint32())}
		bufs := pick(3, 3, 4, 8, 32)
		e.p = Params{Role: role, RecvBufs: bufs, MaxRecvBufs: pick(0, bufs, 5*bufs),
			RecvSize: pick(37, 50, 100, 400), MaxAdverts: pick(1, 2, 3, 8), ORD: pick(1, 1, 2, 4),
			SendPolicy: Policy(r.IntN(4)), RecvPolicy: Policy(r.IntN(4)),
			SendThreshold: pick(0, 20, 100, 300, Infinite), RecvThreshold: pick(0, 100, 500),
			NoRead: r.IntN(12) == 0, NoSinkAvail: r.IntN(6) == 0, NoInvalidate: r.IntN(4) == 0,
			BigPrefix: r.IntN(3) == 0, UrgentApart: false,
			RecvBudget: pick(0, 200, 2000), SendBudget: pick(0, 100, 5000), NoResize: r.IntN(5) == 0, MaxRecvSize: 600,
			Timers: Timers{SuspendLimit: -1}}
		if r.IntN(4) == 0 {
			e.p.FirstSend, e.p.FirstRecv = -uint32(r.IntN(60))-1, -uint32(r.IntN(60))-1
			e.p.FirstSrcCount, e.p.FirstSnkCount = -uint32(r.IntN(40))-1, -uint32(r.IntN(40))-1
		}
		return e
	}
	s.a, s.b = mk("A", Connecting), mk("B", Accepting)
	s.a.peer, s.b.peer = s.b, s.a
	s.b.p.FirstSend, s.b.p.FirstRecv = s.a.p.FirstRecv, s.a.p.FirstSend
	s.b.p.FirstSrcCount, s.b.p.FirstSnkCount = s.a.p.FirstSnkCount, s.a.p.FirstSrcCount
	s.join()
	s.a.m, s.b.m = New(s.a.p), New(s.b.p)
	return s
}

// join passes each end the parameters the other announces.
func (s *sim) join() {
	for _, e := range []*simEnd{s.a, s.b} {
		q := e.peer.p
		e.p.PeerBufs, e.p.PeerSize, e.p.PeerMaxAdverts = q.RecvBufs, q.RecvSize, q.MaxAdverts
		e.seq, e.seenBufs, e.seenAny, e.posted = e.p.FirstSend, q.RecvBufs, false, e.p.RecvBufs
		e.pool, e.size, e.taken = e.p.RecvBufs, e.p.RecvSize, 0
		e.sendMode, e.recvMode = sdpwire.Combined, sdpwire.Combined
		e.pend, e.pres, e.pendDist = 0, 0, nil
	}
}

// run performs the actions of an event at end e.
func (s *sim) run(e *simEnd, acts []Action) {
	if at, ok := e.m.soonest(); ok && e.m.untimed() {
		s.errorf("%s: something is due at %v, and time is said to change nothing", e.name, at)
	}
	e.acts = acts
	for i := 0; i < len(acts) && s.fail == ""; i++ {
		a := &acts[i]
		switch a.Op {
		case OpSend:
			i += s.send(e, acts, i)
		case OpPart:
			s.errorf("%s: OpPart without OpSend", e.name)
		case OpRDMAWrite:
			w := e.writes[a.ID]
			e.sentBytes += a.N
			s.note(e, fmt.Sprintf("RDMA Write of %d", a.N))
			e.out = append(e.out, item{kind: itemWrite, stag: a.STag, to: a.TO,
				spans: []span{{w.ord, a.Off, a.N}}, n: a.N})
		case OpRDMARead:
			e.open++
			if e.open > e.p.ORD {
				s.errorf("%s: [SDP-6.2.1.7-1] %d reads outstanding of %d", e.name, e.open, e.p.ORD)
			}
			e.ops = append(e.ops, struct {
				read  uint64
				off   int
				local bool
			}{a.ID, a.Off, a.Local})
			s.note(e, fmt.Sprintf("RDMA Read of %d", a.N))
			e.out = append(e.out, item{kind: itemReadReq, stag: a.STag, to: a.TO, n: a.N})
		case OpHold:
			if spanLen(e.last) != a.N {
				s.errorf("%s: hold of %d, message had %d", e.name, a.N, spanLen(e.last))
			}
			e.holds = append(e.holds, simHold{spans: e.last, private: true})
			e.posted--
			e.last = nil
		case OpCompact:
			h := &e.holds[len(e.holds)-1]
			if !h.private || spanLen(h.spans) != a.N {
				s.errorf("%s: compaction of %d", e.name, a.N)
			}
			h.private = false
			e.posted++
		case OpCopy:
			rd := e.reads[a.ID]
			off := a.Off
			for _, sp := range e.takeHeld(s, a.N) {
				rd.parts = append(rd.parts, struct {
					off int
					s   span
				}{off, sp})
				off += sp.n
			}
		case OpDrop:
			e.takeHeld(s, a.N)
		case OpRevoke:
			st, ok := e.advs[a.Adv]
			if !ok {
				s.errorf("%s: revokes an advertisement it does not have", e.name)
			}
			if _, live := e.mr[st]; live == a.Remote {
				s.errorf("%s: revoke with Remote=%t of a region that is live=%t", e.name, a.Remote, live)
			}
			delete(e.mr, st)
			delete(e.advs, a.Adv)
		case OpWriteDone:
			w := e.writes[a.ID]
			if w == nil || w.done {
				s.errorf("%s: write %d done twice", e.name, a.ID)
				return
			}
			w.done, w.count = true, a.N
			if a.Err == nil && a.N != w.n {
				s.errorf("%s: write of %d done with %d", e.name, w.n, a.N)
			}
			for _, mr := range e.mr {
				if mr.write == a.ID {
					s.errorf("%s: [SDP-9.2-19] write done while advertised", e.name)
				}
			}
			s.note(e, fmt.Sprintf("write %d done, %d of %d, %v", w.ord, a.N, w.n, a.Err))
		case OpDetach:
			e.writes[a.ID].detached = true
		case OpReadDone:
			s.readDone(e, a)
		case OpUrgentPending:
			e.pend++
		case OpUrgent:
			e.pres++
			if e.pres > e.pend {
				s.errorf("%s: [D-29] urgent byte before its announcement", e.name)
			}
		case OpPeerClosed:
			e.eof = true
		case OpMode:
		case OpResize:
			e.p.RecvSize = a.N
			e.resized = true
		case OpPeerSize:
		case OpSuspended, OpReconnect:
		case OpFinish:
			e.finished = true
		case OpAbort:
			if e.dead == nil {
				e.dead = a.Err
			}
			s.note(e, fmt.Sprintf("abort: %v", a.Err))
		}
	}
}

func spanLen(s []span) (n int) {
	for _, x := range s {
		n += x.n
	}
	return n
}

// takeHeld removes n bytes from the front of the payload that e holds.
func (e *simEnd) takeHeld(s *sim, n int) (out []span) {
	if most := e.p.MaxRecvBufs; e.pool < most {
		if e.taken += n; e.taken >= e.pool*e.size {
			more := min(e.pool, most-e.pool)
			e.pool, e.posted, e.taken = e.pool+more, e.posted+more, 0
		}
	}
	for n > 0 {
		if len(e.holds) == 0 {
			s.errorf("%s: copies %d bytes more than it holds", e.name, n)
			return out
		}
		h := &e.holds[0]
		sp := &h.spans[0]
		k := min(n, sp.n)
		out = append(out, span{sp.write, sp.from, k})
		sp.from += k
		sp.n -= k
		n -= k
		if sp.n == 0 {
			h.spans = h.spans[1:]
		}
		if len(h.spans) == 0 {
			if h.private {
				e.posted++
			}
			e.holds = e.holds[1:]
		}
	}
	return out
}

// readDone checks that the buffer holds the next bytes of the stream.
func (s *sim) readDone(e *simEnd, a *Action) {
	rd := e.reads[a.ID]
	if rd == nil {
		s.errorf("%s: read %d done twice", e.name, a.ID)
		return
	}
	delete(e.reads, a.ID)
	for _, mr := range e.mr {
		if mr.read == a.ID {
			s.errorf("%s: [SDP-9.3-14] read returned while advertised", e.name)
		}
	}
	switch {
	case a.N > rd.n:
		s.errorf("%s: %d bytes in a read of %d", e.name, a.N, rd.n)
	case a.N == 0 && a.Err == nil:
		s.errorf("%s: [D-20] read of zero bytes", e.name)
	case rd.all && a.N < rd.n && a.Err == nil && !e.eof && e.dead == nil:
		s.errorf("%s: full read ended with %d of %d", e.name, a.N, rd.n)
	case errors.Is(a.Err, io.EOF) && !e.eof:
		s.errorf("%s: end of stream out of nothing", e.name)
	}
	s.note(e, fmt.Sprintf("read done, %d of %d, %v", a.N, rd.n, a.Err))
	off := 0
	for _, p := range rd.parts {
		if off >= a.N {
			break
		}
		if p.off != off {
			s.errorf("%s: hole in a read: bytes at %d, next part at %d", e.name, off, p.off)
			return
		}
		n := min(p.s.n, a.N-off)
		s.arrive(e, span{p.s.write, p.s.from, n})
		off += n
	}
	if off != a.N {
		s.errorf("%s: read of %d bytes has %d", e.name, a.N, off)
	}
}

// arrive checks that sp is the next span: no byte is lost, repeated or reordered.
func (s *sim) arrive(e *simEnd, sp span) {
	if sp.write < e.curWrite || sp.write == e.curWrite && sp.from != e.curOff || sp.write > e.curWrite && sp.from != 0 {
		s.errorf("%s: [SDP-4.1-1] stream: write %d+%d after write %d+%d", e.name, sp.write,
			sp.from, e.curWrite, e.curOff)
		return
	}
	e.curWrite, e.curOff = sp.write, sp.from+sp.n
	e.peer.order[sp.write].got = e.curOff
}

// send checks a message against the rules and puts it on the wire. It returns
// the number of OpParts used.
func (s *sim) send(e *simEnd, acts []Action, i int) int {
	a := &acts[i]
	msg := a.Msg
	var spans []span
	before := e.sentBytes
	add := func(id uint64, off, n int) {
		w := e.writes[id]
		if w == nil || w.done && off+n > w.count {
			s.errorf("%s: sends from a write that is gone", e.name)
			return
		}
		w.started = true
		spans = append(spans, span{w.ord, off, n})
		e.sentBytes += n
	}
	if a.N > 0 {
		add(a.ID, a.Off, a.N)
	}
	for k := 1; k <= a.Parts; k++ {
		if i+k >= len(acts) || acts[i+k].Op != OpPart {
			s.errorf("%s: parts of a message do not follow it", e.name)
			return 0
		}
		add(acts[i+k].ID, acts[i+k].Off, acts[i+k].N)
	}
	n := spanLen(spans)
	// Numbers, sizes and credit must satisfy the formulas of the draft.
	if msg.MSeq != e.seq {
		s.errorf("%s: [SDP-6.1.5-2] MSeq %d, want %d", e.name, msg.MSeq, e.seq)
	}
	credit := e.seenBufs
	if e.seenAny {
		credit -= int(int32(e.seq - 1 - e.seenAck))
	} else {
		credit -= int(e.seq - e.p.FirstSend)
	}
	switch {
	case credit < 1:
		s.errorf("%s: [SDP-10.5-5] %v without credit", e.name, &msg)
	case credit < 2 && n > 0, credit < 3 && n > 0:
		s.errorf("%s: [SDP-10.5-7] payload with %d credits: %v", e.name, credit, &msg)
	}
	e.seq++
	if int(msg.Len) != msg.MID.HeaderLen()+n {
		s.errorf("%s: [SDP-6.1.4-1] Len %d of %v with %d bytes", e.name, msg.Len, msg.MID, n)
	}
	if int(msg.Bufs) != max(0, e.posted) {
		s.errorf("%s: [SDP-6.1.3-1] Bufs %d, posted %d", e.name, msg.Bufs, e.posted)
	}
	if a.Solicited != sdpwire.Solicited(msg.MID, msg.Flags) {
		s.errorf("%s: [SDP-14.2-1] solicited=%t on %v", e.name, a.Solicited, &msg)
	}
	if a.Invalidate && msg.MID != sdpwire.RdmaRdCompl && msg.MID != sdpwire.RdmaWrCompl {
		s.errorf("%s: [D-41] invalidates by %v", e.name, &msg)
	}
	// Modes must follow Figure 25 and section 11.
	switch msg.MID {
	case sdpwire.SrcAvail:
		if e.sendMode == sdpwire.Buffered || (e.sendMode == sdpwire.Combined) != (n > 0) {
			s.errorf("%s: [SDP-11-4] SrcAvail with %d bytes in %v", e.name, n, e.sendMode)
		}
	case sdpwire.SinkAvail:
		if e.recvMode != sdpwire.Pipelined {
			s.errorf("%s: [SDP-11-4] SinkAvail in %v", e.name, e.recvMode)
		}
		if int(msg.Size) <= e.p.RecvSize && !e.resized {
			s.errorf("%s: [SDP-9.5.1-1] SinkAvail of %d, buffers of %d", e.name, msg.Size, e.p.RecvSize)
		}
		if e.reads[a.RID].all {
			s.errorf("%s: [SDP-9.3-15] SinkAvail of a full read", e.name)
		}
	case sdpwire.ModeChange:
		if msg.S {
			e.recvMode = msg.Mode
		} else {
			e.sendMode = msg.Mode
		}
	}
	if msg.Flags&sdpwire.ReqPipe != 0 && msg.MID != sdpwire.RdmaRdCompl && msg.MID != sdpwire.RdmaWrCompl {
		s.errorf("%s: [SDP-6.1.2-11] REQ_PIPE on %v", e.name, &msg)
	}
	if open := e.m.src.advs.len() + e.m.snk.offer.len(); open > e.p.PeerMaxAdverts {
		s.errorf("%s: [SDP-11.3-18] %d advertisements of %d", e.name, open, e.p.PeerMaxAdverts)
	}
	if msg.Flags&sdpwire.OOBPend != 0 {
		e.pendDist = append(e.pendDist, before)
	}
	if msg.Flags&sdpwire.OOBPres != 0 {
		last := spans[len(spans)-1]
		if w := e.order[last.write]; !w.urgent || last.from+last.n != w.n {
			s.errorf("%s: [SDP-6.1.2-4] OOB_PRES on a byte that is not urgent", e.name)
		}
		if len(e.pendDist) == 0 {
			s.errorf("%s: [SDP-9.5.3-5] urgent byte without announcement", e.name)
		} else {
			e.pendDist = e.pendDist[1:]
		}
	}
	for _, sp := range spans {
		if w := e.order[sp.write]; w.urgent && sp.from+sp.n == w.n && msg.Flags&sdpwire.OOBPres == 0 {
			s.errorf("%s: [SDP-9.5.3-8] urgent byte without OOB_PRES in %v", e.name, &msg)
		}
	}
	if a.Adv != 0 {
		e.nextStag += 256
		st := e.nextStag
		mr := simRegion{n: int(msg.Size), to: uint64(s.rng.Uint32())}
		if msg.MID == sdpwire.SrcAvail {
			mr.write, mr.off = a.ID, a.Off
		} else {
			mr.read = a.RID
		}
		e.mr[st], e.advs[a.Adv] = mr, st
		msg.STag, msg.VA = st, mr.to
		e.m.Bind(a.Adv, st)
	}
	s.note(e, msg.String())
	it := item{kind: itemSend, msg: msg, spans: spans}
	if a.Invalidate {
		it.inv, it.stag = true, a.STag
	}
	e.out = append(e.out, it)
	return a.Parts
}

// deliver delivers the next item on the wire to e.
func (s *sim) deliver(e *simEnd) {
	from := e.peer
	it := from.out[0]
	from.out = from.out[1:]
	if e.dead != nil || e.m.Dead() {
		return
	}
	region := func(stag uint32, to uint64, n int, write bool) (simRegion, int, bool) {
		mr, ok := e.mr[stag]
		off := int(to - mr.to)
		if !ok || off < 0 || off+n > mr.n || write != (mr.read != 0) {
			s.errorf("%s: [D-34] RDMA of %d bytes at an STag that is not valid (%t)", e.name, n, ok)
			return mr, 0, false
		}
		return mr, off, true
	}
	switch it.kind {
	case itemWrite:
		if mr, off, ok := region(it.stag, it.to, it.n, true); ok {
			rd := e.reads[mr.read]
			for _, sp := range it.spans {
				rd.parts = append(rd.parts, struct {
					off int
					s   span
				}{off, sp})
				off += sp.n
			}
		}
	case itemReadReq:
		if mr, off, ok := region(it.stag, it.to, it.n, false); ok {
			w := e.writes[mr.write]
			e.resp = append(e.resp, item{kind: itemReadResp, n: it.n, spans: []span{{w.ord, mr.off + off, it.n}}})
		}
	case itemReadResp:
		op := e.ops[0]
		e.ops = e.ops[1:]
		e.open--
		if op.local {
			e.holds = append(e.holds, simHold{spans: it.spans})
		} else if rd := e.reads[op.read]; rd != nil {
			rd.parts = append(rd.parts, struct {
				off int
				s   span
			}{op.off, it.spans[0]})
		} else {
			s.errorf("%s: RDMA Read into a read that is gone", e.name)
		}
		s.run(e, e.m.ReadDone(s.now, e.acts[:0]))
	case itemSend:
		if e.posted < 1 {
			s.errorf("%s: [SDP-10.5-5] no Private Buffer for %v", e.name, &it.msg)
			return
		}
		if it.inv {
			if _, ok := e.mr[it.stag]; !ok {
				s.errorf("%s: invalidates an STag that is not valid", e.name)
			}
			delete(e.mr, it.stag)
		}
		e.seenBufs, e.seenAck, e.seenAny = int(it.msg.Bufs), it.msg.MSeqAck, true
		if it.msg.MSeqAck == 0 && e.p.FirstSend == 0 && e.seq == 0 {
			e.seenAny = false
		}
		if it.msg.MID == sdpwire.ModeChange {
			if it.msg.S {
				e.sendMode = it.msg.Mode
			} else {
				e.recvMode = it.msg.Mode
			}
		}
		e.last = it.spans
		msg := it.msg
		s.note(e, "    <- "+msg.MID.String())
		s.run(e, e.m.Receive(s.now, &msg, it.stag, it.inv, e.acts[:0]))
	}
}

func (s *sim) write(e *simEnd, n int, urgent bool) {
	e.nextID++
	w := &simWrite{ord: len(e.order), n: n, urgent: urgent}
	e.writes[e.nextID] = w
	e.order = append(e.order, w)
	s.note(e, fmt.Sprintf("write %d of %d urgent=%t", w.ord, n, urgent))
	before := *e.m
	var msgs [3]sdpwire.Message
	k := e.m.Straight(s.now, n, msgs[:])
	straight := *e.m
	*e.m = before // Straight has changed nothing outside the Machine
	acts := e.m.Write(s.now, e.nextID, n, urgent, e.acts[:0])
	if k > 0 && !urgent {
		s.straight[k-1]++
		s.sameAsWrite(e, n, msgs[:k], &straight, acts)
	}
	s.run(e, acts)
}

// sameAsWrite checks that Straight had the effect of Write.
func (s *sim) sameAsWrite(e *simEnd, n int, msgs []sdpwire.Message, got *Machine, acts []Action) {
	id := e.nextID
	var want []Action
	off := 0
	for _, m := range msgs {
		want = append(want, Action{Op: OpSend, ID: id, Off: off, N: m.PayloadLen(), Msg: m})
		off += m.PayloadLen()
	}
	want = append(want, Action{Op: OpWriteDone, ID: id, N: n})
	if !reflect.DeepEqual(acts, want) {
		s.errorf("%s: straight does %+v, Write %+v", e.name, want, acts)
	}
	if e.m.src.writes.len() == 0 {
		got.src.writes.deque = e.m.src.writes.deque // the position of an empty queue in its ring may differ
	}
	if !reflect.DeepEqual(got, e.m) {
		s.errorf("%s: after a straight write %+v, after Write %+v", e.name, *got, *e.m)
	}
}

func (s *sim) read(e *simEnd, n int, all bool) {
	e.nextID++
	e.reads[e.nextID] = &simRead{n: n, all: all}
	s.note(e, fmt.Sprintf("read of %d all=%t", n, all))
	s.run(e, e.m.Read(s.now, e.nextID, n, all, e.acts[:0]))
}

func anyKey[V any](r *rand.Rand, m map[uint64]V, lo, hi uint64, ok func(V) bool) (uint64, bool) {
	for range 4 {
		if hi == lo {
			return 0, false
		}
		id := lo + 1 + r.Uint64N(hi-lo)
		if v, in := m[id]; in && ok(v) {
			return id, true
		}
	}
	return 0, false
}

// program makes the ULP of e do a random operation.
func (s *sim) program(e *simEnd) {
	r := s.rng
	size := func() int {
		switch r.IntN(4) {
		case 0:
			return 1 + r.IntN(4)
		case 1:
			return 1 + r.IntN(120)
		}
		return 1 + r.IntN(1500)
	}
	low := e.nextID - min(e.nextID, 24)
	switch x := r.IntN(100); {
	case x < 3:
		if e.m.SendQueue() < 6000 && !e.closing && len(e.reads) < 5 {
			n, rn := 1+r.IntN(40), size()
			w := &simWrite{ord: len(e.order), n: n}
			e.writes[e.nextID+1] = w
			e.order = append(e.order, w)
			e.reads[e.nextID+2] = &simRead{n: rn}
			e.nextID += 2
			s.note(e, "exchange")
			s.run(e, e.m.Exchange(s.now, e.nextID-1, n, e.nextID, rn, e.acts[:0]))
		}
	case x < 34:
		if e.m.SendQueue() < 6000 && !e.closing {
			s.write(e, size(), false)
		}
	case x < 37:
		if e.m.SendQueue() < 90000 && !e.closing {
			n := 1 + r.IntN(3)
			if r.IntN(30) == 0 {
				s.write(e, 70000, false)
			}
			s.write(e, n, true)
		}
	case x < 74:
		if len(e.reads) < 5 {
			s.read(e, size(), r.IntN(6) == 0)
		}
	case x < 79:
		if id, ok := anyKey(r, e.writes, low, e.nextID, func(w *simWrite) bool { return !w.done }); ok {
			s.note(e, fmt.Sprintf("cancel write %d", e.writes[id].ord))
			s.run(e, e.m.CancelWrite(s.now, id, e.acts[:0]))
		}
	case x < 84:
		if id, ok := anyKey(r, e.reads, low, e.nextID, func(*simRead) bool { return true }); ok {
			s.note(e, "cancel read")
			s.run(e, e.m.CancelRead(s.now, id, e.acts[:0]))
		}
	case x < 90:
		to := sdpwire.Mode(r.IntN(3))
		s.note(e, "wants "+to.String())
		s.run(e, e.m.RequestSendMode(s.now, to, e.acts[:0]))
	case x < 93:
		s.run(e, e.m.RequestRecvMode(s.now, e.acts[:0]))
	case x < 95:
		acts, _ := e.m.RequestPeerSize(s.now, 37+r.IntN(500), e.acts[:0])
		s.run(e, acts)
	case x < 97:
		s.run(e, e.m.SetPolicy(s.now, Policy(r.IntN(4)), Policy(r.IntN(4)), e.acts[:0]))
	case x < 98:
		if s.suspOK && (e.m.life == lifeOpen || e.m.susp.remote && !e.m.susp.retry && e.m.life != lifeDead) && !e.closing {
			s.note(e, "suspend")
			acts, err := e.m.Suspend(s.now, 5000, e.acts[:0])
			if err != nil {
				s.errorf("%s: %v", e.name, err)
			}
			s.run(e, acts)
		}
	default:
		s.tick()
	}
}

// tick advances the time, up to the next deadline or a little.
func (s *sim) tick() {
	d := time.Duration(s.rng.IntN(2000)) * time.Microsecond
	for _, e := range []*simEnd{s.a, s.b} {
		// Cancels are answered in time while the wire moves, so the simulation must not advance
		// five seconds at once.
		if at, ok := e.m.Deadline(); ok && at > s.now && at-s.now < 1500*time.Millisecond && s.rng.IntN(3) == 0 {
			d = at - s.now
		}
	}
	if s.a.m.src.advs.cancelOpen || s.b.m.src.advs.cancelOpen || s.a.m.snk.offer.cancelOpen || s.b.m.snk.offer.cancelOpen ||
		s.a.m.life != lifeOpen || s.b.m.life != lifeOpen {
		d = min(d, 200*time.Microsecond)
	}
	s.now += d
	for _, e := range []*simEnd{s.a, s.b} {
		s.run(e, e.m.Tick(s.now, e.acts[:0]))
	}
}

// wires performs one step of the wires: it moves a message or a read response, or reports Resized.
// It returns false if no step is possible.
func (s *sim) wires() bool {
	var can [8]func()
	n := 0
	for _, e := range []*simEnd{s.a, s.b} {
		if len(e.peer.out) > 0 {
			can[n] = func() { s.deliver(e) }
			can[n+1] = can[n]
			n += 2
		}
		if len(e.resp) > 0 {
			can[n] = func() { // responses arrive in order, but later
				e.out = append(e.out, e.resp[0])
				e.resp = e.resp[1:]
			}
			n++
		}
		if e.resized && s.rng.IntN(2) == 0 {
			can[n] = func() { e.resized = false; s.run(e, e.m.Resized(s.now, e.acts[:0])) }
			n++
		}
	}
	if n == 0 {
		return false
	}
	can[s.rng.IntN(n)]()
	return true
}

// check checks the invariants after every step.
func (s *sim) check() {
	for _, e := range []*simEnd{s.a, s.b} {
		if e.dead != nil {
			s.errorf("%s ended: %v", e.name, e.dead)
		}
		if e.m.src.room.count.sub(e.m.src.room.count0) < -1<<30 {
			s.errorf("%s: counter ran away", e.name)
		}
		if err := e.m.sums(); err != nil {
			s.errorf("%s: %v", e.name, err)
		}
		for _, from := range e.pendDist {
			if e.sentBytes-from > 65536 {
				s.errorf("%s: [SDP-9.5.3-6] %d bytes since OOB_PEND", e.name, e.sentBytes-from)
			}
		}
	}
	if s.a.m.Suspended() && s.b.m.Suspended() && len(s.a.out) == 0 && len(s.b.out) == 0 {
		s.resume()
	}
}

// resume connects two suspended machines by a new connection, on which their roles may differ.
func (s *sim) resume() {
	for _, e := range []*simEnd{s.a, s.b} {
		if len(e.mr) != 0 {
			s.errorf("%s: [SDP-13-1] %d STags survive suspension", e.name, len(e.mr))
		}
		for i := range e.holds {
			e.holds[i].private = false
		}
		e.p.FirstSend, e.p.FirstRecv, e.p.FirstSrcCount, e.p.FirstSnkCount = 0, 0, 0, 0
		e.resp, e.resized, e.open = nil, false, 0
	}
	if s.rng.IntN(2) == 0 {
		s.a.p.Role, s.b.p.Role = s.b.p.Role, s.a.p.Role
	}
	s.join()
	s.note(s.a, "======== resumed ========")
	for _, e := range []*simEnd{s.a, s.b} {
		s.run(e, e.m.Resume(s.now, e.p, e.acts[:0]))
	}
}

func (s *sim) step(program int) bool {
	s.steps++
	moved := true
	if s.rng.IntN(100) < program {
		s.program([]*simEnd{s.a, s.b}[s.rng.IntN(2)])
	} else {
		moved = s.wires()
	}
	s.check()
	return moved
}

// play runs a connection from begin to end: random work, and then both ends close and read to the
// end.
func (s *sim) play(steps int) {
	s.suspOK = s.rng.IntN(3) == 0
	busy := 10 + s.rng.IntN(50)
	for range steps {
		if s.fail != "" {
			return
		}
		if !s.step(busy) {
			s.tick()
		}
	}
	s.suspOK = false
	idle := 0
	for _, e := range []*simEnd{s.a, s.b} {
		e.closing = true
		s.note(e, "close write")
		s.run(e, e.m.CloseWrite(s.now, e.acts[:0]))
	}
	for s.fail == "" && (!s.a.finished || !s.b.finished || len(s.a.out)+len(s.b.out) > 0 || len(s.a.holds)+len(s.b.holds) > 0) {
		s.steps++
		for _, e := range []*simEnd{s.a, s.b} {
			if len(e.reads) == 0 && (!e.eof || len(e.holds) > 0) {
				s.read(e, 1+s.rng.IntN(2000), false)
			}
		}
		if s.wires() {
			idle = 0
		} else {
			idle++
			s.now += 3 * time.Millisecond
			for _, e := range []*simEnd{s.a, s.b} {
				s.run(e, e.m.Tick(s.now, e.acts[:0]))
			}
		}
		s.check()
		if s.steps > 40000 {
			s.errorf("no end: A %s; B %s", s.a.m, s.b.m)
		}
		if idle > 1200 {
			s.errorf("stuck: A %s; B %s", s.a.m, s.b.m)
		}
	}
	if s.fail != "" {
		return
	}
	for _, e := range []*simEnd{s.a, s.b} {
		for _, w := range e.order {
			if !w.done || w.got != w.count {
				s.errorf("%s: [SDP-4.1-1] write %d of %d: done=%t with %d, peer has %d", e.name,
					w.ord, w.n, w.done, w.count, w.got)
			}
		}
		if len(e.mr) != 0 {
			s.errorf("%s: [SDP-8.2.1-14] %d STags left behind", e.name, len(e.mr))
		}
	}
}

// TestSimulation plays random connections until enough steps were taken. A failing seed prints the
// end of its ladder diagram; -sim.seed repeats it.
func TestSimulation(t *testing.T) {
	if *simSeed != 0 {
		s := newSim(*simSeed, true)
		s.play(2000)
		t.Logf("seed %d, %d steps:\n%s", *simSeed, s.steps,
			strings.Join(s.ladder[max(0, len(s.ladder)-*simLines):], "\n"))
		if s.fail != "" {
			t.Fatal(s.fail)
		}
		return
	}
	var total Stats
	steps, runs := 0, 0
	var straight [3]int
	for seed := uint64(1); steps < *simSteps; seed++ {
		s := newSim(seed, false)
		s.play(2000)
		steps += s.steps
		runs++
		for i, n := range s.straight {
			straight[i] += n
		}
		if s.fail != "" {
			t.Fatalf("seed %d, step %d: %s\n%s", seed, s.steps, s.fail, ladderOf(seed))
		}
		for _, m := range []*Machine{s.a.m, s.b.m} {
			total.add(m.Stats())
		}
	}
	t.Logf("%d runs, %d steps, %v straight writes, %+v", runs, steps, straight, total)
	// The programs must reach every mechanism, because a simulation proves nothing about a
	// mechanism that it never uses.
	for name, n := range map[string]uint64{
		"Bcopy": total.SentBytesBcopy, "prefix": total.SentBytesPrefix, "Transaction": total.SentBytesTransact, "Read Zcopy": total.SentBytesRead,
		"Write Zcopy": total.SentBytesWrite, "stale SinkAvails": total.StaleSinkAvails, "overrides": total.Overrides, "SendSm": total.SentSendSms,
		"SrcAvailCancel": total.SentSrcCancels, "SinkAvailCancel": total.SentSinkCancels, "ModeChange": total.ModeChangesRecv, "urgent": total.UrgentRecv,
		"resizes": total.Resizes, "suspensions": total.Suspensions, "compaction": total.CompactedBytes, "stalls": total.CreditStalls, "straight writes": uint64(straight[0]), "straight writes of two messages": uint64(straight[1]), "of three": uint64(straight[2]),
	} {
		if n == 0 {
			t.Errorf("[SDP-9-3] [SDP-9-4] the simulation never saw %s", name)
		}
	}
}

// ladderOf repeats a seed to record the end of its ladder. Recording costs nothing while no seed
// fails.
func ladderOf(seed uint64) string {
	s := newSim(seed, true)
	s.play(2000)
	return strings.Join(s.ladder[max(0, len(s.ladder)-60):], "\n")
}

// TestSimulationSeeds plays seeds that once stopped or broke a rule. [D-10]
func TestSimulationSeeds(t *testing.T) {
	for _, seed := range []uint64{
		3945, // both ends spent their last credits on messages that only acknowledged message 0, and these crossed
	} {
		s := newSim(seed, false)
		s.play(2000)
		if s.fail != "" {
			t.Errorf("seed %d, step %d: %s\n%s", seed, s.steps, s.fail, ladderOf(seed))
		}
	}
}

func (a *Stats) add(b Stats) {
	a.SentBytesBcopy += b.SentBytesBcopy
	a.SentBytesPrefix += b.SentBytesPrefix
	a.SentBytesTransact += b.SentBytesTransact
	a.SentBytesRead += b.SentBytesRead
	a.SentBytesWrite += b.SentBytesWrite
	a.StaleSinkAvails += b.StaleSinkAvails
	a.Overrides += b.Overrides
	a.SentSendSms += b.SentSendSms
	a.SentSrcCancels += b.SentSrcCancels
	a.SentSinkCancels += b.SentSinkCancels
	a.ModeChangesRecv += b.ModeChangesRecv
	a.UrgentRecv += b.UrgentRecv
	a.Resizes += b.Resizes
	a.Suspensions += b.Suspensions
	a.CompactedBytes += b.CompactedBytes
	a.CreditStalls += b.CreditStalls
	a.SentMessages += b.SentMessages
}
