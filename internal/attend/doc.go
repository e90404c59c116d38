// Package attend decides which goroutine reads a connection, and how waiting goroutines are woken.
//
// An [Attention] belongs to one connection. It owns the receive role, a lock under which at most
// one goroutine reads. It also has a [State] that records who waits for arrivals: a poller that
// many connections share, a goroutine of the connection, or nobody while a consumer polls the
// source itself. The transition function of the state is pure. state.go has its figure, and a test
// explores every interleaving of a small model for a lost wake-up.
//
// The [Receiver] of a connection reads and handles arrived bytes. It does not know who waits, and
// this package knows nothing of frames.
//
// The package also has what all connections of the process share: the shared pollers, the sweep
// that retires idle goroutines, the workers for set-up and tear-down, and [Sleeper], by which a
// consumer that expects an answer sleeps at the sockets themselves.
package attend
