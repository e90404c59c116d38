// Package sock dials, accepts, tunes and owns sockets. Packages internal/attend and
// internal/frameio receive from these sockets.
//
// The runtime watches every descriptor of package net all the time. So each message that a polling
// consumer receives would also wake a thread for nothing, which costs as much as the message. On
// Linux this package takes the descriptor of a TCP connection away from the runtime ([Own], [Dial],
// [OwnListener], [Take]). The runtime watches such a descriptor only while a goroutine sleeps. On
// other systems these functions return connections of package net.
//
// A [Socket] is the descriptor as the engines use it: its reads and writes never wait, and each
// direction has a way to sleep. A connection made by [Own] or [Dial] is a net.Conn with deadlines,
// for the exchange before an engine takes it over.
package sock
