#!/usr/bin/env bash
# Builds the examples with the library in a directory (capi/build.sh DIR) and runs
# them against each other and against the Go program in examples/c/peer:
#
#   examples/c/run.sh DIR
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(cd "${1:?a directory that capi/build.sh has filled}" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export LD_LIBRARY_PATH=$out/lib
for p in pingpong rdma server client; do
	"${CC:-cc}" -Wall -Wextra -O2 -I"$out/include" examples/c/$p.c -o "$tmp/$p" -L"$out/lib" -lvipl
done
go build -o "$tmp/peer" ./examples/c/peer
cd "$tmp"

# both NAME SERVER... -- CLIENT...: runs two programs beside each other.
both() {
	local name=$1 server=() pid
	shift
	while [ "$1" != -- ]; do server+=("$1"); shift; done
	shift
	timeout 300 "${server[@]}" & pid=$!
	timeout 300 "$@" || { echo "FAIL $name: the client"; wait $pid || true; return 1; }
	wait $pid || { echo "FAIL $name: the server"; return 1; }
	echo "ok $name"
}

for p in pingpong rdma; do
	both "$p, C and C" ./$p /dev/via_lo server 200 -- ./$p /dev/via_lo localhost 200
done
both "pingpong, server in Go" ./peer server 200 -- ./pingpong /dev/via_lo localhost 200
both "pingpong, client in Go" ./pingpong /dev/via_lo server 200 -- ./peer client 200
timeout 300 ./server /dev/via_lo 3 & pid=$!
clients=()
for _ in 1 2 3; do timeout 300 ./client /dev/via_lo localhost 50 & clients+=($!); done
for c in "${clients[@]}"; do wait "$c"; done
wait $pid
echo "ok a server and three clients"
