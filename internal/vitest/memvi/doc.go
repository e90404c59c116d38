// Package memvi is a VI provider whose network is the memory of one process. It is the smallest
// provider that keeps every promise that package vi requires: all three reliability levels, RDMA
// Write and Read, descriptor flow control, the error matrix, both connection models. [VIA-8.3-10]
// Read it to learn what a provider has to do, and use it to test what is built on package vi.
//
//	network := memvi.New()
//	nic, err := vi.Open(network, "mem0", nil)
//
// Device names are mem0 to mem255, and "" means mem0. Each device is a node of the network; opening
// a device twice gives two NICs at the same address. Payload is copied twice: at the sender into a
// message, and at the receiver out of it.
package memvi
