// Package roceudp carries RoCEv2 by an ordinary UDP socket: it owns the socket and the clock of the
// queue pairs of package rocecore, and needs no privileges.
//
// A [Port] is UDP port 4791 of one address. Its queue pairs are [Pair]s, told apart by their number.
// A Pair is connected ([Pair.Receive], then [Pair.Send]) or takes datagrams ([Pair.Datagrams]); what it
// belongs to is a rocecore.Host, whose methods are called with the lock of the Pair held.
//
// On Linux packets go and come in batches (sendmmsg, recvmmsg), and IPv4 packets have the
// identification 0 that their invariant CRC is computed for. Other systems send them one by
// one.
//
// One goroutine receives; a consumer that polls ([Port.Poll]) receives in its place, a bounded number of
// packets at a time. Packets of a Pair are sent with its lock held, by whoever has something to send, so
// that they leave in order. Nobody waits for the network interface on Linux: if the socket is full, or
// a Pair has very many packets to send, a second goroutine sends the rest.
package roceudp
