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
func (x *receiver) acknowledged() {
	n, code := x.h.Ack, x.h.Error.VI()
	good := n
	if code != vitcpwire.NoError {
		good = n.Add(-1) // all messages before the failed one
	}
	if x.acked.Less(good) && !vitcpwire.Number(x.numbers.whole.Load()).Less(good) {
		x.complete(good)
	}
	if code == vitcpwire.NoError || !x.acked.Less(n) || vitcpwire.Number(x.numbers.begun.Load()).Less(n) {
		return
	}
	st := vi.StatusRDMAProtection
	if code != vitcpwire.ProtectionError {
		st = vi.StatusRemoteDescriptor // [VIA-4.5-6]
	}
	x.p.count.remoteErrors.Add(1)
	seq := x.numbers.sequence(n)
	x.life.die(&RemoteError{Code: uint16(x.h.Error), Number: uint32(n)}, nil, func() { x.ep.FailSend(seq, st) })
}

// complete completes the Sends and RDMA Writes up to message n. It skips RDMA Reads, which complete
// with their responses. A descriptor in error among them breaks the connection. [VIT-3.1-ACK-5]
func (x *receiver) complete(n vitcpwire.Number) {
	first, end := x.numbers.sequence(x.acked.Add(1)), x.numbers.sequence(n)+1
	x.acked = n
	for i := range x.reads.Len() {
		if r := x.reads.At(i); r.seq < end {
			// the range is empty if the messages before the Read were acknowledged earlier
			x.ep.FinishSends(first, r.seq)
			first = max(first, r.seq+1)
		}
	}
	if x.ep.FinishSends(first, end) {
		x.life.die(errors.New("vitcp: a send descriptor is in error"), nil, nil)
	}
}
