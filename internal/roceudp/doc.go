// Package roceudp carries RoCEv2 over an ordinary UDP socket. It owns the socket and the clock of
// the queue pairs of package rocecore, and needs no privileges.
//
// A [Port] is UDP port 4791 of one address. It has any number of queue pairs ([Pair]), each with a
// number. A Pair is either connected ([Pair.Receive], then [Pair.Send]) or for datagrams
// ([Pair.Datagrams]). Both calls take a rocecore.Host, whose methods are called with the lock of
// the Pair held.
//
// On Linux, packets are sent and received in batches (sendmmsg, recvmmsg), and IPv4 packets have
// the identification 0, for which their invariant CRC is computed. Other systems send and
// receive packets one by one.
//
// One goroutine receives. A consumer that polls ([Port.Poll]) also receives, a bounded number of
// packets at a time; on Linux the goroutine leaves the socket to the consumer meanwhile. Whoever has
// packets to send sends them with the lock of their Pair held, so that they leave in order. On Linux
// no caller waits for the network interface: if the socket is full, or a Pair has very many packets
// to send, a second goroutine sends the remaining packets.
package roceudp
