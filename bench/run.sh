#!/bin/sh
# Measures what "viaduct run" costs: compares iperf3 and redis over SDP and with --same-host, and
# single system calls, with the same programs without viaduct run. Prints ratios of one run.
# Options: -rounds N, -record . (writes the results and the page). Needs iperf3 and redis; takes
# two minutes.
set -eu
cd "$(dirname "$0")/.."
exec go run ./interop/run -cost "$@"
