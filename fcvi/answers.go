package fcvi

import (
	"slices"

	"viaduct/internal/fc"
	"viaduct/internal/wire/iu"
	"viaduct/vi"
)

// An answer is a response this side must send. Answers are sent in the order of requests.
type answer struct {
	op     iu.Opcode
	id     iu.MsgID
	flags  iu.Flags
	status uint32
	oxid   uint16
	rxid   uint16
	va     uint64 // address of a READ_RESP's data
	mh     uint32
	n      uint32
	off    uint32
	cnt    uint16
	seq    uint8
	begun  bool
	probe  bool // the response answers a probe, so the traffic counters leave it out
}

// An answers has the responses that an endpoint must send to the requests of the peer. A lost
// response is not sent again, except the response to a probe.
type answers struct {
	*shared
	fifo[answer]
	turn bool // the turn of a response; responses and requests alternate
}

func (q *answers) add(a answer) {
	q.push(a)
	q.wake()
}

// has reports whether an answer on Exchange oxid is queued.
func (q *answers) has(oxid uint16) bool {
	return slices.ContainsFunc(q.all(), func(a answer) bool { return a.oxid == oxid })
}

// reads returns the number of queued answers to RDMA Reads.
func (q *answers) reads() (n int) {
	for i := range q.len() {
		if q.at(i).op == iu.ReadResp {
			n++
		}
	}
	return n
}

// refuse queues an ERR response to m, and returns the failure that ends the connection at this
// side. [FCVI-5.2.2-9] [FCVI-5.2.4-5]
func (q *answers) refuse(m *rxMsg, reason iu.Reason) *failure {
	q.push(answer{op: m.h.Op.Response(), id: m.h.MsgID, flags: iu.FlagErr,
		status: iu.Status{Reason: reason}.Param(), oxid: m.oxid, rxid: m.rxid})
	return &failure{reason: reason, msg: m.h.MsgID, named: true, orderly: true, answered: true}
}

// withdraw drops the answers to RDMA Reads, because their memory must not be accessed after the end
// of the connection. Answers without data are still sent.
func (q *answers) withdraw() {
	n := 0
	all := q.all()
	for _, a := range all {
		if a.op != iu.ReadResp || a.flags&iu.FlagErr != 0 {
			all[n] = a
			n++
		}
	}
	q.truncate(n)
}

// send sends the next frames of the first response in line, at most room frames, and returns
// their number. At least one response must be queued. [FCVI-5.2.5-5]
func (q *answers) send(now fc.Time, room int) (sent int, fail *failure) {
	p := q.p
	a := q.at(0)
	first := !a.begun
	if first {
		a.begun = true
		a.seq = q.remote.NextSeqID()
	}
	h := &p.hdr
	*h = iu.Header{Handle: q.rHandle, Op: a.op, MsgID: a.id, Flags: a.flags, Param: a.status} // [FCVI-5.9.6-3] [FCVI-6.3-1] [FCVI-6.5-1]
	var payload []byte
	use := iu.Use{Last: true}
	frames, size := 1, q.payloadFor(a.op)
	if a.n > 0 { // a READ_RESP [FCVI-5.2.4-3]
		frames, use.Last = before(int(a.n-a.off), size, room)
		n := frames * size
		if use.Last {
			n = int(a.n - a.off)
		}
		var ok bool
		payload, ok = q.up.fetch(a.mh, a.va, a.n, a.off, n, p.scratch[:min(n, size)])
		if !ok {
			// The region was deregistered after the request was checked.
			q.up.async(vi.ErrorRDMARProt, vi.OpRDMARead)
			if a.off != 0 {
				return 1, &failure{reason: iu.PortInternal, orderly: true}
			}
			return 1, q.refuse(&rxMsg{h: iu.Header{Op: iu.ReadRqst, MsgID: a.id}, oxid: a.oxid, rxid: a.rxid},
				iu.RDMAReadProt)
		}
	}
	f := p.frame(fc.RCtl(p.cfg.codec.RCtl(a.op)), p.cfg.codec.DFCtl(a.op), fc.FCtl(p.cfg.codec.FCtl(a.op, use)))
	f.SeqID, f.SeqCnt, f.OXID, f.RXID = a.seq, a.cnt, a.oxid, a.rxid
	f.Opt, f.Payload = p.cfg.codec.AppendHeader(p.opt[:0], h), payload
	f.Param = a.off // relative offset, which is 0 without data
	if use.Last {   // step has checked that the other port can receive
		p.np.Send(now, q.remote, q.class, first, f)
	} else {
		frames = len(payload) / size
		payload = payload[:frames*size]
		p.np.SendRun(now, q.remote, q.class, first, f, size, payload)
	}
	a.cnt += uint16(frames)
	a.off += uint32(len(payload))
	p.stats.SentBytes += uint64(len(payload))
	q.traffic.SentBytes += uint64(len(payload))
	if use.Last {
		p.stats.SentIUs++
		if a.op == iu.ReadResp && a.flags&iu.FlagErr == 0 && !a.probe {
			q.traffic.ServedReads++
		}
		q.drop(1)
	}
	return frames, nil
}

// proveAgain answers a repeated probe. It returns false if the frame is no probe, or if an answer
// is still queued. Every message before the probe was delivered; only the answer was lost.
func (q *answers) proveAgain(f *fc.Frame, h *iu.Header) bool {
	if !isProbe(h) || h.Flags&iu.FlagRspRqd == 0 || q.len() > 0 {
		return false
	}
	q.add(answer{op: iu.ReadResp, id: h.MsgID, oxid: f.OXID, rxid: q.p.rxid(f), probe: true})
	return true
}
