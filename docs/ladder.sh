#!/bin/sh
# Makes the pictures of docs/ladder.md.
set -e
cd "$(dirname "$0")"
for x in vitcp-peer vitcp-rdma sdp-read-zcopy sdp-modes sdp-suspend fcvi-connect; do
	go run ../cmd/viaduct ladder --demo $x -o ladder/$x.svg
done
