// Package vi implements the Virtual Interface Architecture 1.0: NICs, Virtual
// Interfaces with send and receive queues, completion queues, descriptors,
// registered memory with protection tags, connections of both models, and
// asynchronous errors. It is the VI Provider Library (VIPL) in Go's words, and
// complete enough that the C library is a thin layer over it. How messages
// cross the network is a [Provider]'s business: package vitcp is VI over TCP,
// package fcvi VI over Fibre Channel.
//
// A sender and its memory, in short:
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
// Posting lends a descriptor and the memory of its segments to the NIC until
// the descriptor has come back from Done, Wait or Notify. After that neither
// is touched again.
//
// # Completions
//
// A descriptor carries a [Status]; [Status.Err] gives the error for programs that
// want one. Done, Wait and Notify return the descriptor at the head of its
// queue, in posting order, and an error that matches [ErrDescriptor] if its
// status has an error bit. Cancelling the context of a wait leaves the queue
// as it is.
//
// # Errors
//
// Functions return errors that match one of the sentinel errors of this
// package, one for each return code of VIPL ([ReturnCode] gives the number).
// Errors that belong to no call go to the handler set with
// [NIC.ErrorCallback], one at a time.
//
// All methods may be called concurrently, also from handlers, except that
// NIC.Close must not be called from a Notify handler.
//
// What the architecture leaves open, and where its documents were not to be
// had, is decided in docs/requirements/vi-requirements.md, row by row.
package vi

// The package as a whole keeps [VIA 6.7] [VIA-6.7-1].
