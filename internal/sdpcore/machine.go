package sdpcore

import (
	"time"

	"viaduct/internal/wire/sdpwire"
)

// Time is the time of an event, counted from any moment that the driver chooses.
type Time = time.Duration

// A Machine is one end of an SDP connection. New makes a Machine. Each part has its own state and
// its own file; the Machine passes the events to the parts.
type Machine struct {
	common
	ended ending
	cr    credits
	upd   updates
	snd   sender
	urg   urgent
	src   source
	snk   sink
	rsz   resize
	susp  suspend

	in inbound // the message being received
}

// New returns a machine for a connection whose Hello and HelloAck have been exchanged. [SDP-6.2-1]
// Both halves begin in Combined Mode. [SDP-8.1.1-23] [SDP-8.1.1-30] [SDP-12-11] New panics if p
// breaks a limit of the protocol, so check the peer's values first.
func New(p Params) *Machine {
	m := &Machine{}
	m.connect()
	m.start(p)
	return m
}

// connect gives each part the other parts that it needs.
func (m *Machine) connect() {
	c, s, k := &m.common, &m.src, &m.snk
	m.upd = updates{common: c, cr: &m.cr, snd: &m.snd, mode: &s.mode}
	m.snd = sender{common: c, cr: &m.cr, urg: &m.urg}
	m.urg = urgent{common: c, cr: &m.cr, snd: &m.snd, ws: &s.writes}
	m.rsz = resize{common: c, snd: &m.snd, offers: &k.offer}
	m.susp = suspend{common: c, cr: &m.cr, snd: &m.snd}

	*s = source{common: c, cr: &m.cr, snd: &m.snd, upd: &m.upd, urg: &m.urg}
	s.mode.common = c
	s.writes.common, s.writes.mode = c, &s.mode
	s.advs.common, s.advs.snd, s.advs.ws, s.advs.mode = c, &m.snd, &s.writes, &s.mode
	s.room.common, s.room.snd, s.room.ws, s.room.advs, s.room.mode = c, &m.snd, &s.writes, &s.advs, &s.mode
	s.room.hint = &k.mode

	*k = sink{common: c, cr: &m.cr, urg: &m.urg, end: &m.ended}
	k.mode.common = c
	k.reads.common, k.reads.mode = c, &k.mode
	k.held.common, k.held.cr = c, &m.cr
	k.fetch.common, k.fetch.cr, k.fetch.snd, k.fetch.mode = c, &m.cr, &m.snd, &k.mode
	k.offer.common, k.offer.snd, k.offer.reads = c, &m.snd, &k.reads
}

// start begins with the parameters of a new LLP connection.
func (m *Machine) start(p Params) {
	p.check()
	m.p = p
	m.cr.start(p)
	m.rsz.start()
	m.src.start()
	m.snk.start()
}

// end ends every event: it does what the event allows, and returns the actions.
func (m *Machine) end() []Action {
	m.pump()
	return m.actions()
}

// SendMode and RecvMode return the current modes of the two half-connections, which are
// independent. [SDP-11-3]
func (m *Machine) SendMode() sdpwire.Mode { return m.src.mode.current }
func (m *Machine) RecvMode() sdpwire.Mode { return m.snk.mode.current }

// SendQueue returns the number of written bytes not yet sent, read or acknowledged.
func (m *Machine) SendQueue() int { return m.src.writes.queued }

// Credits returns the number of messages that may be sent now.
func (m *Machine) Credits() int { return m.cr.credit() }

// LowCredit reports whether at most a quarter of the credit is left, so that an update has probably
// arrived already.
func (m *Machine) LowCredit() bool { return m.cr.credit() <= m.p.PeerBufs/4 }

// Held returns the number of payload bytes held for later reads.
func (m *Machine) Held() int { return m.snk.held.n }

// Readable reports whether a read posted now would end without waiting, except for an RDMA Read:
// bytes are held or advertised, or the stream has ended.
func (m *Machine) Readable() bool { return m.snk.readable() }

// Stats returns a copy of the counters.
func (m *Machine) Stats() Stats { return m.stats }

// SetBudgets changes Params.SendBudget and RecvBudget.
func (m *Machine) SetBudgets(send, recv int) { m.p.SendBudget, m.p.RecvBudget = send, recv }

// RequestSendMode requests a mode of the sending half, once; a pinned policy may change it again.
// The mode is reached as soon as the rules allow. Only the peer can end Buffered Mode.
func (m *Machine) RequestSendMode(now Time, to sdpwire.Mode, out []Action) []Action {
	m.begin(now, out)
	m.src.mode.request(to)
	return m.end()
}

// RequestRecvMode requests to change the receiving half from Buffered to Combined. It has no effect
// in another mode.
func (m *Machine) RequestRecvMode(now Time, out []Action) []Action {
	m.begin(now, out)
	m.snk.mode.request()
	return m.end()
}

// SetPolicy changes the policy of the sending half to send, and of the receiving half to recv.
func (m *Machine) SetPolicy(now Time, send, recv Policy, out []Action) []Action {
	m.begin(now, out)
	m.p.SendPolicy, m.p.RecvPolicy = send, recv
	return m.end()
}

// SetThresholds changes Params.SendThreshold and RecvThreshold, in bytes. [SDP-9-1]
func (m *Machine) SetThresholds(now Time, send, recv int, out []Action) []Action {
	m.begin(now, out)
	m.p.SendThreshold, m.src.mode.threshold = send, send
	m.p.RecvThreshold = max(recv, m.p.RecvSize)
	return m.end()
}

// Write queues write id of n bytes, at least one. If urgent is set, the last byte is urgent data.
// [SDP-9.5.3-1] id must not be in use. After CloseWrite, or on a dead connection, the write ends at
// once with an error. [SDP-8.2.1-2] [SDP-8.2.1-20]
func (m *Machine) Write(now time.Duration, id uint64, n int, urgent bool, out []Action) []Action {
	m.begin(now, out)
	switch {
	case n <= 0:
		panic("sdpcore: write of nothing")
	case m.life == lifeDead:
		m.do(Action{Op: OpWriteDone, ID: id, Err: m.ended.werr})
	case m.src.closing:
		m.do(Action{Op: OpWriteDone, ID: id, Err: ErrWriteClosed})
	default:
		m.src.writes.add(id, n, urgent)
	}
	return m.end()
}

// Exchange queues write wid of wn bytes, and posts read rid with room for rn bytes for the answer.
// If the modes allow it, one message then carries both the bytes and the SinkAvail. Otherwise
// Exchange equals Write and Read. [SDP-9.4-1]
func (m *Machine) Exchange(now Time, wid uint64, wn int, rid uint64, rn int, out []Action) []Action {
	m.begin(now, out)
	if wn <= 0 || rn <= 0 || m.src.refuses() || m.snk.closed {
		return m.Read(now, rid, rn, false, m.Write(now, wid, wn, false, out))
	}
	m.src.writes.add(wid, wn, false)
	m.snk.reads.add(rid, rn, false)
	return m.end()
}

// Extend makes the newest write n bytes longer if its id is id and the write still waits to be
// sent. Otherwise it returns false and changes nothing. A driver gathers small writes with Extend.
func (m *Machine) Extend(id uint64, n int) bool {
	return !m.src.refuses() && m.src.writes.extend(id, n)
}

// KeepByCopy marks write id as one whose bytes are in the driver's own memory, so that it is never
// advertised. An unknown id is ignored.
func (m *Machine) KeepByCopy(id uint64) {
	if _, w := m.src.writes.find(id); w != nil {
		w.bcopy = true
	}
}

// Detachable returns the offset of the first unsent byte of write id. If ok is true, the bytes from
// there on are not advertised, so the driver may copy them and let the caller return. ok is false
// for an unknown id.
func (m *Machine) Detachable(id uint64) (off int, ok bool) { return m.src.writes.detachable(id) }

// CancelWrite cancels write id. The write ends by OpWriteDone with the exact count. It ends at once
// if none of its bytes is advertised, otherwise after the peer has answered the SrcAvailCancel.
// [SDP-9.5.4-1] [D-32] If the rest must still be sent to the peer, the machine returns OpDetach
// instead.
func (m *Machine) CancelWrite(now time.Duration, id uint64, out []Action) []Action {
	m.begin(now, out)
	m.src.cancel(id)
	return m.end()
}

// Bind records the STag the driver has assigned to advertisement adv. It does nothing if that
// advertisement has ended.
func (m *Machine) Bind(adv uint64, stag uint32) {
	if !m.src.advs.bind(adv, stag) {
		m.snk.offer.bind(adv, stag)
	}
}

// Read posts read id with room for n bytes, at least one. If all is set, the read ends only when it
// is full, at the end of the stream, or when cancelled; such a read is never advertised.
// [SDP-9.3-15] Reads are served in order. After CloseRead the read ends at once with ErrClosed.
func (m *Machine) Read(now time.Duration, id uint64, n int, all bool, out []Action) []Action {
	m.begin(now, out)
	switch {
	case n <= 0:
		panic("sdpcore: read of nothing")
	case m.snk.closed:
		m.do(Action{Op: OpReadDone, ID: id, Err: ErrClosed})
	default:
		m.snk.reads.add(id, n, all)
	}
	return m.end()
}

// CancelRead cancels read id. The read ends by OpReadDone with the exact count. It ends at once, or
// after RDMA into it has ended because an RDMA Read completed or the peer answered the
// SinkAvailCancel. [SDP-9.5.5-1]
func (m *Machine) CancelRead(now time.Duration, id uint64, out []Action) []Action {
	m.begin(now, out)
	m.snk.cancel(id)
	return m.end()
}

// ReadDone reports that the oldest RDMA Read is complete. Without an RDMA Read in progress,
// ReadDone panics, except on a dead connection.
func (m *Machine) ReadDone(now time.Duration, out []Action) []Action {
	m.begin(now, out)
	switch {
	case m.snk.fetch.ops.len() > 0:
		m.snk.readDone()
	case m.life != lifeDead:
		panic("sdpcore: completion of an RDMA Read that was not asked for")
	}
	return m.end()
}

// Expect records whether more messages have arrived than the machine has received. While more is
// true, a read that is not full waits for them. Call Settle when there are no more.
func (m *Machine) Expect(more bool) { m.snk.expects = more }

// Settle ends reads that waited because of Expect.
func (m *Machine) Settle(now Time, out []Action) []Action {
	m.begin(now, out)
	if m.snk.reads.len() == 0 || m.snk.reads.at(0).off == 0 {
		return m.actions()
	}
	return m.end()
}

// Landing returns the read that would get the next payload, and the offset in it. ok is false if no
// read waits, if other bytes come before that payload, or if a read is advertised.
func (m *Machine) Landing() (id uint64, off int, ok bool) { return m.snk.landing() }

// CloseRead records that the ULP stops reading. Later payload then ends the connection abortively,
// as with TCP [D-49]. If discard is set, later payload is dropped instead. Reads in progress end
// with ErrCancelled, and held payload is dropped.
func (m *Machine) CloseRead(now time.Duration, discard bool, out []Action) []Action {
	m.begin(now, out)
	m.fail(m.snk.close(discard))
	return m.end()
}
