// Netns runs every transport, in both roles, over bad networks.
//
//	go run ./interop/netns                 # everything, bounded for the checks
//	go run ./interop/netns -run loss       # the scenarios whose name contains the word
//	go run ./interop/netns -long           # longer, and with interruptions that never end
//
// The program creates two network namespaces (five for the fabric), as root or in a user namespace.
// If neither is allowed, the program reports this loudly and exits 0, or 1 with -require. The
// emulated network of package link connects the namespaces, since many kernels lack netem. A
// process in each namespace listens with every transport and connects to the other process, so that
// each transport has both roles at the same time. Long connections carry the verified traffic of
// package mixed for the whole time; short ones come and go. Meanwhile the network has the faults of
// the scenario.
//
// In every scenario each byte must arrive unchanged and in order, each request must complete once
// and in order, nothing may hang longer than the documented limits, and no resource may leak. The
// scenario also says whether connections must survive, as they must if TCP survives, or must end
// with an error.
package main
