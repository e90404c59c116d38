// Package frameio moves framed bytes over a stream: queued frames leave in batched gather writes,
// and arriving bytes are read into one staging buffer and passed on many frames at a time. It knows
// no protocol; a [Protocol] builds and parses the frames.
//
// # Sending
//
// A goroutine that calls [Conn.Kick] while the send role is free takes the role and drains the
// protocol's queue through [Protocol.Fill]. Other callers return at once, and their frames leave
// with the sender's next batch. So load creates batches by itself, and a lone frame is in the
// kernel before Kick returns. Kick never blocks: when the socket is full, a goroutine takes the
// role over.
//
// # Receiving
//
// An Attention of internal/attend decides which goroutine reads: a consumer inside [Conn.Poll], a
// poller that idle connections share, or a goroutine of a busy connection. This package reads for
// the Attention and keeps the bytes.
//
// Before each read that may belong to a long frame the protocol returns a [Plan]: the place for the
// rest of the current frame, and the frames that it predicts next. One read then places many
// frames, which costs both ends less than one read per frame, because the kernel scatters headers
// and payloads. The bytes of a wrong prediction are copied to staging.
//
// On Linux a connection with a socket of its own takes the fast path (recvmsg and sendmsg on the
// socket). Any other net.Conn (TLS, captures, pipes, other systems) is read by one goroutine and
// written by another, through its methods.
//
// # Ownership
//
// The send role owns the batch and calls Fill and Sent. The receive role owns the staging buffer
// and calls Receive, Plan, Landed and Drained. The two roles never wait for each other.
package frameio
