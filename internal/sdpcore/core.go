package sdpcore

import (
	"fmt"
	"time"

	"viaduct/internal/wire/sdpwire"
)

// A life is the state of a machine as a whole.
type life uint8

const (
	lifeOpen       life = iota // messages are exchanged in both directions
	lifeSuspending             // RDMA is being finished before SuspComm or SuspCommAck
	lifeSuspSent               // SuspComm was sent; only the peer may send [SDP-13.1.1-5]
	lifeSuspended              // no connection until Resume [SDP-13.1.1-7]
	lifeFinished               // DisConn sent and received
	lifeDead                   // aborted, or the LLP has ended
)

var lifeNames = [...]string{"open", "suspending", "suspend sent", "suspended", "finished", "dead"}

func (l life) String() string { return lifeNames[l] }

// A Machine is one end of an SDP connection. New makes a Machine. A message may change the sending
// half, the receiving half, the credits and the state of the connection at the same time, so all
// methods have the same receiver. Each file has the methods of a chapter of the draft.
type Machine struct {
	p    Params
	now  time.Duration // time of the current event; never goes back
	out  []Action      // actions of the current event
	life life
	err  error // error of reads in lifeDead
	werr error // error of writes in lifeDead
	lost bool  // written bytes were left unsent in lifeDead

	cr  credits
	src source
	snk sink
	rsz resize
	sus suspend

	in    inbound // the message being received
	keys  uint64  // number of advertisements made
	stats Stats
}

// New returns a machine for a connection whose Hello and HelloAck have been exchanged. [SDP-6.2-1]
// Both halves begin in Combined Mode. [SDP-8.1.1-23] [SDP-8.1.1-30] [SDP-12-11] New panics if p
// breaks a limit of the protocol, so check the peer's values first.
func New(p Params) *Machine {
	m := &Machine{}
	m.start(p)
	return m
}

func (m *Machine) start(p Params) {
	switch {
	case p.RecvBufs < sdpwire.MinBuffers || p.RecvBufs > 65535, p.PeerBufs < sdpwire.MinBuffers: // [SDP-10-2] [SDP-10.3-1] [SDP-6.1.3-2]
		panic(fmt.Sprintf("sdpcore: %d and %d buffers", p.RecvBufs, p.PeerBufs))
	case p.RecvSize < sdpwire.MinBufferSize, p.PeerSize < sdpwire.MinBufferSize: // [SDP-10-5]
		panic(fmt.Sprintf("sdpcore: buffers of %d and %d bytes", p.RecvSize, p.PeerSize))
	case p.MaxAdverts < 1, p.PeerMaxAdverts < 1, p.ORD < 1:
		panic(fmt.Sprintf("sdpcore: %d and %d advertisements, %d reads", p.MaxAdverts, p.PeerMaxAdverts, p.ORD))
	}
	p.Timers.fill()
	if p.MinRecvSize == 0 {
		p.MinRecvSize = sdpwire.MinBufferSize
	}
	if p.MaxRecvSize == 0 {
		p.MaxRecvSize = max(p.RecvSize, 64<<10)
	}
	p.RecvThreshold = max(p.RecvThreshold, p.RecvSize) // [SDP-9-1] [SDP-9.5.1-2] [SDP-10-6]
	m.p = p
	m.cr.start(p)
	m.rsz = resize{actual: p.PeerSize}
	m.src.mode, m.src.threshold, m.src.count = sdpwire.Combined, p.SendThreshold, serial(p.FirstSrcCount) // [SDP-9.5.1-7]
	m.snk.mode, m.snk.count = sdpwire.Combined, serial(p.FirstSnkCount)                                   // [SDP-6.3.3.4-2]
}

// Err returns the error of reads on a dead connection: the reason for the end, or io.EOF if the
// peer's stream had ended before. On a living connection, and after a graceful end, Err returns
// nil.
func (m *Machine) Err() error { return m.err }

// SendMode and RecvMode return the current modes of the two half-connections, which are
// independent. [SDP-11-3]
func (m *Machine) SendMode() sdpwire.Mode { return m.src.mode }
func (m *Machine) RecvMode() sdpwire.Mode { return m.snk.mode }

// SendQueue returns the number of written bytes not yet sent, read or acknowledged.
func (m *Machine) SendQueue() int { return m.src.queued }

// Credits returns the number of messages that may be sent now.
func (m *Machine) Credits() int { return m.cr.credit() }

// Held returns the number of payload bytes held for later reads.
func (m *Machine) Held() int { return m.snk.held }

// Readable reports whether a read posted now would end without waiting, except for an RDMA Read:
// bytes are held or advertised, or the stream has ended.
func (m *Machine) Readable() bool {
	return m.snk.held > 0 || m.snk.eof || m.life == lifeDead || m.snk.adverts.len() > 0
}

// Stats returns a copy of the counters.
func (m *Machine) Stats() Stats { return m.stats }

// SetBudgets changes Params.SendBudget and RecvBudget.
func (m *Machine) SetBudgets(send, recv int) { m.p.SendBudget, m.p.RecvBudget = send, recv }

// Detachable returns the offset of the first unsent byte of write id. If ok is true, the bytes from
// there on are not advertised, so the driver may copy them and let the caller return. ok is false
// for an unknown id.
func (m *Machine) Detachable(id uint64) (off int, ok bool) {
	s := &m.src
	for i := range s.writes.len() {
		if w := s.writes.at(i); w.id == id {
			advertised := i >= s.nforced && i < s.covered()
			return w.off, !advertised
		}
	}
	return 0, false
}

// begin and end enclose every event. end sends what the event allows, and returns the actions.
func (m *Machine) begin(now time.Duration, out []Action) {
	m.now, m.out = max(now, m.now), out
}

func (m *Machine) end() []Action {
	m.pump()
	out := m.out
	m.out = nil
	return out
}

func (m *Machine) do(a Action) *Action {
	m.out = append(m.out, a)
	return &m.out[len(m.out)-1]
}
