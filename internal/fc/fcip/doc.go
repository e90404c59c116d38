// Package fcip carries Fibre Channel frames over TCP as RFC 3821 says, in the encapsulation of RFC
// 3643: the frame codec, the FCIP Special Frame with the exchange of Special Frames, and a [Link]
// that batches frames into gather writes.
//
//	l, err := fcip.Dial(ctx, "host:3225", fcip.Config{FabricName: wwn})
//	l.Start(device)
//	l.Send(&frame)
//	l.Flush()
//
// A link keeps the order of frames. On loss of synchronisation the link is closed (RFC 3821,
// 5.6.2.3 a). An idle link is tested by LKA. Time stamps are sent as "not synchronised".
//
// One TCP connection makes one link. RFC 3821, 8.1 allows an entity pair to add connections to a
// link, for traffic of different classes or quality of service. Additional connections need
// authentication of the nonce over the first connection, and an interface between the FC and FCIP
// entities, defined by FC-BB-2. Here a further connection becomes a separate link with a separate
// F_Port, so that order between two N_Ports is kept without reordering frames of several TCP
// connections.
package fcip
