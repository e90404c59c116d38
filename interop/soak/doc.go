// Soak runs connections of all transports that come, go, transfer, idle and are
// killed, for a long time, and sees whether memory, descriptors, goroutines and
// registrations stay where they were.
//
//	go run ./interop/soak                     # two minutes, as the checks run it
//	go run ./interop/soak -for 1h -round 1m   # at full length
//	go run ./interop/soak -race 20m           # how long of it with the race detector
//
// A server process listens with every transport and plan; this process keeps
// -conns connections to it; further client processes are killed by SIGKILL in the
// middle of what they do, and replaced. Everything goes over loopback. What is
// transferred is verified, as in package mixed.
//
// Time is cut into rounds. At the end of each round all connections end, and both
// processes tell what they still hold: that has to be what they held after the
// first rounds. A growth of memory has to be less than a limit, of everything else
// none.
package main
