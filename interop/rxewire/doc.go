// Command rxewire runs RDMA programs under two "viaduct run --rdma --device rxe0", each in a network
// namespace of its own, over a network that loses, reorders and duplicates packets, or passes none.
//
//	go run ./interop/rxewire                 # all faults: two to three minutes
//	go run ./interop/rxewire -only 'loss 1'  # conversations whose name matches
//	go run ./interop/rxewire -runs 10        # each conversation ten times
//	go run ./interop/rxewire -figures        # bandwidth and latency over a clean network
//
// Package link emulates the network, because many kernels lack netem. It needs root or a user
// namespace. If neither is allowed, the program reports this loudly and exits 0, or 1 with -require.
//
// Every conversation must end as the verbs say. Over a lossy network, reliable connections transfer
// the right data, as the pingpong programs and rping verify. A pair of programs that exchange
// datagrams never fails: it succeeds, or waits because a datagram was lost or counted twice. Over a network that passes
// nothing for five seconds, programs with a long timeout succeed. If the network passes nothing any
// more, the program with an outstanding request fails with "retry exceeded", and not before the time
// that follows from its timeout and its retries.
//
// With -figures, the namespaces are connected by a veth pair, which needs root. Processes that use
// package roce, and perftest under viaduct run, transfer 64 KiB in each message and exchange 8 bytes,
// in turns with a program in C that exchanges 8 bytes by UDP.
package main
