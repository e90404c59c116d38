// Package mixed is verified traffic over every transport of the project, for
// the programs that run it on bad networks and for a long time.
//
// The two ends of a connection run the same [Plan]: each sends until its time is
// over, verifies every byte of the other, and ends in order. Over messages
// (vitcp, fcvi, iwarp) the traffic is Sends, RDMA Writes and RDMA Reads of random
// lengths in random order; over streams (sdp, tcp) it is writes of random
// lengths. What is sent follows from a seed that both ends know.
//
// Whatever happens to the network, a connection must come to an end, and every
// request that was posted must complete once and in order. [Tally] has the
// counts; an error that matches [ErrBroken] says that this did not hold, or that
// bytes were wrong. Any other error is that of a connection which ended early.
package mixed
