// Package shm implements shared memory, for the exchange of bytes between two processes of a host:
// a pair of rings in a sealed memfd, one ring for each direction.
//
// The other process can write to the whole memory at any time. So package shm loads each value from
// the memory once, checks the loaded copy against private state, and uses only the copy. Each
// side's position is in private memory, and the side publishes a copy for the other. There are no
// pointers in shared memory. An impossible index is the error [ErrIndex] and ends the connection.
//
// # Sleeping
//
// A polling consumer compares two numbers. Before sleeping, a consumer makes a request
// ([Consumer.Ask]) and then checks once more for bytes. After publishing bytes, a producer checks
// for the request. If there is a request, the producer clears it and calls Wake, where the owner of
// the rings wakes the consumer. Before waiting for room, a producer makes a request in the same
// way. So a busy ring makes no system call, and a sleeping end costs one system call for each
// wake-up. model_test.go explores every interleaving of the sleeping protocol and finds no lost
// wake-up.
//
// # Lent memory
//
// Memory from [Alloc] belongs to the allocating process, and the processes of peers can read the
// memory. Bytes written from there may be passed by reference, without a copy into the ring: see
// refs.go. A producer offers the memory at the first write where a reference could be used
// ([Producer.Offer]). The consumer maps the memory ([Consumer.Borrow]) and records the mapping in
// the ring.
package shm
