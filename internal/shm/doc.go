// Package shm has the memory by which two processes of one host exchange bytes:
// a pair of rings in a sealed memfd, one for each direction.
//
// The other process can write to all of it at any time. So nothing that is read
// from there is used twice or unchecked: each index is loaded once, compared with
// what this side knows, and only the copy is used. A side's own position is kept
// in its private memory; what it publishes is for the other side. Nothing in
// shared memory is a pointer. An index that can't be is [ErrIndex], and the
// connection is over.
//
// # Sleeping
//
// A consumer that polls compares two numbers. One that is going to sleep calls
// [Consumer.Ask] and looks once more; a producer that has published bytes and
// finds the request takes it and calls Wake, by which the consumer is told in some
// way that the owner of the rings chooses. A producer that waits for room asks in
// the same way. So a busy ring makes no system call, and a sleeping one costs one
// call for each time that it is woken. model_test.go explores every interleaving
// of this protocol for a wake-up that is lost.
//
// # Memory that is lent
//
// Memory of [Alloc] is the process's own, and can be read by the processes of its peers.
// What is written from there may be referred to in place of being copied: see refs.go. A
// producer offers it when it first could use it, with a call of its owner's ([Producer.Offer]); the
// consumer maps it ([Consumer.Borrow]), and tells so in the ring.
package shm
