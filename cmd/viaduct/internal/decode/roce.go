package decode

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"viaduct/internal/wire/ib"
)

// roceHosts holds the state of RoCEv2 hosts.
type roceHosts struct {
	left  map[hostPair]netip.Addr // the first host of each pair that was seen
	flows map[roceFlow]*requests
}

// A hostPair is two addresses, the lower address first.
type hostPair struct{ a, b netip.Addr }

// maxRoCE bounds the entries of each map of roceHosts. A full map is emptied.
const maxRoCE = 1 << 14

// isBack reports whether src is the host of the pair that was seen second.
func (r *roceHosts) isBack(src, dst netip.Addr) bool {
	k := hostPair{src, dst}
	if dst.Less(src) {
		k = hostPair{dst, src}
	}
	first, ok := r.left[k]
	if !ok {
		if r.left == nil || len(r.left) >= maxRoCE {
			r.left = make(map[hostPair]netip.Addr)
		}
		r.left[k], first = src, src
	}
	return src != first
}

// packet decodes a packet of RoCEv2.
func (r *roceHosts) packet(d *Decoder, p *packet) {
	m := d.message(nil, r.isBack(p.src.Addr(), p.dst.Addr()))
	m.Src, m.Dst, m.Proto, m.Name = p.src, p.dst, "roce", "malformed packet"
	defer d.emit(m)
	h, _, err := ib.ParseBTH(p.payload)
	if err != nil {
		if p.missing > 0 {
			m.Note = cutShort
			return
		}
		m.wrong("ROCE-BTH-1", fmt.Sprintf("%d bytes, the first header has %d", len(p.payload), ib.BTHLen))
		return
	}
	m.base(&h)
	if p.src.Addr() == p.dst.Addr() { // only the kind of packet shows the direction then
		m.Back = h.Opcode.Assigned() && !h.Opcode.Kind().Request()
	}
	m.checkIP(p)
	m.checkICRC(p)
	m.checkBTH(&h, p.payload)
	if !h.Opcode.Assigned() {
		m.unassigned(h.Opcode)
		return
	}
	m.Name = h.Opcode.String()
	x, whole := m.roceBody(p)
	if x == nil {
		return
	}
	m.extended(x)
	m.checkExtended(x)
	switch {
	case !whole:
		m.Note = cutShort
	case x.QPN == ib.ManagementQPN:
		m.num("roce.payload", uint64(len(x.Payload)))
		m.management(x)
		r.connects(p, m)
	default:
		m.num("roce.payload", uint64(len(x.Payload)))
		m.checkPayload(x)
		r.follow(m, p, x)
	}
}

const cutShort = "cut short by the capture"

// base adds the fields of the BTH.
func (m *Message) base(h *ib.BTH) {
	m.num("bth.opcode", uint64(h.Opcode))
	m.truth("bth.solicited", h.Solicited)
	m.truth("bth.migrated", h.Migrated)
	m.num("bth.pad", uint64(h.Pad))
	m.num("bth.version", uint64(h.Version))
	m.hex("bth.pkey", uint64(h.PKey))
	m.hex("bth.qpn", uint64(h.QPN))
	m.truth("bth.ack_req", h.AckReq)
	m.num("bth.psn", uint64(h.PSN))
}

// checkIP checks the IPv4 header. The invariant CRC covers most of the header.
func (m *Message) checkIP(p *packet) {
	switch {
	case p.ipv4.options:
		m.wrong("ROCE-NET-3", "the IPv4 header has options")
	case p.ipv4.mayFragment:
		m.wrong("ROCE-NET-3", "DF is not set in the IPv4 header")
	}
}

// checkICRC checks the invariant CRC, which covers the identification of the IPv4 header. The CRC
// is not checked if bytes are missing, or if checkIP has reported the header.
func (m *Message) checkICRC(p *packet) {
	n := len(p.payload) - ib.ICRCLen
	switch {
	case p.missing > 0:
		m.text("roce.icrc", "not captured")
	case p.ipv4.options || p.ipv4.mayFragment:
		m.text("roce.icrc", "not checked")
	case n < ib.BTHLen:
		m.wrong("ROCE-ICRC-1", fmt.Sprintf("%d bytes have no room for the CRC", len(p.payload)))
	default:
		flow := ib.Flow{Source: p.src, Destination: p.dst, ID: p.ipv4.id}
		switch id, err := flow.Identification(p.payload); {
		case err == nil && id == flow.ID:
			m.text("roce.icrc", "good")
		case err == nil:
			m.text("roce.icrc", "bad")
			m.wrong("ROCE-ICRC-4", fmt.Sprintf("invariant CRC is that of identification %#04x, the IPv4 header has %#04x", id, flow.ID))
		default:
			m.text("roce.icrc", "bad")
			want := flow.Seal(bytes.Clone(p.payload[:n]))[n:]
			m.wrong("ROCE-ICRC-1", fmt.Sprintf("invariant CRC is %x, expected %x", p.payload[n:], want))
		}
	}
}

// Reserved bits of the BTH. The upper two bits of byte 4 are not included, because networks set
// these bits to report congestion.
const (
	reserved8a = 0x3f // reserved bits of byte 4
	reserved7  = 0x7f // reserved bits of byte 8
)

func (m *Message) checkBTH(h *ib.BTH, b []byte) {
	if b[4]&reserved8a != 0 || b[8]&reserved7 != 0 {
		m.wrong("ROCE-BTH-6", fmt.Sprintf("reserved bits are set in bytes %#02x and %#02x", b[4], b[8]))
	}
	if h.Version != 0 {
		m.wrong("ROCE-BTH-2", fmt.Sprintf("transport version is %d", h.Version))
	}
	if h.PKey&0x7fff == 0 {
		m.wrong("ROCE-BTH-4", fmt.Sprintf("partition key is %#04x", h.PKey))
	}
}

// congestionNotification is the opcode of a packet reporting congestion to a sender.
const congestionNotification ib.Opcode = 0x81

// unassigned names a packet whose opcode is not of RC, UC or UD.
func (m *Message) unassigned(o ib.Opcode) {
	switch o.Transport() {
	case ib.RC, ib.UC, ib.UD:
		m.wrong("ROCE-OP-1", fmt.Sprintf("opcode %#02x is not assigned", uint8(o)))
		return
	}
	m.Name = o.String()
	if o == congestionNotification {
		m.Name = "Congestion Notification"
	}
	m.Note = "of a transport that is not decoded"
}

// roceBody returns the headers of the packet, and whether the payload is complete. If the packet
// lacks headers of its opcode, roceBody reports the lack and returns nil.
func (m *Message) roceBody(p *packet) (x *ib.Packet, whole bool) {
	b := p.payload
	need := ib.Opcode(b[0]).HeaderLen()
	switch {
	case p.missing == 0 && len(b) >= ib.ICRCLen:
		b = b[:len(b)-ib.ICRCLen]
	case p.missing > ib.ICRCLen || p.missing > 0 && len(b) < need:
		if len(b) < need {
			m.Note = cutShort
			return nil, false
		}
		h := bytes.Clone(b[:need])
		h[1] &^= 0x30 // the pad was not captured either
		h[1] &^= 0x0f // the version was checked before
		y, err := ib.Parse(h)
		if err != nil {
			return nil, false
		}
		return &y, false
	case p.missing > 0:
		b = b[:max(0, len(b)-(ib.ICRCLen-p.missing))]
	}
	if b[1]&0x0f != 0 {
		return nil, false
	}
	y, err := ib.Parse(b)
	switch {
	case err == nil:
		return &y, true
	case errors.Is(err, io.ErrUnexpectedEOF):
		m.wrong("ROCE-OP-2", fmt.Sprintf("%d bytes, the headers of the opcode have %d", len(b), need))
	case errors.Is(err, ib.ErrPayload) && (len(b)-need)%4 == 0 && int(b[1]>>4&3) <= len(b)-need:
		m.wrong("ROCE-OP-2", fmt.Sprintf("%d bytes of payload, the opcode has none", len(b)-need))
	default:
		m.wrong("ROCE-BTH-3", fmt.Sprintf("%d bytes of payload with a pad of %d", len(b)-need, b[1]>>4&3))
	}
	return nil, false
}

// hasAETH reports whether packets of an opcode have an AETH: every response except the middle
// responses of a Read.
func hasAETH(o ib.Opcode) bool {
	switch o.Kind() {
	case ib.Ack, ib.AtomicAck:
		return true
	case ib.ReadResponse:
		return o.Begins() || o.Ends()
	}
	return false
}

// hasRETH reports whether packets of an opcode have a RETH: a Read Request, and the first packet of
// a Write.
func hasRETH(o ib.Opcode) bool { return o.Kind() == ib.Read || o.Kind() == ib.Write && o.Begins() }

// extended adds the fields of the extended headers.
func (m *Message) extended(x *ib.Packet) {
	o := x.Opcode
	if o.Transport() == ib.UD {
		m.hex("deth.qkey", uint64(x.DETH.QKey))
		m.hex("deth.source_qpn", uint64(x.DETH.SourceQPN))
	}
	if hasRETH(o) {
		m.hex("reth.va", x.RETH.VA)
		m.hex("reth.rkey", uint64(x.RETH.RKey))
		m.num("reth.length", uint64(x.RETH.Length))
	}
	if o.Kind() == ib.Atomic {
		m.hex("atomic.va", x.Atomic.VA)
		m.hex("atomic.rkey", uint64(x.Atomic.RKey))
		m.hex("atomic.swap_add", x.Atomic.SwapAdd)
		m.hex("atomic.compare", x.Atomic.Compare)
	}
	if hasAETH(o) {
		m.num("aeth.syndrome", uint64(x.AETH.Syndrome))
		m.text("aeth.text", x.AETH.Syndrome.String())
		m.num("aeth.msn", uint64(x.AETH.MSN))
	}
	if o.Kind() == ib.AtomicAck {
		m.hex("atomic_ack.value", uint64(x.AtomicAck))
	}
	if o.HasImm() {
		m.hex("imm.data", uint64(binary.BigEndian.Uint32(x.Imm[:])))
	}
	if o.HasInv() {
		m.hex("ieth.rkey", uint64(x.Inv))
	}
}

// checkExtended checks the values of the extended headers of a single packet.
func (m *Message) checkExtended(x *ib.Packet) {
	if x.Opcode.Kind() == ib.Atomic && x.Atomic.VA%8 != 0 {
		m.wrong("ROCE-RESP-17", fmt.Sprintf("atomic operation at %#x, which is no multiple of 8", x.Atomic.VA))
	}
	if !hasAETH(x.Opcode) {
		return
	}
	s := x.AETH.Syndrome
	const invalidRD = 0x64 // concerns a transport that is not decoded here
	switch s.Type() {
	case ib.TypeACK, ib.TypeRNR:
	case ib.TypeNAK:
		if s > invalidRD {
			m.wrong("ROCE-OP-13", fmt.Sprintf("NAK code %d", s&0x1f))
		}
	default:
		m.wrong("ROCE-OP-5", fmt.Sprintf("syndrome %#02x is of a reserved type", uint8(s)))
	}
}
