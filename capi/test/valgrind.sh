#!/usr/bin/env bash
# Runs a program under valgrind: capi/test/valgrind.sh PROGRAM ARGS... The Go half
# schedules goroutines, with stacks of their own, which valgrind takes for errors;
# capi/test/valgrind.supp leaves those out that lie wholly in there.
set -uo pipefail
exec valgrind -q --error-exitcode=9 --leak-check=no --max-stackframe=20000000 \
	--suppressions="$(dirname "$0")/valgrind.supp" "$@"
