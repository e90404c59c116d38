// Package frameio moves framed bytes over a stream: queued frames leave in
// batched gather writes, arriving bytes are read into one staging buffer and
// handed over many frames at a time. It knows no protocol; a [Protocol] builds
// and parses the frames.
//
// # Sending
//
// A goroutine that calls [Conn.Kick] while the send role is free takes it and
// drains the protocol's queue through [Protocol.Fill]; other callers return at
// once, and what they queued goes out with the sender's next batch. So load batches
// by itself, and a lone frame is in the kernel before Kick returns. Kick never
// blocks: when the socket is full, a goroutine takes the role over.
//
// # Receiving
//
// Which goroutine reads is decided by an Attention of internal/attend: a consumer inside
// [Conn.Poll], a poller that idle connections share, or a goroutine of a busy
// connection. This package reads for it, and keeps what was read.
//
// Before each read that may be for a long frame the protocol is asked for a [Plan]:
// where the rest of the frame in progress belongs, and the frames that it predicts
// behind it. One read then brings many of them into place, which costs both ends less
// than a read for each: headers and payloads are scattered, and what turns out to be
// something else is taken back.
//
// On Linux a connection with a socket of its own takes the fast path
// (recvmsg and sendmsg on it). Any other net.Conn (TLS, captures, pipes, other
// systems) is read by a goroutine and written by one, through its methods.
//
// # Ownership
//
// The send role owns the batch and everything behind Fill and Sent; the
// receive role owns the staging buffer and everything behind Receive, Plan,
// Landed and Drained. The two never wait for each other.
package frameio
