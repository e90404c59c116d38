// Package rocecore implements the transport of RoCEv2 without input or output: packets, requests
// and times go in, packets and completions come out.
//
// A [Connection] is one end of a reliable or unreliable connection: the requester, completer and
// responder of a queue pair. A new Connection is ready to receive, and ready to send after
// [Connection.StartSending]. A [Datagram] is a queue pair for unreliable datagrams. A [Host]
// provides the memory accessed by peers, the posted receives and the completions. A [Buffer] is the
// local memory of a request or receive.
//
// A driver owns the socket and the clock, and runs a loop:
//
//	c.Receive(now, &packet)          // for each packet that has arrived, or c.Post, c.Tick
//	more := c.Transmit(now, out, 64) // then this, once for all of them
//	at, ok := c.Deadline()           // when c.Tick is due
//
// Transmit writes the acknowledgements. A driver that first calls Receive for a burst of packets
// therefore sends a single acknowledgement for the whole burst. [ROCE-RESP-14]
//
// No type is safe for concurrent use; a driver has a lock for each queue pair. A packet of a peer
// costs bounded time and memory. There is no promise of compatibility before version 1.
package rocecore
