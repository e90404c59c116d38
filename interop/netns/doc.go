// Netns runs every transport, in both roles, over bad networks.
//
//	go run ./interop/netns                 # everything, bounded for the checks
//	go run ./interop/netns -run loss       # the scenarios whose name has that in it
//	go run ./interop/netns -long           # longer, and with holes that last for ever
//
// Two network namespaces (five, for the fabric) are made in a sandbox of this
// program, as root or in a user namespace; where neither is allowed it says so
// loudly and exits 0, with -require 1. They are connected by the emulated network of
// package link, since many kernels lack netem. A process in each namespace
// listens with every transport and connects to the other, so that each transport
// has both roles at the same time; connections carry the verified traffic of
// package mixed for the whole time, others come and go. Meanwhile the network does
// what the scenario says.
//
// What has to hold in each: every byte that arrives is right and in order, every
// request completes once and in order, nothing hangs longer than the limits that
// are documented, and nothing is left behind. What else has to hold is told by the
// scenario: connections outlive a fault that TCP outlives, and end with an error
// where the network is gone.
package main
