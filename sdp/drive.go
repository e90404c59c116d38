package sdp

import (
	"sync"
	"sync/atomic"
	"time"

	"viaduct/internal/attend"
	"viaduct/internal/perturb"
	"viaduct/internal/sdpcore"
	"viaduct/internal/ulp"
	"viaduct/internal/wire/sdpwire"
	"viaduct/iwarp"
)

// A driver passes the completions of an iwarp stream and the passing of time to a machine of
// internal/sdpcore, and performs the actions of the machine. No goroutine belongs to a driver: the
// goroutine that holds mu does the work, at the latest in unlock. Each part of the driver has its own
// file.
type driver struct {
	opt    Options
	layout sdpwire.Layout
	path   Path
	token  []byte

	stream atomic.Pointer[ulp.Stream[iwarp.SendWR]] // the current stream; only attach changes it

	mu     perturb.Mutex // guards all fields below; released by unlock
	m      *sdpcore.Machine
	qp     *iwarp.QueuePair
	cq     *iwarp.CompletionQueue // completion queue of the stream
	state  streamState
	pooled bool // whether goroutines may be workers, see attend.Go
	acts   []sdpcore.Action
	comps  [8]iwarp.Completion // buffer for the completions that run polls
	born   time.Time

	calls calls    // reads and writes in progress
	send  sender   // outgoing requests
	advs  adverts  // memory the peer may access
	recv  receiver // received bytes that no read has taken
	urg   urgent
	alarm alarm
	flow  flow
	held  held

	ends
	moving
}

// A streamState is the state of the stream that a connection uses.
type streamState uint8

const (
	streamUp       streamState = iota // arrivals are handled
	streamOver                        // the end of the stream was handled
	streamMoved                       // the connection continues on another stream or in another process
	streamReleased                    // the connection has ended, and the stream is being closed
)

// stopped reports whether completions are left alone, because the stream has moved or is being
// closed; see drained.
func (s streamState) stopped() bool { return s >= streamMoved }

const (
	// Time after which a new connection receives arrivals even if no call waits.
	attendTime   = time.Millisecond
	bulkSize     = 16 << 10               // least bytes of payload of a message in a steady stream
	patienceTime = 200 * time.Microsecond // time that a write waits before its bytes are copied
	// Time that Close waits for the peer's DisConn after the peer's TCP has acknowledged ours.
	answerTime = 20 * time.Microsecond
)

// actions is a pool of slices for the actions of an event.
var actions = sync.Pool{New: func() any { return new(make([]sdpcore.Action, 0, 8)) }}

// init makes a driver for the stream of a set-up. The driver handles no arrivals before begin.
func (d *driver) init(opt Options, layout sdpwire.Layout, s *setup, p sdpcore.Params) {
	d.opt, d.layout, d.born, d.acts = opt, layout, time.Now(), *actions.Get().(*[]sdpcore.Action)
	d.calls.room = opt.SendBuffer
	d.ends.init()
	d.alarm.fire = d.wakeUp
	d.m = sdpcore.New(p)
	d.attach(s)
}

// attach makes the driver use the stream of a set-up, at first and again after a suspension.
func (d *driver) attach(s *setup) {
	d.qp, d.cq = s.qp, s.cq
	d.stream.Store(&s.in.stream)
	d.pooled = s.pooled
	d.recv.move(s.in)
	d.send.attach(s.qp, d.layout, s.sendDepth)
	d.alarm.attend = d.now() + attendTime
}

// begin starts the handling of arrivals. Set path before calling begin.
func (d *driver) begin() {
	d.mu.Lock()
	defer d.unlock()
	d.recv.in.stream.Handle(d.completed)
}

func (d *driver) now() sdpcore.Time { return time.Since(d.born) }

// room returns the empty slice to which the machine appends the actions of an event. mu must be
// held.
func (d *driver) room() []sdpcore.Action { return d.acts[:0] }

// completed is the handler of the completion queue. The goroutine that holds mu handles
// completions. If another goroutine holds mu, completed leaves the completions to the holder:
// unlock handles them.
func (d *driver) completed() {
	if d.mu.TryLock() {
		d.unlockOnly()
	}
}

// unlock releases mu after an event. First, unlock handles completions that arrived meanwhile,
// lends the buffer of a waiting read, and sets the alarm.
func (d *driver) unlock() {
	if d.unlockOnly() {
		d.progress().Poll() // receives bytes that stayed unread, because no buffer was lent
	}
}

// unlockOnly does the work of unlock for the handler of completions. It reports whether the caller
// should receive at once, because bytes may have been left unread.
func (d *driver) unlockOnly() (left bool) {
	for {
		before := d.flow.streak
		ran := d.run()
		if d.held.on && d.state != streamUp {
			d.settle(d.now()) // the missing part of a message will not arrive
		}
		if len(d.calls.writes) > 0 {
			d.calls.letLeave(d.m, &d.send, d.now)
		}
		full, now := d.lend()
		left = now || left
		if ran {
			d.flow.brought(d.flow.streak-before, full, d.now)
		}
		d.setAlarm()
		cq, stopped := d.cq, d.state.stopped()
		d.mu.Unlock()
		if stopped || cq.Len() == 0 || !d.mu.TryLock() {
			return left
		}
	}
}

// progress returns the object that receives for a waiting call.
func (d *driver) progress() attend.SourceSleeper { return (*d.stream.Load()).Progress() }

// look receives arrivals without waiting, and passes them to the machine. After the end of the
// stream, look does nothing. mu must be held.
func (d *driver) look() {
	if d.state == streamUp {
		d.progress().Poll()
		d.run()
	}
}

// run passes completions to the machine. It reports whether there were any.
func (d *driver) run() bool {
	if d.state.stopped() {
		return false
	}
	cq := d.cq
	n := cq.PollN(d.comps[:])
	if n == 0 {
		return false
	}
	now := d.now()
	for {
		// A read gets all received bytes, not only the bytes of the first message.
		d.m.Expect(len(d.calls.reads) > 0)
		for i := range d.comps[:n] {
			d.completion(now, &d.comps[i])
		}
		if d.state.stopped() {
			break
		}
		if n = cq.PollN(d.comps[:]); n == 0 {
			break
		}
	}
	if len(d.calls.reads) > 0 && d.state == streamUp && d.recv.in.lending() {
		d.held.begin(now)
	} else {
		d.settle(now)
	}
	return true
}

// settle ends a read that has some bytes and waits for more.
func (d *driver) settle(now sdpcore.Time) {
	d.held.on = false
	d.m.Expect(false)
	d.exec(d.m.Settle(now, d.room()))
}

// lend lends the inbox the unused rest of the buffer of the oldest waiting read, or nothing if no
// read waits. left reports whether messages stayed unread for lack of a buffer. now is true if a
// read waits for the unread messages, so that the caller must receive at once.
func (d *driver) lend() (left, now bool) {
	var into []byte
	if len(d.calls.reads) > 0 && d.state == streamUp {
		if id, off, ok := d.m.Landing(); ok {
			into = find(d.calls.reads, id).buf[off:]
		}
	}
	return d.recv.in.lend(into, len(d.calls.reads) == 0, d.held.wary)
}

// completion handles the completion e of a request.
func (d *driver) completion(now sdpcore.Time, e *iwarp.Completion) {
	if e.QP != d.qp {
		return // the completion belongs to the stream before the last move
	}
	if e.Status != iwarp.StatusOK {
		d.streamEnded()
		return
	}
	switch e.Op {
	case iwarp.OpRecv:
		d.received(now, e)
	case iwarp.OpRead:
		d.recv.fetched()
		d.sendsDone(e.ID)
		d.exec(d.m.ReadDone(now, d.room()))
	default:
		d.sendsDone(e.ID)
		d.send.flush()
	}
}

// received passes a received message to the machine.
func (d *driver) received(now sdpcore.Time, e *iwarp.Completion) {
	r := &d.recv
	head, body := r.in.message(e.ID, int(e.Len))
	msg, n, err := sdpwire.ParseHead(head, int(e.Len), d.layout)
	if err != nil {
		d.exec(d.m.ReceiveBad(now, msg.MID, err, d.room()))
		return
	}
	if logsMessages(d.opt.Logger) {
		shown := msg // otherwise every message would be allocated on the heap
		d.opt.Logger.Debug("received", "remote", d.path.Remote, "msg", &shown)
	}
	if body == nil {
		body = head[n:]
	}
	r.open(int(e.ID), body)
	d.flow.message(len(body))
	d.exec(d.m.Receive(now, &msg, e.STag, e.Invalidated, d.room()))
	r.close()
}

// setAlarm sets the timer for the next due event.
func (d *driver) setAlarm() {
	if d.state.stopped() {
		return
	}
	at, ok := d.m.Deadline()
	if !ok && d.alarm.attend == 0 && d.alarm.close == 0 && !d.held.on && len(d.calls.writes) == 0 {
		return // after most messages
	}
	at = soonest(at, soonest(d.alarm.attend, d.alarm.close))
	if d.held.on {
		at = soonest(at, d.held.until)
	}
	d.alarm.set(soonest(at, d.calls.late()), d.now)
}

// wakeUp performs the due events.
func (d *driver) wakeUp() {
	d.mu.Lock()
	defer d.unlock()
	now := d.now()
	d.alarm.at = 0
	if d.state == streamReleased {
		return
	}
	if at, ok := d.m.Deadline(); ok && now >= at {
		d.exec(d.m.Tick(now, d.room()))
	}
	if due(&d.alarm.attend, now) {
		d.progress().Unpoll()
	}
	if d.held.on && d.held.over(now) {
		d.settle(now)
	}
	if due(&d.alarm.close, now) {
		d.exec(d.m.Abort(now, sdpcore.ErrClosed, d.room()))
	}
}
