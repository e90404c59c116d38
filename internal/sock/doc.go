// Package sock dials, accepts, tunes and owns sockets: the sources of bytes
// under internal/attend and internal/frameio.
//
// The runtime watches every descriptor of package net all the time, so that
// each message to or from a consumer that polls would wake a thread for
// nothing, at the price of the message. On Linux this package takes the
// descriptor of a TCP connection away from the runtime ([Own], [Dial],
// [OwnListener], [Take]); what it returns is watched only while a goroutine
// sleeps at it. On other systems these functions return what package net
// gives.
//
// A [Socket] is the descriptor for the engines: reads and writes that never
// wait, and two ways of sleeping, one for each direction. A connection made by
// [Own] or [Dial] is a net.Conn with deadlines for what comes before an
// engine takes it over.
package sock
