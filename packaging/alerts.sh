#!/usr/bin/env bash
# Checks the alerts of packaging/prometheus and runs their tests. Needs promtool,
# which Debian has in the package prometheus.
set -euo pipefail
cd "$(dirname "$0")/prometheus"
command -v promtool >/dev/null || { echo "packaging/alerts.sh: SKIPPED: promtool is missing" >&2; exit 0; }
promtool check rules viaduct.rules.yml
promtool test rules viaduct.rules.test.yml
