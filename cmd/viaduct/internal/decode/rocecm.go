package decode

import (
	"encoding/binary"
	"fmt"

	"viaduct/internal/wire/ib"
)

// cmClass is the management class of connection management, in the second byte of a management
// datagram.
const cmClass = 7

// management decodes a datagram to queue pair 1.
func (m *Message) management(x *ib.Packet) {
	b := x.Payload
	if x.Opcode.Transport() != ib.UD || x.DETH.QKey != ib.ManagementQKey {
		m.wrong("ROCE-CM-1", fmt.Sprintf("%v with key %#x to queue pair 1", x.Opcode, x.DETH.QKey))
	}
	if len(b) != ib.MADLen {
		m.wrong("ROCE-CM-1", fmt.Sprintf("%d bytes, a management datagram has %d", len(b), ib.MADLen))
		return
	}
	if b[1] != cmClass {
		m.Note = fmt.Sprintf("management datagram of class %#02x", b[1])
		return
	}
	c, err := ib.ParseCM(b)
	if err != nil {
		m.connectionError(b, err)
		return
	}
	m.Proto, m.Name = "cm", c.Kind.String()
	m.connection(&c)
}

// Attributes of the messages for the set-up of an alternate path. These messages are recognized,
// but not decoded.
const (
	loadAlternatePath     = 0x19
	alternatePathResponse = 0x1a
)

// connectionError names a datagram of cmClass without a known message, and reports the fault.
func (m *Message) connectionError(b []byte, err error) {
	m.Proto, m.Name = "cm", "unknown message"
	switch a := binary.BigEndian.Uint16(b[16:]); {
	case b[0] != 1 || b[2] != 2 || b[3] != 3:
		m.wrong("ROCE-CM-1", fmt.Sprintf("version, class and method are % x", b[:4]))
	case a == loadAlternatePath || a == alternatePathResponse:
		m.Note = "of alternate paths, which are not decoded"
	default:
		m.wrong("ROCE-CM-2", err.Error())
	}
}

// connection adds the fields of a message of connection management.
func (m *Message) connection(c *ib.CM) {
	m.hex("cm.tid", c.TID)
	m.hex("cm.local", uint64(c.Local))
	switch c.Kind {
	case ib.CMReq:
		m.request(&c.Req)
		m.addresses(c)
	case ib.CMSIDRReq:
		m.hex("cm.service_id", c.SIDR.ServiceID)
		m.hex("cm.pkey", uint64(c.SIDR.PKey))
		m.addresses(c)
	case ib.CMSIDRRep:
		m.num("cm.status", uint64(c.SIDR.Status))
		m.hex("cm.qpn", uint64(c.SIDR.QPN))
		m.hex("cm.service_id", c.SIDR.ServiceID)
		m.hex("cm.qkey", uint64(c.SIDR.QKey))
	default:
		m.hex("cm.remote", uint64(c.Remote))
	}
	switch c.Kind {
	case ib.CMRep:
		r := &c.Rep
		m.hex("cm.qpn", uint64(r.QPN))
		m.num("cm.psn", uint64(r.PSN))
		m.num("cm.responder", uint64(r.Responder))
		m.num("cm.initiator", uint64(r.Initiator))
		m.num("cm.rnr_retries", uint64(r.RNRRetries))
		m.truth("cm.srq", r.SRQ)
		m.hex("cm.guid", r.GUID)
	case ib.CMMRA:
		m.num("cm.about", uint64(c.About))
		m.num("cm.service_timeout", uint64(c.Service))
	case ib.CMRej:
		m.num("cm.about", uint64(c.About))
		m.num("cm.reason", uint64(c.Reason))
	case ib.CMDReq:
		m.hex("cm.qpn", uint64(c.QPN))
	}
}

func (m *Message) request(r *ib.CMRequest) {
	m.hex("cm.service_id", r.ServiceID)
	m.hex("cm.guid", r.GUID)
	m.hex("cm.qpn", uint64(r.QPN))
	m.num("cm.psn", uint64(r.PSN))
	m.num("cm.responder", uint64(r.Responder))
	m.num("cm.initiator", uint64(r.Initiator))
	m.num("cm.retries", uint64(r.Retries))
	m.num("cm.rnr_retries", uint64(r.RNRRetries))
	m.truth("cm.srq", r.SRQ)
	m.num("cm.transport", uint64(r.Transport))
	m.hex("cm.pkey", uint64(r.PKey))
	m.num("cm.mtu", uint64(r.MTU))
	m.num("cm.response_time", uint64(r.ResponseTime))
	m.num("cm.local_time", uint64(r.LocalTime))
	m.num("cm.max_retries", uint64(r.MaxRetries))
	m.num("cm.ack_timeout", uint64(r.AckTimeout))
	m.text("cm.source_gid", r.Source.String())
	m.text("cm.destination_gid", r.Destination.String())
}

// addresses adds the IP addresses in the private data of a request. [ROCE-CM-5]
func (m *Message) addresses(c *ib.CM) {
	h, ok := ib.ParseIPHeader(c.Private)
	if !ok {
		return
	}
	m.text("cm.source", h.Source.String())
	m.text("cm.destination", h.Destination.String())
}
