package vitcp

import (
	"errors"

	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// acknowledged handles the Message ACK and the Remote Error Code of the current segment. An
// acknowledgement completes all messages up to its number. With an error code it completes only the
// earlier messages, fails the descriptor of the message with the number, and breaks the connection.
// A number outside the sent messages is ignored. [VIT-3.1-ACK-4] [VIT-3.1-ERR-4] [V-11]
func (l *link) acknowledged() {
	x := &l.rx
	n, code := x.h.Ack, x.h.Error.VI()
	good := n
	if code != vitcpwire.NoError {
		good = n.Add(-1) // all messages before the failed one
	}
	if x.acked.Less(good) && !vitcpwire.Number(l.whole.Load()).Less(good) {
		l.complete(good)
	}
	if code == vitcpwire.NoError || !x.acked.Less(n) || vitcpwire.Number(l.begun.Load()).Less(n) {
		return
	}
	st := vi.StatusRDMAProtection
	if code != vitcpwire.ProtectionError {
		st = vi.StatusRemoteDescriptor // [VIA-4.5-6]
	}
	l.p.count.remoteErrors.Add(1)
	seq := l.sequence(n)
	l.die(&RemoteError{Code: uint16(x.h.Error), Number: uint32(n)}, nil, func() { l.ep.FailSend(seq, st) })
}

// sequence returns the sequence number of the send descriptor of message n. At a reliable level
// both numbers rise by 1 with each message.
func (l *link) sequence(n vitcpwire.Number) uint64 {
	off := l.seqOff.Load()
	// Message numbers wrap, sequence numbers do not. The result is unique because n is at most 2^31
	// before the last begun message.
	last := vitcpwire.Number(l.begun.Load())
	return off + uint64(uint32(last)) - uint64(last.Sub(n))
}

// complete completes the Sends and RDMA Writes up to message n. It skips RDMA Reads, which complete
// with their responses. A descriptor in error among them breaks the connection. [VIT-3.1-ACK-5]
func (l *link) complete(n vitcpwire.Number) {
	x := &l.rx
	first, end := l.sequence(x.acked.Add(1)), l.sequence(n)+1
	x.acked = n
	for i := range l.reads.Len() {
		if r := l.reads.At(i); r.seq < end {
			// the range is empty if the messages before the Read were acknowledged earlier
			l.ep.FinishSends(first, r.seq)
			first = max(first, r.seq+1)
		}
	}
	if l.ep.FinishSends(first, end) {
		l.die(errors.New("vitcp: a send descriptor is in error"), nil, nil)
	}
}
