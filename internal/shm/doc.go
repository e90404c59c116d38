// Package shm implements the shared memory through which two processes of one host exchange bytes:
// a pair of rings in a sealed memfd, one ring for each direction.
//
// The other process can write to the whole memory at any time. So this package loads each value
// from the memory once, checks the value against its own private state, and uses only that copy.
// Each side has its position in private memory, and publishes a copy for the other side. There are
// no pointers in shared memory. An impossible index is the error [ErrIndex], which ends the
// connection.
//
// # Sleeping
//
// A consumer that polls compares two numbers. A consumer that is about to sleep makes a request
// ([Consumer.Ask]) and then checks once more for bytes. A producer that has published bytes checks
// for the request; if there is one, it clears the request and calls its Wake function, with which
// the owner of the rings wakes the consumer. A producer that waits for room makes a request in the
// same way. So a busy ring makes no system call, and a sleeping end costs one system call for each
// wake-up. model_test.go explores every interleaving of this protocol and finds no lost wake-up.
//
// # Lent memory
//
// Memory from [Alloc] belongs to this process, and processes of its peers can read it. Bytes
// written from such memory may be passed by reference, without a copy into the ring: see refs.go. A
// producer offers its memory at the first write that could use a reference ([Producer.Offer]). The
// consumer maps the memory ([Consumer.Borrow]) and records the mapping in the ring.
package shm
