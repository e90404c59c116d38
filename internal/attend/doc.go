// Package attend decides which goroutine reads a connection, and how waiting goroutines are woken.
//
// An [Attention] belongs to a connection. It owns the receive role, a lock under which at most one
// goroutine reads. The Attention's [State] records who waits for arrivals: a poller shared by many
// connections, a goroutine of the connection, or nobody while a consumer polls the source itself.
// The transition function of the state is pure. state.go has its figure, and a test explores every
// interleaving of a small model for a lost wake-up.
//
// The [Receiver] of a connection reads and handles arrived bytes. A Receiver does not know who
// waits, and an Attention knows nothing of frames.
//
// The package also has everything that all connections of the process share: the shared pollers,
// the sweep that retires idle goroutines, the workers for set-up and tear-down, and [Sleeper], for
// a consumer to sleep at the sockets themselves until an answer arrives.
package attend
