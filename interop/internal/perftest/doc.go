// Package perftest implements the exchange of the bandwidth tests of the Linux RDMA tools
// (ib_write_bw, ib_read_bw and ib_send_bw with -R) in both roles, so that the tools can be tested
// against this stack. The package supports one direction on one queue pair, with a fixed number of
// messages of a single size.
//
//	client                                             server
//	  |=========== control stream: no Reads =============>|
//	  | version, buffer and cache line, MTU               |
//	  |<------------- one Send each, each way ----------->|
//	  | keys, twice, still empty; in between the server   |
//	  | listens again and the client connects again       |
//	  |============ data stream: 128 Reads or none ======>|
//	  | keys, three times; four with ib_send_bw           |
//	  |<------------------------------------------------->|
//	  |                                                   |
//	  | RDMA Writes, Read Requests or Sends on the data   |
//	  | stream; for Sends the server writes its count     |
//	  | of messages into the client's memory now and then |
//	  |                                                   |
//	  | keys; report in five numbers  (not ib_send_bw)    |
//	  |<------------------------------------------------->|
//	  | keys: done                                        |
//	  |<------------------------------------------------->|
//	  |============== both streams close =================|
//
// The client sends first each time, and the server answers in the same format. The version is a
// text of 16 bytes, numbers are big-endian, and bandwidths are IEEE 754 doubles in units of 2^20
// bytes per second. A count of received messages has the byte order of the server's processor, here
// little-endian. No document describes the exchange; the package follows version 4.5 of the tools,
// whose name for the exchange is 6.06.
//
//	l, err := iwarp.Listen(":18515", perftest.Config(nil, opt))
//	res, err := perftest.Serve(ctx, l, opt)   // for ib_write_bw -R -s 4096 -n 1000 host
//
//	res, err := perftest.Dial(ctx, "192.0.2.1:18515", nil, opt)
//
// Size and count must be the same at both ends, because the exchange carries size and count only at
// the end.
//
// # Contents
//
// The tools send memory filled by the C library's random numbers, and never check the received
// bytes. With Options.Verify this package checks the bytes: the generator of the GNU C library
// computes each number from two earlier ones, so the bytes obey a rule independent of the seed. See
// fillRandom.
//
// Not implemented: latency tests, both directions at once, several queue pairs, events instead of
// polling, a duration instead of a count.
package perftest
