#!/bin/sh
# Renews cmd/viaduct/default.pgo, the profile by which viaduct is built: it runs the
# data paths for a second each, both ends, and merges what they spent their time on.
# Takes a minute or two; nothing else should run.
set -eu
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT INT TERM
go build -trimpath -pgo=off -o "$dir/peers" ./bench/peers
n=0
while read -r transport args; do
	n=$((n + 1))
	# shellcheck disable=SC2086
	"$dir/peers" drive --time 1s --profile "$dir/$n" --transport "$transport" $args >"$dir/out" 2>"$dir/err" || { cat "$dir/err" >&2; exit 1; }
done <<end
vitcp --op ping --size 8
vitcp --op ping --size 8 --wait
vitcp --op ping --size 65536
vitcp --op write --size 64 --depth 64
vitcp --op write --size 64 --depth 256 --bell 64
vitcp --op write --size 4096 --depth 64 --bell 16
vitcp --op write --size 65536
vitcp --op write --size 1048576 --depth 4
vitcp --op send --size 4096 --depth 64 --bell 16
vitcp --op send --size 1048576 --depth 4
vitcp --op read --size 4096
vitcp --op read --size 1048576 --depth 4
iwarp --op ping --size 8
iwarp --op ping --size 8 --wait
iwarp --op ping --size 65536
iwarp --op write --size 64 --depth 64
iwarp --op write --size 64 --depth 256 --bell 64
iwarp --op write --size 4096 --depth 64 --bell 16
iwarp --op write --size 65536
iwarp --op write --size 65536 --crc
iwarp --op write --size 1048576 --depth 4
iwarp --op send --size 4096 --depth 64 --bell 16
iwarp --op send --size 1048576 --depth 4
iwarp --op read --size 4096
iwarp --op read --size 1048576 --depth 4
sdp --op ping --size 64
sdp --op ping --size 64 --wait
sdp --op stream --size 64
sdp --op stream --size 65536
sdp --op stream --size 65536 --crc
sdp --op stream --size 1048576
fcvi --op ping --size 8
fcvi --op write --size 65536
end
go tool pprof -proto "$dir"/*.tx "$dir"/*.rx >"$dir/merged" 2>"$dir/err" || { cat "$dir/err" >&2; exit 1; }
mv "$dir/merged" cmd/viaduct/default.pgo
echo "cmd/viaduct/default.pgo: of $n runs"
