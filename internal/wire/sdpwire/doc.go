// Package sdpwire encodes and decodes the messages of the Sockets Direct Protocol over iWARP, in
// the layout of draft-pinkerton-iwarp-sdp-01 (September 2004).
//
// Every message begins with the 16-byte Base Sockets Direct Header (BSDH). A [Message] is the BSDH
// with the fields of the extended header its type requires. ULP payload, if allowed by the type,
// follows the headers; the package does not touch the payload. The two messages of connection
// set-up, [Hello] and [HelloAck], are types of their own.
//
//	var b [sdpwire.MaxHeaderLen]byte
//	m := sdpwire.Message{MID: sdpwire.SrcAvail, Bufs: 64, Len: 33, STag: s, VA: va, Size: 1 << 20}
//	hdr := m.Append(b[:0], sdpwire.Figure)
//	m, n, err := sdpwire.Parse(hdr, sdpwire.Figure)
//
// The figures of the draft can be read in two ways; both readings exist here as a [Layout], and
// [DetectLayout] distinguishes them by a Hello. [D-01]
//
// The package has no state and does no I/O; all functions are safe for concurrent use. There is no
// promise of compatibility before version 1.
package sdpwire
