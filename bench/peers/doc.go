// Command peers compares this project with alternatives: UCX, libfabric, and plain TCP written in C
// and in Go. All programs run on one machine over loopback, in two processes each, with the same
// congestion control and the same footprint of buffers. The programs take turns in rounds, and the
// medians of their figures are compared with targets. docs/performance.md explains the figures.
//
//	bench/peers.sh                  the whole comparison, under five minutes
//	bench/peers.sh --only Latency   contests whose title matches
//	bench/peers.sh --markdown       a table for a document; --json for programs
//	bench/peers.sh --record .       measures for the pictures too, and renews all figures of the documents
//	bench/peers.sh --record . --render   makes tables and pictures from internal/figures/results.json
//	bench/peers.sh --beside REV     our own sides compared with those of a git revision, in turns
//
// If the command runs as root, missing peers are installed from Debian's packages. The row of a
// missing peer says so.
//
//	peers drive --transport vitcp --op write --size 65536 --depth 16 --bell 4
//
// runs one measurement of our own alone, for tuning; --profile PREFIX writes CPU profiles of both
// processes.
package main
