// Package sdp implements stream sockets over RDMA: the Sockets Direct Protocol of
// draft-pinkerton-iwarp-sdp-01 on package iwarp. A [Conn] is a net.Conn and a [Listener] a
// net.Listener, so a program only changes its dial and listen calls:
//
//	l, err := sdp.Listen("127.0.0.1:0", nil)
//	go http.Serve(l, handler)
//
//	d := &sdp.Dialer{}
//	client := &http.Client{Transport: &http.Transport{DialContext: d.DialContext}}
//
// Bytes are copied through private buffers, or moved between the buffers of the two programs by
// RDMA Read or RDMA Write. Sizes, modes and [Options] decide between the two ways. [Conn.Stats]
// reports how bytes were moved, and [Conn.Path] how the connection was made.
//
// # Buffers
//
// Write follows the rules of io.Writer: the slice is free when Write returns, whether the bytes were
// copied, handed to TCP, or fetched by the peer. Read advertises its slice to the peer only while
// Read blocks. For transfers that outlive the call, [Conn.StartWrite] and [Conn.StartRead] borrow a
// slice until [Transfer.Wait] returns.
//
// # Closing and errors
//
// Close and CloseWrite are graceful: written bytes are delivered, and then the peer reads io.EOF.
// SetLinger(0) makes Close a reset. A peer that breaks the protocol ends its connection with a
// *[ProtocolError] that names the rule.
//
// # Cancellation
//
// Deadlines and closing end blocked calls, and each call returns an exact count. To know the count,
// the connection first cancels a transfer that the peer is performing, so a call may return one
// round trip after its deadline.
//
// # Security
//
// The package does not encrypt. Run TLS above the connection as above any net.Conn, or IPsec below
// it. STags are random, and valid only for one connection and the exact bytes of one transfer.
package sdp

// The package as a whole keeps [D-40] [D-32] [D-80] [SDP-15-3].
