package vitcp

import (
	"fmt"

	"viaduct/internal/frameio"
	"viaduct/internal/regmem"
	"viaduct/internal/wire/vitcpwire"
	"viaduct/vi"
)

// putResponse appends the next segment of the response to a peer's RDMA Read. The memory is checked
// again for each segment, and pinned until the kernel has the bytes.
func (t *sender) putResponse(b *frameio.Batch, job *readJob) {
	hl := t.dialect.HeaderLen(vitcpwire.ReadResponse)
	n := min(uint32(t.maxSeg-hl), job.r.Length-t.answered)
	h := vitcpwire.Header{Type: vitcpwire.ReadResponse, Offset: t.answered, Number: job.number} // [VIT-3.1-12]
	bad := job.refused
	head := b.Header(hl)
	var ref regmem.Ref
	if !bad && n > 0 {
		var st vi.Status
		m, ok := t.ep.Target(t.batch.held, vi.MemHandle(job.r.Handle), job.r.Address+uint64(t.answered), uint64(n), false) // [VIT-2.2.2.2.6-1] [V-42]
		if ok {
			ref, st = t.steady(b, regmem.Ref(m))
		}
		if bad = !ok || st != 0; bad {
			t.ep.AsyncError(vi.ErrorRDMARProt, vi.OpRDMARead)
		}
	}
	if bad {
		t.refuseRead(head, h, job)
		return
	}
	if n > 0 {
		t.batch.put(b, ref) // [VIT-2.2.2.2.6-1]
	}
	t.answered += n
	t.count.sentBytes.Add(uint64(n))
	h.Length = uint16(hl + int(n))
	if t.answered == job.r.Length {
		h.Flags = vitcpwire.EndOfMessage
		t.answered = 0
	}
	t.encode(head, h, job.r) // [V-23]
	if h.Flags != 0 {
		// The peer may send the next Read Request as soon as it has received the segment.
		t.served.Pop()
		t.count.servedReads.Add(1)
	}
}

// refuseRead ends a response with the Transmit Error flag, so that a peer at Reliable Delivery
// learns of the failed Read. At Reliable Reception the error code reports the failure as well. In
// both cases the connection breaks. [V-30] [V-42]
func (t *sender) refuseRead(head []byte, h vitcpwire.Header, job *readJob) {
	h.Length = uint16(len(head))
	h.Flags = vitcpwire.EndOfMessage | vitcpwire.TransmitError
	h = t.header(h)
	if t.level == reception {
		h.Ack, h.Error = job.number, vitcpwire.MakeRemoteError(vitcpwire.ProtectionError, 0)
	}
	t.write(head, h, job.r)
	t.life.die(fmt.Errorf("vitcp: RDMA Read %d of the peer: memory is not to be read", uint32(job.number)), nil, nil)
}
