// Soak runs connections of all transports for a long time: connections open, close, transfer, idle
// and are killed. Soak checks that memory, descriptors, goroutines and registrations do not grow.
//
//	go run ./interop/soak                     # two minutes, as the checks run it
//	go run ./interop/soak -for 1h -round 1m   # at full length
//	go run ./interop/soak -race 20m           # duration of the part with the race detector
//
// A server process listens with every transport and plan; this process keeps -conns connections to
// the server; further client processes are killed by SIGKILL at random times, and replaced. All
// connections use loopback. Transferred bytes are verified by package mixed.
//
// Time is divided into rounds. At the end of each round all connections end, and both processes
// report the remaining resources. Compared with the first rounds, memory may grow by less than a
// limit, descriptors by a few that are kept for later connections, and the other counts must be equal.
package main
