// Package perturb widens the windows in which a race can happen. In a build with the tag perturb,
// every lock of [Mutex] and [RWMutex] and every call of [Point] pauses now and then for a random
// time of up to three milliseconds, before and after. In any other build the types are those of
// package sync and Point is empty, so that they cost nothing.
//
// The engines and protocols use the locks of this package, and call Point where a role or a state
// changes hands without a lock:
//
//	go test -tags perturb ./sdp/... ./iwarp/...
//
// PERTURB_SEED chooses the random numbers; a program prints the seed it uses to standard error when
// it first pauses. PERTURB_ONE_IN is the number of occasions per pause, 300 if it is not set. A
// seed does not make a run reproducible, because it does not determine the order of goroutines. It
// makes the pauses of a second run similar to those of a failed run.
package perturb
