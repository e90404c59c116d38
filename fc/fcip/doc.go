// Package fcip carries Fibre Channel frames over TCP as RFC 3821 says, in the
// encapsulation of RFC 3643: the frame codec, the FCIP Special Frame with its
// exchange, and a [Link] that batches frames into gather writes.
//
//	l, err := fcip.Dial(ctx, "host:3225", fcip.Config{FabricName: wwn}, device)
//	l.Send(&frame)
//	l.Flush()
//
// A link keeps the order of its frames. On loss of synchronisation it is
// closed (RFC 3821, 5.6.2.3 a); an idle one is kept alive by LKA. Time stamps are sent as "not synchronised".
// One TCP connection makes one link; the nonce exchange for further
// connections of the same link is not implemented, such a connection becomes a
// link of its own.
package fcip
