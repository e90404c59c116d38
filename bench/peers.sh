#!/bin/sh
# Compares Viaduct with UCX, libfabric and plain TCP on this machine and prints
# one table of ratios. See docs/performance.md; options: bench/peers.sh --help
# If the first option is --beside REV, compares Viaduct with the Viaduct of git revision REV instead.
set -eu
cd "$(dirname "$0")/.."
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT INT TERM
# build DIR PROGRAM: builds bench/peers of the tree DIR, with the profile of that tree like viaduct itself
build() { (cd "$1" && go build -pgo=bench/viaduct.pgo -o "$2" ./bench/peers); }
if [ "${1:-}" = --beside ]; then
	[ $# -ge 2 ] || { echo "usage: bench/peers.sh --beside REV [options]" >&2; exit 2; }
	mkdir "$bin/tree"
	git archive "$2" | tar -x -C "$bin/tree"
	build "$bin/tree" "$bin/before"
	shift 2
	set -- --beside "$bin/before" "$@"
fi
build . "$bin/peers"
"$bin/peers" "$@"
