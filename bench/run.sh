#!/bin/sh
# Measures what viaduct run costs: iperf3 and redis over SDP and by --same-host beside the
# same programs without it, and single calls, as ratios in one run. Options: -rounds N,
# -record . (into the results and the page). Needs iperf3 and redis; takes two minutes.
set -eu
cd "$(dirname "$0")/.."
exec go run ./interop/run -cost "$@"
