// Package rocecore is the transport of RoCEv2 without any input or output: packets, requests and
// times go in, packets and completions come out.
//
// A [Connection] is one end of a reliable or unreliable connection: requester, completer and
// responder of a queue pair that is ready to receive, and to send after [Connection.StartSending].
// A [Datagram] is a queue pair of unreliable datagrams. Memory, posted receives and completions
// belong to a [Host]; memory of requests and receives is a [Buffer].
//
// A driver owns the socket and the clock. It does, for ever:
//
//	c.Receive(now, &packet)          // for each packet that has arrived, or c.Post, c.Tick
//	more := c.Transmit(now, out, 64) // then this, once for all of them
//	at, ok := c.Deadline()           // when c.Tick is due
//
// Acknowledgements are written by Transmit: a driver that hands over a burst of packets first sends
// one acknowledgement for all of them. [ROCE-RESP-14]
//
// No type is safe for concurrent use; a driver has a lock for each queue pair. What a peer sends
// costs bounded time and memory. There is no promise of compatibility before version 1.
package rocecore
