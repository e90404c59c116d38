// Package mixed generates verified traffic over every transport of the project, for the programs
// that test on bad networks and for a long time.
//
// The two ends of a connection run the same [Plan]: each end sends for the time of the plan,
// verifies every received byte, and closes in order. Over messages (vitcp, fcvi, iwarp) the traffic
// is Sends, RDMA Writes and RDMA Reads of random lengths in random order; over streams (sdp, tcp)
// the traffic is writes of random lengths. The sent bytes follow from a shared seed.
//
// Whatever happens to the network, a connection must end, and every posted request must complete
// once and in order. [Tally] has the counts. An error matching [ErrBroken] means a connection that
// broke these rules, or wrong bytes. Any other error means that the connection ended early.
package mixed
