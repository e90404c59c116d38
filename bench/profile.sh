#!/bin/sh
# Renews bench/viaduct.pgo, the profile with which the packages of viaduct are built: runs each
# operation below for a second, and merges the CPU profiles of both ends.
# Takes a minute or two; nothing else should run on the machine.
set -eu
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT INT TERM
go build -trimpath -o "$dir/peers" ./bench/peers
n=0
# run TRANSPORT: runs one measurement per line of standard input, an operation with its flags.
run() {
	while read -r args; do
		n=$((n + 1))
		# shellcheck disable=SC2086
		"$dir/peers" drive --time 1s --profile "$dir/$n" --transport "$1" --op $args >"$dir/out" 2>"$dir/err" || { cat "$dir/err" >&2; exit 1; }
	done
}
for transport in vitcp iwarp; do
	run "$transport" <<end
ping --size 8
ping --size 8 --wait
ping --size 65536
write --size 64 --depth 64
write --size 64 --depth 256 --bell 64
write --size 4096 --depth 64 --bell 16
write --size 65536
write --size 1048576 --depth 4
send --size 4096 --depth 64 --bell 16
send --size 1048576 --depth 4
read --size 4096
read --size 1048576 --depth 4
ping --size 8 --rings
write --size 64 --depth 256 --rings
end
done
run iwarp <<end
write --size 65536 --crc
end
run sdp <<end
ping --size 64
ping --size 64 --wait
stream --size 64
stream --size 65536
stream --size 65536 --crc
stream --size 1048576
ping --size 64 --wait --rings
stream --size 65536 --rings
echo --size 128 --conns 16 --rings
http --size 1024 --conns 16 --rings
http --size 65536 --conns 16 --rings
end
run fcvi <<end
ping --size 8
write --size 65536
end
go tool pprof -proto "$dir"/*.tx "$dir"/*.rx >"$dir/merged" 2>"$dir/err" || { cat "$dir/err" >&2; exit 1; }
mv "$dir/merged" bench/viaduct.pgo
echo "bench/viaduct.pgo: of $n runs"
