// Command rdma tries viaduct run --rdma with the RDMA programs of a distribution:
//
//	go run ./interop/rdma                # a minute: every program, few messages
//	go run ./interop/rdma -long          # every program with every option that is tried
//	go run ./interop/rdma -only perftest # trials whose name matches that expression
//	go run ./interop/rdma -runs 20       # each trial so many times, in turn; an interrupt ends that with the table
//	go run ./interop/rdma -figures       # latency, bandwidth, doorbells and commands, on an idle machine
//
// The programs are unmodified and belong to an unprivileged user. Each trial is made in up to three
// ways: with both ends under one supervisor, with one supervisor for each end, and with one end that is a Go
// program on package iwarp. Talks with the kernel's own iWARP are those of interop/siw, which takes
// its host's side from viaduct run --rdma with -rdma.
//
// A trial is good if both ends leave with status 0 in time, said what they say when all went well, and
// --explain tells that connections were made over iWARP. Programs under the preload library of
// rsockets fall back to TCP silently, so for these the capture has to hold what they moved.
//
// A run that does not end within a minute, or what -limit says, is a hang: its supervisors say what their goroutines do, and that
// is kept with all that the programs said.
//
// The programs of the folder c are our own: each case of theirs checks one promise of rdma_cm or
// verbs, and prints it with ok or FAIL. They want Debian's librdmacm-dev, and can be run by hand:
//
//	cc -o /tmp/pairs pairs.c check.c end.c -lrdmacm -libverbs
//	viaduct run --rdma -- sh -c '/tmp/pairs serve 7471 & sleep 1; /tmp/pairs call 7471'
//
// The suite of pyverbs is run from the copy that Debian's python3-pyverbs brings along; its skips
// are counted by reason. A program that is not installed is skipped, and named.
package main
