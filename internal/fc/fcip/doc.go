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
//
// One TCP connection makes one link. RFC 3821, 8.1 lets an entity pair add
// connections to a link, after the nonce was authenticated over the first; that
// is for traffic of different classes or quality of service, and needs a way
// between the FC and FCIP entities that FC-BB-2 defines. Here a further
// connection becomes a link of its own, with an F_Port of its own behind it: a
// decision, since order between two N_Ports is then kept without putting frames
// of several TCP connections back in order.
package fcip
