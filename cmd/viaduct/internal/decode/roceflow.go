package decode

import (
	"fmt"
	"net/netip"

	"viaduct/internal/wire/ib"
)

// A roceFlow identifies the requests from a host to a queue pair.
type roceFlow struct {
	src, dst netip.Addr
	qpn      uint32
}

// requests is the state of a flow.
type requests struct {
	next ib.PSN // number of the next packet
	open bool   // next is only a lower bound, because the length of a Read is unknown
	prev int    // opcode of the last packet, or unseen
	mtu  int    // payload of First and Middle packets; 0 before the first
	left int    // remaining bytes of an RDMA Write; unseen outside of a Write
}

// unseen stands for an opcode or length missing from the capture.
const unseen = -1

// newConversation is the smallest jump of sequence numbers taken for a new connection. A smaller
// jump is a gap or a repetition.
const newConversation = 1 << 16

// follow compares a request of a connection with the earlier requests. follow ignores responses:
// responses name only the requester's queue pair, and the capture does not show the responder's
// queue pair.
func (r *roceHosts) follow(m *Message, p *packet, x *ib.Packet) {
	if !x.Opcode.Kind().Request() || x.Opcode.Transport() == ib.UD {
		return
	}
	k := roceFlow{p.src.Addr(), p.dst.Addr(), x.QPN}
	q := r.flows[k]
	if q == nil {
		if r.flows == nil || len(r.flows) >= maxRoCE {
			r.flows = make(map[roceFlow]*requests)
		}
		q = &requests{next: x.PSN, prev: unseen, left: unseen}
		r.flows[k] = q
		q.take(m, x)
		return
	}
	switch n := x.PSN.Sub(q.next); {
	case n < -newConversation || n > newConversation:
		*q = requests{prev: unseen, left: unseen}
		q.take(m, x)
	case n < 0:
		m.Note = "sent before"
	case n == 0, q.open:
		q.take(m, x)
	default:
		m.Note = fmt.Sprintf("packets missing before it: %d", n)
		q.prev, q.left = unseen, unseen
		q.take(m, x)
	}
}

// connects forgets the flow to the queue pair in a REQ or REP, because the sequence numbers start
// again.
func (r *roceHosts) connects(p *packet, m *Message) {
	if m.Proto != "cm" || m.Name != "REQ" && m.Name != "REP" {
		return
	}
	for i := range m.Fields {
		if f := &m.Fields[i]; f.Key == "cm.qpn" {
			delete(r.flows, roceFlow{p.dst.Addr(), p.src.Addr(), uint32(f.N)})
		}
	}
}

// take checks x, the next packet of the flow, and advances the state.
func (q *requests) take(m *Message, x *ib.Packet) {
	o, n := x.Opcode, len(x.Payload)
	if q.prev != unseen && !o.Follows(q.prev) {
		m.wrong("ROCE-OP-12", fmt.Sprintf("%v after %v", o, ib.Opcode(q.prev)))
		q.left = unseen
	}
	if !o.Ends() {
		if q.mtu != 0 && n != q.mtu {
			m.wrong("ROCE-REQ-1", fmt.Sprintf("payload of %d bytes, packets before it had %d", n, q.mtu))
		}
		q.mtu = n
	} else if q.mtu != 0 && n > q.mtu {
		m.wrong("ROCE-REQ-1", fmt.Sprintf("payload of %d bytes, more than the %d of packets before it", n, q.mtu))
	}
	q.write(m, x)
	q.prev, q.open, q.next = int(o), false, x.PSN.Add(1)
	if o.Kind() == ib.Read && x.RETH.Length > 0 {
		if q.mtu > 0 {
			q.next = x.PSN.Add(int((uint64(x.RETH.Length) + uint64(q.mtu) - 1) / uint64(q.mtu)))
		} else {
			q.open = true
		}
	}
}

// write compares the bytes of an RDMA Write with the length in the first packet.
func (q *requests) write(m *Message, x *ib.Packet) {
	o, n := x.Opcode, len(x.Payload)
	if o.Kind() != ib.Write {
		q.left = unseen
		return
	}
	if o.Begins() {
		q.left = int(x.RETH.Length)
	}
	if q.left == unseen {
		return
	}
	switch {
	case n > q.left, o.Ends() && n < q.left:
		m.wrong("ROCE-REQ-3", fmt.Sprintf("payload of %d bytes in %v, %d of the announced length are left",
			n, o, q.left))
		q.left = unseen
	case o.Ends():
		q.left = unseen
	default:
		q.left -= n
	}
}

// checkPayload checks the length of a payload without regard to other packets.
func (m *Message) checkPayload(x *ib.Packet) {
	const least, most = 256, 4096 // least and greatest path MTU
	o, n := x.Opcode, len(x.Payload)
	switch {
	case n > most:
		m.wrong("ROCE-NET-6", fmt.Sprintf("payload of %d bytes, more than any path MTU", n))
	case !o.Ends() && (n < least || n&(n-1) != 0):
		m.wrong("ROCE-NET-6", fmt.Sprintf("payload of %d bytes in %v, which is no path MTU", n, o))
	case o.Ends() && !o.Begins() && n == 0:
		m.wrong("ROCE-REQ-1", fmt.Sprintf("%v without payload", o))
	}
}
