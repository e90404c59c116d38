// Package mpa implements Marker PDU Aligned framing for TCP, the layer for DDP segments in a TCP
// byte stream: RFC 5044, with the enhanced connection set-up of RFC 6581.
//
// The package does no I/O. It holds
//
//   - the codec of the Request and Reply Frames of revisions 1 and 2 ([Frame], [Enhanced]);
//   - the two start-up state machines, [Initiator] and [Responder]: they take octets, time-outs and
//     decisions of the ULP, and return actions;
//   - FPDU framing: [Encoder] adds the length field, pad, CRC and markers to a ULPDU, [Decoder]
//     removes them;
//   - the arithmetic of sizes: [MULPDU], [PadLen], [FPDULen].
//
// A driver on a byte stream is short:
//
//	in, err := mpa.NewInitiator(mpa.InitiatorConfig{CRC: true, PeerToPeer: true, ...})
//	conn.Write(in.Start())
//	for {
//		n, _ := conn.Read(buf[len(buf):cap(buf)])
//		used, act := in.Receive(buf)
//		...
//	}
//
// Frames and headers are exported for dissectors and test peers. There is no promise of
// compatibility before version 1 of the module.
//
// The package neither places payload nor interprets ULPDUs.
package mpa
