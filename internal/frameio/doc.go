// Package frameio sends and receives frames over a stream. Queued frames leave in batches, with one
// gathered write each. Arriving bytes are read into a staging buffer, many frames at a time. The
// package knows no protocol; a [Protocol] builds and parses the frames.
//
// # Sending
//
// A goroutine that calls [Conn.Kick] while the send role is free takes the role and drains the
// protocol's queue through [Protocol.Fill]. Other callers return at once, and their frames leave
// with the sender's next batch. So frames form batches under load, and a lone frame is in the
// kernel before Kick returns. Kick never blocks: when the socket is full, another goroutine takes
// the role over.
//
// # Receiving
//
// An Attention of internal/attend decides which goroutine reads: a consumer inside [Conn.Poll], a
// poller shared by idle connections, or a goroutine of a busy connection. Package frameio does the
// reading for the Attention and stages the bytes.
//
// Before each read possibly within a long frame, the protocol returns a [Plan]: the places of the
// missing bytes of the current frame, and the frames expected next. A single read then puts many
// frames in place, because the kernel scatters headers and payloads. Both ends spend less than with
// a read per frame. The bytes of a wrong prediction are copied to staging.
//
// On Linux, a connection whose socket can be taken uses the fast path (recvmsg and sendmsg on the
// socket). Any other net.Conn (TLS, captures, pipes, other systems) uses the portable path: a
// goroutine calls Read, and another calls Write.
//
// # Ownership
//
// The holder of the send role owns the batch and calls Fill and Sent. The holder of the receive
// role owns the staging buffer and calls Receive, Plan, Landed and Drained. The holders never wait
// for each other.
package frameio
