// Package memvi is a VI provider whose network is the memory of a process. It is the smallest
// provider that keeps every promise required by package vi: all three reliability levels, RDMA
// Write and Read, descriptor flow control, the error matrix, both connection models. [VIA-8.3-10]
// Read memvi to learn the duties of a provider, and use memvi to test programs built on package vi.
//
//	network := memvi.New()
//	nic, err := vi.Open(network, "mem0", nil)
//
// Device names are mem0 to mem255, and "" means mem0. Each device is a node of the network; opening
// a device twice gives two NICs at the same address. Payload is copied twice: at the sender into a
// message, and at the receiver out of the message.
package memvi
