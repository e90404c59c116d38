// Command peers compares this project with its alternatives: UCX, libfabric, and plain TCP written
// in C and in Go. Everything runs on one machine over loopback, two processes each, interleaved,
// with the same congestion control and the same footprint of buffers; the medians are compared with
// targets. docs/performance.md explains the figures.
//
//	bench/peers.sh                  the whole comparison, under five minutes
//	bench/peers.sh --only Latency   contests whose title matches
//	bench/peers.sh --markdown       a table for a document; --json for programs
//	bench/peers.sh --record .       measures for the pictures too, and renews all figures of the documents
//	bench/peers.sh --record . --render   makes tables and pictures from internal/figures/results.json
//	bench/peers.sh --beside REV     our own sides compared with those of a git revision, in turns
//
// Missing peers are installed from Debian's packages when it is run by root; without them their
// rows report it.
//
//	peers drive --transport vitcp --op write --size 65536 --depth 16 --bell 4
//
// runs one measurement of our own alone, for tuning; --profile PREFIX writes CPU profiles of both
// processes.
package main
