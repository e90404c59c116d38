// Package ib implements the wire format of RoCEv2: the transport headers of InfiniBand after a UDP
// header, and the invariant CRC at the end of a packet.
//
// The package does no I/O and does not access memory. It has the base transport header ([BTH]), the
// extended headers ([RETH], [AETH], [AtomicETH], [AtomicAckETH], [ImmDt], [IETH], [DETH]), the 40
// bytes before a received datagram ([GRH]), the table of operations ([Opcode]), packet sequence
// numbers ([PSN]), a whole packet ([Packet]) and the invariant CRC ([Flow]).
//
//	b := p.Append(nil)                 // headers, payload, pad
//	b = flow.Seal(b)                   // and the invariant CRC
//	...
//	if err := flow.Check(b); err == nil {
//		p, err = ib.Parse(b[:len(b)-ib.ICRCLen])
//	}
//
// The InfiniBand specification is not public. The package implements the format on which Linux's
// rxe driver, its public headers and Wireshark's dissector agree;
// docs/requirements/roce-requirements.md names the source of each row. There is no promise of
// compatibility before version 1 of the module.
package ib
