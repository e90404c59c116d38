package fcvi

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"viaduct/internal/fc"
	"viaduct/internal/fc/fabric"
	"viaduct/internal/testkit"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// A passage is a connection of a simulated pair. The test injects frames and observes one end.
type passage struct {
	*sim
	f      *fake // the observed end
	c      *conn
	r      *fc.Remote
	rr     iu.Flags
	first  iu.MsgID // id of the first message that arrives, or was sent
	sent   []string
	before []string
	counts Stats
}

// A path is a kind of network: a reliability level, and whether frames keep their order.
type path struct {
	level iu.Reliability
	order bool
}

// String returns UD, RD or RR, with a star if frames may overtake each other.
func (p path) String() string {
	s := map[iu.Reliability]string{iu.Unreliable: "UD", iu.ReliableDelivery: "RD", iu.ReliableReception: "RR"}[p.level]
	if !p.order {
		s += "*"
	}
	return s
}

// pass connects a pair and selects the end to observe.
func pass(t *testing.T, on path, end int) *passage {
	w := &passage{sim: newSim(t, simConfig{seed: 1, order: on.order})}
	a, b := w.connect(on.level)
	a.mem, b.mem = a.mem[:1<<14], b.mem[:1<<14]
	w.f = []*fake{a, b}[end]
	w.c = w.f.c
	w.r = w.c.remote
	if on.level == iu.ReliableReception {
		w.rr = iu.FlagRR
	}
	w.first = w.c.rx.mexp
	if end == 0 {
		w.first = w.c.tx.nextID
	}
	codec := w.c.p.cfg.codec
	w.net.Tap(func(_ fc.Time, from *fabric.End, f *fc.Frame) {
		h, _, err := iu.ParseHeader(f.Opt)
		switch {
		case from != w.f.p.end:
		case f.RCtl == fc.RCtlABTS:
			w.sent = append(w.sent, fmt.Sprintf("ABTS rxid %x F_CTL %06x", f.RXID, uint32(f.FCtl)))
		case f.Type == fc.TypeFCVI && f.RCtl.IsDeviceData() && err == nil:
			if h.MsgID != 0 {
				h.MsgID -= w.first - 1 // the first message is number 1
			}
			if h.Op.IsResponse() || h.Op.IsRequest() {
				h.Handle = 0
			}
			s := described(codec, f, &h)
			if h.Op.HasData() {
				s += fmt.Sprintf(" %d@%d %.20q", len(f.Payload), f.Param, f.Payload)
			}
			w.sent = append(w.sent, s)
		}
	})
	return w
}

// ready records the facts before the event.
func (w *passage) ready() { w.before, w.counts, w.sent = w.facts(), w.c.p.stats, nil }

func (w *passage) facts() (all []string) {
	c, p := w.c, w.c.p
	fact := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	for i, r := range w.f.recvs {
		if r.done {
			d := r.d
			fact("receive %d: %d bytes %.20q status %x immediate %v %x write %v", i, d.Length,
				r.buf[:min(int(d.Length), len(r.buf))], uint32(d.Status), d.Immediate, d.Data, d.RemoteWrite)
		} else if i < w.f.recvN {
			fact("receive %d taken", i)
		}
	}
	for i, s := range w.f.sends {
		if s.done {
			fact("send %d: status %x %.20q", i, uint32(s.status), s.data)
		}
	}
	if m := bytes.TrimRight(w.f.mem, "\x00"); len(m) > 0 {
		fact("memory %.40q", m)
	}
	if len(w.f.asyncs) > 0 {
		fact("async %v of %v", w.f.asyncs, w.f.causes)
	}
	if w.f.broke > 0 {
		fact("broken %d, orderly %v", w.f.broke, w.f.order)
	}
	now := w.net.Now()
	for _, t := range []struct {
		name string
		t    *fc.Timer
	}{{"timer", c.timer}, {"responses", c.tx.resp.timer}, {"gap", c.rx.timer}, {"proof", c.tx.proof.timer}} {
		if t.t.Active() {
			fact("%s %v", t.name, (t.t.At() - now).Round(time.Microsecond))
		}
	}
	r, t := &c.rx, &c.tx
	fact("expects %d, front %d", int32(r.mexp-w.first), int32(r.front-w.first))
	for _, v := range []struct {
		name string
		is   bool
	}{{"waiting", r.waiting}, {"has a receive", r.haveRecv}, {"unasked", r.unasked},
		{"late disconnect", c.late != nil}, {"busy", t.busy}, {"draining", t.draining},
		{"probe wanted", t.proof.want}, {"probe owed", t.proof.owed}, {"probe sent", t.proof.sent}} {
		fact("%s %v", v.name, v.is)
	}
	fact("holds %d bytes", r.hold)
	fact("failed %v", r.failed)
	if r.stallAt != 0 {
		fact("stalls in %v", (r.stallAt - now).Round(time.Microsecond))
	}
	if t.resp.respGap != 0 {
		fact("misses an answer in %v", (t.resp.respGap - now).Round(time.Microsecond))
	}
	fact("%d pending, %d reads, %d unproven, %d answers", t.resp.pending.len(), t.resp.reads, t.resp.unproven, c.answers.len())
	for i := range t.resp.pending.len() {
		if q := t.resp.pending.at(i); q.done {
			fact("%d is answered", i)
		}
	}
	tr := c.traffic
	fact("traffic %d %d %d, %d %d %d", tr.SentMessages, tr.SentBytes, tr.ServedReads,
		tr.ReceivedMessages, tr.ReceivedBytes, p.oxids.used)
	return all
}

func (w *passage) outcome() string {
	to := w.c.state.String()
	if w.c.gone {
		to = "gone"
	}
	var changed []string
	for _, f := range w.facts() {
		if !slices.Contains(w.before, f) {
			changed = append(changed, f)
		}
	}
	changed = append(changed, counted(&w.counts, &w.c.p.stats)...)
	lines := append([]string{to}, w.sent...)
	if len(changed) > 0 {
		lines = append(lines, strings.Join(changed, ", "))
	}
	return strings.Join(lines, "\n\t")
}

// aftermath returns the effects in the time after the event, without other events: sent frames, the
// state, and changed facts.
func (w *passage) aftermath() string {
	was, state := w.facts(), w.c.state
	w.sent = nil
	w.net.Run(time.Minute)
	var later []string
	for _, s := range w.sent {
		op, _, _ := strings.Cut(s, " ")
		later = append(later, op)
	}
	if n := len(later) - 6; n > 0 { // an end that repeats its attempts
		later = append(later[:6], fmt.Sprintf("and %d more", n))
	}
	if w.c.state != state {
		later = append(later, w.c.state.String())
	}
	for _, f := range w.facts() {
		if !slices.Contains(was, f) && !strings.HasPrefix(f, "timer ") {
			later = append(later, f)
		}
	}
	if len(later) == 0 {
		return "later: nothing"
	}
	return "later: " + strings.Join(later, ", ")
}

// arrive delivers a frame of message n to the end, on a separate Exchange and Sequence.
func (w *passage) arrive(n int, h iu.Header, data string, change func(f *fc.Frame)) {
	h.Handle, h.MsgID = w.c.handle, w.first+iu.MsgID(n)
	if h.Op.IsRequest() {
		h.Flags ^= w.rr
	}
	codec := w.c.p.cfg.codec
	f := fc.Frame{SOF: fc.SOFi3, EOF: fc.EOFt, Payload: []byte(data), Opt: h.Append(nil),
		Header: fc.Header{RCtl: fc.RCtl(codec.RCtl(h.Op)), Type: fc.TypeFCVI,
			DFCtl: codec.DFCtl(h.Op), FCtl: fc.FCtlFirstSeq | fc.FCtlLastSeq | fc.FCtlEndSeq | fc.FCtlRelOffset,
			SID: w.r.Addr, OXID: 0x200 + uint16(n), RXID: fc.Unassigned, SeqID: uint8(n)}}
	if change != nil {
		change(&f)
	}
	w.c.p.Frame(w.net.Now(), w.r, &f)
}

// from makes a frame part of a Sequence: the frame begins at offset off. last means the last frame.
func from(off uint32, last bool) func(f *fc.Frame) {
	return func(f *fc.Frame) {
		if f.Param = off; off > 0 {
			f.SOF = fc.SOFn3
		}
		if !last {
			f.FCtl &^= fc.FCtlEndSeq | fc.FCtlLastSeq
			f.EOF = fc.EOFn
		}
	}
}

func (w *passage) send(n int, data string, flags iu.Flags, change func(f *fc.Frame)) {
	w.arrive(n, iu.Header{Op: iu.SendRqst, Flags: flags}, data, change)
}

func (w *passage) write(n int, data string, total uint32, flags iu.Flags, change func(f *fc.Frame)) {
	w.arrive(n, iu.Header{Op: iu.WriteRqst, Flags: flags, RmtHandle: 7, RmtVA: 1000, Total: total, Param: uint32(flags & iu.FlagImm)}, data, change)
}

func (w *passage) read(n int, total uint32, flags iu.Flags) {
	w.arrive(n, iu.Header{Op: iu.ReadRqst, Flags: flags, RmtHandle: 7, RmtVA: 1000, Total: total}, "", nil)
}

// A step is an operation on one end.
type step struct {
	name string
	run  func(w *passage)
}

// arrivals lists the states of a receiver for the walk.
var arrivals = []step{
	{"two receives", func(w *passage) { w.f.postRecv(16); w.f.postRecv(16) }},
	{"no receive", func(w *passage) {}},
	{"no receive yet", func(w *passage) { w.c.holds = true }},
	{"a Send has begun", func(w *passage) {
		w.f.postRecv(16)
		w.f.postRecv(16)
		w.send(0, "0123456789", 0, from(0, false))
	}},
	{"a Write has begun", func(w *passage) {
		w.f.postRecv(16)
		w.write(0, "0123456789", 12, iu.FlagImm, from(0, false))
	}},
	{"the next is here", func(w *passage) {
		w.f.postRecv(16)
		w.f.postRecv(16)
		w.send(1, "next", 0, nil)
	}},
	{"the second and the fourth are here", func(w *passage) {
		for range 4 {
			w.f.postRecv(16)
		}
		w.send(1, "second", 0, nil)
		w.send(3, "fourth", 0, nil)
	}},
	{"a Send waits for a receive", func(w *passage) {
		w.c.holds = true
		w.send(0, "waits", 0, nil)
	}},
	{"a Write waits for a receive", func(w *passage) {
		w.c.holds = true
		w.write(0, "waits", 5, iu.FlagImm, nil)
	}},
	{"a receive is bad", func(w *passage) {
		w.f.postRecv(16).bad = vi.StatusFormatError
		w.f.postRecv(16).gone = vi.StatusProtectionError
	}},
	{"a receive is gone", func(w *passage) {
		w.f.postRecv(16).gone = vi.StatusProtectionError
		w.f.postRecv(16).bad = vi.StatusProtectionError
	}},
	{"messages before asked nothing", func(w *passage) {
		w.f.postRecv(16)
		w.c.rx.unasked = true
	}},
	{"one has failed", func(w *passage) { w.c.rx.failed = iu.NoRecvDesc }},
}

var frames = []step{
	{"Send", func(w *passage) { w.send(0, "hello", 0, nil) }},
	{"Send, empty", func(w *passage) { w.send(0, "", 0, nil) }},
	{"Send, immediate, asks", func(w *passage) {
		w.arrive(0, iu.Header{Op: iu.SendRqst, Flags: iu.FlagImm | iu.FlagRspRqd, Param: 0xABCD},
			"hello", func(f *fc.Frame) { f.Param = 0 })
	}},
	{"Send, asks", func(w *passage) { w.send(0, "hello", iu.FlagRspRqd, nil) }},
	{"Send, longer than the receive", func(w *passage) { w.send(0, "0123456789abcdefg", iu.FlagRspRqd, nil) }},
	{"Send, as long as the receive", func(w *passage) { w.send(0, "0123456789abcdef", iu.FlagRspRqd, nil) }},
	{"Send, longer than agreed", func(w *passage) { w.send(0, "x", 0, from(w.c.mts, true)) }},
	{"Send, of the other level", func(w *passage) { w.send(0, "hello", iu.FlagRR, nil) }},
	{"Send, first part", func(w *passage) { w.send(0, "0123456789", 0, from(0, false)) }},
	{"Send, last part", func(w *passage) { w.send(0, "end", 0, from(10, true)) }},
	{"Send, last part, empty", func(w *passage) { w.send(0, "", 0, from(10, true)) }},
	{"Send, last part, beyond a hole", func(w *passage) { w.send(0, "end", 0, from(12, true)) }},
	{"Send, last part, overlapping", func(w *passage) { w.send(0, "end", 0, from(8, true)) }},
	{"Send, a part beyond the end", func(w *passage) {
		w.send(0, "end", 0, from(12, true))
		w.send(0, "more", 0, from(14, false))
	}},
	{"Send, another Exchange", func(w *passage) { w.send(0, "end", 0, func(f *fc.Frame) { from(10, true)(f); f.OXID++ }) }},
	{"Send, another Sequence", func(w *passage) { w.send(0, "end", 0, func(f *fc.Frame) { from(10, true)(f); f.SeqID++ }) }},
	{"Send, another class", func(w *passage) { w.send(0, "end", 0, func(f *fc.Frame) { from(10, true)(f); f.SOF = fc.SOFn2 }) }},
	{"Send, another header", func(w *passage) { w.send(0, "end", iu.FlagImm, from(10, true)) }},
	{"Send, twice", func(w *passage) { w.send(0, "hello", 0, nil); w.send(0, "hello", 0, nil) }},
	{"Send, of before", func(w *passage) { w.send(-1, "hello", 0, nil) }},
	{"Send, the next", func(w *passage) { w.send(1, "hello", 0, nil) }},
	{"Send, the next but one", func(w *passage) { w.send(2, "hello", 0, nil) }},
	{"Send, the next, its tail", func(w *passage) { w.send(1, "hello", 0, from(10, true)) }},
	{"Send, the end of the window", func(w *passage) { w.send(window-1, "hello", 0, nil) }},
	{"Send, beyond the window", func(w *passage) { w.send(window, "hello", 0, nil) }},
	{"Send, beyond the large window", func(w *passage) { w.send(limitMaxUnacked, "hello", 0, nil) }},
	{"the next, then Send", func(w *passage) { w.send(1, "hello", 0, nil); w.send(0, "0", iu.FlagRspRqd, nil) }},
	{"Write", func(w *passage) { w.write(0, "hello", 5, 0, nil) }},
	{"Write, empty, asks", func(w *passage) { w.write(0, "", 0, iu.FlagRspRqd, nil) }},
	{"Write, immediate", func(w *passage) { w.write(0, "hello", 5, iu.FlagImm, func(f *fc.Frame) { f.Param = 0 }) }},
	{"Write, last part", func(w *passage) { w.write(0, "ab", 12, iu.FlagImm, from(10, true)) }},
	{"Write, first part", func(w *passage) { w.write(0, "0123456789", 12, 0, from(0, false)) }},
	{"Write, less than told", func(w *passage) { w.write(0, "hello", 6, 0, nil) }},
	{"Write, more than told", func(w *passage) { w.write(0, "hello", 4, 0, nil) }},
	{"Write, more than agreed", func(w *passage) { w.write(0, "hello", w.c.mts+1, 0, from(0, false)) }},
	{"Write, as much as agreed", func(w *passage) { w.write(0, "hello", w.c.mts, 0, from(0, false)) }},
	{"Write, no right", func(w *passage) {
		w.f.rights[0] = false
		w.write(0, "hello", 5, iu.FlagRspRqd, nil)
	}},
	{"Write, immediate, no right", func(w *passage) {
		w.f.rights[0] = false
		w.write(0, "hello", 5, iu.FlagRspRqd|iu.FlagImm, nil)
	}},
	{"Write, none enabled", func(w *passage) {
		w.f.rights[0], w.c.attrs.Write = false, false
		w.write(0, "hello", 5, iu.FlagRspRqd, nil)
	}},
	{"Write, the next", func(w *passage) { w.write(1, "hello", 5, 0, nil) }},
	{"Read", func(w *passage) { copy(w.f.mem, "what is read"); w.read(0, 4, iu.FlagRspRqd) }},
	{"Read of nothing", func(w *passage) { w.read(0, 0, iu.FlagRspRqd) }},
	{"Read, the next", func(w *passage) { w.read(1, 4, iu.FlagRspRqd) }},
	{"Read, nothing asked", func(w *passage) { w.read(0, 4, 0) }},
	{"Read, immediate", func(w *passage) { w.read(0, 4, iu.FlagRspRqd|iu.FlagImm) }},
	{"Read, more than agreed", func(w *passage) { w.read(0, w.c.mts+1, iu.FlagRspRqd) }},
	{"Read, no right", func(w *passage) {
		w.f.rights[1] = false
		w.read(0, 4, iu.FlagRspRqd)
	}},
	{"Read, none enabled", func(w *passage) {
		w.f.rights[1], w.c.attrs.Read = false, false
		w.read(0, 4, iu.FlagRspRqd)
	}},
	{"Reads, more than agreed", func(w *passage) {
		w.stall(func() {
			for i := range 5 { // one Read more than MaxReads
				w.read(i, 4, iu.FlagRspRqd)
			}
		})
	}},
	{"Read, whose memory goes", func(w *passage) {
		w.stall(func() { w.read(0, 4, iu.FlagRspRqd); w.f.rights[1] = false })
	}},
	{"Read, whose memory goes within", func(w *passage) {
		w.stall(func() { w.read(0, 9000, iu.FlagRspRqd) }) // only the first frame is sent
		w.f.rights[1] = false
		w.c.p.activate(w.c)
		w.c.p.pump(w.net.Now())
	}},
	{"Read, of several frames", func(w *passage) { w.read(0, 9000, iu.FlagRspRqd); w.net.Run(time.Millisecond) }},
	{"probe", func(w *passage) { w.arrive(0, iu.Header{Op: iu.ReadRqst, Flags: iu.FlagRspRqd}, "", nil) }},
	{"probe, of before", func(w *passage) { w.arrive(-1, iu.Header{Op: iu.ReadRqst, Flags: iu.FlagRspRqd}, "", nil) }},
	{"a receive is posted", func(w *passage) { w.f.postRecv(16) }},
	{"a receive is posted, short", func(w *passage) { w.f.postRecv(3) }},
	{"ABTS", func(w *passage) { w.c.aborted(w.net.Now(), 0x200) }},
	{"ABTS of the next", func(w *passage) { w.c.aborted(w.net.Now(), 0x201) }},
	{"ABTS of another", func(w *passage) { w.c.aborted(w.net.Now(), 0x300) }},
	{"disconnect behind more", func(w *passage) { w.disconnect(3) }},
	{"disconnect behind a Send, and the Send", func(w *passage) {
		w.disconnect(1)
		w.send(0, "hello", 0, nil)
	}},
	{"most of T_GAP", func(w *passage) { w.net.Run(w.c.gap() - time.Millisecond) }},
	{"T_GAP", func(w *passage) { w.net.Run(w.c.gap() + time.Millisecond) }},
	{"T_GAP, early", func(w *passage) { w.c.gapExpired(w.net.Now()) }},
}

// disconnect delivers an orderly disconnect of a peer after n sent messages.
func (w *passage) disconnect(n int) {
	w.arrive(n, iu.Header{Op: iu.DisconnectRqst, Flags: iu.FlagMsgID, RmtHandle: w.c.rHandle, Total: w.c.connID(), Param: iu.Status{Reason: iu.ULPDisconnect}.Param()}, "", nil)
}

// stall runs fn while the link has room for only a single frame.
func (w *passage) stall(fn func()) {
	room, left := w.c.p.room, 0
	w.c.p.room = func(fc.Addr) int { return left }
	fn()
	w.c.p.room = func(fc.Addr) int {
		left++
		return max(0, 2-left)
	}
	w.c.p.linkRoom(w.net.Now())
	w.c.p.room = room
}

// walkMessages runs each event in each state and on each path, and writes the effects to one golden
// file in dir per state.
func walkMessages(t *testing.T, dir string, end int, places, events []step) {
	if raceEnabled {
		places = places[:2] // the machines run in one goroutine
	}
	for _, at := range places {
		t.Run(at.name, func(t *testing.T) {
			walkEvents(t, dir+"/"+strings.ReplaceAll(at.name, " ", "-")+".golden", end, at, events)
		})
	}
}

func walkEvents(t *testing.T, golden string, end int, at step, events []step) {
	by, order := map[string][]string{}, []string{} // events, grouped by their effect
	for _, e := range events {
		same, ways := map[string][]string{}, []string{} // paths, grouped by the effect of the event
		for _, on := range every {
			w := pass(t, on, end)
			at.run(w)
			w.ready()
			e.run(w)
			w.net.Run(10 * time.Microsecond) // so that the sent frames are recorded
			o := w.outcome() + "\n\t" + w.aftermath()
			if len(same[o]) == 0 {
				ways = append(ways, o)
			}
			same[o] = append(same[o], on.String())
		}
		for _, o := range ways {
			if len(by[o]) == 0 {
				order = append(order, o)
			}
			line := e.name
			if len(ways) > 1 {
				line += ": " + strings.Join(same[o], " ")
			}
			by[o] = append(by[o], line)
		}
	}
	var text strings.Builder
	for _, o := range order {
		fmt.Fprintf(&text, "%s\n\t%s\n", strings.Join(by[o], "\n"), o)
	}
	testkit.Golden(t, golden, []byte(text.String()))
}

// every lists all reliability levels, each with and without reordering of frames.
var every = []path{{iu.Unreliable, true}, {iu.Unreliable, false}, {iu.ReliableDelivery, true},
	{iu.ReliableDelivery, false}, {iu.ReliableReception, true}, {iu.ReliableReception, false}}

// TestFCVI_8_4_Receive runs every arrival in every state of a receiver. The golden files list the
// effects of each event: delivered, placed and reported messages, answers, timers and counters.
// [FCVI-3-2..5] [FCVI-3-8] [FCVI-5.1-9] [FCVI-5.2.2-2..8] [FCVI-5.2.3-1..4] [FCVI-5.2.4-2]
// [FCVI-5.2.4-3] [FCVI-5.2.4-5] [FCVI-5.2.4-6] [FCVI-5.2.5-5] [FCVI-5.5-3] [FCVI-5.6-1]
// [FCVI-5.6-2] [FCVI-5.9.1-5] [FCVI-5.9.4-5] [FCVI-5.9.6-3] [FCVI-5.9.8-2] [FCVI-6.1-1]
// [FCVI-6.3-1] [FCVI-6.4-1] [FCVI-6.5-1] [FCVI-7.3-7] [FCVI-8.2-2] [FCVI-8.4-2..7] [FCVI-8.4-9..11]
// [FCVI-B-1..5] [FCVI-E-3] [FCFS-2.10-3] [FCFS-2.10-5] [VIA-4.1-2] [VIA-4.1-3] [VIA-4.2-1..5]
// [VIA-4.3-1] [VIA-4.4-2] [VIA-4.5-2] [VIA-4.5-3] [VIA-4.6-4] [VIA-4.6-5] [VIA-4.6-7..9]
// [VIA-4.6-11] [VIA-4.6-12] [VIA-4.6-14] [VIA-4.6-18] [VIA-5.2-4] [VIA-5.2-6..8] [VIA-5.2-10]
// [VIA-8.3-10]
func TestFCVI_8_4_Receive(t *testing.T) {
	walkMessages(t, "receive", 1, arrivals, frames)
}

// resp delivers an answer to the end's message n, or a frame of an answer.
func (w *passage) resp(n int, op iu.Opcode, flags iu.Flags, reason iu.Reason, data string, off uint32, last bool) {
	ox := uint16(0x7777)
	for _, q := range w.c.tx.resp.pending.all() {
		if q.id == w.first+iu.MsgID(n) {
			ox = q.oxid
		}
	}
	w.arrive(n, iu.Header{Op: op, Flags: flags, Param: iu.Status{Reason: reason}.Param()}, data, func(f *fc.Frame) {
		from(off, last)(f)
		f.OXID, f.RXID = ox, 0x55
		f.FCtl = f.FCtl&^fc.FCtlFirstSeq | fc.FCtlExchResponder
	})
}

// quiet posts requests that the peer never answers.
func (w *passage) quiet(post func()) {
	w.net.AddFault(&fabric.Fault{Match: func(f *fc.Frame) bool { return f.Type == fc.TypeFCVI && f.SID == w.c.remote.Addr }, Do: fabric.Drop})
	post()
	w.net.Run(time.Millisecond)
}

// askEach makes each message at Reliable Reception request a response.
func (w *passage) askEach() { w.c.attrs.Streaming = false }

// departures lists the states of a sender for the walk.
var departures = []step{
	{"nothing sent", func(w *passage) {}},
	{"three Sends", func(w *passage) {
		w.quiet(func() {
			w.askEach()
			for range 3 {
				w.f.post(vi.OpSendReceive, []byte("hello"))
			}
		})
	}},
	{"three Sends, the last asks", func(w *passage) {
		w.quiet(func() {
			for range 3 {
				w.f.sends = append(w.f.sends, &fakeSend{ctl: vi.OpSendReceive, data: []byte("hello")})
			}
			w.c.posted(w.net.Now())
		})
	}},
	{"Send, Read, Write", func(w *passage) {
		w.quiet(func() {
			w.askEach()
			w.f.post(vi.OpSendReceive, []byte("hello"))
			w.f.post(vi.OpRDMARead, make([]byte, 8))
			w.f.post(vi.OpRDMAWrite, []byte("write"))
		})
	}},
	{"a Read that has begun", func(w *passage) {
		w.quiet(func() { w.f.post(vi.OpRDMARead, make([]byte, 8)) })
		w.resp(0, iu.ReadResp, 0, 0, "half", 0, false)
	}},
	{"Read, Read", func(w *passage) {
		w.quiet(func() {
			w.f.post(vi.OpRDMARead, make([]byte, 8))
			w.f.post(vi.OpRDMARead, make([]byte, 0))
		})
	}},
	{"Read, Send, Read", func(w *passage) {
		w.quiet(func() {
			w.askEach()
			w.f.post(vi.OpRDMARead, make([]byte, 8))
			w.f.post(vi.OpSendReceive, []byte("hello"))
			w.f.post(vi.OpRDMARead, make([]byte, 8))
		})
	}},
	{"a Read whose memory goes", func(w *passage) {
		w.quiet(func() { w.f.post(vi.OpRDMARead, make([]byte, 8)) })
		w.f.sends[0].gone = true
	}},
	{"a Send under way", func(w *passage) {
		w.quiet(func() {
			w.stall(func() { w.f.post(vi.OpSendReceive, pattern(9000, 1)) })
		})
	}},
	{"a probe behind a Send", func(w *passage) {
		w.quiet(func() { w.f.post(vi.OpSendReceive, []byte("hello")) })
		w.net.Run(w.c.p.np.EDTOV())
	}},
}

var replies = []step{
	{"SEND_RESP", func(w *passage) { w.resp(0, iu.SendResp, 0, 0, "", 0, true) }},
	{"SEND_RESP, twice", func(w *passage) {
		w.resp(0, iu.SendResp, 0, 0, "", 0, true)
		w.resp(0, iu.SendResp, 0, 0, "", 0, true)
	}},
	{"SEND_RESP to the second", func(w *passage) { w.resp(1, iu.SendResp, 0, 0, "", 0, true) }},
	{"SEND_RESP to the third", func(w *passage) { w.resp(2, iu.SendResp, 0, 0, "", 0, true) }},
	{"SEND_RESP to the third, twice", func(w *passage) {
		w.resp(2, iu.SendResp, 0, 0, "", 0, true)
		w.resp(2, iu.SendResp, 0, 0, "", 0, true)
	}},
	{"SEND_RESP to all three", func(w *passage) { w.resp(2, iu.SendResp, iu.FlagCum, 0, "", 0, true) }},
	{"SEND_RESP beyond", func(w *passage) { w.resp(3, iu.SendResp, 0, 0, "", 0, true) }},
	{"SEND_RESP of before", func(w *passage) { w.resp(-1, iu.SendResp, 0, 0, "", 0, true) }},
	{"SEND_RESP with data", func(w *passage) { w.resp(0, iu.SendResp, 0, 0, "x", 0, true) }},
	{"SEND_RESP on another Exchange", func(w *passage) {
		w.arrive(0, iu.Header{Op: iu.SendResp}, "", func(f *fc.Frame) { f.OXID, f.FCtl = 0x7777, 0x980000 })
	}},
	{"SEND_RESP to the third on another Exchange", func(w *passage) {
		w.arrive(2, iu.Header{Op: iu.SendResp}, "", func(f *fc.Frame) { f.OXID, f.FCtl = 0x7777, 0x980000 })
	}},
	{"SEND_RESP, no receive", func(w *passage) { w.resp(0, iu.SendResp, iu.FlagErr, iu.NoRecvDesc, "", 0, true) }},
	{"SEND_RESP to the second, no receive", func(w *passage) { w.resp(1, iu.SendResp, iu.FlagErr, iu.NoRecvDesc, "", 0, true) }},
	{"SEND_RESP to the third, a lost frame", func(w *passage) { w.resp(2, iu.SendResp, iu.FlagErr|iu.FlagCum, iu.FrameLost, "", 0, true) }},
	{"SEND_RESP to the third, then the others", func(w *passage) {
		w.resp(2, iu.SendResp, 0, 0, "", 0, true)
		w.net.Run(time.Millisecond)
		w.resp(0, iu.SendResp, 0, 0, "", 0, true)
		w.resp(1, iu.SendResp, 0, 0, "", 0, true)
	}},
	{"WRITE_RESP", func(w *passage) { w.resp(0, iu.WriteResp, 0, 0, "", 0, true) }},
	{"WRITE_RESP to the third, to all", func(w *passage) { w.resp(2, iu.WriteResp, iu.FlagCum, 0, "", 0, true) }},
	{"READ_RESP", func(w *passage) { w.resp(0, iu.ReadResp, 0, 0, "readdata", 0, true) }},
	{"READ_RESP, first half", func(w *passage) { w.resp(0, iu.ReadResp, 0, 0, "read", 0, false) }},
	{"READ_RESP, second half", func(w *passage) { w.resp(0, iu.ReadResp, 0, 0, "data", 4, true) }},
	{"READ_RESP, beyond a hole", func(w *passage) { w.resp(0, iu.ReadResp, 0, 0, "a", 6, false) }},
	{"READ_RESP, one too many", func(w *passage) { w.resp(0, iu.ReadResp, 0, 0, "atasd", 4, false) }},
	{"READ_RESP, too short", func(w *passage) { w.resp(0, iu.ReadResp, 0, 0, "dat", 4, true) }},
	{"READ_RESP, empty", func(w *passage) { w.resp(0, iu.ReadResp, 0, 0, "", 0, true) }},
	{"READ_RESP, empty, not the last", func(w *passage) { w.resp(0, iu.ReadResp, 0, 0, "", 4, false) }},
	{"READ_RESP, in its parts", func(w *passage) {
		w.resp(0, iu.ReadResp, 0, 0, "re", 0, false)
		w.resp(0, iu.ReadResp, 0, 0, "ad", 2, false)
		w.resp(0, iu.ReadResp, 0, 0, "data", 4, true)
		w.resp(0, iu.ReadResp, 0, 0, "data", 4, true)
	}},
	{"READ_RESP, protection error", func(w *passage) { w.resp(0, iu.ReadResp, iu.FlagErr, iu.RDMAReadProt, "", 0, true) }},
	{"READ_RESP to the second", func(w *passage) { w.resp(1, iu.ReadResp, 0, 0, "readdata", 0, true) }},
	{"READ_RESP to the second, half", func(w *passage) { w.resp(1, iu.ReadResp, 0, 0, "read", 0, false) }},
	{"READ_RESP to the second, a hole", func(w *passage) { w.resp(1, iu.ReadResp, 0, 0, "data", 4, true) }},
	{"READ_RESP to the second, empty", func(w *passage) { w.resp(1, iu.ReadResp, 0, 0, "", 0, true) }},
	{"READ_RESP to the second, cumulative", func(w *passage) { w.resp(1, iu.ReadResp, iu.FlagCum, 0, "readdata", 0, true) }},
	{"READ_RESP to the third", func(w *passage) { w.resp(2, iu.ReadResp, 0, 0, "readdata", 0, true) }},
	{"told that the first failed", func(w *passage) { w.failed(0, iu.NoRecvDesc) }},
	{"told that the second failed", func(w *passage) { w.failed(1, iu.RDMAWriteProt) }},
	{"told that the third failed", func(w *passage) { w.failed(2, iu.LengthError) }},
	{"told that the third was lost", func(w *passage) { w.failed(2, iu.FrameLost) }},
	{"a Send is posted", func(w *passage) { w.f.post(vi.OpSendReceive, []byte("more")) }},
	{"a Read is posted", func(w *passage) { w.f.post(vi.OpRDMARead, make([]byte, 4)) }},
	{"Reads, more than agreed", func(w *passage) {
		for range 5 {
			w.f.post(vi.OpRDMARead, make([]byte, 4))
		}
	}},
	{"a bad descriptor is posted", func(w *passage) { w.bad(&fakeSend{ctl: vi.OpSendReceive, data: []byte("bad"), bad: true}) }},
	{"one whose memory is gone is posted", func(w *passage) { w.bad(&fakeSend{ctl: vi.OpSendReceive, data: []byte("gone"), gone: true}) }},
	{"an immediate Write of nothing is posted", func(w *passage) { w.f.postImm(vi.OpRDMAWrite|vi.Immediate, nil, 0xABCD) }},
	{"most of FCVI_ULP_TIMEOUT", func(w *passage) { w.net.Run(w.c.p.ulpTimeout() - 100*time.Millisecond) }},
	{"FCVI_ULP_TIMEOUT", func(w *passage) { w.net.Run(w.c.p.ulpTimeout() + time.Millisecond) }},
	{"most of T_GAP", func(w *passage) { w.net.Run(w.c.gap() - 100*time.Millisecond) }},
	{"T_GAP", func(w *passage) { w.net.Run(w.c.gap() + time.Millisecond) }},
	{"the third is answered, T_GAP", func(w *passage) {
		w.resp(2, iu.SendResp, 0, 0, "", 0, true)
		w.net.Run(w.c.gap() + time.Millisecond)
	}},
	{"the responses' time, early", func(w *passage) { w.c.respExpired(w.net.Now()) }},
	{"E_D_TOV", func(w *passage) { w.net.Run(w.c.p.np.EDTOV() + time.Millisecond) }},
	{"the consumer leaves", func(w *passage) { w.c.disconnect(w.net.Now()) }},
	{"the consumer breaks it", func(w *passage) { w.c.stop(w.net.Now(), true) }},
}

// failed delivers a disconnect reporting the failure of message n.
func (w *passage) failed(n int, reason iu.Reason) {
	w.arrive(n, iu.Header{Op: iu.DisconnectRqst, Flags: iu.FlagErr | iu.FlagMsgID, RmtHandle: w.c.rHandle, Total: w.c.connID(), Param: iu.Status{Reason: reason}.Param()}, "", nil)
}

// bad posts a descriptor that fails at this end, and a valid one after it.
func (w *passage) bad(s *fakeSend) {
	s.va, s.mh = 1000, 7
	w.f.sends = append(w.f.sends, s)
	w.f.post(vi.OpSendReceive, []byte("behind"))
}

// TestFCVI_8_4_Send runs all events (answers of all kinds, descriptors, time) in all states of a
// sender. [FCVI-3-6] [FCVI-3-7] [FCVI-5.1-3] [FCVI-5.2.1-1] [FCVI-5.2.2-9] [FCVI-5.2.4-1]
// [FCVI-5.2.4-4] [FCVI-5.2.4-7] [FCVI-5.2.5-2..4] [FCVI-5.7-1] [FCVI-5.7-2] [FCVI-5.7-6]
// [FCVI-5.8-5] [FCVI-5.8-6] [FCVI-5.9.4-3] [FCVI-5.9.4-4] [FCVI-5.9.6-1] [FCVI-5.9.7-1]
// [FCVI-5.9.8-1] [FCVI-5.3.5-1] [FCVI-5.9.10-1] [FCVI-6.2-1] [FCVI-6.6-1] [FCVI-6.7-1]
// [FCVI-8.4-12..14] [FCVI-8.4-16] [FCVI-E-1..4] [FCVI-F-2] [VIA-4.3-4] [VIA-4.5-4..6] [VIA-4.6-15]
// [FCVI-F-1]
func TestFCVI_8_4_Send(t *testing.T) {
	walkMessages(t, "send", 0, departures, replies)
}
