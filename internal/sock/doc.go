// Package sock dials, accepts, tunes and owns sockets. Packages internal/attend and
// internal/frameio receive from these sockets.
//
// The runtime watches every descriptor of package net all the time. So each message to a polling
// consumer would also wake a thread for nothing, and the wake-up costs as much as the message. On
// Linux, package sock takes the descriptor of a TCP connection away from the runtime ([Own],
// [Dial], [OwnListener], [Take]). The runtime watches such a descriptor only while a goroutine
// sleeps. On other systems the same functions return connections of package net.
//
// A [Socket] is the descriptor for an engine: reads and writes never wait, and each direction has a
// way to sleep. A connection made by [Own] or [Dial] is a net.Conn with deadlines, for the exchange
// before an engine takes over the socket.
package sock
