// Package vi implements the Virtual Interface Architecture 1.0: NICs, Virtual Interfaces with send
// and receive queues, completion queues, descriptors, registered memory with protection tags,
// connections of both models, and asynchronous errors. It offers the functions the VI Provider
// Library (VIPL) offers to C programs. A [Provider] carries messages over a network: package vitcp
// over TCP, package fcvi over Fibre Channel.
//
// To register memory, connect and send:
//
//	nic, err := vi.Open(provider, "", nil)
//	region, err := nic.RegisterMem(buf, vi.MemAttributes{})
//	v, err := nic.CreateVI(vi.Attributes{Reliability: vi.ReliableDelivery}, nil, nil)
//	_, err = v.ConnectRequest(ctx, local, remote)
//	err = v.PostSend(vi.NewSend(region.Segment(0, 100)))
//	d, err := v.SendWait(ctx)
//
// # Ownership
//
// Posting lends a descriptor and the memory of its segments to the NIC until Done, Wait or Notify
// returns the descriptor. Afterwards the NIC touches neither the descriptor nor the memory.
//
// # Completions
//
// A descriptor carries a [Status]; [Status.Err] gives the status as an error. Done, Wait and Notify
// return the descriptor at the head of the queue, in posting order, and an error matching
// [ErrDescriptor] if the status has an error bit. Cancelling the context of a wait leaves the queue
// as it is.
//
// # Errors
//
// Functions return errors matching the sentinel errors of the package, one for each return code of
// VIPL. Errors outside any call are passed to the handler of [NIC.ErrorCallback], one by one.
//
// # Concurrency
//
// All methods may be called concurrently, also from handlers, except that NIC.Close must not be
// called from a Notify handler.
//
// Where the architecture leaves a choice, or its documents were not available,
// docs/requirements/vi-requirements.md records the decision.
package vi

// The package as a whole keeps [VIA 6.7] [VIA-6.7-1].
