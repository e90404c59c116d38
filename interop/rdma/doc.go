// Command rdma tests viaduct run --rdma with the RDMA programs of a distribution:
//
//	go run ./interop/rdma                # a minute: every program, few messages
//	go run ./interop/rdma -long          # every program with every tested option
//	go run ./interop/rdma -only perftest # trials whose name matches that expression
//	go run ./interop/rdma -runs 20       # each trial that many times, in turn; an interrupt ends the run with the table
//	go run ./interop/rdma -figures       # latency, bandwidth, doorbells and commands, on an idle machine
//
// The programs are unmodified and run as an unprivileged user. Each trial runs in up to three ways:
// with both ends under one supervisor, with one supervisor for each end, and with a Go program on
// package iwarp at one end. interop/siw tests against the kernel's own iWARP; with -rdma the host's
// side runs under viaduct run --rdma.
//
// A trial passes if both ends exit with status 0 in time, print their usual messages of success,
// and --explain reports connections over iWARP. Programs under the preload library of rsockets fall
// back to TCP silently. For such programs the capture must contain the moved bytes.
//
// A run that does not end within a minute, or the time of -limit, hangs: the supervisors print
// their goroutines. The output is saved with the programs' output.
//
// The programs in the directory c belong to this project. Each case of a program checks one promise
// of rdma_cm or verbs, and prints the promise with ok or FAIL. The programs need Debian's
// librdmacm-dev, and can be run by hand:
//
//	cc -o /tmp/pairs pairs.c check.c end.c -lrdmacm -libverbs
//	viaduct run --rdma -- sh -c '/tmp/pairs serve 7471 & sleep 1; /tmp/pairs call 7471'
//
// The suite of pyverbs runs from the copy in Debian's python3-pyverbs; skipped tests are counted by
// reason. The trials of a missing program are skipped, and the program is named.
package main
