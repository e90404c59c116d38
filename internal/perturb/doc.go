// Package perturb widens the windows where a race can happen. In a build with the tag perturb,
// every lock of [Mutex] and [RWMutex] and every call of [Point] pauses now and then for a random
// time of up to three milliseconds, before and after. In any other build the types are the types of
// package sync and Point is empty, at no cost.
//
// The engines and protocols use the locks of perturb, and call Point where a role or a state
// changes hands without a lock:
//
//	go test -tags perturb ./sdp/... ./iwarp/...
//
// PERTURB_SEED chooses the random numbers; a program prints its seed to standard error at the first
// pause. PERTURB_ONE_IN is the number of occasions per pause, 300 if it is not set. A seed does not
// make a run reproducible, because the order of goroutines does not depend on the seed. A seed
// makes the pauses of a second run similar to the pauses of a failed run.
package perturb
