// Package ib implements the wire format of RoCEv2: the transport headers of InfiniBand as they
// follow a UDP header, and the invariant CRC that ends a packet.
//
// The package does no I/O and knows no memory. It has the base transport header ([BTH]), the
// extended headers ([RETH], [AETH], [AtomicETH], [AtomicAckETH], [ImmDt], [IETH], [DETH]), the
// 40 bytes that a datagram is received with ([GRH]), the table of operations ([Opcode]), packet
// sequence numbers ([PSN]), a whole packet ([Packet]) and the invariant CRC ([Flow]).
//
//	b := p.Append(nil)                 // headers, payload, pad
//	b = flow.Seal(b)                   // and the invariant CRC
//	...
//	if err := flow.Check(b); err == nil {
//		p, err = ib.Parse(b[:len(b)-ib.ICRCLen])
//	}
//
// The InfiniBand specification is not public. What is implemented is what Linux' rxe driver, its
// public headers and Wireshark's dissector agree on; docs/requirements/roce-requirements.md names
// the source of each row. There is no promise of compatibility before version 1 of the module.
package ib
