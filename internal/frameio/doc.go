// Package frameio moves framed bytes over a stream: queued frames leave in
// batched gather writes, arriving bytes are read into one staging buffer and
// handed over many frames at a time. It knows no protocol; a [Protocol] builds
// and parses the frames.
//
// # Sending
//
// Whoever rings [Conn.Kick] while nobody sends becomes the sender and drains
// the protocol's queue through [Protocol.Fill]; everybody else returns at
// once, and what they queued goes out with the current sender's next batch.
// So load batches by itself, and a lone frame is in the kernel before Kick
// returns. Kick never blocks: when the socket is full, a goroutine takes the
// role over.
//
// # Receiving
//
// At any moment at most one goroutine reads: a consumer inside [Conn.Poll],
// or one that waits for the socket to become readable so that one-sided traffic
// needs no consumer. A connection with little to do waits in a lobby together with
// others, on Linux: one epoll instance has their sockets, and one goroutine reads
// what comes. As soon as it is busy, or somebody polls, it is given a passive
// goroutine and an epoll instance of its own, until little has come for a tenth of a
// second. While somebody polls, the passive goroutine steps aside, and comes back
// about a millisecond after the last poll or as soon as [Conn.Unpoll] is called.
// Streams of small frames with nobody polling it reads in portions, less than 100 us
// apart.
//
// A [Guesser] tells where long frames will belong of which nothing has come. One
// read then brings many of them into place, which costs both ends less than a
// read for each: headers and payloads are scattered, and what turns out to be
// something else is taken back.
//
// On Linux a connection with a socket of its own takes the fast path
// (recvmsg and sendmsg on it). Any other net.Conn (TLS, captures, pipes, other
// systems) is read by a goroutine and written by one, through its methods.
//
// # Ownership
//
// The send role owns the batch and everything behind Fill and Sent; the
// receive role owns the staging buffer and everything behind Receive, Direct,
// DirectDone and Drained. The two never wait for each other.
package frameio
