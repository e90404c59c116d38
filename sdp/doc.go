// Package sdp carries stream sockets over RDMA: the Sockets Direct Protocol of
// draft-pinkerton-iwarp-sdp-01 on package iwarp. A [Conn] is a net.Conn and a
// [Listener] a net.Listener, so that a program changes its dial and listen
// calls and nothing else:
//
//	l, err := sdp.Listen("127.0.0.1:0", nil)
//	go http.Serve(l, handler)
//
//	d := &sdp.Dialer{}
//	client := &http.Client{Transport: &http.Transport{DialContext: d.DialContext}}
//
// Bytes are copied through private buffers, or moved between the buffers of the
// two programs by RDMA Read or RDMA Write, as sizes, modes and [Options] say;
// [Conn.Stats] tells what was done, [Conn.Path] how the connection came about.
//
// # Buffers
//
// Write keeps the rules of io.Writer: its slice is free when it returns,
// whether the bytes were copied, handed to TCP, or fetched by the peer. Read advertises its slice to the peer only while it blocks. For
// transfers that outlive the call, [Conn.StartWrite] and [Conn.StartRead]
// borrow a slice until [Transfer.Wait].
//
// # Closing and errors
//
// Close and CloseWrite are graceful: what was written is delivered, then the
// peer reads io.EOF. SetLinger(0) makes Close a reset. A peer that breaks the
// protocol ends its connection with a *[ProtocolError] naming the rule.
//
// # Cancellation
//
// Deadlines and closing end blocked calls, and the counts these return are
// exact. To know the count, a transfer that the peer is in the middle of is
// cancelled first, so a call may return one round trip after its deadline.
//
// # Security
//
// The package does not encrypt. Run TLS above the connection as above any net.Conn, or
// IPsec below it. STags are random, valid for one connection and the exact
// bytes of one transfer.
package sdp

// The package as a whole keeps [D-40] [D-32] [D-80] [SDP-15-3].
