#!/bin/sh
# Compares Viaduct with UCX, libfabric and plain TCP on this machine and prints
# one table of ratios. See docs/performance.md; options: bench/peers.sh --help
set -eu
cd "$(dirname "$0")/.."
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT INT TERM
go build -pgo=cmd/viaduct/default.pgo -o "$bin/peers" ./bench/peers # as viaduct itself is built
"$bin/peers" "$@"
