package sdpcore

import (
	"io"

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

// ending is the reason why the connection has ended, in lifeDead.
type ending struct {
	err  error // error of reads
	werr error // error of writes
	lost bool  // written bytes were left unsent
}

// verdict returns the error of a read on a dead connection whose received bytes were all read:
// io.EOF if the peer's stream had ended, otherwise the reason for the end of the connection.
func (e *ending) verdict(eof bool) error {
	if eof && e.err == nil {
		return io.EOF
	}
	return e.err
}

// writeErr returns the reason why writes fail, or nil after a graceful end. [SDP-8.2.1-12]
// [SDP-8.2.1-22]
func (e *ending) writeErr() error {
	if e.err == io.EOF && !e.lost {
		return nil
	}
	return e.werr
}

// Err returns the error of reads on a dead connection: the reason for the end, or io.EOF if the
// peer's stream had ended before. On a living connection, and after a graceful end, Err returns
// nil.
func (m *Machine) Err() error { return m.ended.err }

// CloseWrite ends the outgoing stream: the queued transfers are completed, and then DisConn is
// sent. [SDP-8.2.1-4] Reading continues until the peer closes too, or one end aborts. [SDP-8.2.1-1]
// [SDP-8.2.1-3] [SDP-8.2.1-9] [SDP-8.2.1-10]
func (m *Machine) CloseWrite(now Time, out []Action) []Action {
	m.begin(now, out)
	m.src.closing = true
	return m.end()
}

// Abort ends the connection at once, because of err. It drops unsent data, and sends AbortConn if a
// DisConn was sent. [SDP-8.2.2-1] [SDP-8.2.2-5] [SDP-8.2.1-18]
func (m *Machine) Abort(now Time, err error, out []Action) []Action {
	m.begin(now, out)
	m.abort(err)
	return m.end()
}

// LLPClosed reports that the LLP connection has ended. Only DisConn and AbortConn decide whether
// the end was graceful, because a peer whose program exits after its DisConn resets the TCP
// connection if credit still arrives. err is the cause, or nil. [SDP-8.2.1-12] [SDP-8.2.2-4] [D-48]
func (m *Machine) LLPClosed(now Time, err error, out []Action) []Action {
	m.begin(now, out)
	switch {
	case m.life == lifeDead || m.life == lifeSuspended || m.life == lifeFinished:
	case m.snk.eof:
		m.dieWith(io.EOF, orReset(err)) // the end is graceful for the reader; unsent bytes are lost
	default:
		m.die(orReset(err))
	}
	return m.end()
}

func orReset(err error) error {
	if err == nil {
		return ErrReset
	}
	return err
}

// Finished reports whether both directions have been closed gracefully.
func (m *Machine) Finished() bool { return m.life == lifeFinished }

// WriteErr returns the reason why writes fail on an ended connection, or nil while the connection
// has not ended. WriteErr also returns nil after a graceful end: the peer had closed its direction,
// no AbortConn followed, and no bytes were left to send. [SDP-8.2.1-12] [SDP-8.2.1-22]
func (m *Machine) WriteErr() error { return m.ended.writeErr() }

// Acknowledged reports whether the peer has acknowledged all messages except credit updates. An
// MSeqAck of 0 counts as an acknowledgement of message 0, because the peer has sent a message
// since. [D-08]
func (m *Machine) Acknowledged() bool { return m.cr.allAcked() }

// Dead reports whether the connection ended abortively or the LLP has ended.
func (m *Machine) Dead() bool { return m.life == lifeDead }

// finish ends the LLP after both DisConns were sent. [SDP-8.2.1-23]
func (m *Machine) finish() {
	m.life = lifeFinished
	m.do(Action{Op: OpFinish})
}

// endDisConn ends the peer's stream, but sending continues.
func (m *Machine) endDisConn(*inbound) error {
	m.snk.endDisConn()
	if m.src.disSent {
		m.finish()
	}
	return nil
}

// abort ends the connection from this end because of err. If DisConn was sent, an AbortConn revokes
// the DisConn [SDP-8.2.2-1]. The AbortConn may use any credit, even the last, because no later
// message needs credit [D-48]. Without a DisConn no more messages are sent [SDP-8.2.2-2]
// [SDP-6.2.4-2].
func (m *Machine) abort(err error) {
	if m.life == lifeDead {
		return
	}
	told := m.src.disSent && (m.life == lifeOpen || m.life == lifeSuspending) && m.cr.credit() > 0
	if told {
		m.snd.send(sdpwire.AbortConn, 0)
	}
	m.do(Action{Op: OpAbort, Local: told, Err: err}) // [SDP-8.2.2-3] [SDP-8.2.2-7]
	m.die(err)
}

// endAbortConn ends the connection. [SDP-6.2.4-3] [SDP-8.2.1-22]
func (m *Machine) endAbortConn(*inbound) error {
	m.do(Action{Op: OpAbort, Err: ErrReset}) // the earlier DisConn is void: reads end with this error too
	m.die(ErrReset)
	return nil
}

// die ends all reads and writes with the bytes they have, and revokes all advertisements.
// [SDP-8.2.1-13] [SDP-8.2.1-14] [SDP-8.2.1-24] [SDP-8.2.2-5] Received payload stays readable,
// unless the ULP closed the connection itself.
func (m *Machine) die(err error) { m.dieWith(err, err) }

// dieWith does the work of die, with error err for reads and werr for writes.
func (m *Machine) dieWith(err, werr error) {
	m.life = lifeDead
	m.ended = ending{err: err, werr: werr, lost: m.src.unsent()}
	m.src.advs.revoke()
	m.snk.die()
	m.src.die(werr)
	if err == ErrClosed {
		m.snk.held.drop()
	}
}
