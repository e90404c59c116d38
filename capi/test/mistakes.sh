#!/usr/bin/env bash
# Checks that memcheck finds a deliberate mistake: capi/test/mistakes.sh MEMCHECK MISTAKES CASE. The
# report has to name the function of mistakes.c that makes the mistake. The case "none" must have no
# report.
set -uo pipefail
# samehost is off, so that messages go over TCP and their bytes are handed to system calls. The
# address is not that of the programs that run beside.
conf=$(mktemp)
trap 'rm -f "$conf"' EXIT
echo "/dev/via_lo -> vitcp address 127.0.0.9 samehost off" >"$conf"
out=$(VIPL_CONFIG=$conf "$1" "$2" /dev/via_lo "$3" 2>&1)
status=$?
if [ "$3" = none ]; then
	[ $status = 0 ] && exit 0
	echo "not ok: a program without a mistake is reported"
elif [ $status = 9 ] && grep -q "memcheck: *$3 (mistakes.c:" <<<"$out"; then
	exit 0
else
	echo "not ok: $3 is not reported, exit status $status"
fi
echo "$out"
exit 1
