// Package attend decides which goroutine reads a connection, and how the
// goroutines that wait for something are woken.
//
// An [Attention] belongs to one connection. It owns the receive role, a lock
// under which at most one goroutine reads, and a [State] that says what waits
// for arrivals: a poller that many connections share, a goroutine of the
// connection, or nothing while a consumer looks at the source itself. The
// transition function of that state is pure; state.go has its figure, and a
// test explores every interleaving of a small model for a wake-up that is lost.
//
// The [Receiver] of a connection reads and handles what has arrived. It knows
// nothing of what waits, and this package nothing of frames.
//
// The package also has what is shared by all connections of the process: the
// shared pollers, the sweep that retires idle goroutines, the workers for
// set-up and tear-down, and [Sleeper], by which a consumer that expects an
// answer sleeps at the sockets themselves.
package attend
